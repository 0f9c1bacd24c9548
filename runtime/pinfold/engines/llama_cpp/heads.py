"""What a model's metadata says of its heads and of how keys are turned by position, for each of its caches."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from pinfold.kv.snapshot import Heads, Rope

__all__ = ["describe_heads"]

_INTERLEAVED, _HALVES = 0, 2
# Gemma turns the keys of sliding-window layers by its first models' base where the file does not say.
_SLIDING_BASE = 10_000.0


def describe_heads(
    lib: ModuleType, model: Any, meta: Callable[[str], str | None], k_size: int, v_size: int
) -> tuple[Heads, ...]:
    """One item for each cache in the order of the state: full attention, then sliding window where the model has one.

    A description of the turning that is not right costs bits when keys are folded, never exactness.
    """
    base = float(meta("rope.freq_base") or 10_000.0)
    linear = meta("rope.scaling.type") == "linear" or meta("rope.scale_linear") is not None
    factor = float(meta("rope.scaling.factor") or meta("rope.scale_linear") or 1.0) if linear else 1.0
    width = int(meta("rope.dimension_count") or k_size)
    kind = lib.llama_model_rope_type(model)

    def heads(base: float, scale: float) -> Heads:
        known = kind in (_INTERLEAVED, _HALVES) and 0 < width <= k_size and width % 2 == 0
        return Heads(k_size, v_size, Rope(base, scale, width, kind == _HALVES) if known else None)

    full = heads(base, 1 / factor)
    if lib.llama_model_n_swa(model) <= 0:
        return (full,)
    return full, heads(float(meta("rope.freq_base_swa") or _SLIDING_BASE), 1.0)
