"""What a layer of packed cells takes as bytes. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

from pinfold.engines.mlx.kv_types import Steps

__all__ = ["PackedLayer"]

_WORD = 4


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One layer: its place among all attention layers, its heads, and how K and V are packed. `cell` is the bytes of a
    whole channel, and of a step or an offset."""

    layer: int
    heads: int
    k_size: int
    v_size: int
    k: Steps
    v: Steps
    rotated: bool
    cell: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token, packed."""
        return sum(heads * width for heads, width in self._widths())

    @property
    def whole_bytes(self) -> int:
        """Bytes of one token, whole."""
        return self.heads * (self.k_size + self.v_size) * self.cell

    def sizes(self, packed: int, whole: int) -> list[int]:
        """Bytes of each array: codes, steps, offsets of K, the same of V, then whole K and V; none of 0 tokens."""
        sizes = [packed * heads * width for heads, width in self._widths()] if packed else []
        return sizes + ([whole * self.heads * n * self.cell for n in (self.k_size, self.v_size)] if whole else [])

    def _widths(self) -> list[tuple[int, int]]:
        found = []
        for size, steps in ((self.k_size, self.k), (self.v_size, self.v)):
            each = (self.heads, size // steps.group * self.cell)
            found += [(self.heads, size * steps.bits // (8 * _WORD) * _WORD), each, each]
        return found
