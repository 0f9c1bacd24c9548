"""Buffers that come back by themselves."""

from __future__ import annotations

import pytest

from pinfold.engines.buffers import BufferPool


def test_a_buffer_that_nobody_looks_at_is_used_again() -> None:
    pool = BufferPool()
    first = pool.lend(1000)
    address = first.ctypes.data
    view = memoryview(first)
    del first
    assert pool.lend(1000).ctypes.data != address  # the view still looks at it
    del view
    assert address in {pool.lend(900).ctypes.data, pool.lend(1000).ctypes.data}


@pytest.mark.parametrize("size", [0, 1, 3, 4, 1000, 4096, 5001])
def test_sizes(size: int) -> None:
    assert len(BufferPool().lend(size)) == size


def test_only_so_much_is_kept() -> None:
    pool = BufferPool(most=2, most_bytes=3000)
    held = [pool.lend(1024) for _ in range(5)]
    addresses = {each.ctypes.data for each in held}
    del held
    again = [pool.lend(1024) for _ in range(3)]
    assert len(addresses & {each.ctypes.data for each in again}) >= 2
    assert sum(len(idle) for idle in pool._idle) <= 3000


def test_a_buffer_much_too_large_is_left_alone() -> None:
    pool = BufferPool()
    large = pool.lend(1 << 20)
    address = large.ctypes.data
    del large
    assert pool.lend(1000).ctypes.data != address
    assert pool.lend(1 << 20).ctypes.data == address
