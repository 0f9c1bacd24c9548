"""A command run in this process, on a Runtime that answers from a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pinfold.cli import app, opening
from pinfold.engines.base import Capabilities, Mode, ModelInfo
from pinfold.errors import ModelNotFoundError
from pinfold.results import CacheReport, Completion, Delta, Miss, Timings, ToolCall, Usage

CAPABILITIES = Capabilities(
    engine="llama.cpp",
    device="cpu",
    model=ModelInfo(
        "tiny", "llama", "id", 100, 2048, 30, "{{ messages }}", parameters=134_000_000, size_bytes=90 << 20
    ),
    n_ctx=2048,
    n_cells=8192,
    n_seq=64,
    trim="any",
    fingerprint="f" * 64,
    bytes_per_token=23040,
    modes=(Mode("snapshot", True, True, "byte-exact"), Mode("speculation", False, False, "not in this version")),
)
MISS = Miss("coder", "message", "message 1 (system)", 3, 40, "Message 1 differs from the pin 'coder'.")


@dataclass
class FakePin:
    name: str
    tokens: int = 40
    warning: str | None = None


@dataclass
class FakeRuntime(AbstractContextManager["FakeRuntime"]):
    """Answers with `pieces`, raising any exception that stands among them, and records what it was asked."""

    pieces: list[str | Delta | BaseException] = field(default_factory=lambda: ["Hel", "lo."])
    cache: CacheReport = field(default_factory=lambda: CacheReport("resident", 30))
    warning: str | None = None
    model: str = "tiny"
    capabilities: Capabilities = CAPABILITIES
    opened: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    asked: list[tuple[list[dict[str, Any]], dict[str, Any]]] = field(default_factory=list)
    pinned: list[tuple[str, list[dict[str, Any]], Any]] = field(default_factory=list)
    on_prefill: Callable[[], None] = lambda: None
    closed: bool = False

    def __exit__(self, *exc: object) -> None:
        self.closed = True

    def pin(self, messages: list[dict[str, Any]], tools: Any = None, *, name: str) -> FakePin:
        self.pinned.append((name, [*messages], tools))
        return FakePin(name, warning=self.warning)

    def chat(self, messages: list[dict[str, Any]], *, tools: Any = None, **generation: Any) -> Completion:
        self.asked.append(([*messages], {"tools": tools, **generation}))
        return self._completion("Hello.")

    def stream(self, messages: list[dict[str, Any]], **generation: Any) -> Iterator[Delta]:
        self.asked.append(([*messages], generation))
        self.on_prefill()
        text = ""
        calls: tuple[ToolCall, ...] = ()
        for piece in self.pieces:
            if isinstance(piece, BaseException):
                raise piece
            delta = Delta(piece) if isinstance(piece, str) else piece
            text, calls = text + delta.text, calls + delta.tool_calls
            yield delta
        yield Delta(done=replace(self._completion(text), tool_calls=calls))

    def _completion(self, text: str) -> Completion:
        usage = Usage(prompt_tokens=40, cached_tokens=self.cache.cached_tokens, completion_tokens=2)
        timings = Timings(ttft_s=0.25, decode_tps=31.4)
        return Completion(text, model="tiny", usage=usage, cache=self.cache, timings=timings)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    """The Runtime that every command of the test opens; the model "gone" is one that cannot be found."""
    fake = FakeRuntime()

    def new_runtime(model: str, **options: Any) -> FakeRuntime:
        fake.opened.append((model, options))
        if model == "gone":
            msg = "There is no model 'gone'.\nPass the path of a [file]."
            raise ModelNotFoundError(msg)
        return fake

    monkeypatch.setattr(opening, "new_runtime", new_runtime)
    return fake


@pytest.fixture
def missed() -> CacheReport:
    """The report of a prompt that parted from its pin."""
    return replace(CacheReport(), miss=MISS)


@pytest.fixture
def run() -> Callable[..., Result]:
    """Runs the command with these arguments; stdin is no terminal."""

    def run(*args: str, stdin: str = "") -> Result:
        return CliRunner().invoke(app, list(args), input=stdin, env={"COLUMNS": "160"})

    return run
