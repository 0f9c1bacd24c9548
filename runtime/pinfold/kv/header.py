"""The header of a folded session: what its sections are and how long their blobs, with every number bounded.

Layout of a folded session: magic, u32 length of the header, the header (JSON, packed), the blobs one after the other.
"""

from __future__ import annotations

import struct
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from pinfold.errors import SessionCorruptError
from pinfold.kv.lossless import pack_bytes, packed_size, unpack_bytes
from pinfold.kv.snapshot import Heads, Opaque, Rope, Section

__all__ = ["Header", "HeaderSection", "describe", "read_header", "write_header"]

_MAGIC = b"PFKV\x00\x01\r\n"
_HEAD = struct.Struct("<8sI")
_MOST_HEADER = 1 << 17
_MOST_REASON = 200
# Opaque sections larger than this pack to 1/64 of their size at least: a few bytes cannot ask for gigabytes.
_OPAQUE_FREE, _OPAQUE_TIMES = 1 << 20, 64

Small = Annotated[int, Field(ge=1, le=1 << 20)]
Size = Annotated[int, Field(ge=0, le=1 << 20)]
Size24 = Annotated[int, Field(ge=0, le=1 << 24)]
Bytes = Annotated[int, Field(ge=0, le=1 << 40)]
Real = Annotated[float, Field(ge=-1e300, le=1e300)]
Step = Annotated[float, Field(gt=0, le=4)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Plane(_Strict):
    kind: Annotated[str, Field(max_length=16)]
    width: Small


class HeaderSection(_Strict):
    """One section.

    Its `rows` positions are those of the last tokens, from `first` on; or, where it is `placed`, its first blob.
    """

    how: Literal["folded", "exact", "opaque"]
    seq: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] = 0
    k_size: Size = 0
    v_size: Size = 0
    rope: tuple[Real, Real, Small, bool] | None = None
    placed: bool = False
    first: Size24 = 0
    rows: Size24 = 0
    planes: Annotated[list[_Plane], Field(max_length=2048), FailFast()] = []
    size: Bytes = 0
    reason: Annotated[str, Field(max_length=_MOST_REASON)] = ""
    blobs: Annotated[list[Bytes], Field(max_length=4096), FailFast()]

    @property
    def heads(self) -> Heads:
        """Of an exact or a folded section."""
        return Heads(self.k_size, self.v_size, Rope(*self.rope) if self.rope is not None else None)


class Header(_Strict):
    """All of it. `rung` and `recipe` (its digest) are None where nothing is lost."""

    tokens: Annotated[int, Field(ge=0, le=1 << 24)]
    head: Annotated[str, Field(max_length=64)]
    rung: tuple[Step, Step] | None
    recipe: Annotated[str, Field(max_length=64)] | None
    sections: Annotated[list[HeaderSection], Field(max_length=16), FailFast()]


def describe(
    section: Section | Opaque, how: Literal["folded", "exact"], placed: bool, blobs: list[bytes]
) -> HeaderSection:
    """What the header says of a section and its blobs."""
    sizes = [len(blob) for blob in blobs]
    if isinstance(section, Opaque):
        return HeaderSection(how="opaque", size=len(section.data), reason=section.reason[:_MOST_REASON], blobs=sizes)
    rope = section.heads.rope
    return HeaderSection(
        how=how,
        seq=section.seq,
        k_size=section.heads.k_size,
        v_size=section.heads.v_size,
        rope=(rope.base, rope.scale, rope.width, rope.halves) if rope is not None else None,
        placed=placed,
        first=0 if placed or not len(section.positions) else int(section.positions[0]),
        rows=len(section.positions),
        planes=[_Plane(kind=plane.kind, width=plane.rows.shape[1]) for plane in section.planes],
        blobs=sizes,
    )


def write_header(header: Header) -> bytes:
    """The bytes that stand before the blobs."""
    packed = pack_bytes(header.model_dump_json().encode())
    return _HEAD.pack(_MAGIC, len(packed)) + packed


def read_header(data: memoryview, most_bytes: int) -> tuple[Header, int]:
    """The header, and where the blobs begin. Their lengths fill `data`, and their values fit into `most_bytes`.

    Raises:
        SessionCorruptError: they do not, or it is no header.
    """
    if len(data) < _HEAD.size:
        msg = "a folded session ends within its header"
        raise SessionCorruptError(msg)
    magic, size = _HEAD.unpack_from(data, 0)
    at = _HEAD.size + size
    if magic != _MAGIC or at > len(data):
        msg = "not a folded session of this version"
        raise SessionCorruptError(msg)
    header = _parse(data[_HEAD.size : at])
    if at + sum(sum(s.blobs) for s in header.sections) != len(data):
        msg = "a folded session is longer or shorter than its parts"
        raise SessionCorruptError(msg)
    _check_opaque([section for section in header.sections if section.how == "opaque"], most_bytes)
    sections = [section for section in header.sections if section.how != "opaque"]
    if any(s.rows > header.tokens or not (s.placed or s.first + s.rows == header.tokens) for s in sections):
        msg = f"a folded session of {header.tokens} tokens has sections that end elsewhere"
        raise SessionCorruptError(msg)
    if sum(s.rows * (4 + sum(plane.width for plane in s.planes)) for s in sections) > most_bytes:
        msg = f"a folded session of {header.tokens} tokens says that it needs more than {most_bytes} bytes"
        raise SessionCorruptError(msg)
    return header, at


def _parse(packed: memoryview) -> Header:
    size = packed_size(packed)
    if not 0 < size <= _MOST_HEADER:
        msg = f"a folded session's header says that it takes {size} bytes"
        raise SessionCorruptError(msg)
    try:
        header = Header.model_validate_json(unpack_bytes(packed, size).tobytes())
        bytes.fromhex(header.head)
    except (ValidationError, ValueError) as e:
        msg = f"the header of a folded session cannot be read ({type(e).__name__})"
        raise SessionCorruptError(msg) from e
    return header


def _check_opaque(sections: list[HeaderSection], most_bytes: int) -> None:
    """Recurrent state does not grow with tokens, so that `most_bytes` need not cover it."""
    if any(len(section.blobs) != 1 for section in sections):
        msg = "an opaque section has not one part"
        raise SessionCorruptError(msg)
    size, packed = sum(s.size for s in sections), sum(s.blobs[0] for s in sections)
    if size > max(most_bytes, _OPAQUE_FREE, _OPAQUE_TIMES * packed):
        msg = f"{packed} bytes of opaque sections say that they are {size} bytes"
        raise SessionCorruptError(msg)
