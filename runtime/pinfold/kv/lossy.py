"""One section folded by a recipe, and unfolded: predicted from the layer before, turned, rounded, entropy-coded.

Arrays are channel-major ([channels, tokens]) throughout, so that each step runs along tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pinfold.errors import SessionCorruptError
from pinfold.kv.entropy import WIDEST, decode_rows, encode_rows
from pinfold.kv.lossless import pack_bytes, unpack_bytes
from pinfold.kv.recipe import LayerRecipe, Rung
from pinfold.kv.rope import Turn
from pinfold.kv.snapshot import Heads, Plane, Section

__all__ = ["SINKS", "fold_section", "unfold_section"]

F32 = NDArray[np.float32]

# The first tokens, which all others look at, are kept exactly.
SINKS = 1
# Norms of values are rounded to quarters of an octave: they set a step, no more.
_NORM_STEPS = 4
_NORM_ZERO = 128
_CLASSES, _MEANS, _NORMS, _SINK_ROWS = range(4)
_FIRST_PLANE = 4


@dataclass(slots=True)
class _Folded:
    """One layer as the decoder will see it."""

    k_codes: NDArray[np.int16]
    v_codes: NDArray[np.int16]
    mean: NDArray[np.float16]
    norms: NDArray[np.uint8]


def fold_section(section: Section, recipe: Sequence[LayerRecipe], rung: Rung) -> list[bytes]:
    """The blobs of a section whose planes are all float16: classes, means, norms, first rows, then each plane's codes."""
    classes: list[NDArray[np.uint8]] = []
    planes: list[bytes] = []
    means, norms = [], []
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


