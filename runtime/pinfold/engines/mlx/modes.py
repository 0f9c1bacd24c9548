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
    quantized = loaded.resident.types.quantized
    fold = "keys and values are folded asymmetrically" if folds else _only_exact(loaded)
    return (
        Mode("device", True, not on_cpu, f"{loaded.device.name}, computing in {loaded.compute}: {loaded.device.why}"),
        Mode("prefix reuse", True, True, "any prefix" if loaded.trims else _CANNOT_CUT),
        Mode("n_ctx", True, True, loaded.context_reason),
        Mode("caches", True, True, _caches(loaded)),
        Mode("fork", True, True, "shares KV at rest; while it is computed, a fork has all of its KV in one row"),
        _batch(loaded),
        Mode("trim", loaded.trims, loaded.trims, "any length" if loaded.trims else _CANNOT_CUT),
        Mode("snapshot", True, True, "byte-exact state of one sequence"),
        Mode("fold", folds, folds, fold),
        Mode(f"kv_resident {kind}", True, not quantized, _whole(loaded)),
        _quantized(loaded),
        *_kernel(loaded),
        *_drafts(loaded),
        *_drafters(loaded),
    )


def _drafts(loaded: Loaded) -> tuple[Mode, ...]:
    rows = {
        "draft lookup": "guesses from the text so far",
        "draft grammar": "guesses what is forced",
        "draft model": "a smaller model of the same vocabulary",
    }
    cost = "" if loaded.trims else "; a wrong guess costs a forward more, as this model's state cannot be cut"
    return tuple(Mode(name, True, True, reason + cost) for name, reason in rows.items())


def _batch(loaded: Loaded) -> Mode:
    if loaded.together:
        return Mode("batch", True, True, "one forward for the next token of all requests; prompts one after the other")
    return Mode("batch", True, False, f"requests are evaluated one after the other: {loaded.apart_because}")


def _whole(loaded: Loaded) -> str:
    if not loaded.resident.types.quantized:
        return f"in use: {loaded.resident.reason}"
    return (
        "the newest tokens; " + "; ".join(loaded.resident.skipped) if loaded.resident.skipped else "the newest tokens"
    )


def _quantized(loaded: Loaded) -> Mode:
    resident = loaded.resident
    if resident.types.quantized:
        layers = loaded.layout.packed
        smaller = sum(layer.whole_bytes for layer in layers) / sum(layer.bytes_per_token for layer in layers)
        what = f"in use: {resident.types} in {len(layers)} layers, {smaller:.2f} times smaller than whole cells"
        passes = resident.trial is not None and resident.trial.passes
        return Mode("kv_resident quantized", True, passes, f"{what}; {resident.trial}; {resident.reason}")
    failed = resident.trial is not None
    packs = any(leaf.kind == "full" for leaf in loaded.leaves) and not failed
    why = resident.reason if packs or failed else "no layer of full attention"
    return Mode("kv_resident quantized", packs, False, f"not in use: {why}")


def _kernel(loaded: Loaded) -> tuple[Mode, ...]:
    if not loaded.resident.types.quantized:
        return ()
    used, reason = loaded.resident.kernel
    return (Mode("kernel over codes", used, used, reason),)


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
    if loaded.layout.packed:
        return "packed cells are kept as they are, and whole ones beside them without loss"
    if not loaded.layout.sections:
        return "recurrent state is kept without loss"
    return f"cells are {loaded.layout.kind}: sessions are kept without loss"
