"""The KV of one sequence as arrays: what an engine's snapshot holds, whichever engine took it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Heads", "Opaque", "Part", "Plane", "Rope", "Section", "Snapshot", "allocate"]

Part = Literal["k", "v"]


@dataclass(frozen=True, slots=True)
class Rope:
    """How keys were turned by their position.

    Attributes:
        base: of the frequencies; `scale` multiplies positions (linear scaling).
        width: channels of a head that are turned, the first ones.
        halves: pairs are (i, i + width/2); else (2i, 2i + 1).
    """

    base: float
    scale: float
    width: int
    halves: bool


@dataclass(frozen=True, slots=True)
class Heads:
    """Channels of a key's and a value's head in all layers of a section. `rope` is None where it is not known."""

    k_size: int
    v_size: int
    rope: Rope | None


@dataclass(slots=True, eq=False)
class Plane:
    """K or V of one layer.

    Attributes:
        layer: its place among the layers of its section.
        kind: type of the values, such as ``f16`` or ``q8_0``.
        rows: uint8 [tokens, row bytes]: one row for each token, all heads side by side.
    """

    layer: int
    part: Part
    kind: str
    rows: NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class Section:
    """One cache within a snapshot: that of all layers, or of the sliding-window ones.

    Attributes:
        seq: the id that the sequence had in the engine; it means nothing to others.
        positions: int32 [tokens].
        planes: all K by layer, then all V by layer.
    """

    seq: int
    positions: NDArray[np.int32]
    heads: Heads
    planes: list[Plane]


@dataclass(slots=True, eq=False)
class Opaque:
    """Bytes whose meaning is not known (recurrent state, a layout of another version): kept without loss.

    `reason` says in words why.
    """

    data: bytes
    reason: str


@dataclass(slots=True, eq=False)
class Snapshot:
    """A sequence of `tokens` tokens.

    Attributes:
        head: the engine's own preamble.
        state: uint8, the engine's own bytes of all this, where the planes are views into them.
    """

    tokens: int
    head: bytes
    sections: list[Section | Opaque] = field(default_factory=list)
    state: NDArray[np.uint8] | None = None

    def planes(self) -> Iterator[tuple[Section, Plane]]:
        """All planes that were understood, with their section."""
        for section in self.sections:
            if isinstance(section, Section):
                for plane in section.planes:
                    yield section, plane

    @property
    def nbytes(self) -> int:
        """Bytes of the values, headers left out."""
        opaque = sum(len(s.data) for s in self.sections if isinstance(s, Opaque))
        return opaque + sum(plane.rows.nbytes for _, plane in self.planes())


def allocate(snapshot: Snapshot) -> None:
    """Gives each plane, of which only the shape counts, rows of its own to be filled."""
    for _, plane in snapshot.planes():
        plane.rows = np.empty(plane.rows.shape, dtype=np.uint8)
