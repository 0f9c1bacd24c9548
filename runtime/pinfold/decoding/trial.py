"""Measures what forwards of several rows cost, while nothing else runs."""

from __future__ import annotations

import time
from collections import deque

from pinfold.decoding.costs import ForwardCosts
from pinfold.engines.base import Engine, ForwardInterrupted, Span
from pinfold.errors import PinfoldError
from pinfold.sessions.space import KVSpace

__all__ = ["CostTrial"]

_SIZES = (1, 2, 4, 8, 16, 32)
# The first forward of a size may build a graph or a kernel; it is not counted.
_REPEATS = 3


class CostTrial:
    """One forward for each `step`, on a sequence of its own in cells that are free; nothing is given up for it."""

    def __init__(self, engine: Engine, space: KVSpace, costs: ForwardCosts) -> None:
        self._engine = engine
        self._space = space
        self._costs = costs
        self._best: dict[int, float] = {}
        self._left = deque(size for size in _SIZES if size <= engine.max_rows for _ in range(_REPEATS))

    @property
    def over(self) -> bool:
        """Whether nothing is left to measure."""
        return not self._left

    def step(self) -> None:
        """One forward; one that a request interrupts is made again later, and a failed one ends the trial."""
        rows = self._left[0]
        if self._engine.free_cells() < rows:
            self._left.clear()
            return
        try:
            seconds = self._time(rows)
        except ForwardInterrupted:
            return
        except PinfoldError:
            self._left.clear()
            return
        self._left.popleft()
        self._best[rows] = min(seconds, self._best.get(rows, seconds))
        if self.over or self._left[0] != rows:
            self._costs.learn(rows, self._best[rows])

    def _time(self, rows: int) -> float:
        seq = self._space.new_seq()
        try:
            began = time.perf_counter()
            self._engine.forward([Span(seq, 0, [0] * rows, "all")])
            return time.perf_counter() - began
        finally:
            self._space.abandon(seq)