def unfold_section(
    blobs: Sequence[memoryview],
    seq: int,
    positions: NDArray[np.int32],
    heads: Heads,
    recipe: Sequence[LayerRecipe],
    rung: Rung,
    threads: int,
) -> Section:
    """The section that `fold_section` folded, up to its loss.

    Raises:
        SessionCorruptError: the blobs are not of this shape.
    """
    if len(blobs) != _FIRST_PLANE + 2 * len(recipe):
        msg = f"a folded section of {len(recipe)} layers has {len(blobs)} parts"
        raise SessionCorruptError(msg)
    decoder = _Decoder(blobs, seq, positions, heads, recipe, rung)
    count = len(positions)
    cuts = [count * i // threads for i in range(threads + 1)]
    ranges = [slice(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    if threads == 1:
        decoder.rebuild(ranges[0])
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="pinfold-unfold") as pool:
            list(pool.map(decoder.rebuild, ranges))
    return decoder.section


def _fold_layers(section: Section, recipe: Sequence[LayerRecipe], rung: Rung) -> Iterator[_Folded]:
    heads, turn = section.heads, _turn(section.heads, section.positions)
    keys, values = section.planes[: len(recipe)], section.planes[len(recipe) :]
    seen = np.zeros((_width(keys[0]) + _width(values[0]), len(section.positions)), dtype=np.float32)
    for layer, key_plane, value_plane in zip(recipe, keys, values, strict=True):
        k_seen, v_seen = seen[: _width(key_plane)], seen[_width(key_plane) :]
        keys_now = channels(key_plane)
        if turn is not None:
            turn.undo(keys_now.reshape(-1, heads.k_size, keys_now.shape[1]))
        mean = keys_now[:, SINKS:].mean(axis=1).astype(np.float16) if keys_now.shape[1] > SINKS else _zeros(keys_now)
        keys_now -= mean[:, None]
        k_codes = _code(layer.k_from, seen, layer.k_axes, keys_now, _k_steps(layer, rung), k_seen)
        values_now = channels(value_plane)
        norms = _norms(values_now, heads.v_size)
        v_codes = _code(layer.v_from, seen, layer.v_axes, values_now, _v_steps(layer, rung, norms), v_seen)
        yield _Folded(k_codes, v_codes, mean, norms)


def _code(source: F32 | None, seen: F32, axes: F32, now: F32, steps: F32, out: F32) -> NDArray[np.int16]:
    """Codes of `now`, and into `out` what the decoder will have of it. `steps`: [heads, 1, 1 or tokens]."""
    predicted = source @ seen if source is not None else np.zeros_like(now)
    left = (now - predicted).reshape(len(axes), -1, now.shape[1])
    turned = np.matmul(axes.transpose(0, 2, 1), left)
    turned /= steps
    np.clip(np.rint(turned, out=turned), -WIDEST, WIDEST, out=turned)
    turned[:, :, :SINKS] = 0
    codes = turned.astype(np.int16).reshape(now.shape)
    turned *= steps
    np.matmul(axes, turned, out=left)
    np.add(predicted, left.reshape(now.shape), out=out)
    out[:, :SINKS] = now[:, :SINKS]
    return codes


class _Decoder:
    """All codes decoded, and the section to be filled, by any number of threads for ranges of tokens of their own."""

    def __init__(
        self,
        blobs: Sequence[memoryview],
        seq: int,
        positions: NDArray[np.int32],
        heads: Heads,
        recipe: Sequence[LayerRecipe],
        rung: Rung,
    ) -> None:
        self._heads, self._recipe, self._rung = heads, recipe, rung
        self._turn = _turn(heads, positions)
        tokens, layers = len(positions), len(recipe)
        k_widths = [layer.k_axes.shape[0] * layer.k_axes.shape[1] for layer in recipe]
        v_widths = [layer.v_axes.shape[0] * layer.v_axes.shape[1] for layer in recipe]
        self._codes = _decode_planes(blobs, k_widths, v_widths, recipe, tokens)
        means = unpack_bytes(blobs[_MEANS], 2 * sum(k_widths)).reshape(2, -1).T.copy().view(np.float16).reshape(-1)
        if not np.isfinite(means).all():
            msg = "the means of a folded section are no numbers"
            raise SessionCorruptError(msg)
        self._means = np.split(means.astype(np.float32)[:, None], np.cumsum(k_widths)[:-1])
        v_heads = [len(layer.v_axes) for layer in recipe]
        norms = unpack_bytes(blobs[_NORMS], sum(v_heads) * tokens).reshape(-1, tokens)
        self._norms = np.split(norms, np.cumsum(v_heads)[:-1])
        self.section = Section(seq, positions, heads, [])
        widths = [("k", i, w) for i, w in enumerate(k_widths)] + [("v", i, w) for i, w in enumerate(v_widths)]
        sinks = unpack_bytes(blobs[_SINK_ROWS], 2 * min(SINKS, tokens) * sum(k_widths + v_widths))
        at = 0
        for part, layer, width in widths:
            rows = np.empty((tokens, 2 * width), dtype=np.uint8)
            size = 2 * width * min(SINKS, tokens)
            rows[:SINKS] = sinks[at : at + size].reshape(-1, 2 * width)
            at += size
            self.section.planes.append(Plane(layer, "k" if part == "k" else "v", "f16", rows))
        self._layers = layers
        self._first_keys = [channels(plane, 0, SINKS) for plane in self.section.planes[:layers]]
        if self._turn is not None:
            for keys in self._first_keys:
                self._turn.part(slice(0, SINKS)).undo(keys.reshape(-1, heads.k_size, keys.shape[1]))

    def rebuild(self, tokens: slice) -> None:
        """Fills the rows of `tokens` (start and stop) in all planes."""
        if tokens.start == tokens.stop:
            return
        turn = self._turn.part(tokens) if self._turn is not None else None
        keys, values = self.section.planes[: self._layers], self.section.planes[self._layers :]
        seen = np.zeros((_width(keys[0]) + _width(values[0]), tokens.stop - tokens.start), dtype=np.float32)
        first = max(SINKS - tokens.start, 0)
        for number, layer in enumerate(self._recipe):
            k_seen, v_seen = seen[: _width(keys[number])], seen[_width(keys[number]) :]
            mean = self._means[number]
            codes = self._codes[number][:, tokens]
            _restore(layer.k_from, seen, layer.k_axes, codes, _k_steps(layer, self._rung), k_seen)
            k_seen[:, :first] = self._first_keys[number][:, :first] - mean
            whole = k_seen + mean
            if turn is not None:
                turn.do(whole.reshape(-1, self._heads.k_size, whole.shape[1]))
            _write(keys[number], tokens.start, first, whole)
            steps = _v_steps(layer, self._rung, self._norms[number][:, tokens])
            codes = self._codes[self._layers + number][:, tokens]
            _restore(layer.v_from, seen, layer.v_axes, codes, steps, v_seen)
            v_seen[:, :first] = channels(values[number], tokens.start, tokens.start + first)
            _write(values[number], tokens.start, first, v_seen)


def _restore(source: F32 | None, seen: F32, axes: F32, codes: NDArray[np.integer], steps: F32, out: F32) -> None:
    values = codes.astype(np.float32).reshape(len(axes), -1, codes.shape[1])
    values *= steps
    left = np.matmul(axes, values).reshape(codes.shape)
    if source is not None:
        left += source @ seen
    out[...] = left


def _decode_planes(
    blobs: Sequence[memoryview],
    k_widths: list[int],
    v_widths: list[int],
    recipe: Sequence[LayerRecipe],
    tokens: int,
) -> list[NDArray[np.int16 | np.int8]]:
    """Codes of all K by layer, then of all V by layer."""
    classes = unpack_bytes(blobs[_CLASSES], sum(k_widths + v_widths))
    keys, values = [], []
    at = 0
    for number, layer in enumerate(recipe):
        for width, order, into, plane in (
            (k_widths[number], layer.k_order, keys, 2 * number),
            (v_widths[number], layer.v_order, values, 2 * number + 1),
        ):
            into.append(decode_rows(blobs[_FIRST_PLANE + plane], classes[at : at + width], order, tokens))
            at += width
    return [*keys, *values]


def channels(plane: Plane, start: int = 0, stop: int | None = None) -> F32:
    """The values of a float16 plane, float32 [channels, tokens]."""
    return np.ascontiguousarray(plane.rows.view(np.float16)[start:stop].T, dtype=np.float32)


def _write(plane: Plane, start: int, first: int, values: F32) -> None:
    """Writes [channels, tokens] from token `start` on, leaving out the first ones, which are there already."""
    plane.rows.view(np.uint16)[start + first : start + values.shape[1]] = _half_bits(values[:, first:]).T


def _half_bits(values: F32) -> NDArray[np.uint16]:
    """float16 as bits. Half the time of numpy's cast; ties are rounded away from zero."""
    scaled = np.clip(values, -65504, 65504)
    scaled *= np.float32(2.0**-112)  # float32's exponent then is float16's
    bits = scaled.view(np.uint32)
    sign = bits >> 16
    sign &= 0x8000
    bits += 0x1000
    bits >>= 13
    bits &= 0x7FFF
    bits |= sign
    return bits.astype(np.uint16)


def _norms(values: F32, size: int) -> NDArray[np.uint8]:
    by_head = values.reshape(-1, size, values.shape[1])
    rms = np.sqrt(np.einsum("hct,hct->ht", by_head, by_head) / size)
    codes = np.rint(np.log2(np.maximum(rms, 1e-12)) * _NORM_STEPS) + _NORM_ZERO
    return np.clip(codes, 0, 255).astype(np.uint8)


def _v_steps(layer: LayerRecipe, rung: Rung, norms: NDArray[np.uint8]) -> F32:
    scale = np.exp2((norms.astype(np.float32) - _NORM_ZERO) / _NORM_STEPS)
    scale *= rung.v_step * layer.v_gain
    return scale[:, None, :]


def _k_steps(layer: LayerRecipe, rung: Rung) -> F32:
    return (layer.k_spread * np.float32(rung.k_step * layer.k_gain))[:, None, None]


def _turn(heads: Heads, positions: NDArray[np.int32]) -> Turn | None:
    return Turn(heads.rope, positions) if heads.rope is not None else None


def _width(plane: Plane) -> int:
    return plane.rows.shape[1] // 2


def _zeros(values: F32) -> NDArray[np.float16]:
    return np.zeros(len(values), dtype=np.float16)
