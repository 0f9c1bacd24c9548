"""Undoing what a position did to a key, and doing it again. Arrays are channel-major, [heads, size, tokens]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pinfold.kv.snapshot import Heads, Rope

__all__ = ["Turn", "fits"]

# What a rope can be: beyond these, angles would be no numbers.
_BASES = (1.0, 1e12)
_SCALES = (1e-6, 1e6)


def fits(heads: Heads) -> bool:
    """Whether keys of these heads can be turned: their rope is not known, or describes turns that there can be."""
    rope = heads.rope
    return rope is None or (
        _BASES[0] <= rope.base <= _BASES[1]
        and _SCALES[0] <= rope.scale <= _SCALES[1]
        and 0 < rope.width <= heads.k_size
        and rope.width % 2 == 0
    )


class Turn:
    """The turns of one rope at given positions (int32 [tokens]); built once for all layers.

    Whether the description of the rope is right matters for how well keys compress only: undoing and doing are inverse
    for any description.
    """

    def __init__(self, rope: Rope, positions: NDArray[np.int32]) -> None:
        half = rope.width // 2
        angles = np.outer(rope.base ** (-np.arange(half) / half), positions.astype(np.float64) * rope.scale)
        self._cos = np.cos(angles).astype(np.float32)
        self._sin = np.sin(angles).astype(np.float32)
        self._first = slice(0, half) if rope.halves else slice(0, 2 * half, 2)
        self._second = slice(half, 2 * half) if rope.halves else slice(1, 2 * half, 2)

    def do(self, keys: NDArray[np.float32]) -> None:
        """Turns `keys` in place."""
        self._turn(keys, self._sin)

    def undo(self, keys: NDArray[np.float32]) -> None:
        """Turns `keys` back in place."""
        self._turn(keys, -self._sin)

    def part(self, tokens: slice) -> Turn:
        """The same for some of the tokens."""
        part = object.__new__(Turn)
        part._cos, part._sin = self._cos[:, tokens], self._sin[:, tokens]
        part._first, part._second = self._first, self._second
        return part

    def _turn(self, keys: NDArray[np.float32], sin: NDArray[np.float32]) -> None:
        a, b = keys[:, self._first], keys[:, self._second]
        turned = a * self._cos
        turned -= b * sin
        b *= self._cos
        b += a * sin
        a[...] = turned
