"""One section folded by a recipe: predicted from the layer before, turned, rounded, entropy-coded.

Arrays are channel-major ([channels, tokens]) throughout: each step runs along tokens. `rebuild` is the way back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pinfold.kv.entropy import WIDEST, encode_rows
from pinfold.kv.half import MOST_HALF, channels
from pinfold.kv.lossless import pack_bytes
from pinfold.kv.recipe import LayerRecipe, Rung
from pinfold.kv.rope import Turn
from pinfold.kv.snapshot import Heads, Section

__all__ = ["SINKS", "TooWide", "fold_section", "k_steps", "predict", "turn_of", "v_steps"]

F32 = NDArray[np.float32]

SINKS = 1
"""The first tokens, which all others look at, are kept exactly."""
# Norms of values are rounded to quarters of an octave: they set a step, no more.
_NORM_STEPS = 4
_NORM_ZERO = 128


class TooWide(Exception):  # noqa: N818 - says that a section must be kept without loss, never leaves this room
    """A value lies further from what was predicted than a code can say."""


@dataclass(slots=True)
class _Folded:
    """One layer as it will be stored."""

    k_codes: NDArray[np.int16]
    v_codes: NDArray[np.int16]
    mean: NDArray[np.float16]
    norms: NDArray[np.uint8]


def fold_section(section: Section, recipe: Sequence[LayerRecipe], rung: Rung) -> list[bytes]:
    """The blobs of a section of float16 planes: classes, means, norms, first rows, then each plane's codes.

    Raises:
        TooWide: it cannot be folded on this rung.
    """
    classes: list[NDArray[np.uint8]] = []
    planes: list[bytes] = []
    means, norms = [], []
    with np.errstate(all="ignore"):  # what is no number ends as TooWide
        for layer, folded in zip(recipe, _fold_layers(section, recipe, rung), strict=True):
            for codes, order in ((folded.k_codes, layer.k_order), (folded.v_codes, layer.v_order)):
                of_rows, data = encode_rows(codes, order)
                classes.append(of_rows)
                planes.append(data)
            means.append(folded.mean)
            norms.append(folded.norms.reshape(-1))
    sinks = np.concatenate([plane.rows[:SINKS].reshape(-1) for plane in section.planes])
    return [
        pack_bytes(np.concatenate(classes)),
        pack_bytes(np.concatenate(means).view(np.uint8).reshape(-1, 2).T.reshape(-1)),
        pack_bytes(np.concatenate(norms)),
        pack_bytes(sinks),
        *planes,
    ]


def turn_of(heads: Heads, positions: NDArray[np.int32]) -> Turn | None:
    """The turns of the keys; None where it is not known how they were turned."""
    return Turn(heads.rope, positions) if heads.rope is not None else None


def k_steps(layer: LayerRecipe, rung: Rung) -> F32:
    """The keys' steps, [heads, 1, 1]."""
    return (layer.k_spread * np.float32(rung.k_step * layer.k_gain))[:, None, None]


def v_steps(layer: LayerRecipe, rung: Rung, norms: NDArray[np.uint8]) -> F32:
    """The values' steps, [heads, 1, tokens]. `norms`: [heads, tokens]."""
    scale = np.exp2((norms.astype(np.float32) - _NORM_ZERO) / _NORM_STEPS)
    scale *= rung.v_step * layer.v_gain
    return scale[:, None, :]


def predict(source: F32, seen: F32, own: F32) -> F32:
    """A plane's values from the last layer's, by a predictor from all that was seen or from the plane's `own` part."""
    predicted: F32 = source @ (seen if source.shape[1] == len(seen) else own)
    return predicted


def _fold_layers(section: Section, recipe: Sequence[LayerRecipe], rung: Rung) -> Iterator[_Folded]:
    heads, turn = section.heads, turn_of(section.heads, section.positions)
    keys, values = section.planes[: len(recipe)], section.planes[len(recipe) :]
    k_most = max(layer.k_width for layer in recipe)
    v_most = max(layer.v_width for layer in recipe)
    seen = np.zeros((k_most + v_most, len(section.positions)), dtype=np.float32)
    for layer, key_plane, value_plane in zip(recipe, keys, values, strict=True):
        k_seen, v_seen = seen[: layer.k_width], seen[k_most : k_most + layer.v_width]
        keys_now = channels(key_plane)
        if turn is not None:
            turn.undo(keys_now.reshape(-1, heads.k_size, keys_now.shape[1]))
        mean = np.clip(keys_now[:, SINKS:].mean(axis=1), -MOST_HALF, MOST_HALF).astype(np.float16)
        keys_now -= mean[:, None]
        k_codes = _code(layer.k_from, layer.k_reads(seen), layer.k_axes, keys_now, k_steps(layer, rung), k_seen)
        values_now = channels(value_plane)
        norms = _norms(values_now, heads.v_size)
        v_codes = _code(
            layer.v_from, layer.v_reads(seen), layer.v_axes, values_now, v_steps(layer, rung, norms), v_seen
        )
        yield _Folded(k_codes, v_codes, mean, norms)


def _code(source: F32 | None, seen: F32, axes: F32, now: F32, steps: F32, out: F32) -> NDArray[np.int16]:
    """Codes of `now`, and into `out` what the decoder will have of it. `steps`: [heads, 1, 1 or tokens]."""
    predicted = predict(source, seen, out) if source is not None else np.zeros_like(now)
    left = (now - predicted).reshape(len(axes), -1, now.shape[1])
    turned = np.matmul(axes.transpose(0, 2, 1), left)
    turned /= steps
    np.rint(turned, out=turned)
    turned[:, :, :SINKS] = 0
    if not max(turned.max(), -turned.min()) <= WIDEST:
        msg = f"a value lies more than {WIDEST} steps from what was predicted"
        raise TooWide(msg)
    codes: NDArray[np.int16] = turned.astype(np.int16).reshape(now.shape)
    turned *= steps
    np.matmul(axes, turned, out=left)
    np.add(predicted, left.reshape(now.shape), out=out)
    out[:, :SINKS] = now[:, :SINKS]
    return codes


def _norms(values: F32, size: int) -> NDArray[np.uint8]:
    by_head = values.reshape(-1, size, values.shape[1])
    rms = np.sqrt(np.einsum("hct,hct->ht", by_head, by_head) / size)
    codes = np.rint(np.log2(np.maximum(rms, 1e-12)) * _NORM_STEPS) + _NORM_ZERO
    norms: NDArray[np.uint8] = np.clip(codes, 0, 255).astype(np.uint8)
    return norms
