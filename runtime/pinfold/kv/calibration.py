"""Learning a `Recipe` from snapshots of sample texts. Takes about two seconds for the embedded model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pinfold.kv.blas import ONE_THREAD
from pinfold.kv.half import MOST_HALF, all_finite, channels
from pinfold.kv.lossy import SINKS
from pinfold.kv.recipe import LADDER, PRESETS, LayerRecipe, Recipe
from pinfold.kv.rope import Turn, fits
from pinfold.kv.snapshot import Section, Snapshot

__all__ = ["learn"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

# Channels of a layer above which a prediction costs more time to restore than its bits are worth.
_WIDEST_PREDICTED = 1536
_RIDGE = 1e-4
# Of a head whose keys are all the same; a step is never zero.
_LEAST_SPREAD = 1e-6
# Bits of a predictor's weights that are kept: their noise is far below what prediction leaves, and files are smaller.
_WEIGHT_BITS = 7
# Operations of predicting from both planes, as a part of those of computing a token, above which one plane must do.
_RESTORE_SHARE = 0.045


def learn(samples: Sequence[Snapshot], fingerprint: str, parameters: int) -> Recipe:
    """The recipe of the model that `samples` (two thousand tokens or more altogether) are from, all presets unmeasured.

    `parameters` of the model say how long computing a token takes, of which restoring it may take a small part.
    A section that cannot be folded with loss gets no layers, and is then kept exactly. Matrices are rounded to what a
    recipe's file holds before anything is derived from them: who folds and who unfolds use the same.
    """
    sections = []
    both = _pays(samples[0], parameters) if samples else False
    for number in range(min((len(snapshot.sections) for snapshot in samples), default=0)):
        cut = [snapshot.sections[number] for snapshot in samples]
        usable = [s for s in cut if isinstance(s, Section) and _usable(s)]
        with ONE_THREAD:
            sections.append(_learn_section(usable, both=both) if len(usable) == len(cut) else [])
    return Recipe(fingerprint, sections)


def _pays(sample: Snapshot, parameters: int) -> bool:
    """Whether predicting each plane from both planes is cheap beside computing a token with `parameters`."""
    widths = [plane.rows.shape[1] // 2 for _, plane in sample.planes()]
    return bool(4 * sum(width**2 for width in widths) < _RESTORE_SHARE * 2 * parameters)


def _usable(section: Section) -> bool:
    kinds = all(plane.kind == "f16" and all_finite(plane) for plane in section.planes)
    return kinds and fits(section.heads) and len(section.positions) > SINKS


def _learn_section(samples: Sequence[Section], *, both: bool) -> list[LayerRecipe]:
    layers = len(samples[0].planes) // 2
    turns = [Turn(s.heads.rope, s.positions) if s.heads.rope is not None else None for s in samples]
    widths = [plane.rows.shape[1] // 2 for plane in samples[0].planes]
    alike = len(set(widths[:layers])) == len(set(widths[layers:])) == 1
    predicts = alike and max(widths) <= _WIDEST_PREDICTED
    middle = LADDER[PRESETS["balanced"] - 1]
    recipe: list[LayerRecipe] = []
    seen: tuple[F32, F32] | None = None
    noise = (0.0, 0.0)
    for layer in range(layers):
        keys = np.hstack([_keys(s, layer, turn) for s, turn in zip(samples, turns, strict=True)])
        values = np.hstack([channels(s.planes[layers + layer])[:, SINKS:] for s in samples])
        k_size, v_size = samples[0].heads.k_size, samples[0].heads.v_size
        spread = np.sqrt((keys.reshape(-1, k_size, keys.shape[1]) ** 2).mean(axis=(1, 2), dtype=np.float64))
        spread = np.maximum(spread, _LEAST_SPREAD)
        k_noise = float(np.mean((middle.k_step * spread) ** 2)) / 12
        norms = np.sqrt((values.reshape(-1, v_size, values.shape[1]) ** 2).mean(axis=1))
        v_noise = float(middle.v_step**2 * (norms.astype(np.float64) ** 2).mean()) / 12
        before = seen[1] if seen is not None and predicts else np.zeros_like(values)
        k_from, left_k, v_from, left_v = None, keys, None, values
        if predicts and seen is not None:
            k_from, left_k = _predict(seen[: 2 if both else 1], noise, keys)
        if predicts and (both or seen is not None):
            sources = (keys, before) if both else (before,)
            v_from, left_v = _predict(sources, (k_noise, noise[1])[-len(sources) :], values)
        k_axes, k_order = _axes(left_k, k_size, None)
        v_axes, v_order = _axes(left_v, v_size, norms)
        recipe.append(LayerRecipe(k_from, v_from, k_axes, v_axes, spread.astype(np.float32), k_order, v_order))
        seen, noise = (keys, values), (k_noise, v_noise)
    return recipe


def _keys(section: Section, layer: int, turn: Turn | None) -> F32:
    keys = channels(section.planes[layer])
    if turn is not None:
        turn.undo(keys.reshape(-1, section.heads.k_size, keys.shape[1]))
    keys = keys[:, SINKS:]
    keys -= keys.mean(axis=1, keepdims=True)
    return keys


def _predict(sources: tuple[F32, ...], noise: tuple[float, ...], now: F32) -> tuple[F32, F32]:
    """The map from `sources` to `now`, and what it leaves of `now`."""
    source = _predictor(sources, noise, now)
    left: F32 = now - source @ np.vstack(sources)
    return source, left


def _predictor(seen: tuple[F32, ...], noise: tuple[float, ...], now: F32) -> F32:
    """The linear map from what the decoder will have, rounding noise (variances) included, to `now`."""
    features = np.vstack(seen)
    products: F64 = (features @ features.T).astype(np.float64)
    count = features.shape[1]
    power = np.concatenate(
        [np.full(len(s), count * n + _RIDGE * float((s**2).sum()) / len(s)) for s, n in zip(seen, noise, strict=False)]
    )
    products[np.diag_indices_from(products)] += np.maximum(power, 1e-12)
    target: F64 = (features @ now.T).astype(np.float64)
    return _short(np.asarray(np.linalg.solve(products, target).T, dtype=np.float64))


def _axes(left: F32, size: int, norms: F32 | None) -> tuple[F32, NDArray[np.intp]]:
    """Principal axes of each head, and all channels by the spread of their codes. `norms`: [heads, tokens]."""
    by_head: F32 = left.reshape(-1, size, left.shape[1])
    if norms is not None:
        by_head = np.divide(by_head, np.maximum(norms[:, None, :], 1e-12), dtype=np.float32)
    products: F32 = np.matmul(by_head, by_head.transpose(0, 2, 1))
    covariance = products.astype(np.float64)
    found = np.linalg.eigh(covariance)
    spreads: F64 = found.eigenvalues[:, ::-1]
    axes: F64 = found.eigenvectors[:, :, ::-1]
    if norms is None:
        spreads = spreads / np.maximum(spreads.sum(axis=1, keepdims=True), 1e-300)
    halves: F32 = axes.astype(np.float16).astype(np.float32, order="C")
    return halves, np.argsort(-spreads.reshape(-1), kind="stable")


def _short(weights: F64) -> F32:
    """`weights` rounded to `_WEIGHT_BITS` bits each, and to what float16 holds."""
    fraction, exponent = np.frexp(weights)
    rounded = np.ldexp(np.rint(fraction * 2**_WEIGHT_BITS), exponent - _WEIGHT_BITS)
    clipped: F64 = np.clip(rounded, -MOST_HALF, MOST_HALF)
    return clipped.astype(np.float16).astype(np.float32, order="C")
