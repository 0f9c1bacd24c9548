"""The runtimes that take the same turns: given a conversation and its prompt's tokens, each says how long it took.

All of them: greedy, f16 KV, flash attention, the same number of threads.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bare import BareLlama

from pinfold import Runtime

__all__ = ["ApartPeer", "BarePeer", "LlamaCppPythonPeer", "LlamaServerPeer", "Peer", "PinfoldPeer", "Turn"]

Messages = Sequence[dict[str, str]]
_SERVER_START_S = 120


@dataclass(frozen=True)
class Turn:
    """One answer.

    Attributes:
        ttft_s: seconds from the call to the first piece of text, by the caller's clock.
        computed: prompt tokens that were computed.
        engine_s: seconds of `ttft_s` that the peer itself counts as prefill, where it says so.
    """

    text: str
    ttft_s: float
    computed: int
    engine_s: float | None = None


class Peer(Protocol):
    """A runtime under test. `agent` numbers the conversation from 0; `tokens` is what `messages` render to."""

    name: str

    def turn(self, agent: int, messages: Messages, tokens: Sequence[int]) -> Turn: ...

    def close(self) -> None: ...


class PinfoldPeer:
    """Pinfold through its front door: messages in, a stream out. Templating and tokenizing are in its time."""

    def __init__(self, name: str, runtime: Runtime, answer: int) -> None:
        self.name = name
        self._runtime = runtime
        self._answer = answer

    def turn(self, agent: int, messages: Messages, tokens: Sequence[int]) -> Turn:
        began = time.perf_counter()
        ttft = 0.0
        done = None
        for delta in self._runtime.stream(messages, max_tokens=self._answer):
            ttft = ttft or time.perf_counter() - began
            done = delta.done
        if done is None:
            msg = "the stream ended without an answer"
            raise SystemExit(msg)
        return Turn(done.text, ttft, done.usage.prompt_tokens - done.usage.cached_tokens, done.timings.prefill_s)

    def close(self) -> None:
        self._runtime.close()


class LlamaCppPythonPeer:
    """llama-cpp-python's `Llama`, with or without its RAM cache."""

    def __init__(self, name: str, path: Path, *, threads: int, n_ctx: int, cache: bool, answer: int) -> None:
        from llama_cpp import Llama, LlamaRAMCache

        self.name = name
        self._answer = answer
        self._llama = Llama(
            str(path), n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False
        )
        if cache:
            self._llama.set_cache(LlamaRAMCache())
        self._computed = 0
        self._eval = self._llama.eval
        self._llama.eval = self._counting_eval

    def turn(self, agent: int, messages: Messages, tokens: Sequence[int]) -> Turn:
        self._computed = 0
        computed = 0
        ttft = 0.0
        text = []
        began = time.perf_counter()
        for chunk in self._llama.create_completion(
            list(tokens), max_tokens=self._answer, temperature=0.0, repeat_penalty=1.0, stream=True
        ):
            if not ttft:
                ttft, computed = time.perf_counter() - began, self._computed
            text.append(chunk["choices"][0]["text"])
        return Turn("".join(text), ttft, computed)

    def close(self) -> None:
        self._llama.close()

    def _counting_eval(self, tokens: Sequence[int]) -> None:
        self._computed += len(tokens)
        self._eval(tokens)


class LlamaServerPeer:
    """llama-server over HTTP on the loopback, a slot for each agent."""

    def __init__(self, name: str, path: Path, *, threads: int, n_ctx: int, slots: int, answer: int) -> None:
        self.name = name
        self._answer = answer
        script = str(Path(__file__).with_name("llama_server.py"))
        options = ["--threads", str(threads), "--slots", str(slots), "--n-ctx", str(n_ctx)]
        self._process = subprocess.Popen(
            [sys.executable, script, str(path), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        host, port = self._address().removeprefix("http://").rstrip("/").rsplit(":", 1)
        self._connection = http.client.HTTPConnection(host, int(port), timeout=_SERVER_START_S)

    def turn(self, agent: int, messages: Messages, tokens: Sequence[int]) -> Turn:
        body = json.dumps(
            {
                "prompt": list(tokens),
                "n_predict": self._answer,
                "temperature": 0.0,
                "cache_prompt": True,
                "stream": True,
            }
        )
        ttft = 0.0
        text = []
        last: dict[str, Any] = {}
        self._connection.connect()  # the server closes it after a stream; a connection costs nothing here
        began = time.perf_counter()
        self._connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
        for last in self._events():
            ttft = ttft or time.perf_counter() - began
            text.append(last.get("content", ""))
        self._connection.close()
        timings = last["timings"]
        return Turn("".join(text), ttft, timings["prompt_n"], timings["prompt_ms"] / 1e3)

    def close(self) -> None:
        self._connection.close()
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(timeout=_SERVER_START_S)

    def _events(self) -> Iterator[dict[str, Any]]:
        response = self._connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            msg = f"llama-server answered {response.status}: {response.read()[:500]!r}"
            raise SystemExit(msg)
        for line in response:
            kind, _, data = line.partition(b": ")
            if kind == b"data" and data.startswith(b"{"):
                yield json.loads(data)

    def _address(self) -> str:
        for line in self._process.stdout or ():
            if line.startswith("{"):
                return str(json.loads(line)["address"])
        msg = f"llama-server did not start (exit code {self._process.wait()}). Is xllamacpp installed?"
        raise SystemExit(msg)


class ApartPeer:
    """A peer in a process of its own, which `make(*arguments)` opens there.

    Where several threads of one process have driven llama.cpp, OpenMP sees more threads than cores, lets none of them
    spin, and every forward takes about one and a half times as long. So no two peers may share a process.
    """

    def __init__(self, name: str, make: Callable[..., Peer], *arguments: object) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._process = ProcessPoolExecutor(1, mp_context=context, initializer=_open, initargs=(make, arguments))

    def turn(self, agent: int, messages: Messages, tokens: Sequence[int]) -> Turn:
        return self._process.submit(_turn, agent, messages, tokens).result()

    def close(self) -> None:
        self._process.shutdown(cancel_futures=True)


_opened: list[Peer] = []


def _open(make: Callable[..., Peer], arguments: Sequence[object]) -> None:
    _opened.append(make(*arguments))


def _turn(agent: int, messages: Messages, tokens: Sequence[int]) -> Turn:
    return _opened[0].turn(agent, messages, tokens)


class BarePeer:
    """The new tokens computed on top of the kept prefix, and nothing else: the time that no runtime can go below."""

    def __init__(self, name: str, bare: BareLlama, answer: int) -> None:
        self.name = name
        self._bare = bare
        self._answer = answer
        self._held: dict[int, list[int]] = {}

    def turn(self, agent: int, messages: Messages, tokens: Sequence[int]) -> Turn:
        held = self._held.get(agent, [])
        kept = min(common_prefix(held, tokens), len(tokens) - 1)
        self._bare.cut(agent, kept)
        began = time.perf_counter()
        token = self._bare.evaluate(agent, kept, tokens[kept:])
        ttft = time.perf_counter() - began
        answer: list[int] = []
        held = list(tokens)
        while token not in self._bare.end_tokens:
            answer.append(token)
            if len(answer) == self._answer:
                break
            held.append(token)
            token = self._bare.evaluate(agent, len(held) - 1, [token])
        self._held[agent] = held
        return Turn(self._bare.text(answer), ttft, len(tokens) - kept, ttft)

    def close(self) -> None:
        self._bare.close()


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that `a` and `b` share from the first one on."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
