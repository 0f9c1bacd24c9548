"""A snapshot -> bytes that stand for themselves, and back: each section folded by a recipe, or kept without loss."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pinfold.errors import SessionCorruptError
from pinfold.kv.blas import ONE_THREAD
from pinfold.kv.half import all_finite
from pinfold.kv.header import Header, HeaderSection, describe, read_header, write_header
from pinfold.kv.lossless import pack_bytes, pack_plane, unpack_bytes, unpack_plane
from pinfold.kv.lossy import SINKS, TooWide, fold_section
from pinfold.kv.rebuild import unfold_section
from pinfold.kv.recipe import LADDER, LayerRecipe, Recipe, Rung
from pinfold.kv.rope import fits
from pinfold.kv.snapshot import Heads, Opaque, Plane, Section, Snapshot, allocate

__all__ = ["EXACT", "FoldedKV", "codec_of", "fold", "unfold"]

EXACT = "exact"


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

    data: bytes | memoryview
    codec: str
    recipe: str | None
    raw_bytes: int
    notes: tuple[str, ...] = ()


def fold(snapshot: Snapshot, recipe: Recipe | None = None, rung: Rung | None = None) -> FoldedKV:
    """`snapshot` as bytes: by `recipe` on `rung`, or without loss where either is None or a section does not fit."""
    described: list[HeaderSection] = []
    blobs: list[bytes] = []
    notes: list[str] = []
    for number, section in enumerate(snapshot.sections):
        parts, why = (
            _fold_one(section, snapshot.tokens, _layers(recipe, number), rung) if rung is not None else (None, "")
        )
        placed = parts is None and isinstance(section, Section) and not _last_of(section.positions, snapshot.tokens)
        if parts is None:
            parts = _exact(section, placed)
            if rung is not None:
                notes.append(f"section {number} was kept without loss: {why}")
            described.append(describe(section, "exact", placed, parts))
        else:
            described.append(describe(section, "folded", placed, parts))
        blobs += parts
    lossy = any(section.how == "folded" for section in described)
    used = recipe.digest() if lossy and recipe is not None else None
    header = Header(
        tokens=snapshot.tokens,
        head=snapshot.head.hex(),
        rung=(rung.k_step, rung.v_step) if lossy and rung is not None else None,
        recipe=used,
        sections=described,
    )
    codec = rung.name if lossy and rung is not None else EXACT
    return FoldedKV(b"".join((write_header(header), *blobs)), codec, used, snapshot.nbytes, tuple(notes))


def unfold(
    data: memoryview | bytes,
    find_recipe: Callable[[str], Recipe | None],
    *,
    most_bytes: int,
    threads: int | None = None,
    frame: Callable[[Snapshot], None] = allocate,
) -> Snapshot:
    """The snapshot that `fold` made into `data`.

    `most_bytes` bounds what it may take; `threads` defaults to as many as there are cores, up to four, and changes no
    byte. `frame` gives the planes of a snapshot that was folded whole their rows.

    Raises:
        SessionCorruptError: the bytes are damaged, say more than they hold, or need a recipe that is not known.
    """
    data = memoryview(data).cast("B")
    header, at = read_header(data, most_bytes)
    recipe = find_recipe(header.recipe) if header.recipe is not None else None
    snapshot = Snapshot(header.tokens, bytes.fromhex(header.head))
    folded: list[tuple[Section, list[memoryview], Sequence[LayerRecipe]]] = []
    for number, section in enumerate(header.sections):
        parts = []
        for size in section.blobs:
            parts.append(data[at : at + size])
            at += size
        if section.how == "opaque":
            snapshot.sections.append(Opaque(unpack_bytes(parts[0], section.size).tobytes(), section.reason))
        elif section.how == "exact":
            snapshot.sections.append(_unfold_exact(section, parts, section.rows))
        else:
            layers = _layers_of(section, header, _layers(recipe, number))
            shell = _shell(section)
            folded.append((shell, parts, layers))
            snapshot.sections.append(shell)
    if len(folded) == len(snapshot.sections):
        frame(snapshot)
    else:
        allocate(Snapshot(header.tokens, b"", [shell for shell, _, _ in folded]))
    with ONE_THREAD:
        for shell, parts, layers in folded:
            unfold_section(shell, parts, layers, Rung("", *(header.rung or ())), threads or _threads())
    return snapshot


def codec_of(data: memoryview | bytes) -> tuple[str, str | None]:
    """The codec's name and the recipe's digest of folded bytes. Raises SessionCorruptError."""
    header, _ = read_header(memoryview(data).cast("B"), 1 << 62)
    if header.rung is None:
        return EXACT, None
    named = next((r.name for r in LADDER if (r.k_step, r.v_step) == header.rung), "another rung")
    return named, header.recipe


def _layers(recipe: Recipe | None, section: int) -> list[LayerRecipe] | None:
    return recipe.sections[section] if recipe is not None and section < len(recipe.sections) else None


def _fold_one(
    section: Section | Opaque, tokens: int, layers: Sequence[LayerRecipe] | None, rung: Rung
) -> tuple[list[bytes] | None, str]:
    """The blobs of a section folded with loss, or None and why it cannot be."""
    if isinstance(section, Opaque):
        return None, section.reason
    if not layers:
        return None, "the model is not calibrated yet"
    why = _unfit(section, tokens, layers)
    if why is not None:
        return None, why
    try:
        with ONE_THREAD:
            return fold_section(section, layers, rung), ""
    except TooWide as e:
        return None, str(e)


def _unfit(section: Section, tokens: int, layers: Sequence[LayerRecipe]) -> str | None:
    """Why `section` cannot be folded with loss, None if it can."""
    other = next((plane.kind for plane in section.planes if plane.kind != "f16"), None)
    if other is not None:
        return f"its cells are {other} already"
    if not _match(section.heads, [plane.rows.shape[1] for plane in section.planes], layers):
        return "the recipe is for other layers"
    if len(section.positions) <= SINKS:
        return "it has no tokens after those that are kept exactly"
    if not _last_of(section.positions, tokens):
        return "its positions are not those of the last tokens"
    if not all(all_finite(plane) for plane in section.planes):
        return "it holds values that are no numbers"
    return None


def _match(heads: Heads, row_bytes: list[int], layers: Sequence[LayerRecipe]) -> bool:
    """Whether a section of these heads and planes is what the recipe is for."""
    widths = [layer.k_width for layer in layers] + [layer.v_width for layer in layers]
    sizes = {(layer.k_axes.shape[1], layer.v_axes.shape[1]) for layer in layers}
    return row_bytes == [2 * width for width in widths] and sizes == {(heads.k_size, heads.v_size)} and fits(heads)


def _last_of(positions: NDArray[np.int32], tokens: int) -> bool:
    return len(positions) <= tokens and bool((positions == np.arange(tokens - len(positions), tokens)).all())


def _exact(section: Section | Opaque, placed: bool) -> list[bytes]:
    if isinstance(section, Opaque):
        return [pack_bytes(section.data)]
    positions = [pack_bytes(section.positions.astype("<i4").tobytes())] if placed else []
    return positions + [pack_plane(plane) for plane in section.planes]


def _unfold_exact(section: HeaderSection, parts: list[memoryview], rows: int) -> Section:
    layers = len(section.planes) // 2
    if not layers or len(section.planes) != 2 * layers or len(parts) != section.placed + 2 * layers:
        msg = f"an exact section of {len(section.planes)} planes has {len(parts)} parts"
        raise SessionCorruptError(msg)
    positions = np.arange(section.first, section.first + rows, dtype=np.int32)
    if section.placed:
        positions = unpack_bytes(parts.pop(0), 4 * rows).view("<i4").astype(np.int32)
    planes = [
        Plane(i % layers, "k" if i < layers else "v", p.kind, unpack_plane(part, p.kind, rows, p.width))
        for i, (p, part) in enumerate(zip(section.planes, parts, strict=True))
    ]
    return Section(section.seq, positions, section.heads, planes)


def _layers_of(section: HeaderSection, header: Header, layers: Sequence[LayerRecipe] | None) -> Sequence[LayerRecipe]:
    """What a folded section was folded by, if that is here and fits."""
    if not layers or header.rung is None:
        msg = f"the session was folded by a recipe that is not here ({(header.recipe or 'none')[:12]})"
        raise SessionCorruptError(msg)
    kinds = {plane.kind for plane in section.planes}
    if not _match(section.heads, [p.width for p in section.planes], layers) or kinds != {"f16"} or section.placed:
        msg = "a folded section has other layers than its recipe"
        raise SessionCorruptError(msg)
    if section.rows <= SINKS:
        msg = f"a section of {section.rows} tokens is never folded with loss"
        raise SessionCorruptError(msg)
    return layers


def _shell(section: HeaderSection) -> Section:
    """A folded section without its bytes: rows have a shape only."""
    layers = len(section.planes) // 2
    planes = [
        Plane(i % layers, "k" if i < layers else "v", p.kind, np.broadcast_to(np.uint8(0), (section.rows, p.width)))
        for i, p in enumerate(section.planes)
    ]
    positions = np.arange(section.first, section.first + section.rows, dtype=np.int32)
    return Section(section.seq, positions, section.heads, planes)


def _threads() -> int:
    return min(4, os.cpu_count() or 1)
