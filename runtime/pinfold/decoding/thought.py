"""The reasoning of one request while it is generated: counted, and ended once its budget is used up."""

from __future__ import annotations

from collections import deque

from pinfold.decoding.job import ReasoningLimit
from pinfold.output.reasoning import ReasoningMeter

__all__ = ["Thought"]


class Thought:
    """Counts on tokens, not on text made into tokens again. The budget is each block's."""

    def __init__(self, limit: ReasoningLimit) -> None:
        self._meter = ReasoningMeter(limit.reasoning)
        self._limit = limit
        self._before = 0  # tokens of the blocks before this one
        self._ending: deque[int] = deque()

    @property
    def tokens(self) -> int:
        """Tokens of reasoning so far."""
        return self._meter.tokens

    def feed(self, text: str) -> None:
        """One more token was generated; `text` is what it completes."""
        self._meter.feed(text)
        if not self._meter.is_open:
            self._before = self._meter.tokens

    def next_of_ending(self) -> int | None:
        """The token that must come next to close a block whose budget is used up; None where any may."""
        budget, used = self._limit.budget, self._meter.tokens - self._before
        if budget is not None and self._meter.is_open and used >= budget and not self._ending:
            self._ending.extend(self._limit.ending)
        return self._ending.popleft() if self._ending else None
