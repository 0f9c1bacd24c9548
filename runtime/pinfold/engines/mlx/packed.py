"""A cache of packed cells: keys and values with bits of their own, and the newest tokens whole.

Each token's row of a head is packed by itself, so what was packed depends on no other token, nor on when it was done: a
sequence in pieces, once joined, has the bits of one that was computed straight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pinfold.engines.mlx.arrays import causal_mask, grown
from pinfold.engines.mlx.kv_types import Steps

__all__ = ["BLOCK", "TAIL", "Packed", "PackedCache", "PackedCells", "Packing"]

Array = Any
Packed = tuple[Array, Array, Array]
"""Codes, steps and offsets, each [1, heads, cells, ...]."""

TAIL = 64
"""Newest tokens that stay whole: guesses that are taken back were never packed."""
BLOCK = 64
_STEP = 256


@dataclass(frozen=True, slots=True)
class Packing:
    """How one layer's cells are packed. `cells` is the type of whole cells and of steps and offsets; `fused` attends to
    them by a kernel of our own where there is one."""

    mx: Any
    k: Steps
    v: Steps
    rotated: bool
    cells: Any
    fused: Any = None

    def pack(self, keys: Array, values: Array) -> tuple[Packed, Packed]:
        """Whole cells [1, heads, tokens, size], rotated if they are to be, as packed ones."""
        return self._quantize(keys, self.k), self._quantize(values, self.v)

    def unpack(self, keys: Packed, values: Packed, kind: Any) -> tuple[Array, Array]:
        """The whole cells of type `kind` that packed ones stand for, still rotated."""
        return self._dequantize(keys, self.k, kind), self._dequantize(values, self.v, kind)

    def turn(self, array: Array) -> Array:
        """Mixes the channels of each row where that is asked for; its own inverse."""
        return self.mx.hadamard_transform(array) if self.rotated else array

    def _quantize(self, array: Array, steps: Steps) -> Packed:
        codes, scales, offsets = self.mx.quantize(array.astype(self.cells), group_size=steps.group, bits=steps.bits)
        return codes, scales, offsets

    def _dequantize(self, packed: Packed, steps: Steps, kind: Any) -> Array:
        codes, scales, offsets = packed
        return self.mx.dequantize(
            codes, scales.astype(kind), offsets.astype(kind), group_size=steps.group, bits=steps.bits
        )


@dataclass(frozen=True, slots=True)
class PackedCells:
    """Some tokens of a layer: the first `packed` of them packed, the `whole` ones after them in K and V of cells."""

    packed: int
    whole: int
    k: Packed | None
    v: Packed | None
    keys: Array
    values: Array
    packing: Packing

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the keys, were they whole: models cut their masks to it."""
        batch, heads, _, size = self.keys.shape
        return (batch, heads, self.packed + self.whole, size)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self.arrays())

    def arrays(self) -> list[Array]:
        """Those that there are, in order: K packed, V packed, K whole, V whole."""
        return [*(self.k or ()), *(self.v or ()), *((self.keys, self.values) if self.whole else ())]

    def first(self, tokens: int) -> PackedCells:
        """The first `tokens` of them."""
        packed = min(self.packed, tokens)
        whole = tokens - packed
        k, v = (None if part is None or not packed else _cut(part, 0, packed) for part in (self.k, self.v))
        return PackedCells(packed, whole, k, v, self.keys[..., :whole, :], self.values[..., :whole, :], self.packing)


@dataclass(frozen=True, slots=True)
class _Folded:
    """What the last fold packed, at length `at`, still whole: the tokens from `start` on."""

    start: int
    at: int
    keys: Array
    values: Array


