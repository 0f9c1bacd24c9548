"""What a model's metadata says of its heads and of how keys are turned by position, for each of its caches."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pinfold.kv.rope import fits
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
    base = _number(meta("rope.freq_base"), 10_000.0)
    linear = meta("rope.scaling.type") == "linear" or meta("rope.scale_linear") is not None
    factor = _number(meta("rope.scaling.factor") or meta("rope.scale_linear"), 1.0) if linear else 1.0
    width = int(_number(meta("rope.dimension_count"), k_size))
    kind = lib.llama_model_rope_type(model)

    def heads(base: float, scale: float) -> Heads:
        described = Heads(k_size, v_size, Rope(base, scale, width, kind == _HALVES))
        known = kind in (_INTERLEAVED, _HALVES) and fits(described)
        return described if known else Heads(k_size, v_size, None)

    full = heads(base, 1 / factor)
    if lib.llama_model_n_swa(model) <= 0:
        return (full,)
    return full, heads(_number(meta("rope.freq_base_swa"), _SLIDING_BASE), 1.0)


def _number(text: str | None, default: float) -> float:
    """A model's file may say anything; what is no positive number counts as not said."""
    try:
        value = float(text) if text is not None else default
    except ValueError:
        return default
    return value if 0 < value < math.inf else default
