"""Which sequences share which KV cells: a cell is free once no sequence holds it.

llama.cpp shares cells between forked sequences but does not say how many are in use; this book-keeping mirrors it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["CellLedger"]


class CellLedger:
    """Reference counts of `n_cells` cells over `n_seq` sequences. All operations are O(tokens) in numpy."""

    def __init__(self, n_cells: int, n_seq: int) -> None:
        self._holders: NDArray[np.int32] = np.zeros(n_cells, dtype=np.int32)
        self._free: NDArray[np.int32] = np.arange(n_cells, dtype=np.int32)
        self._n_free = n_cells
        self._table: list[NDArray[np.int32]] = [np.empty(0, dtype=np.int32) for _ in range(n_seq)]
        self._length = [0] * n_seq

    @property
    def free(self) -> int:
        """Cells that no sequence holds."""
        return self._n_free

    def length(self, seq: int) -> int:
        """Tokens that `seq` holds."""
        return self._length[seq]

    def exclusive(self, seq: int) -> int:
        """Cells that only `seq` holds."""
        return int((self._holders[self._table[seq][: self._length[seq]]] == 1).sum())

    def append(self, seq: int, count: int) -> None:
        """Gives `seq` another `count` cells; the caller has checked that they are free."""
        self._n_free -= count
        start = self._length[seq]
        self._reserve(seq, start + count)
        self._length[seq] = start + count
        if count == 1:  # every token of an answer comes here, and indexing by an array takes ten times as long
            cell = self._free.item(self._n_free)
            self._holders[cell] = 1
            self._table[seq][start] = cell
            return
        cells = self._free[self._n_free : self._n_free + count]
        self._holders[cells] = 1
        self._table[seq][start : start + count] = cells

    def share(self, src: int, dst: int, length: int) -> None:
        """Lets the unused `dst` hold the first `length` cells of `src` too."""
        cells = self._table[src][:length]
        self._holders[cells] += 1
        self._table[dst] = cells.copy()
        self._length[dst] = length

    def cut(self, seq: int, length: int) -> None:
        """Lets `seq` hold only its first `length` cells."""
        dropped = self._table[seq][length : self._length[seq]]
        self._holders[dropped] -= 1
        freed = dropped[self._holders[dropped] == 0]
        self._free[self._n_free : self._n_free + len(freed)] = freed
        self._n_free += len(freed)
        self._length[seq] = length

    def _reserve(self, seq: int, size: int) -> None:
        table = self._table[seq]
        if size > len(table):
            grown = np.empty(max(size, 2 * len(table), 64), dtype=np.int32)
            grown[: self._length[seq]] = table[: self._length[seq]]
            self._table[seq] = grown
