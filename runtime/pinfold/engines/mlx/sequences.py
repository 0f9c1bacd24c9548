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

from pinfold.engines.mlx.caches import Opened

__all__ = ["Mark", "Piece", "Sequence"]

Array = Any
States = list[list[Array | None]]


@dataclass(frozen=True, slots=True)
class Piece:
    """The first `tokens` of K and V, [1, heads, cells, size], of each attention layer."""

    planes: tuple[tuple[Array, Array], ...]
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
            opened = self.make()
            if self.length:
                for number, cache in enumerate(opened.attention):
                    cache.keys = self._row(number, 0)
                    cache.values = self._row(number, 1)
                    cache.offset = self.length
            for recurrent, arrays in zip(opened.recurrent, self.states, strict=False):
                recurrent.cache = list(arrays)
            self.opened = opened
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
        planes = []
        for cache in self.opened.attention:
            pair = tuple(self.mx.contiguous(a[..., settled : self.length, :]) for a in (cache.keys, cache.values))
            self.mx.eval(pair)
            planes.append((pair[0], pair[1]))
        self.pieces.append(Piece(tuple(planes), self.length - settled))

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
                cache.offset = mark.length
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

    def plane(self, layer: int, which: int) -> Array:
        """K (0) or V (1) of an attention layer in one row, [1, heads, length, size]."""
        if self.opened is not None:
            cache = self.opened.attention[layer]
            held = cache.values if which else cache.keys
            return held[..., : self.length, :]
        return self._row(layer, which)

    def _row(self, layer: int, which: int) -> Array:
        parts = [piece.planes[layer][which][..., : piece.tokens, :] for piece in self.pieces]
        return parts[0] if len(parts) == 1 else self.mx.concatenate(parts, axis=2)


def _first(pieces: list[Piece], length: int) -> list[Piece]:
    kept: list[Piece] = []
    for piece in pieces:
        tokens = min(piece.tokens, length - sum(k.tokens for k in kept))
        if tokens > 0:
            kept.append(piece if tokens == piece.tokens else Piece(piece.planes, tokens))
    return kept
