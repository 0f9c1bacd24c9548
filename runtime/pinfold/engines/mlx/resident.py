"""The cells that a model keeps while it runs: those that `kv_resident` names, tried before they are used."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from pinfold.engines.mlx.caches import Opened, Slot, open_caches
from pinfold.engines.mlx.device import Device, device_memory
from pinfold.engines.mlx.fused import NO_KERNEL, FusedAttention, fused_attention
from pinfold.engines.mlx.kv_types import AUTO, CELLS, KVTypes, parse_kv_types, pays
from pinfold.engines.mlx.packed_layout import PackedLayer
from pinfold.engines.mlx.packing import Plan, Trial, plan_packing, try_packing
from pinfold.engines.mlx.rehearsal import Shapes
from pinfold.engines.mlx.tokenizer import FolderTokenizer
from pinfold.errors import UnsupportedModeError
from pinfold.options import RuntimeOptions

__all__ = ["Resident", "choose_resident"]

log = logging.getLogger("pinfold.mlx")

# What a cache forgets first is what was said once, some way back.
_CANARY = (
    "Ann's locker is 4821. Bob's locker is 7396. The sky was grey, and it rained all day. Ann's locker is 4821. Bob"
)


@dataclass(frozen=True, slots=True)
class Resident:
    """`slots` and packed `layers` as they are used; `reason` says in words why these; `trial` is how packed cells did,
    None where none were tried; `skipped` says which layers keep whole cells beside packed ones; `fused` attends to
    packed ones by a kernel where there is one."""

    types: KVTypes
    slots: tuple[Slot, ...]
    reason: str
    layers: tuple[PackedLayer, ...] = ()
    skipped: tuple[str, ...] = ()
    trial: Trial | None = None
    fused: FusedAttention | None = None

    @property
    def kernel(self) -> tuple[bool, str]:
        """Whether attention over codes is by the kernel, and why."""
        return (False, NO_KERNEL) if self.fused is None else (self.fused.used, self.fused.reason)


def choose_resident(
    mx: Any,
    model: Any,
    tokenizer: FolderTokenizer,
    slots: tuple[Slot, ...],
    shapes: Shapes,
    whole: str,
    device: Device,
    options: RuntimeOptions,
) -> Resident:
    """What `options.kv_resident` comes to: ``auto`` packs where that pays and answers as whole cells do.

    Raises:
        UnsupportedModeError: packed cells were asked for by name, and this model does not run on them.
    """
    types = parse_kv_types(options.kv_resident, whole)
    auto = options.kv_resident.lower() == AUTO
    if auto:
        wanted, reason = pays(device.name, *_sizes(mx, shapes, device, options))
        if not wanted:
            return Resident(KVTypes(whole), slots, reason)
    elif not types.quantized:
        return Resident(types, slots, "as asked for")
    else:
        reason = "as asked for"
    try:
        fused = fused_attention(mx, device.name)
        plan = plan_packing(mx, model, slots, shapes, types, fused)
        trial = _try(mx, model, plan, tokenizer, types)
    except UnsupportedModeError as e:
        if not auto:
            raise
        return _dropped(whole, slots, str(e))
    if not trial.passes:
        if auto:
            return _dropped(whole, slots, str(trial), trial)
        log.warning("kv_resident=%s changes this model's answers: %s.", types, trial)
    return Resident(types, plan.slots, reason, plan.layers, plan.skipped, trial, fused)


def _try(mx: Any, model: Any, plan: Plan, tokenizer: FolderTokenizer, types: KVTypes) -> Trial:
    cells = getattr(mx, CELLS[types.cells])
    plain = tuple(_whole(slot) for slot in plan.slots)

    def opened(slots: tuple[Slot, ...]) -> Opened:
        return open_caches(mx, slots, cells, lambda *_: None)

    tokens = tokenizer.encode(_CANARY)
    return try_packing(mx, model, plan, tokens, lambda: opened(plain), lambda: opened(plan.slots))


def _whole(slot: Slot) -> Slot:
    return replace(slot, packing=None, parts=tuple(_whole(part) for part in slot.parts))


def _sizes(mx: Any, shapes: Shapes, device: Device, options: RuntimeOptions) -> tuple[int, int | None]:
    """Bytes of the whole cells of all sessions, and of the device's memory that is free."""
    free = device_memory(mx, device)
    if options.n_ctx == "auto":
        return (free or 0) // 2, free
    token = 2 * sum(k_heads * k_size + v_heads * v_size for k_heads, k_size, v_heads, v_size in shapes.attention)
    return token * (options.kv_cells or 2 * options.n_ctx), free


def _dropped(whole: str, slots: tuple[Slot, ...], why: str, trial: Trial | None = None) -> Resident:
    log.warning("Cells stay whole: %s", why)
    return Resident(KVTypes(whole), slots, f"packed cells were dropped: {why}", trial=trial)
