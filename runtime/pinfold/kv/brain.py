"""Between bfloat16, which some engines compute in, and float16, which the fold is made for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pinfold.kv.half import MOST_HALF
from pinfold.kv.snapshot import Opaque, Plane, Section, Snapshot

__all__ = ["as_half", "from_half"]

Rows = NDArray[np.uint8]


def as_half(snapshot: Snapshot) -> Snapshot:
    """`snapshot` with its bfloat16 sections in float16, for a fold with loss.

    float16 is the finer of the two except for values below 2**-14, which change by 2**-25 at most. A section
    with values that float16 does not reach stays as it is.
    """
    sections = [section if isinstance(section, Opaque) else _halved(section) for section in snapshot.sections]
    return Snapshot(snapshot.tokens, snapshot.head, sections)


def from_half(rows: Rows) -> Rows:
    """Rows of float16 as rows of bfloat16, rounded to the nearest."""
    bits = np.ascontiguousarray(rows).view(np.float16).astype(np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16).view(np.uint8)


def _halved(section: Section) -> Section:
    if any(plane.kind != "bf16" for plane in section.planes):
        return section
    planes = []
    for plane in section.planes:
        values = (np.ascontiguousarray(plane.rows).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        if not bool((np.abs(values) <= MOST_HALF).all()):
            return section
        planes.append(Plane(plane.layer, plane.part, "f16", values.astype(np.float16).view(np.uint8)))
    return Section(section.seq, section.positions, section.heads, planes)
