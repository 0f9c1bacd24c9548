"""Large buffers used again: fresh memory costs a page fault every 4 KiB, several times what filling it does."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

__all__ = ["BufferPool", "fresh"]

Bytes = NDArray[np.uint8]

# Sizes are rounded up by at most a quarter, so that a conversation that has grown finds its old buffer large enough.
_STEPS = 4


class _Lent(np.ndarray):
    """A view of a pooled buffer; while anything looks at its bytes, it lives."""


class BufferPool:
    """Keeps up to `most` buffers, of `most_bytes` together, that nobody uses any more; they may die on any thread."""

    def __init__(self, most: int = 2, most_bytes: int = 256 << 20) -> None:
        self._most_bytes = most_bytes
        self._idle: deque[Bytes] = deque(maxlen=most)

    def lend(self, size: int) -> Bytes:
        """`size` bytes, not cleared. They come back by themselves once no view of them is left."""
        buffer = self._take(size)
        if buffer is None:
            buffer = fresh(_rounded(size))
        lent = buffer[:size].view(_Lent)
        weakref.finalize(lent, self._give_back, buffer).atexit = False
        return lent

    def _take(self, size: int) -> Bytes | None:
        for _ in range(len(self._idle)):
            try:
                buffer = self._idle.popleft()
            except IndexError:
                return None
            if size <= len(buffer) <= 2 * size:
                return buffer
            self._idle.append(buffer)
        return None

    def _give_back(self, buffer: Bytes) -> None:
        if len(buffer) + sum(len(idle) for idle in tuple(self._idle)) <= self._most_bytes:
            self._idle.append(buffer)


def fresh(size: int) -> Bytes:
    """`size` bytes, zero.

    numpy asks the system for huge pages where an array is large, and the first touch of those may wait until memory
    has been moved together: 46 MB took 140 ms on a machine where small pages took 30.
    """
    return np.frombuffer(bytearray(size), dtype=np.uint8)


def _rounded(size: int) -> int:
    step = max(1 << max(size.bit_length() - 1, 0), _STEPS) // _STEPS
    return -(-size // step) * step
