"""llama.cpp's state of one sequence, taken apart and put together again, byte for byte.

The layout (little endian): u32 magic, u32 header; then one or two caches, full attention before sliding window, each:
u32 streams, u32 cells, for each cell i32 position, u32 count, i32 sequence ids; u32 values are transposed, u32 layers;
for each layer i32 type, u64 row bytes, the rows of K; then the same for V. Whatever does not fit this is kept opaque.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.buffers import fresh
from pinfold.engines.llama_cpp.kv_types import KVTypes, row_bytes, type_name, type_number
from pinfold.errors import SessionCorruptError
from pinfold.kv.snapshot import Heads, Opaque, Part, Plane, Section, Snapshot

__all__ = ["build_state", "frame_state", "kv_types_of", "parse_state"]

_HEAD = 8
_CELL = np.dtype([("position", "<i4"), ("count", "<u4"), ("seq", "<i4")])
_MOST_LAYERS = 512


class _Layout(Exception):  # noqa: N818 - says why bytes stay opaque, never leaves this file
    pass


class _Reader:
    """Reads forward through `data`, never past its end."""

    def __init__(self, data: memoryview, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            msg = f"{count} bytes at {self.at} reach past the end at {len(self.data)}"
            raise _Layout(msg)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code: str) -> int:
        raw = self.take(struct.calcsize(code))
        return int(struct.unpack("<" + code, raw)[0])


def parse_state(data: memoryview, tokens: int, heads: Sequence[Heads]) -> Snapshot:
    """The state of a sequence of `tokens` tokens as arrays, which are views into `data`.

    `heads` describes the caches in their order. What cannot be read becomes one opaque section with the reason.
    """
    data = data.cast("B")
    snapshot = Snapshot(tokens, bytes(data[:_HEAD]))
    reader = _Reader(data, min(_HEAD, len(data)))
    for number, described in enumerate(heads):
        start = reader.at
        try:
            section = _read_section(reader, described)
            _check_cells(section, tokens, windowed=number > 0)
            snapshot.sections.append(section)
        except _Layout as e:
            snapshot.sections.append(Opaque(bytes(data[start:]), str(e)))
            return snapshot
    if reader.at != len(data):
        snapshot.sections.append(Opaque(bytes(data[reader.at :]), "bytes after the last cache that is known"))
    return snapshot


def kv_types_of(data: memoryview, tokens: int, heads: Sequence[Heads]) -> KVTypes | None:
    """The types of the cells in the state of a sequence of `tokens` tokens; None where they cannot be read."""
    kinds: dict[Part, set[str]] = {"k": set(), "v": set()}
    for section in parse_state(data, tokens, heads).sections:
        for plane in section.planes if isinstance(section, Section) else ():
            kinds[plane.part].add(plane.kind)
    return KVTypes(kinds["k"].pop(), kinds["v"].pop()) if [len(each) for each in kinds.values()] == [1, 1] else None


def build_state(snapshot: Snapshot) -> NDArray[np.uint8]:
    """The bytes that `parse_state` took apart, or those that `frame_state` laid out.

    Raises:
        SessionCorruptError: a section cannot be one of llama.cpp's.
    """
    if snapshot.state is not None:
        return snapshot.state
    state, rooms = _lay_out(snapshot, fresh)
    for (_, plane), room in zip(snapshot.planes(), rooms, strict=True):
        room[...] = plane.rows
    return state


def frame_state(snapshot: Snapshot, lend: Callable[[int], NDArray[np.uint8]] = fresh) -> None:
    """Lays out the bytes of `snapshot`, whose planes have a shape only; their rows become views to be filled.

    `lend` gives so many bytes, cleared or not.

    Raises:
        SessionCorruptError: as `build_state`.
    """
    snapshot.state, rooms = _lay_out(snapshot, lend)
    for (_, plane), room in zip(snapshot.planes(), rooms, strict=True):
        plane.rows = room


def _lay_out(
    snapshot: Snapshot, lend: Callable[[int], NDArray[np.uint8]]
) -> tuple[NDArray[np.uint8], list[NDArray[np.uint8]]]:
    """All bytes but those of the planes, and where each plane's rows belong."""
    parts: list[bytes | Plane] = [snapshot.head]
    for section in snapshot.sections:
        if isinstance(section, Opaque):
            parts.append(section.data)
            continue
        _check(section)
        parts.append(_meta(section))
        for plane in section.planes:
            parts += struct.pack("<iQ", type_number(plane.kind), plane.rows.shape[1]), plane
    state = lend(sum(part.rows.size if isinstance(part, Plane) else len(part) for part in parts))
    at, rooms = 0, []
    for part in parts:
        size = part.rows.size if isinstance(part, Plane) else len(part)
        if isinstance(part, Plane):
            rooms.append(state[at : at + size].reshape(part.rows.shape))
        else:
            state[at : at + size] = np.frombuffer(part, dtype=np.uint8)
        at += size
    return state, rooms


