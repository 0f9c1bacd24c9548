"""A sequence's KV as bytes. numpy only, so that any thread may take snapshots apart.

Little endian: magic, u32 version, u32 tokens, 16 bytes of a digest over the layout; for each section the rows of K by
layer, then those of V, each [tokens, heads x size]; then the recurrent arrays: u8 present, u32 bytes, the bytes; then,
where layers are packed, u32 tokens that are, and the arrays of each such layer.
Shapes and types are not in the bytes: both sides have the same layout, or the digest differs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.buffers import fresh
from pinfold.engines.mlx.packed_layout import PackedLayer
from pinfold.errors import SessionCorruptError
from pinfold.kv.brain import from_half
from pinfold.kv.snapshot import Heads, Opaque, Part, Plane, Section, Snapshot

__all__ = ["Contents", "Layout", "LayoutMismatch", "Rows", "SectionLayout", "State"]

Rows = NDArray[np.uint8]
_MAGIC = b"PFMX"
_VERSION = 1
_HEAD = struct.Struct("<4sII16s")
_STATE = struct.Struct("<BI")
_COUNT = struct.Struct("<I")
_KINDS = {"f16": 2, "bf16": 2, "f32": 4}


class LayoutMismatch(Exception):  # noqa: N818 - says why bytes are no snapshot of this model, never seen by users
    """The bytes are not of this layout."""


@dataclass(frozen=True, slots=True)
class SectionLayout:
    """Attention layers whose heads are alike: their places among all attention layers, and their heads' number."""

    heads: Heads
    layers: tuple[int, ...]
    k_heads: tuple[int, ...]
    v_heads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class State:
    """One recurrent array: its type's name and its shape."""

    kind: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Contents:
    """A sequence as arrays of bytes: the planes of each section in order, [tokens, row bytes]; the recurrent states;
    and the arrays of each packed layer, of which the first `packed` tokens are packed."""

    planes: Sequence[Sequence[Rows]]
    states: Sequence[Rows | None]
    packed: int = 0
    layers: Sequence[Sequence[Rows]] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """What a snapshot of this model holds. `kind` is the type of its whole cells; `states` has None for what is never
    set; `packed` are the layers that are in no section since their cells are packed."""

    kind: str
    sections: tuple[SectionLayout, ...]
    states: tuple[State | None, ...]
    packed: tuple[PackedLayer, ...] = ()

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's cells in all layers."""
        whole = sum(self._width(section, part, n) for section in self.sections for part, n in _order(section))
        return whole + sum(layer.bytes_per_token for layer in self.packed)

    def head(self, tokens: int) -> bytes:
        """What the bytes of `tokens` tokens begin with."""
        return _HEAD.pack(_MAGIC, _VERSION, tokens, hashlib.sha256(repr(self).encode()).digest()[:16])

    def pack(self, tokens: int, contents: Contents) -> memoryview:
        """Bytes of a sequence."""
        parts: list[bytes | Rows] = [self.head(tokens)]
        parts += [plane.reshape(-1) for section in contents.planes for plane in section]
        for state in contents.states:
            parts.append(_STATE.pack(state is not None, 0 if state is None else state.size))
            if state is not None:
                parts.append(state.reshape(-1))
        if self.packed:
            parts.append(_COUNT.pack(contents.packed))
            parts += [array.reshape(-1) for layer in contents.layers for array in layer]
        return _joined(parts)

    def unpack(self, data: memoryview, tokens: int) -> Contents:
        """What the bytes hold, as views into `data`.

        Raises:
            LayoutMismatch: the bytes are something else.
        """
        data = data.cast("B")
        planes, at = self._planes(data, tokens)
        states, at = self._states(data, at)
        packed, layers, at = self._packed(data, at, tokens) if self.packed else (0, [], at)
        if at != len(data):
            msg = f"{len(data) - at} bytes after the last array"
            raise LayoutMismatch(msg)
        return Contents(planes, states, packed, layers)

    def open(self, data: memoryview, tokens: int) -> Snapshot:
        """The snapshot that the bytes are; one opaque section with the reason where they are none of this model's."""
        data = data.cast("B")
        snapshot = Snapshot(tokens, bytes(data[: _HEAD.size]))
        try:
            planes, at = self._planes(data, tokens)
        except LayoutMismatch as e:
            snapshot.sections.append(Opaque(bytes(data[_HEAD.size :]), str(e)))
            return snapshot
        positions = np.arange(tokens, dtype=np.int32)
        for section, rows in zip(self.sections, planes, strict=True):
            named = [Plane(n, part, self.kind, row) for (part, n), row in zip(_order(section), rows, strict=True)]
            snapshot.sections.append(Section(0, positions, section.heads, named))
        if at < len(data):
            why = "packed cells" if self.packed else "recurrent state"
            snapshot.sections.append(Opaque(bytes(data[at:]), why))
        return snapshot

    def close(self, snapshot: Snapshot) -> memoryview:
        """The bytes that `open` took apart.

        Raises:
            SessionCorruptError: a section cannot be one of this model's.
        """
        parts: list[bytes | Rows] = [snapshot.head]
        known = iter(self.sections)
        for section in snapshot.sections:
            if isinstance(section, Opaque):
                parts.append(section.data)
                continue
            own = next(known, None)
            shapes = [plane.rows.shape for plane in section.planes]
            if own is None or shapes != [(snapshot.tokens, self._width(own, part, n)) for part, n in _order(own)]:
                msg = f"a section of {len(section.planes)} planes is none of this model's"
                raise SessionCorruptError(msg)
            parts += [self._cells(plane).reshape(-1) for plane in section.planes]
        return _joined(parts)

    def _cells(self, plane: Plane) -> Rows:
        """Rows in this model's type: a fold gives float16 back where cells are bfloat16."""
        if plane.kind == self.kind:
            return np.ascontiguousarray(plane.rows)
        if (plane.kind, self.kind) == ("f16", "bf16"):
            return from_half(plane.rows)
        msg = f"cells of type {plane.kind} where this model's are {self.kind}"
        raise SessionCorruptError(msg)

    def _planes(self, data: memoryview, tokens: int) -> tuple[list[list[Rows]], int]:
        if bytes(data[: _HEAD.size]) != self.head(tokens):
            msg = "the bytes are of another model, length or version"
            raise LayoutMismatch(msg)
        at = _HEAD.size
        planes: list[list[Rows]] = []
        for section in self.sections:
            planes.append([])
            for part, n in _order(section):
                width = self._width(section, part, n)
                planes[-1].append(_take(data, at, tokens * width).reshape(tokens, width))
                at += tokens * width
        return planes, at

    def _states(self, data: memoryview, at: int) -> tuple[list[Rows | None], int]:
        states: list[Rows | None] = []
        for known in self.states:
            present, size = _STATE.unpack(_take(data, at, _STATE.size).data)
            at += _STATE.size
            if present > 1 or size != (known.size if present and known is not None else 0):
                msg = "a recurrent array of another size"
                raise LayoutMismatch(msg)
            states.append(_take(data, at, size) if present else None)
            at += size
        return states, at

    def _packed(self, data: memoryview, at: int, tokens: int) -> tuple[int, list[list[Rows]], int]:
        (packed,) = _COUNT.unpack(_take(data, at, _COUNT.size).data)
        at += _COUNT.size
        if packed > tokens:
            msg = f"{packed} packed tokens of {tokens}"
            raise LayoutMismatch(msg)
        layers: list[list[Rows]] = []
        for layer in self.packed:
            layers.append([])
            for size in layer.sizes(packed, tokens - packed):
                layers[-1].append(_take(data, at, size))
                at += size
        return packed, layers, at

    def _width(self, section: SectionLayout, part: Part, n: int) -> int:
        heads, size = section.k_heads[n], section.heads.k_size
        if part == "v":
            heads, size = section.v_heads[n], section.heads.v_size
        return heads * size * _KINDS[self.kind]


def _order(section: SectionLayout) -> list[tuple[Part, int]]:
    count = range(len(section.layers))
    return [("k", n) for n in count] + [("v", n) for n in count]


def _take(data: memoryview, at: int, count: int) -> Rows:
    if count > len(data) - at:
        msg = f"{count} bytes at {at} reach past the end at {len(data)}"
        raise LayoutMismatch(msg)
    return np.frombuffer(data, dtype=np.uint8, count=count, offset=at) if count else np.empty(0, dtype=np.uint8)


def _joined(parts: Sequence[bytes | Rows]) -> memoryview:
    buffer = fresh(sum(map(len, parts)))
    at = 0
    for part in parts:
        buffer[at : at + len(part)] = np.frombuffer(part, dtype=np.uint8) if isinstance(part, bytes) else part
        at += len(part)
    return buffer.data
