"""A Runtime that gives the answers it is told to, faults included, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pinfold import Runtime, shared_runtime
from pinfold.results import Completion, Delta


class FakeRuntime:
    """Answers in order with `answers`; an exception among them is raised in its place."""

    model = "fake"
    n_ctx = 512
    capabilities = SimpleNamespace(engine="fake", fingerprint="fake")

    def __init__(self, *answers: Completion | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.closed_early = 0

    def chat(self, **request: Any) -> Completion:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def achat(self, **request: Any) -> Completion:
        return self.chat(**request)

    def stream(self, **request: Any) -> Generator[Delta, None, None]:
        deltas = _deltas(self.chat(**request))
        try:
            yield from deltas
        except GeneratorExit:
            self.closed_early += 1
            raise

    async def astream(self, **request: Any) -> AsyncGenerator[Delta, None]:
        try:
            for delta in _deltas(self.chat(**request)):
                yield delta
        except GeneratorExit:
            self.closed_early += 1
            raise

    complete, acomplete, stream_complete, astream_complete = chat, achat, stream, astream


def _deltas(done: Completion) -> Iterator[Delta]:
    for letter in done.reasoning:
        yield Delta(reasoning=letter)
    for letter in done.text:
        yield Delta(text=letter)
    if done.tool_calls or done.invalid_tool_calls:
        yield Delta(tool_calls=done.tool_calls, invalid_tool_calls=done.invalid_tool_calls)
    yield Delta(done=done)


@pytest.fixture
def fake() -> type[FakeRuntime]:
    """The class: call it with the answers to give."""
    return FakeRuntime


@pytest.fixture(scope="session")
def embedded() -> Runtime:
    """The embedded model with a small context, shared by all tests."""
    return shared_runtime("smollm2", n_ctx=2048)
