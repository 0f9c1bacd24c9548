"""What the caches here do with their arrays of cells, [1, heads, cells, size]."""

from __future__ import annotations

from typing import Any

__all__ = ["causal_mask", "grown"]

Array = Any
_STEP = 256


def grown(mx: Any, held: Array, new: Array, start: int, end: int, kind: Any) -> Array:
    """`held`, made longer in steps where it must be, with `new` as its cells `start` to `end` of type `kind`."""
    if held is None or end > held.shape[2]:
        batch, heads, _, size = new.shape
        room = -(-end // _STEP) * _STEP - start
        fresh = mx.zeros((batch, heads, room, size), kind)
        held = fresh if held is None else mx.concatenate([held[..., :start, :], fresh], axis=2)
    held[..., start:end, :] = new.astype(kind)
    return held


def causal_mask(mx: Any, count: int, seen: int, window: int | None) -> Array:
    """Which of `seen` + `count` cells each of the last `count` tokens may see: all before it, or a window of them."""
    at = mx.arange(seen, seen + count)[:, None]
    of = mx.arange(seen + count)[None]
    mask = of <= at
    return mask if window is None else mask & (at < of + window)
