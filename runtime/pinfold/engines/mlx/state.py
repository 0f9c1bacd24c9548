"""A sequence's arrays as bytes, and back."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import numpy as np

from pinfold.engines.mlx.caches import Slot, WholeCells
from pinfold.engines.mlx.kv_types import CELLS
from pinfold.engines.mlx.layout import Contents, Layout, Rows
from pinfold.engines.mlx.packed import PackedCells, Packing
from pinfold.engines.mlx.packed_layout import PackedLayer
from pinfold.engines.mlx.sequences import Cells, Piece, Sequence, States

__all__ = ["StateBytes"]

Array = Any


class StateBytes:
    """For the sequences of one model: `leaves` are its slots that are no group."""

    def __init__(self, mx: Any, layout: Layout, leaves: Items[Slot]) -> None:
        self._mx = mx
        self._layout = layout
        self._packings = [leaf.packing for leaf in leaves if leaf.kind != "recurrent"]
        self._counts = [leaf.size for leaf in leaves if leaf.kind == "recurrent"]

    def take(self, sequence: Sequence) -> Contents:
        """The bytes of `sequence`."""
        cells = sequence.cells()
        planes = [
            [self._to_rows(array(cells[layer])) for array in (_keys, _values) for layer in section.layers]
            for section in self._layout.sections
        ]
        arrays = [array for state in sequence.states for array in state]
        states = [None if array is None else self._to_bytes(array) for array in arrays]
        kept = [cells[known.layer] for known in self._layout.packed]
        packed = next((one.packed for one in kept if isinstance(one, PackedCells)), 0)
        return Contents(planes, states, packed, [[self._to_bytes(array) for array in one.arrays()] for one in kept])

    def fill(self, sequence: Sequence, contents: Contents, tokens: int) -> None:
        """Makes the new `sequence` the one of `tokens` tokens that the bytes hold."""
        found: dict[int, Cells] = self._whole(contents, tokens)
        for known, rows in zip(self._layout.packed, contents.layers, strict=True):
            packing = self._packings[known.layer]
            if packing is not None:
                found[known.layer] = self._packed(known, packing, rows, contents.packed, tokens)
        sequence.length = tokens
        sequence.pieces = [Piece(tuple(found[layer] for layer in range(len(found))), tokens)]
        sequence.states = self._states(contents.states)

    def _to_rows(self, plane: Array) -> Rows:
        """[1, heads, tokens, size] -> uint8 [tokens, row bytes]."""
        heads, tokens, size = plane.shape[1:]
        rows = plane[0].swapaxes(0, 1).reshape(tokens, heads * size)
        return np.array(self._mx.contiguous(rows).view(self._mx.uint8))

    def _to_bytes(self, array: Array) -> Rows:
        return np.array(self._mx.contiguous(array).reshape(-1).view(self._mx.uint8))

    def _whole(self, contents: Contents, tokens: int) -> dict[int, Cells]:
        cells = getattr(self._mx, CELLS[self._layout.kind])
        found: dict[int, list[Array]] = {}
        for section, rows in zip(self._layout.sections, contents.planes, strict=True):
            sizes = [section.heads.k_size] * len(section.layers) + [section.heads.v_size] * len(section.layers)
            for layer, size, plane in zip(section.layers * 2, sizes, rows, strict=True):
                array = self._mx.array(plane).view(cells).reshape(tokens, -1, size)
                array = self._mx.contiguous(array.swapaxes(0, 1)[None])
                self._mx.eval(array)
                found.setdefault(layer, []).append(array)
        return {layer: WholeCells(keys, values) for layer, (keys, values) in found.items()}

    def _packed(self, known: PackedLayer, packing: Packing, rows: Items[Rows], packed: int, tokens: int) -> PackedCells:
        kinds = [*([self._mx.uint32, packing.cells, packing.cells] * 2 if packed else ()), packing.cells, packing.cells]
        counts = [packed] * (len(kinds) - 2) + [tokens - packed] * 2
        arrays = [
            self._mx.array(row).view(kind).reshape(1, known.heads, count, -1)
            for row, kind, count in zip(rows, kinds, counts, strict=False)
        ]
        if tokens == packed:
            sizes = (known.k_size, known.v_size)
            arrays += [self._mx.zeros((1, known.heads, 0, size), packing.cells) for size in sizes]
        self._mx.eval(arrays)
        k, v = (tuple(arrays[:3]), tuple(arrays[3:6])) if packed else (None, None)
        return PackedCells(packed, tokens - packed, k, v, arrays[-2], arrays[-1], packing)

    def _states(self, states: Items[Rows | None]) -> States:
        arrays: list[Array] = []
        for known, rows in zip(self._layout.states, states, strict=True):
            if known is None or rows is None:
                arrays.append(None)
                continue
            kind = getattr(self._mx, known.kind.rpartition(".")[2])
            arrays.append(self._mx.array(rows).view(kind).reshape(known.shape))
        self._mx.eval([array for array in arrays if array is not None])
        each = iter(arrays)
        return [[next(each) for _ in range(count)] for count in self._counts]


def _keys(cells: Cells) -> Array:
    return cells.keys


def _values(cells: Cells) -> Array:
    return cells.values
