"""The runtimes that draft from the prompt: each answers a turn plainly or with drafts, and says how fast it decoded."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from pinfold.bench.workloads import Turn

__all__ = ["DraftPeer", "LookupPeer", "ServerPeer"]

_START_S = 120


class DraftPeer(Protocol):
    """`speed` answers the turns and returns tokens a second, prefill left out, and what was answered."""

    def speed(self, turns: Sequence[Turn]) -> tuple[float, list[str]]: ...

    def close(self) -> None: ...


class ServerPeer:
    """llama-server, plainly or with one of its n-gram modes; its own figures."""

    def __init__(self, path: Path, *, threads: int, n_ctx: int, draft: str | None) -> None:
        script = str(Path(__file__).with_name("llama_server.py"))
        options = ["--threads", str(threads), "--slots", "1", "--n-ctx", str(n_ctx)]
        options += ["--draft", draft] if draft else []
        self._process = subprocess.Popen(
            [sys.executable, script, str(path), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        line = self._process.stdout.readline() if self._process.stdout else ""
        host, port = json.loads(line)["address"].removeprefix("http://").rstrip("/").rsplit(":", 1)
        self._address = host, int(port)

    def speed(self, turns: Sequence[Turn]) -> tuple[float, list[str]]:
        tokens, seconds, texts = 0, 0.0, []
        for turn in turns:
            answer = self._ask(turn)
            message, timings = answer["choices"][0]["message"], answer["timings"]
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            texts.append(json.dumps([message.get("content"), calls]))
            tokens += timings["predicted_n"] - 1
            seconds += timings["predicted_ms"] / 1e3
        return tokens / max(seconds, 1e-9), texts

    def close(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(timeout=_START_S)
        if self._process.stdout:
            self._process.stdout.close()

    def _ask(self, turn: Turn) -> Any:
        body = {
            "messages": turn.messages,
            "max_tokens": turn.max_tokens,
            "temperature": 0.0,
            "cache_prompt": True,
            "repeat_penalty": 1.0,
            **turn.options,
        }
        with closing(http.client.HTTPConnection(*self._address, timeout=_START_S)) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        if response.status != http.client.OK:
            raise SystemExit(f"llama-server: {response.status} {text[:300]!r}")
        return json.loads(text)


class LookupPeer:
    """llama-cpp-python's `Llama`, plainly or with its prompt lookup; by the clock, from the first piece to the last."""

    def __init__(self, path: Path, *, threads: int, n_ctx: int, draft: bool) -> None:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        self._llama = Llama(
            str(path),
            n_ctx=n_ctx,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=True,
            verbose=False,
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10) if draft else None,
        )

    def speed(self, turns: Sequence[Turn]) -> tuple[float, list[str]]:
        tokens, seconds, texts = 0, 0.0, []
        for turn in turns:
            began, count, last = 0.0, 0, 0.0
            pieces = []
            for chunk in self._llama.create_chat_completion(
                turn.messages,
                max_tokens=turn.max_tokens,
                temperature=0.0,
                repeat_penalty=1.0,
                stream=True,
                response_format=_response_format(turn),
            ):
                last = time.perf_counter()
                began, count = began or last, count + 1
                pieces.append(chunk["choices"][0]["delta"].get("content") or "")
            texts.append("".join(pieces))
            tokens += max(count - 3, 1)  # a piece opens the answer and one ends it
            seconds += last - began
        return tokens / max(seconds, 1e-9), texts

    def close(self) -> None:
        self._llama.close()


def _response_format(turn: Turn) -> Any:
    """The calls as a schema: this chat format has no tools."""
    if "tools" not in turn.options:
        return None
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["function"]["name"]}, "arguments": tool["function"]["parameters"]},
            "required": ["name", "arguments"],
        }
        for tool in turn.options["tools"]
    ]
    return {"type": "json_object", "schema": {"oneOf": calls}}
