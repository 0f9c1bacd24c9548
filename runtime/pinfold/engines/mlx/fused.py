"""Attention over packed and whole cells with the kernel, where that agrees with the plain form and is the faster."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

from pinfold.engines.mlx.attention import attend_on_codes, masked
from pinfold.engines.mlx.kernel import Kernel, builder
from pinfold.engines.mlx.packed import PackedCells, Packing

__all__ = ["FusedAttention", "fused_attention"]

log = logging.getLogger("pinfold.mlx")

Array = Any
Faster = Callable[[Any, Callable[[], Array], Callable[[], Array]], float]
"""(mx, kernel, plain) -> how many times as fast the kernel is."""

NO_KERNEL = "MLX's own quantized products; the kernel is for Metal and CUDA"

# Of the answers' spread: rounding in half precision stays far below, reading the wrong cell does not.
_AGREES = 0.02
_CHECKED_CELLS = 1000  # no multiple of what a warp takes
_TIMED_CELLS = 8192
# Between them they meet every kernel that a number of rows up to the last comes to.
_CHECKED_ROWS = (1, 2, 4, 16)
_TIMED_ROWS = (1, 16)
_ROUNDS, _CALLS = 5, 8
_FAILURES = (RuntimeError, ValueError, TypeError)


def fused_attention(mx: Any, device: str) -> FusedAttention | None:
    """The kernel for `device`, still to be tried; None where there is none."""
    build = builder(mx, device)
    return None if build is None else FusedAttention(mx, Kernel(mx, build))


class FusedAttention:
    """The kernel, tried on each shape of layer when that is first met. `reason` says in words what came of it."""

    def __init__(self, mx: Any, kernel: Kernel, faster: Faster | None = None) -> None:
        self.reason = "not met yet"
        self._mx = mx
        self._kernel = kernel
        self._faster = faster or _times_as_fast
        self._most_rows: dict[tuple[Any, ...], int] = {}

    @property
    def used(self) -> bool:
        """Whether any layer attends by it."""
        return any(self._most_rows.values())

    def pays(self, queries: Array, cells: PackedCells) -> bool:
        """Whether to attend by the kernel with these queries [1, heads, rows, size]."""
        packing, heads = cells.packing, cells.keys.shape[1]
        shape = (heads, queries.shape[1] // heads, queries.shape[3], queries.dtype, packing.k, packing.v, packing.cells)
        if shape not in self._most_rows:
            self._most_rows[shape] = self._try(heads, queries, packing)
        return bool(queries.shape[2] <= self._most_rows[shape])

    def attend(self, queries: Array, cells: PackedCells, scale: float, mask: Any, sinks: Array) -> Array:
        """As `attention.attend_on_codes`; `mask` is None or the word for causal, so that it hides no packed cell."""
        mx, kind = self._mx, queries.dtype
        batch, heads, rows, size = queries.shape
        kv_heads = cells.keys.shape[1]
        shared = heads // kv_heads
        stacked = (queries * scale).reshape(batch, kv_heads, shared * rows, size)
        sums, peaks, totals = self._kernel.packed(stacked, cells)
        scores = stacked @ cells.keys.astype(kind).swapaxes(-1, -2)
        scores = scores.reshape(batch, kv_heads, shared, rows, -1).astype(mx.float32)
        scores = masked(mx, scores, mask).reshape(batch, kv_heads, shared * rows, -1)
        if sinks is not None:
            column = mx.broadcast_to(sinks.reshape(1, kv_heads, shared, 1, 1), (batch, kv_heads, shared, rows, 1))
            scores = mx.concatenate([scores, column.reshape(*scores.shape[:-1], 1).astype(scores.dtype)], axis=-1)
        peak = mx.maximum(scores.max(axis=-1, keepdims=True), peaks.max(axis=-1, keepdims=True))
        weights, shares = mx.exp(scores - peak), mx.exp(peaks - peak)
        total = weights.sum(axis=-1) + (shares * totals).sum(axis=-1)
        found = (weights[..., : cells.whole].astype(kind) @ cells.values.astype(kind)).astype(mx.float32)
        found = (found + (shares[..., None, :] @ sums)[..., 0, :]) / total[..., None]
        return found.astype(kind).reshape(batch, heads, rows, -1)

    def _try(self, heads: int, queries: Array, packing: Packing) -> int:
        """The most rows to attend for by the kernel; 0 for none."""
        mx, of = self._mx, (heads, queries.shape[1], queries.shape[3], queries.dtype)
        try:
            off = max(self._off(rows, _example(mx, packing, _CHECKED_CELLS, rows, *of)) for rows in _CHECKED_ROWS)
            if not off < _AGREES:
                return self._drop(f"it disagrees with the plain form by {off:.2%} of the answers' spread")
            speeds = [(rows, self._speed(_example(mx, packing, _TIMED_CELLS, rows, *of))) for rows in _TIMED_ROWS]
        except _FAILURES as e:
            return self._drop(f"it does not run here: {e}")
        most = max((rows for n, (rows, _) in enumerate(speeds) if all(s > 1.0 for _, s in speeds[: n + 1])), default=0)
        times = " and ".join(f"{speed:.2f} times for {rows}" for rows, speed in speeds)
        self.reason = (
            f"{'used' if most else 'not used'}: over {_TIMED_CELLS} cells {times} rows as fast as the plain form"
        )
        return most

    def _drop(self, why: str) -> int:
        self.reason = f"not used: {why}"
        log.warning("The kernel for attention over codes is not used, MLX's own products are: %s.", why)
        return 0

    def _off(self, rows: int, example: tuple[Array, PackedCells]) -> float:
        queries, cells = example
        ways = (self.attend, attend_on_codes)
        found, plain = (
            way(queries, cells, queries.shape[3] ** -0.5, "causal" if rows > 1 else None, None) for way in ways
        )
        plain, found = plain.astype(self._mx.float32), found.astype(self._mx.float32)
        return float(self._mx.abs(found - plain).max() / self._mx.sqrt(self._mx.var(plain)))

    def _speed(self, example: tuple[Array, PackedCells]) -> float:
        options = (*example, example[0].shape[3] ** -0.5, None, None)
        return self._faster(self._mx, lambda: self.attend(*options), lambda: attend_on_codes(*options))


def _example(
    mx: Any, packing: Packing, count: int, rows: int, kv_heads: int, heads: int, size: int, kind: Any
) -> tuple[Array, PackedCells]:
    """Queries and cells of noise: `count` packed ones, in rows with room for more, and some whole ones."""
    room = -(-count // 256) * 256
    keys = mx.random.split(mx.random.key(count), 5)  # the generator that users may have seeded stays as it is

    def noise(key: Array, heads: int, cells: int) -> Array:
        return mx.random.normal((1, heads, cells, size), key=key)

    k, v = packing.pack(noise(keys[0], kv_heads, room), noise(keys[1], kv_heads, room))
    newest = [noise(key, kv_heads, rows + 64).astype(packing.cells) for key in keys[2:4]]
    queries = 2 * noise(keys[4], heads, rows)
    return queries.astype(kind), PackedCells(count, rows + 64, k, v, newest[0], newest[1], packing)


def _times_as_fast(mx: Any, kernel: Callable[[], Array], plain: Callable[[], Array]) -> float:
    """The ratio of medians, each way measured in turn."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS + 1):
        for way, times in zip((kernel, plain), took, strict=True):
            began = time.perf_counter()
            mx.eval([way() for _ in range(_CALLS)])
            times.append(time.perf_counter() - began)
    return statistics.median(took[1][1:]) / statistics.median(took[0][1:])
