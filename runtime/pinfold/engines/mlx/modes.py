"""What a model on MLX can do here, one row for each thing that users ask about."""

from __future__ import annotations

from collections import Counter

from pinfold.draft_modes import BLOCKS
from pinfold.engines.base import Mode
from pinfold.engines.mlx.loading import Loaded

__all__ = ["describe_modes"]

_CANNOT_CUT = "recurrent state cannot be cut: only whole sessions and pins are reused"
_NEEDS_CHECKPOINT = "with a checkpoint that was made for this model"


def describe_modes(loaded: Loaded) -> tuple[Mode, ...]:
    """The rows of `Capabilities.modes`."""
    kind, on_cpu = loaded.layout.kind, loaded.device.name == "cpu"
    folds = kind in ("f16", "bf16") and bool(loaded.layout.sections)
    fold = "keys and values are folded asymmetrically" if folds else _only_exact(loaded)
    return (
        Mode("device", True, not on_cpu, f"{loaded.device.name}, computing in {loaded.compute}: {loaded.device.why}"),
        Mode("prefix reuse", True, True, "any prefix" if loaded.trims else _CANNOT_CUT),
        Mode("n_ctx", True, True, loaded.context_reason),
        Mode("caches", True, True, _caches(loaded)),
        Mode("fork", True, True, "shares KV at rest; while it is computed, a fork has all of its KV in one row"),
        Mode("batch", True, True, "requests in flight are evaluated one after the other within a step"),
        Mode("trim", loaded.trims, loaded.trims, "any length" if loaded.trims else _CANNOT_CUT),
        Mode("snapshot", True, True, "byte-exact state of one sequence"),
        Mode("fold", folds, folds, fold),
        Mode(f"kv_resident {kind}", True, True, "in use"),
        *_drafters(loaded),
        Mode("kv_resident quantized", False, False, "the MLX engine keeps whole cells; idle sessions are folded"),
    )


def _drafters(loaded: Loaded) -> tuple[Mode, ...]:
    """Whether drafters that read the model's layers can help it."""
    ready = loaded.drafter.kind if loaded.drafter else ""
    return tuple(
        Mode(f"draft {kind}", True, kind == ready, "in use" if kind == ready else _NEEDS_CHECKPOINT) for kind in BLOCKS
    )


def _caches(loaded: Loaded) -> str:
    """Such as: 22 sliding (window 512), 4 full."""
    counts = Counter((leaf.kind, leaf.window) for leaf in loaded.leaves)
    rows = [f"{count} {kind}" + (f" (window {window})" if window else "") for (kind, window), count in counts.items()]
    return ", ".join(rows)


def _only_exact(loaded: Loaded) -> str:
    if not loaded.layout.sections:
        return "recurrent state is kept without loss"
    return f"cells are {loaded.layout.kind}: sessions are kept without loss"
