"""A recipe as bytes, and back.

Layout: magic, u32 length of the header, the header (JSON, packed), u32 length of each of three packed blobs and the
blobs: the high bytes of all matrices as float16, their low bytes, then spreads (f32) and orders (i32); last the SHA-256
of all before. Matrices were rounded to what float16 can say when they were learnt, so that nothing is lost here.
"""

from __future__ import annotations

import hashlib
import math
import struct
from itertools import pairwise
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from pinfold.errors import SessionCorruptError
from pinfold.kv.lossless import pack_bytes, packed_size, unpack_bytes
from pinfold.kv.recipe import LADDER, LayerRecipe, Recipe

__all__ = ["dump_recipe", "load_recipe"]

F32 = NDArray[np.float32]

_MAGIC = b"PFRC\x00\x01\r\n"
_HEAD = struct.Struct("<8sI")
_SIZES = struct.Struct("<3I")
_SHA = 32
_MOST_HEADER = 1 << 20
# Arrays larger than this take at least 1/64 of their size here: a few bytes cannot ask for gigabytes.
_FREE, _TIMES = 1 << 20, 64

Count = Annotated[int, Field(ge=1, le=1 << 14)]
Input = Annotated[int, Field(ge=0, le=1 << 16)]
Gain = Annotated[float, Field(ge=2**-10, le=2**10)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Layer(_Strict):
    """Heads and their sizes, channels that K and V are predicted from (0 for none), gains."""

    k: tuple[Count, Count]
    v: tuple[Count, Count]
    k_from: Input
    v_from: Input
    gains: tuple[Gain, Gain]


class _Header(_Strict):
    fingerprint: Annotated[str, Field(max_length=4096)]
    rungs: dict[str, Annotated[int, Field(ge=-1, lt=len(LADDER))]]
    notes: dict[str, str]
    sections: Annotated[
        list[Annotated[list[_Layer], Field(max_length=1024), FailFast()]], Field(max_length=16), FailFast()
    ]


def dump_recipe(recipe: Recipe) -> bytes:
    """`recipe` as bytes; `load_recipe` gives one of the same digest.

    Raises:
        ValueError: its matrices are not what float16 can say, so that they were not learnt by `calibration.learn`.
    """
    layers = [layer for section in recipe.sections for layer in section]
    matrices = [
        a for layer in layers for a in (layer.k_from, layer.v_from, layer.k_axes, layer.v_axes) if a is not None
    ]
    values = np.concatenate([a.reshape(-1) for a in matrices]) if matrices else np.empty(0, dtype=np.float32)
    halves = np.clip(values, -65504, 65504).astype("<f2")
    if not np.array_equal(halves.astype(np.float32), values):
        msg = "a recipe's matrices must hold float16 values, as pinfold.kv.calibration.learn leaves them"
        raise ValueError(msg)
    planes = halves.view(np.uint8).reshape(-1, 2).T.copy()
    spreads = b"".join(layer.k_spread.astype("<f4").tobytes() for layer in layers)
    orders = b"".join(a.astype("<i4").tobytes() for layer in layers for a in (layer.k_order, layer.v_order))
    blobs = [pack_bytes(planes[1]), pack_bytes(planes[0]), pack_bytes(spreads + orders)]
    header = _Header(
        fingerprint=recipe.fingerprint,
        rungs=recipe.rungs,
        notes=recipe.notes,
        sections=[[_describe(layer) for layer in section] for section in recipe.sections],
    )
    text = pack_bytes(header.model_dump_json().encode())
    data = b"".join((_HEAD.pack(_MAGIC, len(text)), text, _SIZES.pack(*map(len, blobs)), *blobs))
    return data + hashlib.sha256(data).digest()


def load_recipe(data: bytes | memoryview) -> Recipe:
    """The recipe that was dumped.

    Raises:
        SessionCorruptError: the bytes are damaged, or describe what no recipe can be.
    """
    data = memoryview(data).cast("B")
    if len(data) < _HEAD.size + _SIZES.size + _SHA or hashlib.sha256(data[:-_SHA]).digest() != data[-_SHA:]:
        msg = "a recipe's checksum is not that of its bytes"
        raise SessionCorruptError(msg)
    data = data[:-_SHA]
    magic, size = _HEAD.unpack_from(data, 0)
    at = _HEAD.size + size
    if magic != _MAGIC or at + _SIZES.size > len(data):
        msg = "not a recipe of this version"
        raise SessionCorruptError(msg)
    header = _read_header(data[_HEAD.size : at])
    sizes = _SIZES.unpack_from(data, at)
    at += _SIZES.size
    if at + sum(sizes) != len(data):
        msg = "a recipe is longer or shorter than its parts"
        raise SessionCorruptError(msg)
    cuts = [at, at + sizes[0], at + sizes[0] + sizes[1], len(data)]
    blobs = [data[a:b] for a, b in pairwise(cuts)]
    return Recipe(header.fingerprint, _read_arrays(header, blobs), dict(header.rungs), dict(header.notes))


def _describe(layer: LayerRecipe) -> _Layer:
    return _Layer(
        k=layer.k_axes.shape[:2],
        v=layer.v_axes.shape[:2],
        k_from=layer.k_from.shape[1] if layer.k_from is not None else 0,
        v_from=layer.v_from.shape[1] if layer.v_from is not None else 0,
        gains=(layer.k_gain, layer.v_gain),
    )


def _read_header(packed: memoryview) -> _Header:
    size = packed_size(packed)
    if not 0 < size <= _MOST_HEADER:
        msg = f"a recipe's header says that it takes {size} bytes"
        raise SessionCorruptError(msg)
    try:
        header = _Header.model_validate_json(unpack_bytes(packed, size).tobytes())
    except ValidationError as e:
        msg = "a recipe's header cannot be read"
        raise SessionCorruptError(msg) from e
    for section in header.sections:
        k_most = max((_width(x.k) for x in section), default=0)
        v_most = max((_width(x.v) for x in section), default=0)
        both = k_most + v_most
        if any(x.k_from not in (0, k_most, both) or x.v_from not in (0, v_most, both) for x in section):
            msg = "a recipe predicts from other channels than there are"
            raise SessionCorruptError(msg)
    return header


def _width(shape: tuple[int, int]) -> int:
    return shape[0] * shape[1]


def _shapes(layer: _Layer) -> list[tuple[int, ...]]:
    """Of k_from, v_from, k_axes, v_axes; those that there are not have no columns."""
    return [
        (_width(layer.k), layer.k_from),
        (_width(layer.v), layer.v_from),
        (*layer.k, layer.k[1]),
        (*layer.v, layer.v[1]),
    ]


def _read_arrays(header: _Header, blobs: list[memoryview]) -> list[list[LayerRecipe]]:
    layers = [layer for section in header.sections for layer in section]
    values = sum(math.prod(shape) for layer in layers for shape in _shapes(layer))
    heads = sum(layer.k[0] for layer in layers)
    channels = sum(_width(layer.k) + _width(layer.v) for layer in layers)
    if 2 * values + 4 * (heads + channels) > max(_FREE, _TIMES * sum(map(len, blobs))):
        msg = f"a recipe of {sum(map(len, blobs))} bytes says that it holds {values} values"
        raise SessionCorruptError(msg)
    planes = np.stack((unpack_bytes(blobs[1], values), unpack_bytes(blobs[0], values)))
    halves = planes.T.copy().view("<f2").reshape(-1)
    rest = unpack_bytes(blobs[2], 4 * (heads + channels))
    spreads, orders = rest[: 4 * heads].view("<f4").astype(np.float32), rest[4 * heads :].view("<i4")
    if not np.isfinite(halves).all() or not (np.isfinite(spreads) & (spreads > 0)).all():
        msg = "a recipe holds what is no number"
        raise SessionCorruptError(msg)
    parts = _Parts(halves, spreads, orders)
    return [[parts.layer(layer) for layer in section] for section in header.sections]


class _Parts:
    """Takes layer after layer off the front of what was read."""

    def __init__(self, halves: NDArray[np.float16], spreads: F32, orders: NDArray[np.int32]) -> None:
        self._halves, self._spreads, self._orders = halves, spreads, orders

    def layer(self, described: _Layer) -> LayerRecipe:
        k_from, v_from, k_axes, v_axes = (self._matrix(shape) for shape in _shapes(described))
        heads = described.k[0]
        spread, self._spreads = self._spreads[:heads].copy(), self._spreads[heads:]
        k_order, v_order = self._order(_width(described.k)), self._order(_width(described.v))
        return LayerRecipe(
            k_from if described.k_from else None,
            v_from if described.v_from else None,
            k_axes,
            v_axes,
            spread,
            k_order,
            v_order,
            *described.gains,
        )

    def _matrix(self, shape: tuple[int, ...]) -> F32:
        count = math.prod(shape)
        values, self._halves = self._halves[:count], self._halves[count:]
        return values.astype(np.float32).reshape(shape)

    def _order(self, width: int) -> NDArray[np.intp]:
        order, self._orders = self._orders[:width].astype(np.intp), self._orders[width:]
        if not np.array_equal(np.sort(order), np.arange(width)):
            msg = "a recipe puts channels in an order that is none"
            raise SessionCorruptError(msg)
        return order
