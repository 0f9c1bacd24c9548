"""A scripted engine that counts what it evaluates and can be told to fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pinfold.engines.base import Span
from pinfold.engines.script import Script
from pinfold.engines.scripted import ScriptedEngine
from pinfold.options import RuntimeOptions


class WatchedEngine(ScriptedEngine):
    """`forwards` holds the spans of every forward; `fault`, if set, is called before each and may raise."""

    def __init__(self, script: Script | None = None, **options: Any) -> None:
        super().__init__(script or Script(), RuntimeOptions.parse(options))
        self.forwards: list[list[Span]] = []
        self.fault: Callable[[Sequence[Span]], None] | None = None

    def forward(self, spans: Sequence[Span]) -> Any:
        if self.fault is not None:
            self.fault(spans)
        self.forwards.append(list(spans))
        return super().forward(spans)

    @property
    def evaluated(self) -> int:
        """Tokens evaluated in all."""
        return sum(len(span.tokens) for spans in self.forwards for span in spans)


class Sink:
    """Keeps the events of a job."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def put(self, event: Any) -> None:
        self.events.append(event)

    @property
    def last(self) -> Any:
        return self.events[-1]
