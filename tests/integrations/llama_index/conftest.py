"""A runtime that answers from a script, and a Pinfold on top of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import llama_index.core
import pytest
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from pydantic import Field

from llama_index.llms.pinfold import Pinfold
from pinfold.results import CacheReport, Completion, Delta, ToolCall, Usage

USAGE = Usage(prompt_tokens=40, cached_tokens=30, cache_creation_tokens=5, completion_tokens=7, reasoning_tokens=2)


@dataclass
class FakeRuntime:
    """Answers with `answers` in turn (an exception among them is raised) and keeps every request."""

    answers: list[Completion | Exception] = field(default_factory=list)
    requests: list[SimpleNamespace] = field(default_factory=list)
    stopped: int = 0
    model: str = "fake"
    n_ctx: int = 512

    def _take(self, way: str, prompt: Any, arguments: dict[str, Any]) -> Completion:
        self.requests.append(SimpleNamespace(way=way, prompt=prompt, arguments=arguments))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _whole(way: str) -> Any:  # noqa: N805 -- builds methods
        def ask(self: FakeRuntime, prompt: Any, **arguments: Any) -> Completion:
            return self._take(way, prompt, arguments)

        return ask

    def _awhole(way: str) -> Any:  # noqa: N805
        async def ask(self: FakeRuntime, prompt: Any, **arguments: Any) -> Completion:
            return self._take(way, prompt, arguments)

        return ask

    def _stream(way: str) -> Any:  # noqa: N805
        def ask(self: FakeRuntime, prompt: Any, **arguments: Any) -> Generator[Delta, None, None]:
            with self._counting_stops():
                yield from pieces(self._take(way, prompt, arguments))

        return ask

    def _astream(way: str) -> Any:  # noqa: N805
        async def ask(self: FakeRuntime, prompt: Any, **arguments: Any) -> AsyncGenerator[Delta, None]:
            with self._counting_stops():
                for delta in pieces(self._take(way, prompt, arguments)):
                    yield delta

        return ask

    chat, complete = _whole("chat"), _whole("complete")
    achat, acomplete = _awhole("achat"), _awhole("acomplete")
    stream, stream_complete = _stream("stream"), _stream("stream_complete")
    astream, astream_complete = _astream("astream"), _astream("astream_complete")

    @contextmanager
    def _counting_stops(self) -> Iterator[None]:
        try:
            yield
        except GeneratorExit:
            self.stopped += 1
            raise

    def pin(self, messages: Any, tools: Any = None, **arguments: Any) -> Any:
        self.requests.append(SimpleNamespace(way="pin", prompt=messages, arguments={"tools": tools, **arguments}))
        return SimpleNamespace(name=arguments["name"])

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())


def pieces(done: Completion) -> Iterator[Delta]:
    """The answer in small deltas: reasoning, text, each call, the end."""
    yield from (Delta(reasoning=done.reasoning[i : i + 3]) for i in range(0, len(done.reasoning), 3))
    yield from (Delta(text=done.text[i : i + 3]) for i in range(0, len(done.text), 3))
    yield Delta()
    yield from (Delta(tool_calls=(call,)) for call in done.tool_calls)
    yield Delta(invalid_tool_calls=done.invalid_tool_calls, done=done)


def completion(text: str = "", **fields: Any) -> Completion:
    cache = CacheReport(hit_kind="resident", cached_tokens=30, source="coder")
    return Completion(**{"text": text, "model": "fake", "usage": USAGE, "cache": cache, **fields})


def tool_call(name: str, /, call_id: str = "call_1", **arguments: Any) -> Completion:
    return completion(tool_calls=(ToolCall(call_id, name, arguments),), finish_reason="tool_calls")


@pytest.fixture(autouse=True)
def no_tokenizer_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh process."""
    monkeypatch.setattr(llama_index.core, "global_tokenizer", None)


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def llm(runtime: FakeRuntime) -> Pinfold:
    return Pinfold(runtime=runtime)


@pytest.fixture
def answer() -> SimpleNamespace:
    """Makers of answers: `text(...)` and `call(name, **arguments)`."""
    return SimpleNamespace(text=completion, call=tool_call)


class Recorder(BaseEventHandler):
    seen: list[Any] = Field(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        return "Recorder"

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.seen.append(event)


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """Every instrumentation event of the test, in order."""
    handler = Recorder()
    root = get_dispatcher()
    root.add_event_handler(handler)
    yield handler.seen
    root.event_handlers.remove(handler)
