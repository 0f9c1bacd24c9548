"""What a forward of so many rows costs beside one of a single row."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from statistics import median

__all__ = ["MOST_ROWS", "POINTS", "ForwardCosts"]

MOST_ROWS = 64
"""Most rows that a forward with drafts has."""

POINTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MOST_ROWS)
"""Sizes that are measured, and that drafts fill a forward up to."""
# Before anything was measured, by kind of device: what the points cost beside one row.
_ON_CPU = (1.0, 1.45, 1.9, 2.3, 3.1, 3.9, 4.5, 5.0, 6.6, 8.2, 11.4, 14.6)
_ELSEWHERE = (1.0, 1.05, 1.1, 1.15, 1.25, 1.35, 1.5, 1.6, 1.9, 2.2, 2.8, 3.4)
_KEPT = 7
# Forwards after which the table is made anew.
_REFRESH = 16


class ForwardCosts:
    """Learnt from the forwards that run; where none of a size ran yet, its neighbours and a curve stand in.

    Args:
        device: as `Capabilities.device`.
        known: seconds by rows, from an earlier process.
    """

    def __init__(self, device: str, known: Mapping[int, float] | None = None) -> None:
        self._curve = _ON_CPU if device == "cpu" else _ELSEWHERE
        self._seen: dict[int, deque[float]] = {
            rows: deque([seconds], maxlen=_KEPT) for rows, seconds in (known or {}).items() if rows in POINTS
        }
        self._table: list[float] = []
        self._least: dict[tuple[int, float], float] = {}
        self._learnt = 0

    def learn(self, rows: int, seconds: float) -> None:
        """A forward of `rows` rows and nothing else took so long. Sizes between two points are left out."""
        if rows not in POINTS:
            return
        self._learnt += 1
        if rows not in self._seen or self._learnt % _REFRESH == 0:
            self._table = []
            self._seen.setdefault(rows, deque(maxlen=_KEPT))
        self._seen[rows].append(seconds)

    def seconds(self, rows: int) -> float:
        """What a forward of `rows` rows takes; past the last point as long as that for each row."""
        table = self._table or self._make_table()
        return table[rows] if rows <= MOST_ROWS else table[-1] * rows / MOST_ROWS

    def least_chance(self, rows: int, gain: float) -> float:
        """The chance of a guess's first token below which it cannot pay `gain` times, were the others certain.

        Above 1 where even a guess that is certain does not pay.
        """
        table = self._table or self._make_table()
        if (rows, gain) not in self._least:
            alone = self.seconds(rows)
            worth = ((gain * table[size] / alone - 1) * rows / (size - rows) for size in range(rows + 1, MOST_ROWS + 1))
            self._least[rows, gain] = min(worth, default=2.0)
        return self._least[rows, gain]

    def known(self) -> dict[int, float]:
        """Seconds by rows, for a later process."""
        return {rows: median(seen) for rows, seen in sorted(self._seen.items())}

    def _make_table(self) -> list[float]:
        """Seconds by rows: measured, or the curve stretched as at the nearest measured point; never falling."""
        seen = (median(self._seen[p]) / c if p in self._seen else 0.0 for p, c in zip(POINTS, self._curve, strict=True))
        seconds = [stretch * cost for stretch, cost in zip(_fill([*seen]), self._curve, strict=True)]
        points = list(zip(POINTS, accumulate(seconds, max), strict=True))
        table = [0.0, points[0][1]]
        for (low, before), (high, after) in pairwise(points):
            table += [before + (after - before) * (rows - low) / (high - low) for rows in range(low + 1, high + 1)]
        self._table, self._least = table, {}
        return table


def _fill(scale: Sequence[float]) -> list[float]:
    """Puts the nearest known value in place of each 0; all 1 where none is known."""
    known = [place for place, value in enumerate(scale) if value]
    if not known:
        return [1.0] * len(scale)
    return [scale[min(known, key=lambda k: abs(k - place))] for place in range(len(scale))]
