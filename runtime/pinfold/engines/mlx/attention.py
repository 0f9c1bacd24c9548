"""Attention over packed cells: on their codes for few rows, over cells made whole again for many.

mlx-lm's models call a function of their module with what their cache returned. `attach` gives the attention layers of
one model a class of their own, whose code reads another function under that name: other models in the process, and
other users of mlx-lm, keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pinfold.engines.mlx.library import load_library
from pinfold.engines.mlx.packed import Packed, PackedCells
from pinfold.errors import UnsupportedModeError

__all__ = ["Each", "attach", "attend", "attend_on_codes", "finds_attention", "masked"]

Array = Any
_ATTACHED = "takes_packed_cells"
_NAME = "scaled_dot_product_attention"
# Rows of queries for which reading codes costs less than making cells of them.
_FEW_ROWS = 16
# Kernels over codes read cells in blocks of this many.
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Each:
    """What each sequence of a batch attends to: arrays [1, heads, cells, size], or packed cells."""

    rows: tuple[Any, ...]


def finds_attention(layer: Any) -> Any:
    """The module in `layer` whose own code updates a cache and attends to it; None if not exactly one does."""
    wanted = {_NAME, "update_and_fetch"}
    found = [module for _, module in layer.named_modules() if wanted <= set(_names(type(module)))]
    return found[0] if len(found) == 1 else None


def attach(layer: Any) -> None:
    """Lets the attention of `layer` take packed cells, and cells of each sequence apart.

    Raises:
        UnsupportedModeError: the layer has no attention that can.
    """
    module = finds_attention(layer)
    if module is None:
        msg = f"{type(layer).__name__} has no attention that takes packed cells. Use kv_resident='f16'."
        raise UnsupportedModeError(msg)
    kind = type(module)
    if _ATTACHED in vars(kind):
        return
    call = kind.__call__
    plain = call.__globals__[_NAME]
    mx = load_library()

    def either(queries: Array, keys: Any, values: Any, *args: Any, **options: Any) -> Array:
        if isinstance(keys, Each):
            pairs = enumerate(zip(keys.rows, values.rows, strict=True))
            found = [either(queries[n : n + 1], k, v, *args, **options) for n, (k, v) in pairs]
            return mx.concatenate(found, axis=0)
        if not isinstance(keys, PackedCells):
            return plain(queries, keys, values, *args, **options)
        return _attend_as_called(queries, keys, *args, **options)

    own = FunctionType(
        call.__code__, {**call.__globals__, _NAME: either}, call.__name__, call.__defaults__, call.__closure__
    )
    own.__kwdefaults__ = call.__kwdefaults__
    module.__class__ = type(kind.__name__, (kind,), {"__call__": own, _ATTACHED: True})


def attend(queries: Array, cells: PackedCells, scale: float, mask: Any = None, sinks: Array = None) -> Array:
    """Attention of queries [1, heads, rows, size] over `cells`; returns [1, heads, rows, size of V].

    `mask` is None, the word for causal, or an array over (rows, cells), boolean or added to the scores; `sinks` are
    scores [heads] that take weight and give nothing.
    """
    queries = cells.packing.turn(queries)
    found = _way(queries, cells, mask)(queries, cells, scale, mask, sinks)
    return cells.packing.turn(found)


def _way(queries: Array, cells: PackedCells, mask: Any) -> Callable[..., Array]:
    if not cells.packed or queries.shape[2] > _FEW_ROWS:
        return _on_cells
    fused = cells.packing.fused
    # A mask of another kind may hide packed cells too.
    if fused is not None and (mask is None or isinstance(mask, str)) and fused.pays(queries, cells):
        way: Callable[..., Array] = fused.attend
        return way
    return attend_on_codes


def _attend_as_called(
    queries: Array, cells: PackedCells, cache: Any = None, scale: float = 1.0, mask: Any = None, sinks: Array = None
) -> Array:
    del cache  # part of the call that models make
    return attend(queries, cells, scale, mask, sinks)


def _on_cells(queries: Array, cells: PackedCells, scale: float, mask: Any, sinks: Array) -> Array:
    mx, kind = cells.packing.mx, queries.dtype
    keys, values = cells.keys.astype(kind), cells.values.astype(kind)
    if cells.k is not None and cells.v is not None and cells.packed:
        k, v = cells.packing.unpack(_used(cells.k, cells.packed), _used(cells.v, cells.packed), kind)
        keys, values = mx.concatenate([k, keys], axis=2), mx.concatenate([v, values], axis=2)
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask, sinks=sinks)


def attend_on_codes(queries: Array, cells: PackedCells, scale: float, mask: Any, sinks: Array) -> Array:
    """As `attend`, of queries that are turned already: one softmax over scores of packed and of whole cells.

    Query heads that share K and V are rows of one product.
    """
    mx, packing = cells.packing.mx, cells.packing
    batch, heads, rows, size = queries.shape
    kv_heads, kind = cells.keys.shape[1], queries.dtype
    shared = heads // kv_heads
    stacked = (queries * scale).reshape(batch, kv_heads, shared * rows, size)
    used = -(-cells.packed // _BLOCK) * _BLOCK
    k, v = (_used(part, used) for part in (cells.k, cells.v) if part is not None)
    on_packed = mx.quantized_matmul(stacked, *k, transpose=True, group_size=packing.k.group, bits=packing.k.bits)
    on_whole = stacked @ cells.keys.astype(kind).swapaxes(-1, -2)
    scores = mx.concatenate([on_packed[..., : cells.packed], on_whole], axis=-1)
    scores = scores.reshape(batch, kv_heads, shared, rows, -1).astype(mx.float32)
    scores = masked(mx, scores, mask)
    if sinks is not None:
        column = mx.broadcast_to(sinks.reshape(1, kv_heads, shared, 1, 1), (*scores.shape[:-1], 1))
        scores = mx.concatenate([scores, column.astype(scores.dtype)], axis=-1)
    weights = mx.softmax(scores, axis=-1).astype(kind).reshape(batch, kv_heads, shared * rows, -1)
    first = weights[..., : cells.packed]
    if used > cells.packed:
        first = mx.pad(first, [(0, 0), (0, 0), (0, 0), (0, used - cells.packed)])
    found = mx.quantized_matmul(first, *v, transpose=False, group_size=packing.v.group, bits=packing.v.bits)
    found = found + weights[..., cells.packed : cells.packed + cells.whole] @ cells.values.astype(kind)
    return found.reshape(batch, heads, rows, -1)


def masked(mx: Any, scores: Array, mask: Any) -> Array:
    """`scores` [1, heads of KV, shared, rows, cells] with what may not be seen put far below."""
    if mask is None:
        return scores
    rows, cells = scores.shape[-2:]
    if isinstance(mask, str):
        mask = mx.arange(cells)[None] <= mx.arange(cells - rows, cells)[:, None]
    if mask.ndim > 3:  # [1, heads or 1, rows, cells]
        mask = mask.reshape(mask.shape[0], -1, scores.shape[2] if mask.shape[1] > 1 else 1, *mask.shape[-2:])
    return mx.where(mask, scores, mx.finfo(scores.dtype).min) if mask.dtype == mx.bool_ else scores + mask


def _used(packed: Packed, count: int) -> Packed:
    codes, steps, offsets = (array[..., :count, :] for array in packed)
    return codes, steps, offsets


def _names(kind: type) -> tuple[str, ...]:
    code = getattr(kind.__call__, "__code__", None)
    return () if code is None else code.co_names
