"""Sequences over pieces that they share.

A piece is K and V of some tokens, never written to once it is there. A fork holds the same pieces. A sequence that is
computed has them in one row in caches of its own, which are put back into pieces when others are computed: what it
shared stays shared, and only what it added becomes a piece. So memory at rest is what the cells say, and
each sequence in the forward that runs costs its whole length once more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pinfold.engines.mlx.caches import Opened, WholeCells
from pinfold.engines.mlx.packed import PackedCells

__all__ = ["Cells", "Mark", "Piece", "Sequence"]

Array = Any
Cells = WholeCells | PackedCells
States = list[list[Array | None]]


@dataclass(frozen=True, slots=True)
class Piece:
    """The first `tokens` of the cells of each attention layer."""

    layers: tuple[Cells, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a sequence was, so that it can go back there."""

    length: int
    states: States


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence. `states` are its recurrent arrays at `length`; `opened` its caches while it is computed."""

    mx: Any
    make: Callable[[], Opened]
    length: int = 0
    pieces: list[Piece] = field(default_factory=list)
    states: States = field(default_factory=list)
    opened: Opened | None = None

    def open(self) -> Opened:
        """Its caches, all pieces in one row."""
        if self.opened is None:
            self.opened = self._filled()
        return self.opened

    def added(self, count: int) -> None:
        """`count` tokens were computed in its caches."""
        self.length += count
        if self.opened is not None:
            self.states = [list(recurrent.cache) for recurrent in self.opened.recurrent]

    def settle(self) -> None:
        """What the caches hold beyond the pieces becomes a piece; the caches stay."""
        settled = sum(piece.tokens for piece in self.pieces)
        if self.opened is None or settled == self.length:
            return
        layers = []
        for cache in self.opened.attention:
            layers.append(cache.part(settled, self.length))
            self.mx.eval(layers[-1].arrays())
        self.pieces.append(Piece(tuple(layers), self.length - settled))

    def rest(self) -> None:
        """Gives its caches up, keeping the pieces."""
        if self.opened is not None:
            self.settle()
            self.opened = None

    def mark(self) -> Mark:
        """Where it is now."""
        return Mark(self.length, self.states)

    def back(self, mark: Mark) -> None:
        """Goes back to a mark made since it was opened last."""
        self.length, self.states = mark.length, mark.states
        if self.opened is not None:
            for cache in self.opened.attention:
                cache.cut(mark.length)
            empty: list[Array | None] = []
            for number, recurrent in enumerate(self.opened.recurrent):
                held = mark.states[number] if mark.states else empty
                recurrent.cache = list(held) or [None] * len(recurrent.cache)

    def rewind(self, mark: Mark) -> None:
        """As `back`, also where some of what came since is in pieces."""
        self.pieces = _first(self.pieces, mark.length)
        self.back(mark)

    def cut(self, length: int) -> None:
        """Keeps the first `length` tokens. For models without recurrent state."""
        self.rewind(Mark(length, self.states))

    def share(self, length: int) -> Sequence:
        """A sequence that begins with the first `length` tokens of this one."""
        self.settle()
        return Sequence(self.mx, self.make, length, _first(self.pieces, length), self.states)

    def cells(self) -> list[Cells]:
        """Those of each attention layer in one row."""
        opened = self.opened or self._filled()
        return [cache.part(0, self.length) for cache in opened.attention]

    def _filled(self) -> Opened:
        opened = self.make()
        if self.length:
            for number, cache in enumerate(opened.attention):
                cache.fill([piece.layers[number].first(piece.tokens) for piece in self.pieces])
        for recurrent, arrays in zip(opened.recurrent, self.states, strict=False):
            recurrent.cache = list(arrays)
        return opened


def _first(pieces: list[Piece], length: int) -> list[Piece]:
    kept: list[Piece] = []
    for piece in pieces:
        tokens = min(piece.tokens, length - sum(k.tokens for k in kept))
        if tokens > 0:
            kept.append(piece if tokens == piece.tokens else Piece(piece.layers, tokens))
    return kept
