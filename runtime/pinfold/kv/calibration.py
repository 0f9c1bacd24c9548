"""Learning a `Recipe` from snapshots of sample texts. Takes about two seconds for the embedded model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pinfold.kv.lossy import SINKS, channels
from pinfold.kv.recipe import LADDER, PRESETS, LayerRecipe, Recipe
from pinfold.kv.rope import Turn
from pinfold.kv.snapshot import Opaque, Section, Snapshot

__all__ = ["learn"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

# Channels of a layer above which a prediction costs more time to restore than its bits are worth.
_WIDEST_PREDICTED = 1536
_RIDGE = 1e-4


def learn(samples: Sequence[Snapshot], fingerprint: str) -> Recipe:
    """The recipe of the model that `samples` (two thousand tokens or more altogether) are from, all presets unmeasured.

    A section that cannot be folded with loss gets no layers, and is then kept exactly.
    """
    sections = []
    for number in range(len(samples[0].sections)):
        cut = [snapshot.sections[number] for snapshot in samples]
        usable = [s for s in cut if isinstance(s, Section) and all(plane.kind == "f16" for plane in s.planes)]
        sections.append(_learn_section(usable) if len(usable) == len(cut) else [])
    return Recipe(fingerprint, sections)


def _learn_section(samples: Sequence[Section]) -> list[LayerRecipe]:
    layers = len(samples[0].planes) // 2
    turns = [Turn(s.heads.rope, s.positions) if s.heads.rope is not None else None for s in samples]
    widths = {plane.rows.shape[1] // 2 for plane in samples[0].planes}
    predicts = len({plane.rows.shape[1] for plane in samples[0].planes[:layers]}) == 1 and max(widths) <= _WIDEST_PREDICTED
    middle = LADDER[PRESETS["balanced"] - 1]
    recipe: list[LayerRecipe] = []
    seen: tuple[F32, F32] | None = None
    noise = (0.0, 0.0)
    for layer in range(layers):
        keys = np.hstack([_keys(s, layer, turn) for s, turn in zip(samples, turns, strict=True)])
        values = np.hstack([channels(s.planes[layers + layer])[:, SINKS:] for s in samples])
        k_size, v_size = samples[0].heads.k_size, samples[0].heads.v_size
        spread = np.sqrt((keys.reshape(-1, k_size, keys.shape[1]) ** 2).mean(axis=(1, 2), dtype=np.float64))
        k_noise = float(np.mean((middle.k_step * spread) ** 2)) / 12
        norms = np.sqrt((values.reshape(-1, v_size, values.shape[1]) ** 2).mean(axis=1))
        v_noise = float(middle.v_step**2 * (norms.astype(np.float64) ** 2).mean()) / 12
        before = seen[1] if seen is not None else np.zeros_like(values)
        k_from, left_k, v_from, left_v = None, keys, None, values
        if predicts and seen is not None:
            k_from = _predictor(seen, noise, keys)
            left_k = keys - k_from @ np.vstack(seen)
        if predicts:
            v_from = _predictor((keys, before), (k_noise, noise[1]), values)
            left_v = values - v_from @ np.vstack((keys, before))
        k_axes, k_order = _axes(left_k, k_size, None)
        v_axes, v_order = _axes(left_v, v_size, norms)
        recipe.append(
            LayerRecipe(k_from, v_from, k_axes, v_axes, spread.astype(np.float32), k_order, v_order)
        )
        seen, noise = (keys, values), (k_noise, v_noise)
    return recipe


def _keys(section: Section, layer: int, turn: Turn | None) -> F32:
    keys = channels(section.planes[layer])
    if turn is not None:
        turn.undo(keys.reshape(-1, section.heads.k_size, keys.shape[1]))
    keys = keys[:, SINKS:]
    return keys - keys.mean(axis=1, keepdims=True)


def _predictor(seen: tuple[F32, ...], noise: tuple[float, ...], now: F32) -> F32:
    """The linear map from what the decoder will have, rounding noise (variances) included, to `now`."""
    features = np.vstack(seen)
    products = (features @ features.T).astype(np.float64)
    count = features.shape[1]
    power = np.concatenate([np.full(len(s), count * n + _RIDGE * float((s**2).sum()) / len(s)) for s, n in zip(seen, noise, strict=True)])
    products[np.diag_indices_from(products)] += np.maximum(power, 1e-12)
    return np.linalg.solve(products, (features @ now.T).astype(np.float64)).T.astype(np.float32, order="C")


def _axes(left: F32, size: int, norms: F32 | None) -> tuple[F32, NDArray[np.intp]]:
    """Principal axes of each head, and all channels by the spread of their codes. `norms`: [heads, tokens]."""
    by_head = left.reshape(-1, size, left.shape[1])
    if norms is not None:
        by_head = by_head / np.maximum(norms[:, None, :], 1e-12)
    covariance = np.matmul(by_head, by_head.transpose(0, 2, 1)).astype(np.float64)
    spreads, axes = np.linalg.eigh(covariance)
    spreads, axes = spreads[:, ::-1], axes[:, :, ::-1]
    if norms is None:
        spreads = spreads / np.maximum(spreads.sum(axis=1, keepdims=True), 1e-300)
    return np.ascontiguousarray(axes, dtype=np.float32), np.argsort(-spreads.reshape(-1), kind="stable")
