"""What a model of mlx-lm sees as its cache, and the plan of which layer has which, made once at load.

All cells of a sequence are kept, also in layers that look back over a window or a chunk only: those are given what they
can see. So every prefix can be forked and cut, which a cache that overwrites its oldest cells could not offer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pinfold.engines.mlx.arrays import causal_mask, grown
from pinfold.engines.mlx.packed import PackedCache, Packing
from pinfold.errors import UnsupportedModeError

__all__ = ["AttentionCache", "Opened", "Slot", "WholeCells", "open_caches", "plan_caches"]

Array = Any
Kind = Literal["full", "sliding", "chunked", "recurrent", "group", "drafter"]


@dataclass(frozen=True, slots=True)
class Slot:
    """What one layer needs: attention over everything, over `window` tokens or over its chunk; `size` arrays of
    recurrent state; a group of such; or what a layer of a drafter keeps, which takes its share of the cells itself.
    `packing` is how full attention keeps its cells packed."""

    kind: Kind
    window: int | None = None
    size: int = 0
    parts: tuple[Slot, ...] = ()
    packing: Packing | None = None

    def leaves(self) -> list[Slot]:
        """The slots in it that are no group."""
        return [leaf for part in self.parts for leaf in part.leaves()] if self.kind == "group" else [self]


@dataclass(frozen=True, slots=True)
class WholeCells:
    """K and V of some tokens of a layer, [1, heads, tokens, size]."""

    keys: Array
    values: Array

    def first(self, tokens: int) -> WholeCells:
        """The first `tokens` of them."""
        return WholeCells(self.keys[..., :tokens, :], self.values[..., :tokens, :])

    def arrays(self) -> list[Array]:
        """K and V."""
        return [self.keys, self.values]

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return int(self.keys.nbytes + self.values.nbytes)


class AttentionCache:
    """K and V of one layer of one sequence: arrays [1, heads, cells, size] that grow in steps, of which the first
    `offset` cells count.

    `cells` is the type they are kept in, `on_layer` is called with both once a layer's are written.
    """

    start_position = 0  # where the cells begin: asked by models that attend in chunks
    steady = 1 << 30  # tokens that one forward can add: what these are kept in never changes

    def __init__(self, mx: Any, window: int | None, cells: Any, on_layer: Callable[[Array, Array], None]) -> None:
        self._mx = mx
        self._window = window
        self._cells = cells
        self._on_layer = on_layer
        self.keys: Array = None
        self.values: Array = None
        self.offset = 0

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Appends keys and values [1, heads, tokens, size]; returns those that the new tokens can see."""
        start, end = self.offset, self.offset + keys.shape[2]
        self.keys = grown(self._mx, self.keys, keys, start, end, self._cells)
        self.values = grown(self._mx, self.values, values, start, end, self._cells)
        self.offset = end
        self._on_layer(self.keys, self.values)
        first = max(start - self._window + 1, 0) if self._window else 0
        return (
            self.keys[..., first:end, :].astype(keys.dtype),
            self.values[..., first:end, :].astype(values.dtype),
        )

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:  # noqa: N803
        """The mask over what `update_and_fetch` of `N` tokens will return: an array, the word for causal, or None."""
        window = window_size or self._window
        seen = min(self.offset, self._window - 1) if self._window else self.offset
        if window is not None and seen + N > window:
            return causal_mask(self._mx, N, seen, window)
        if N == 1:
            return None
        return causal_mask(self._mx, N, seen, None) if return_array else "causal"

    def maybe_trim_front(self) -> None:
        """Models that attend in chunks offer to forget what came before; here it stays, for others to share."""

    def fill(self, pieces: Sequence[WholeCells]) -> None:
        """Begins with `pieces`, in this order."""
        self.keys = self._mx.concatenate([piece.keys for piece in pieces], axis=2)
        self.values = self._mx.concatenate([piece.values for piece in pieces], axis=2)
        self.offset = self.keys.shape[2]

    def part(self, start: int, end: int) -> WholeCells:
        """Tokens `start` to `end` in arrays of their own."""
        own = self._mx.contiguous
        return WholeCells(own(self.keys[..., start:end, :]), own(self.values[..., start:end, :]))

    def cut(self, length: int) -> None:
        """Keeps the first `length` tokens."""
        self.offset = length

    def arrays(self) -> list[Array]:
        """What must be evaluated for the cache to be there."""
        return [self.keys, self.values]


@dataclass(slots=True)
class Opened:
    """The caches of one sequence while it is computed: as the model takes them, and the same by kind. Those of
    attention, an `AttentionCache` or `PackedCache` each, are filled with cells of the kind that they give."""

    for_model: list[Any]
    attention: list[Any]
    recurrent: list[Any]


def plan_caches(model: Any) -> tuple[Slot, ...]:
    """The slot of each layer.

    Raises:
        UnsupportedModeError: a layer needs a cache that is not known here.
    """
    from mlx_lm.models.cache import make_prompt_cache

    return tuple(_slot(cache, layer) for layer, cache in enumerate(make_prompt_cache(model)))


def open_caches(mx: Any, slots: Sequence[Slot], cells: Any, on_layer: Callable[[Array, Array], None]) -> Opened:
    """Empty caches for one sequence."""

    def attention(slot: Slot) -> AttentionCache | PackedCache:
        if slot.packing is not None:
            return PackedCache(slot.packing, on_layer)
        return AttentionCache(mx, slot.window, cells, on_layer)

    opened = Opened([], [], [])
    for slot in slots:
        opened.for_model.append(_build(slot, opened, attention))
    return opened


def _build(slot: Slot, opened: Opened, attention: Callable[[Slot], AttentionCache | PackedCache]) -> Any:
    from mlx_lm.models.cache import ArraysCache, CacheList

    if slot.kind == "group":
        return CacheList(*(_build(part, opened, attention) for part in slot.parts))
    if slot.kind == "recurrent":
        opened.recurrent.append(ArraysCache(slot.size))
        return opened.recurrent[-1]
    opened.attention.append(attention(slot))
    return opened.attention[-1]


def _slot(cache: Any, layer: int) -> Slot:
    name = type(cache).__name__
    if name == "KVCache":
        return Slot("full")
    if name == "RotatingKVCache" and not cache.keep:
        return Slot("sliding", window=int(cache.max_size))
    if name == "ChunkedKVCache":
        return Slot("chunked")
    if name == "ArraysCache":
        return Slot("recurrent", size=len(cache.cache))
    if name == "CacheList":
        return Slot("group", parts=tuple(_slot(part, layer) for part in cache.caches))
    msg = f"Layer {layer} of this model keeps a {name}, which Pinfold cannot share or save. {_INSTEAD}"
    raise UnsupportedModeError(msg)


_INSTEAD = "Use a GGUF file of the same model: it runs on llama.cpp."