class PackedCache:
    """K and V of one layer of one sequence: `packed` tokens packed, the rest up to `offset` whole.

    How many are packed follows from the length alone, also after a cut to where the last fold had not yet come, so that
    a token computed as one of several guesses sees what it sees when computed alone.
    `on_layer` is called with the whole K and V once a layer's are written.
    """

    start_position = 0

    def __init__(self, packing: Packing, on_layer: Callable[[Array, Array], None], tail: int = TAIL) -> None:
        self.packing = packing
        self._mx = packing.mx
        self._on_layer = on_layer
        self._tail = tail
        self._k: Packed | None = None
        self._v: Packed | None = None
        self.keys: Array = None
        self.values: Array = None
        self.packed = 0
        self.offset = 0
        self._folded: _Folded | None = None

    @property
    def steady(self) -> int:
        """Tokens that one forward can add before more is to be packed."""
        beyond = self.offset - self.packed - self._tail
        return BLOCK - (beyond % BLOCK if beyond > 0 else beyond)

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[PackedCells, PackedCells]:
        """Appends keys and values [1, heads, tokens, size]; returns all that there are, twice."""
        self._fold()
        start, end = self.offset - self.packed, self.offset - self.packed + keys.shape[2]
        turn = self.packing.turn
        self.keys = grown(self._mx, self.keys, turn(keys), start, end, self.packing.cells)
        self.values = grown(self._mx, self.values, turn(values), start, end, self.packing.cells)
        self.offset = self.packed + end
        self._on_layer(self.keys, self.values)
        seen = PackedCells(
            self.packed, end, self._k, self._v, self.keys[..., :end, :], self.values[..., :end, :], self.packing
        )
        return seen, seen

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:  # noqa: N803
        """The mask over all cells once `N` tokens are added: an array, the word for causal, or None."""
        if window_size is not None and self.offset + N > window_size:
            return causal_mask(self._mx, N, self.offset, window_size)
        if N == 1:
            return None
        return causal_mask(self._mx, N, self.offset, None) if return_array else "causal"

    def maybe_trim_front(self) -> None:
        """Models that attend in chunks offer to forget what came before; here it stays, for others to share."""

    def fill(self, pieces: Sequence[PackedCells]) -> None:
        """Begins with `pieces`, in this order. What lies before the last packed token is packed too."""
        last = max((n for n, piece in enumerate(pieces) if piece.packed), default=-1)
        k: list[Packed] = []
        v: list[Packed] = []
        for number, piece in enumerate(pieces[: last + 1]):
            if piece.k is not None and piece.v is not None:
                k.append(piece.k)
                v.append(piece.v)
            if number < last and piece.whole:
                packed = self.packing.pack(piece.keys, piece.values)
                k.append(packed[0])
                v.append(packed[1])
        whole = pieces[max(last, 0) :]
        self.offset = sum(piece.packed + piece.whole for piece in pieces)
        self.packed = self.offset - sum(piece.whole for piece in whole)
        self._k, self._v = self._rows(k), self._rows(v)
        self.keys = self._mx.concatenate([piece.keys for piece in whole], axis=2)
        self.values = self._mx.concatenate([piece.values for piece in whole], axis=2)

    def part(self, start: int, end: int) -> PackedCells:
        """Tokens `start` to `end` in arrays of their own, as they are kept."""
        held = max(self.packed - start, 0)
        first, last = max(start - self.packed, 0), end - self.packed
        own = self._mx.contiguous
        k, v = (
            None if rows is None or not held else tuple(own(a[..., start : min(self.packed, end), :]) for a in rows)
            for rows in (self._k, self._v)
        )
        keys, values = (own(a[..., first : max(last, first), :]) for a in (self.keys, self.values))
        return PackedCells(min(held, end - start), max(last - first, 0), k, v, keys, values, self.packing)

    def cut(self, length: int) -> None:
        """Keeps the first `length` tokens."""
        last, self._folded = self._folded, None
        if last is not None and last.start <= length < last.at:
            self.keys = self._mx.concatenate([last.keys, self.keys], axis=2)
            self.values = self._mx.concatenate([last.values, self.values], axis=2)
            self.packed = last.start
        self.offset = length
        self.packed = min(self.packed, length)

    def arrays(self) -> list[Array]:
        """What must be evaluated for the cache to be there."""
        return [self.keys, self.values, *(self._k or ()), *(self._v or ())]

    def _fold(self) -> None:
        """Packs what is whole beyond the tail, in blocks."""
        count = (self.offset - self.packed - self._tail) // BLOCK * BLOCK
        if count <= 0:
            return
        keys, values = self.keys[..., :count, :], self.values[..., :count, :]
        k, v = self.packing.pack(keys, values)
        end = self.packed + count
        self._folded = _Folded(self.packed, self.offset, keys, values)
        self._k, self._v = self._appended(self._k, k, end), self._appended(self._v, v, end)
        self.packed = end
        self.keys, self.values = self.keys[..., count:, :], self.values[..., count:, :]

    def _appended(self, held: Packed | None, new: Packed, end: int) -> Packed:
        parts = held or (None, None, None)
        codes, steps, offsets = (
            grown(self._mx, old, add, self.packed, end, add.dtype) for old, add in zip(parts, new, strict=True)
        )
        return codes, steps, offsets

    def _rows(self, parts: list[Packed]) -> Packed | None:
        """Parts in one row with room to a whole step, so that no kernel meets an odd number of cells."""
        if not parts:
            return None
        rows = [self._mx.concatenate(list(arrays), axis=2) for arrays in zip(*parts, strict=True)]
        room = -rows[0].shape[2] % _STEP
        codes, steps, offsets = (self._mx.pad(row, [(0, 0), (0, 0), (0, room), (0, 0)]) for row in rows)
        return codes, steps, offsets


def _cut(packed: Packed, start: int, end: int) -> Packed:
    codes, steps, offsets = (array[..., start:end, :] for array in packed)
    return codes, steps, offsets
