"""A snapshot -> bytes that stand for themselves, and back: the container around folded, exact and opaque sections.

Layout: magic, u32 length of the header, the header (JSON), then the blobs one after the other.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import numpy as np
import threadpoolctl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pinfold.errors import SessionCorruptError
from pinfold.kv.lossless import pack_bytes, pack_plane, unpack_bytes, unpack_plane
from pinfold.kv.lossy import fold_section, unfold_section
from pinfold.kv.recipe import LADDER, LayerRecipe, Recipe, Rung
from pinfold.kv.snapshot import Heads, Opaque, Plane, Rope, Section, Snapshot

__all__ = ["EXACT", "FoldedKV", "codec_of", "fold", "unfold"]

EXACT = "exact"
_MAGIC = b"PFKV\x00\x01\r\n"
_HEAD = struct.Struct("<8sI")
_MOST_HEADER = 1 << 20

Small = Annotated[int, Field(ge=1, le=1 << 20)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Plane(_Strict):
    kind: Annotated[str, Field(max_length=16)]
    width: Small


class _Section(_Strict):
    how: Literal["folded", "exact", "opaque"]
    seq: int = 0
    k_size: int = 0
    v_size: int = 0
    rope: tuple[float, float, Small, bool] | None = None
    planes: Annotated[list[_Plane], Field(max_length=8192)] = []
    size: Annotated[int, Field(ge=0)] = 0
    reason: str = ""
    blobs: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=16384)]


class _Header(_Strict):
    tokens: Annotated[int, Field(ge=0, le=1 << 24)]
    head: Annotated[str, Field(max_length=64)]
    rung: tuple[Annotated[float, Field(gt=0, le=4)], Annotated[float, Field(gt=0, le=4)]] | None
    recipe: Annotated[str, Field(max_length=64)] | None
    sections: Annotated[list[_Section], Field(max_length=16)]


@dataclass(frozen=True, slots=True)
class FoldedKV:
    """A folded sequence.

    Attributes:
        data: everything that unfolding needs besides the recipe.
        codec: ``exact``, or the rung's name.
        recipe: digest of the recipe that it needs; None for none.
        raw_bytes: of the values before the fold.
        notes: sections that were kept without loss though another preset was asked for, and why.
    """

    data: bytes
    codec: str
    recipe: str | None
    raw_bytes: int
    notes: tuple[str, ...] = ()


def fold(snapshot: Snapshot, recipe: Recipe | None = None, rung: Rung | None = None) -> FoldedKV:
    """`snapshot` as bytes: by `recipe` on `rung`, or without loss where either is None or a section does not fit."""
    described: list[_Section] = []
    blobs: list[bytes] = []
    notes: list[str] = []
    lossy = False
    with _one_thread():
        for number, section in enumerate(snapshot.sections):
            layers = recipe.sections[number] if recipe is not None and number < len(recipe.sections) else None
            why = _unfit(section, layers) if rung is not None else "exact was asked for"
            if rung is not None and layers is not None and isinstance(section, Section) and why is None:
                parts = fold_section(section, layers, rung)
                lossy = True
            else:
                parts = _exact(section)
                if rung is not None:
                    notes.append(f"section {number} was kept without loss: {why}")
            described.append(_describe(section, "folded" if why is None else "exact", parts))
            blobs += parts
    used = recipe.digest() if lossy and recipe is not None else None
    header = _Header(
        tokens=snapshot.tokens,
        head=snapshot.head.hex(),
        rung=(rung.k_step, rung.v_step) if lossy and rung is not None else None,
        recipe=used,
        sections=described,
    )
    text = pack_bytes(header.model_dump_json().encode())
    data = b"".join((_HEAD.pack(_MAGIC, len(text)), text, *blobs))
    codec = rung.name if lossy and rung is not None else EXACT
    return FoldedKV(data, codec, used, snapshot.nbytes, tuple(notes))


def unfold(
    data: memoryview | bytes, find_recipe: Callable[[str], Recipe | None], *, most_bytes: int, threads: int | None = None
) -> Snapshot:
    """The snapshot that `fold` made into `data`.

    `most_bytes` bounds what it may take; `threads` defaults to two where there are two cores.

    Raises:
        SessionCorruptError: the bytes are damaged, say more than they hold, or need a recipe that is not known.
    """
    data = memoryview(data).cast("B")
    header, at = _read_header(data)
    if sum(header.tokens * plane.width for s in header.sections for plane in s.planes) > most_bytes:
        msg = f"a folded session of {header.tokens} tokens says that it needs more than {most_bytes} bytes"
        raise SessionCorruptError(msg)
    snapshot = Snapshot(header.tokens, bytes.fromhex(header.head))
    recipe = find_recipe(header.recipe) if header.recipe is not None else None
    with _one_thread():
        for number, section in enumerate(header.sections):
            parts = []
            for size in section.blobs:
                parts.append(data[at : at + size])
                at += size
            layers = recipe.sections[number] if recipe is not None and number < len(recipe.sections) else None
            snapshot.sections.append(_unfold(section, parts, header, layers, threads or _threads()))
    return snapshot


def codec_of(data: memoryview | bytes) -> tuple[str, str | None]:
    """The codec's name and the recipe's digest of folded bytes. Raises SessionCorruptError."""
    header, _ = _read_header(memoryview(data).cast("B"))
    if header.rung is None:
        return EXACT, None
    named = next((r.name for r in LADDER if (r.k_step, r.v_step) == header.rung), "another rung")
    return named, header.recipe


def _unfold(
    section: _Section, parts: list[memoryview], header: _Header, recipe: Sequence[LayerRecipe] | None, threads: int
) -> Section | Opaque:
    if section.how == "opaque":
        if len(parts) != 1 or section.size > 1 << 32:
            msg = "an opaque section has not one part"
            raise SessionCorruptError(msg)
        return Opaque(unpack_bytes(parts[0], section.size).tobytes(), section.reason)
    heads = Heads(section.k_size, section.v_size, Rope(*section.rope) if section.rope is not None else None)
    positions = np.arange(header.tokens, dtype=np.int32)
    if section.how == "exact":
        return _unfold_exact(section, parts, heads, positions)
    if recipe is None or header.rung is None:
        msg = f"the session was folded by a recipe that is not here ({(header.recipe or 'none')[:12]})"
        raise SessionCorruptError(msg)
    rung = Rung("", *header.rung)
    if [plane.width for plane in section.planes] != _widths(recipe) or any(p.kind != "f16" for p in section.planes):
        msg = "a folded section has other layers than its recipe"
        raise SessionCorruptError(msg)
    return unfold_section(parts, section.seq, positions, heads, recipe, rung, threads)


def _unfold_exact(
    section: _Section, parts: list[memoryview], heads: Heads, positions: NDArray[np.int32]
) -> Section:
    layers = len(section.planes) // 2
    if len(parts) != len(section.planes) or len(parts) != 2 * layers:
        msg = f"an exact section of {len(section.planes)} planes has {len(parts)} parts"
        raise SessionCorruptError(msg)
    planes = [
        Plane(i % layers, "k" if i < layers else "v", p.kind, unpack_plane(part, p.kind, len(positions), p.width))
        for i, (p, part) in enumerate(zip(section.planes, parts, strict=True))
    ]
    return Section(section.seq, positions, heads, planes)


def _read_header(data: memoryview) -> tuple[_Header, int]:
    """The header and where the blobs begin; all lengths have been checked."""
    try:
        magic, size = _HEAD.unpack_from(data, 0)
        if magic != _MAGIC or size > len(data) - _HEAD.size:
            msg = "not a folded session of this version"
            raise SessionCorruptError(msg)
        packed = data[_HEAD.size : _HEAD.size + size]
        header = _Header.model_validate_json(_header_text(packed))
        if len(bytes.fromhex(header.head)) > 32:
            msg = "a folded session's preamble is too long"
            raise SessionCorruptError(msg)
    except (struct.error, ValidationError, ValueError) as e:
        msg = f"the header of a folded session cannot be read ({type(e).__name__})"
        raise SessionCorruptError(msg) from e
    if _HEAD.size + size + sum(sum(s.blobs) for s in header.sections) != len(data):
        msg = "a folded session is longer or shorter than its parts"
        raise SessionCorruptError(msg)
    return header, _HEAD.size + size


def _header_text(packed: memoryview) -> bytes:
    import zstandard

    size = zstandard.get_frame_parameters(packed).content_size if len(packed) else 0
    if not 0 < size <= _MOST_HEADER:
        msg = f"a folded session's header says that it takes {size} bytes"
        raise SessionCorruptError(msg)
    return unpack_bytes(packed, size).tobytes()


def _unfit(section: Section | Opaque, recipe: Sequence[LayerRecipe] | None) -> str | None:
    """Why `section` cannot be folded with loss, None if it can."""
    if isinstance(section, Opaque):
        return section.reason
    other = next((plane.kind for plane in section.planes if plane.kind != "f16"), None)
    if other is not None:
        return f"its cells are {other} already"
    if recipe is None:
        return "the model is not calibrated yet"
    if [plane.rows.shape[1] for plane in section.planes] != _widths(recipe):
        return "the recipe is for other layers"
    if not (section.positions == np.arange(len(section.positions))).all():
        return "its positions are not 0, 1, 2 and so on"
    if not all(np.isfinite(plane.rows.view(np.float16)).all() for plane in section.planes):
        return "it holds values that are no numbers"
    return None


def _widths(recipe: Sequence[LayerRecipe]) -> list[int]:
    """Bytes of a row of each plane that the recipe is for."""
    keys = [2 * layer.k_axes.shape[0] * layer.k_axes.shape[1] for layer in recipe]
    return keys + [2 * layer.v_axes.shape[0] * layer.v_axes.shape[1] for layer in recipe]


def _exact(section: Section | Opaque) -> list[bytes]:
    if isinstance(section, Opaque):
        return [pack_bytes(section.data)]
    return [pack_plane(plane) for plane in section.planes]


def _describe(section: Section | Opaque, how: Literal["folded", "exact"], parts: list[bytes]) -> _Section:
    sizes = [len(part) for part in parts]
    if isinstance(section, Opaque):
        return _Section(how="opaque", size=len(section.data), reason=section.reason, blobs=sizes)
    rope = section.heads.rope
    return _Section(
        how=how,
        seq=section.seq,
        k_size=section.heads.k_size,
        v_size=section.heads.v_size,
        rope=(rope.base, rope.scale, rope.width, rope.halves) if rope is not None else None,
        planes=[_Plane(kind=plane.kind, width=plane.rows.shape[1]) for plane in section.planes],
        blobs=sizes,
    )


@cache
def _pools() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Matrix products on the calling thread only: its priority, and its share of the cores, are what was meant."""
    with _pools().limit(limits=1, user_api="blas"):
        yield


def _threads() -> int:
    return min(2, os.cpu_count() or 1)
