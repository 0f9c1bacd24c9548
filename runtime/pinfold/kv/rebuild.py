"""A folded section made whole again: all codes decoded, then block after block of tokens rebuilt, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from pinfold.errors import SessionCorruptError
from pinfold.kv.entropy import decode_rows
from pinfold.kv.half import channels, half_bits
from pinfold.kv.lossless import unpack_bytes
from pinfold.kv.lossy import SINKS, k_steps, predict, turn_of, v_steps
from pinfold.kv.recipe import LayerRecipe, Rung
from pinfold.kv.snapshot import Plane, Section

__all__ = ["unfold_section"]

F32 = NDArray[np.float32]
Codes = NDArray[np.int16 | np.int8]

_CLASSES, _MEANS, _NORMS, _SINK_ROWS, _FIRST_PLANE = range(5)
# Tokens rebuilt together. What a layer hands to the next stays in the core's cache, and bytes do not depend on threads.
_BLOCK = 512


def unfold_section(
    section: Section, blobs: Sequence[memoryview], recipe: Sequence[LayerRecipe], rung: Rung, threads: int
) -> None:
    """Fills the rows of a section of more than SINKS tokens that `fold_section` folded, up to its loss.

    Raises:
        SessionCorruptError: the blobs are not of this shape.
    """
    if len(blobs) != _FIRST_PLANE + 2 * len(recipe):
        msg = f"a folded section of {len(recipe)} layers has {len(blobs)} parts"
        raise SessionCorruptError(msg)
    decoder = _Decoder(section, blobs, recipe, rung)
    starts = range(0, len(section.positions), _BLOCK)
    if threads == 1:
        decoder.decode_all()
        for start in starts:
            decoder.rebuild(start)
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="pinfold-unfold") as pool:
            list(pool.map(decoder.decode, range(2 * len(recipe))))
            list(pool.map(decoder.rebuild, starts))


class _Decoder:
    """The section to be filled, by any number of threads: first all planes' codes, then blocks of tokens."""

    def __init__(
        self, section: Section, blobs: Sequence[memoryview], recipe: Sequence[LayerRecipe], rung: Rung
    ) -> None:
        self._section, self._blobs, self._recipe, self._rung = section, blobs, recipe, rung
        self._tokens = len(section.positions)
        self._turn = turn_of(section.heads, section.positions)
        widths = [width for layer in recipe for width in (layer.k_width, layer.v_width)]
        classes = unpack_bytes(blobs[_CLASSES], sum(widths))
        self._classes = np.split(classes, np.cumsum(widths)[:-1])
        self._codes: list[Codes | None] = [None] * len(widths)
        k_widths = widths[::2]
        self._means = np.split(_means(blobs[_MEANS], sum(k_widths)), np.cumsum(k_widths)[:-1])
        v_heads = [len(layer.v_axes) for layer in recipe]
        norms = unpack_bytes(blobs[_NORMS], sum(v_heads) * self._tokens).reshape(-1, self._tokens)
        self._norms = np.split(norms, np.cumsum(v_heads)[:-1])
        self._fill_first(unpack_bytes(blobs[_SINK_ROWS], 2 * SINKS * sum(widths)))

    def decode(self, plane: int) -> None:
        """Decodes the codes of one plane: K of the first layer, its V, K of the next one and so on."""
        layer = self._recipe[plane // 2]
        order = layer.v_order if plane % 2 else layer.k_order
        self._codes[plane] = decode_rows(self._blobs[_FIRST_PLANE + plane], self._classes[plane], order, self._tokens)

    def decode_all(self) -> None:
        """Decodes the codes of all planes."""
        for plane in range(len(self._codes)):
            self.decode(plane)

    def rebuild(self, start: int) -> None:
        """Fills a block of rows in all planes."""
        tokens = slice(start, min(start + _BLOCK, self._tokens))
        with np.errstate(all="ignore"):  # forged codes may overflow; rows come out finite all the same
            self._rebuild(tokens, SINKS if start == 0 else 0)

    def _rebuild(self, tokens: slice, first: int) -> None:
        """`first`: how many of the tokens are there already."""
        turn = self._turn.part(tokens) if self._turn is not None else None
        planes, layers = self._section.planes, len(self._recipe)
        k_most = max(layer.k_width for layer in self._recipe)
        v_most = max(layer.v_width for layer in self._recipe)
        seen = np.zeros((k_most + v_most, tokens.stop - tokens.start), dtype=np.float32)
        for number, layer in enumerate(self._recipe):
            k_seen, v_seen = seen[: layer.k_width], seen[k_most : k_most + layer.v_width]
            mean = self._means[number]
            codes = self._codes_of(2 * number, tokens)
            _restore(layer.k_from, layer.k_reads(seen), layer.k_axes, codes, k_steps(layer, self._rung), k_seen)
            if first:
                k_seen[:, :first] = self._first_keys[number] - mean
            whole = k_seen + mean
            if turn is not None:
                turn.do(whole.reshape(-1, self._section.heads.k_size, whole.shape[1]))
            _write(planes[number], tokens, first, whole)
            steps = v_steps(layer, self._rung, self._norms[number][:, tokens])
            codes = self._codes_of(2 * number + 1, tokens)
            _restore(layer.v_from, layer.v_reads(seen), layer.v_axes, codes, steps, v_seen)
            if first:
                v_seen[:, :first] = channels(planes[layers + number], 0, first)
            _write(planes[layers + number], tokens, first, v_seen)

    def _codes_of(self, plane: int, tokens: slice) -> Codes:
        codes = self._codes[plane]
        if codes is None:
            msg = "blocks are rebuilt once all planes are decoded"
            raise RuntimeError(msg)
        return codes[:, tokens]

    def _fill_first(self, sinks: NDArray[np.uint8]) -> None:
        """The first rows of all planes. `sinks`: those rows, all K by layer, then all V."""
        _check_finite(sinks.view(np.float16))
        at = 0
        for plane in self._section.planes:
            width = plane.rows.shape[1]
            plane.rows[:SINKS] = sinks[at : at + width * SINKS].reshape(SINKS, -1)
            at += width * SINKS
        self._first_keys = [channels(plane, 0, SINKS) for plane in self._section.planes[: len(self._recipe)]]
        if self._turn is not None:
            turn = self._turn.part(slice(0, SINKS))
            for keys in self._first_keys:
                turn.undo(keys.reshape(-1, self._section.heads.k_size, SINKS))


def _means(blob: memoryview, count: int) -> F32:
    """[count, 1]."""
    halves = unpack_bytes(blob, 2 * count).reshape(2, -1).T.copy().view(np.float16)
    _check_finite(halves)
    return halves.astype(np.float32)


def _check_finite(halves: NDArray[np.float16]) -> None:
    if not np.isfinite(halves).all():
        msg = "a folded section holds what is no number"
        raise SessionCorruptError(msg)


def _restore(source: F32 | None, seen: F32, axes: F32, codes: Codes, steps: F32, out: F32) -> None:
    predicted = predict(source, seen, out) if source is not None else None
    values = codes.astype(np.float32).reshape(len(axes), -1, codes.shape[1])
    values *= steps
    np.matmul(axes, values, out=out.reshape(values.shape))
    if predicted is not None:
        out += predicted


def _write(plane: Plane, tokens: slice, first: int, values: F32) -> None:
    """Writes [channels, tokens], leaving out the first ones, which are there already."""
    plane.rows.view(np.uint16)[tokens.start + first : tokens.stop] = half_bits(values).T[first:]