def _check(section: Section) -> None:
    try:
        for plane in section.planes:
            type_number(plane.kind)
    except KeyError as e:
        msg = f"cells of type {e} are none of llama.cpp's"
        raise SessionCorruptError(msg) from e
    size = len(section.positions)
    if len(section.planes) % 2 or any(plane.rows.shape[0] != size for plane in section.planes):
        msg = f"a section of {len(section.planes)} planes does not hold {size} tokens of K and of V"
        raise SessionCorruptError(msg)


def _meta(section: Section) -> bytes:
    cells = np.empty(len(section.positions), dtype=_CELL)
    cells["position"], cells["count"], cells["seq"] = section.positions, 1, section.seq
    return struct.pack("<II", 1, len(cells)) + cells.tobytes() + struct.pack("<II", 0, len(section.planes) // 2)


def _check_cells(section: Section, tokens: int, *, windowed: bool) -> None:
    """A sliding-window cache gives only the cells that the next token still sees, those of the last tokens."""
    cells, positions = len(section.positions), section.positions
    least = tokens - cells if windowed else 0
    if cells > tokens or (cells < tokens and not windowed) or (windowed and positions.min() < least):
        msg = f"{cells} cells for {tokens} tokens"
        raise _Layout(msg)


def _read_section(reader: _Reader, heads: Heads) -> Section:
    streams, cells = reader.number("I"), reader.number("I")
    if streams != 1:
        msg = f"{streams} streams where one is expected"
        raise _Layout(msg)
    if not cells:
        msg = "no cells"
        raise _Layout(msg)
    table = np.frombuffer(reader.take(cells * _CELL.itemsize), dtype=_CELL)
    if (table["count"] != 1).any() or (table["seq"] != table["seq"][0]).any():
        msg = "cells with more than a position and one sequence"
        raise _Layout(msg)
    transposed, layers = reader.number("I"), reader.number("I")
    if transposed or not 0 < layers <= _MOST_LAYERS:
        msg = "transposed values" if transposed else f"{layers} layers"
        raise _Layout(msg)
    planes = [_read_plane(reader, cells, layer, "k", heads.k_size) for layer in range(layers)]
    planes += [_read_plane(reader, cells, layer, "v", heads.v_size) for layer in range(layers)]
    return Section(int(table["seq"][0]), table["position"].astype(np.int32), heads, planes)


def _read_plane(reader: _Reader, cells: int, layer: int, part: Part, head: int) -> Plane:
    number, width = reader.number("i"), reader.number("Q")
    kind = type_name(number)
    if kind is None:
        msg = f"type {number} is not known"
        raise _Layout(msg)
    if not width or head <= 0 or width % row_bytes(kind, head):
        msg = f"rows of {width} bytes are no whole number of heads of {head} values of {kind}"
        raise _Layout(msg)
    rows = np.frombuffer(reader.take(cells * width), dtype=np.uint8).reshape(cells, width)
    return Plane(layer, part, kind, rows)
