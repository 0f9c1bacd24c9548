"""Which layers of a model keep packed cells, planned at load and tried there against whole ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.mlx.attention import attach, finds_attention
from pinfold.engines.mlx.caches import Opened, Slot
from pinfold.engines.mlx.fused import FusedAttention
from pinfold.engines.mlx.kv_types import CELLS, KVTypes, Steps, group_size, rotates
from pinfold.engines.mlx.packed import PackedCache, PackedCells, Packing
from pinfold.engines.mlx.packed_layout import PackedLayer
from pinfold.engines.mlx.rehearsal import Shapes
from pinfold.errors import UnsupportedModeError

__all__ = ["MOST_DIVERGENCE", "Plan", "Trial", "plan_packing", "try_packing"]

Array = Any
MOST_DIVERGENCE = 0.1
"""Nats a token between the answers over packed and over whole cells, above which packing is not recommended."""

_PROBE = 8
_FAILURES = (ValueError, TypeError, AttributeError, IndexError, RuntimeError)


@dataclass(frozen=True, slots=True)
class Plan:
    """`slots` with the packing of each layer that has one, and why the `skipped` others keep whole cells."""

    slots: tuple[Slot, ...]
    layers: tuple[PackedLayer, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """Mean Kullback-Leibler divergence in nats, and the share of tokens whose likeliest successor stays the same."""

    divergence: float
    agreement: float

    @property
    def passes(self) -> bool:
        """Whether packed cells answer as whole ones do."""
        return self.divergence <= MOST_DIVERGENCE

    def __str__(self) -> str:
        return (
            f"KL divergence {self.divergence:.2g} from whole cells, {self.agreement:.0%} of the likeliest tokens kept"
        )


def plan_packing(
    mx: Any, model: Any, slots: Sequence[Slot], shapes: Shapes, types: KVTypes, fused: FusedAttention | None = None
) -> Plan:
    """Packs the cells of each layer of full attention that can be, and lets the model attend to them, by `fused` where
    there is one.

    Raises:
        UnsupportedModeError: there is no such layer.
    """
    layers = list(model.layers) if len(model.layers) == len(slots) else [None] * len(slots)
    planned: list[Slot] = []
    packed: list[PackedLayer] = []
    skipped: dict[str, int] = {}
    number = 0
    for slot, layer in zip(slots, layers, strict=True):
        sizes = shapes.attention[number : number + 1]
        why = _obstacle(slot, layer, sizes)
        if why:
            skipped[why] = skipped.get(why, 0) + 1
            planned.append(slot)
        else:
            known = _layer(number, sizes[0], types, mx)
            kind = getattr(mx, CELLS[types.cells])
            planned.append(_with(slot, Packing(mx, known.k, known.v, known.rotated, kind, fused)))
            packed.append(known)
            attach(layer)
        number += len(_attention(slot))
    reasons = tuple(f"{count} of {why}" for why, count in skipped.items())
    if not packed:
        msg = f"kv_resident={str(types)!r} has no layer to pack here: {'; '.join(reasons)}. Use kv_resident='f16'."
        raise UnsupportedModeError(msg)
    return Plan(tuple(planned), tuple(packed), reasons)


def try_packing(
    mx: Any,
    model: Any,
    plan: Plan,
    tokens: Sequence[int],
    whole: Callable[[], Opened],
    packed: Callable[[], Opened],
) -> Trial:
    """Continues `tokens` over packed and over whole cells of the same computation, and compares the answers.

    Raises:
        UnsupportedModeError: the model does something with its cells that only whole ones allow, or packed ones take
            other bytes than were planned.
    """
    begun, again, smaller = whole(), whole(), packed()
    cut = len(tokens) - _PROBE
    try:
        _logits(mx, model, tokens[:cut], begun)
        _copy(begun, again)
        _pack(begun, smaller)
        _check_bytes(smaller, plan, cut)
        expected = _logits(mx, model, tokens[cut:], again)
        found = _logits(mx, model, tokens[cut:], smaller)
    except _FAILURES as e:
        msg = f"This model does not run on packed cells: {e}. Use kv_resident='f16'."
        raise UnsupportedModeError(msg) from e
    divergence = float((np.exp(expected) * (expected - found)).sum(axis=-1).mean())
    agreement = float((expected.argmax(axis=-1) == found.argmax(axis=-1)).mean())
    return Trial(divergence if np.isfinite(divergence) else float("inf"), agreement)


def _obstacle(slot: Slot, layer: Any, sizes: Sequence[tuple[int, int, int, int]]) -> str:
    """Why a layer keeps what it has; empty if it can be packed."""
    kinds = [leaf.kind for leaf in _attention(slot)]
    if not kinds:
        return "recurrent layers have no cells"
    if kinds != ["full"]:
        return f"{slot.kind} layers keep whole cells"
    if layer is None or finds_attention(layer) is None:
        return "layers attend in a way of their own"
    _, k_size, _, v_size = sizes[0]
    if k_size != v_size or group_size(k_size) is None:
        return f"layers have heads of {k_size} and {v_size} channels, not the same multiple of 32"
    return ""


def _attention(slot: Slot) -> list[Slot]:
    return [leaf for leaf in slot.leaves() if leaf.kind != "recurrent"]


def _with(slot: Slot, packing: Packing) -> Slot:
    """`slot` whose attention, alone or in a group, has `packing`."""
    if slot.kind == "group":
        return replace(slot, parts=tuple(_with(part, packing) for part in slot.parts))
    return replace(slot, packing=packing) if slot.kind == "full" else slot


def _layer(number: int, sizes: tuple[int, int, int, int], types: KVTypes, mx: Any) -> PackedLayer:
    heads, k_size, _, v_size = sizes
    group = group_size(k_size) or k_size
    k, v = Steps(types.k_bits, group), Steps(types.v_bits, group)
    return PackedLayer(number, heads, k_size, v_size, k, v, rotates(k_size), getattr(mx, CELLS[types.cells]).size)


def _logits(mx: Any, model: Any, tokens: Sequence[int], caches: Opened) -> NDArray[np.float32]:
    """Logarithms of the probabilities, [tokens, n_vocab]."""
    logits = model(mx.array(list(tokens))[None], cache=caches.for_model)[0].astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


def _copy(source: Opened, target: Opened) -> None:
    for old, new in zip(source.attention, target.attention, strict=True):
        new.fill([old.part(0, old.offset)])
    for old, new in zip(source.recurrent, target.recurrent, strict=True):
        new.cache = list(old.cache)


def _pack(source: Opened, target: Opened) -> None:
    """As `_copy`, with every token of the packed layers packed: no newest ones stay whole."""
    for old, new in zip(source.attention, target.attention, strict=True):
        cells = old.part(0, old.offset)
        if isinstance(new, PackedCache):
            packing = new.packing
            k, v = packing.pack(packing.turn(cells.keys), packing.turn(cells.values))
            none = cells.first(0)
            new.fill([PackedCells(old.offset, 0, k, v, none.keys, none.values, packing)])
        else:
            new.fill([cells])
    for old, new in zip(source.recurrent, target.recurrent, strict=True):
        new.cache = list(old.cache)


def _check_bytes(caches: Opened, plan: Plan, tokens: int) -> None:
    for known in plan.layers:
        found = caches.attention[known.layer].part(0, tokens).nbytes
        if found != known.bytes_per_token * tokens:
            msg = f"{tokens} packed tokens take {found} bytes, not {known.bytes_per_token * tokens}"
            raise ValueError(msg)
