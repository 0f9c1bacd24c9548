"""The sequences that are kept while no request runs on them, found by prefix and given up in order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from pinfold.sessions.pins import PinRecord, Tier
from pinfold.sessions.prefix_tree import PrefixTree

if TYPE_CHECKING:
    from pinfold.kv.codec import FoldedKV

__all__ = ["MIN_REUSE", "Entry", "Kind", "Parked", "Shelf"]

# Sharing less than this is coincidence (the template's first words) and not worth a fork.
MIN_REUSE = 8


class Kind(IntEnum):
    """What a kept sequence is, in the order in which they are given up when room runs out."""

    RECENT = 0
    SESSION = 1
    AUTO_PIN = 2
    PIN = 3


@dataclass(slots=True, eq=False)
class Parked:
    """A copy of `length` tokens in memory: as the engine gave it (`raw`, quick to restore), folded (small), or both.

    Entries that are a prefix of another share its copy.
    """

    length: int
    raw: memoryview | None
    folded: FoldedKV | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that the copy takes."""
        return (self.raw.nbytes if self.raw is not None else 0) + (len(self.folded.data) if self.folded else 0)


@dataclass(slots=True, eq=False)
class Entry:
    """A kept sequence. Its tokens never change; `used` grows with each use of any entry.

    It is resident while `seq` is set, which then holds exactly its KV, in memory while `parked` is, and on disk while
    `stored` is, the store's key; maybe all of these. `used_at` is when it was used, by the monotonic clock,
    and `noted_at` when the store was told. `erased`: it must not be on disk any more. `ahead`: what is on
    disk is being read before anyone asks for it. `cells`: types of its cells, "" for the engine's own.
    """

    kind: Kind
    name: str
    salt: str | None
    tokens: list[int]
    seq: int | None
    used: int = 0
    pin: PinRecord | None = None
    parked: Parked | None = None
    stored: str | None = None
    codec: str = ""
    used_at: float = 0.0
    noted_at: float = 0.0
    erased: bool = False
    ahead: Future[Parked] | None = None
    cells: str = ""

    @property
    def tree(self) -> tuple[str | None, str]:
        """What it may be shared with: entries of the same salt in cells of the same types."""
        return self.salt, self.cells

    @property
    def tier(self) -> Tier:
        """The fastest place that it is in; ``lost`` if it is in none."""
        if self.seq is not None:
            return "resident"
        return "memory" if self.parked is not None else "disk" if self.stored is not None else "lost"

    @property
    def label(self) -> str:
        """For reports."""
        if self.kind is Kind.RECENT:
            return "an earlier request"
        return f"session {self.name!r}" if self.kind is Kind.SESSION else f"pin {self.name!r}"

    def demote(self) -> None:
        """It has lost its name: it may be reused until room is needed."""
        self.kind, self.name, self.pin, self.stored = Kind.RECENT, "", None, None


class Shelf:
    """All entries, in one prefix tree for each salt and type of cells.

    `cuts`: a prefix of an entry can be reused, not only all of it.
    """

    def __init__(self, *, cuts: bool) -> None:
        self._cuts = cuts
        self._entries: dict[Entry, None] = {}
        self._trees: dict[tuple[str | None, str], PrefixTree[Entry]] = {}
        self._clock = itertools.count(1)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries))

    def add(self, entry: Entry) -> None:
        """Puts `entry` on the shelf, as the one used last."""
        self._entries[entry] = None
        self._trees.setdefault(entry.tree, PrefixTree()).insert(entry, entry.tokens)
        self.touch(entry)

    def remove(self, entry: Entry) -> None:
        """Takes `entry` off."""
        del self._entries[entry]
        tree = self._trees[entry.tree]
        tree.remove(entry)
        if not len(tree):
            del self._trees[entry.tree]

    def touch(self, entry: Entry) -> None:
        """Makes `entry` the one used last."""
        entry.used = next(self._clock)
        entry.used_at = time.monotonic()

    def find(self, tokens: Sequence[int], salt: str | None, cells: str = "") -> tuple[int, Entry | None]:
        """The longest prefix of `tokens` that can be reused, short of all of them, and an entry that holds it.

        One token must be left to evaluate, or there would be no logits.
        """
        tree = self._trees.get((salt, cells))
        if tree is None:
            return 0, None
        limit = len(tokens) - 1
        if self._cuts:
            match = tree.longest(tokens)
            length, holders = min(match.length, limit), match.holders
        else:
            whole = [m for m in tree.prefixes(tokens) if m.length <= limit]
            length, holders = (whole[-1].length, whole[-1].holders) if whole else (0, ())
        if length < MIN_REUSE:
            return 0, None
        return length, max(holders, key=lambda e: (e.seq is not None, e.parked is not None, e.kind, e.used))

    def known(self, tokens: Sequence[int], salt: str | None) -> int:
        """How many tokens some entry begins with too, whether it can be cut there or not."""
        tree = self._trees.get((salt, ""))
        return 0 if tree is None else tree.longest(tokens).length

    def holds(self, tokens: Sequence[int], salt: str | None, cells: str = "") -> bool:
        """Whether an entry begins with all of `tokens`, so that keeping them again gains nothing."""
        tree = self._trees.get((salt, cells))
        return self._cuts and tree is not None and tree.longest(tokens).length == len(tokens)

    def covered_by(self, entry: Entry) -> list[Entry]:
        """Nameless entries that are a prefix of `entry`, and so gain nothing beside it."""
        if not self._cuts:
            return []
        matches = self._trees[entry.tree].prefixes(entry.tokens)
        return [e for match in matches for e in match.holders if e is not entry and e.kind is Kind.RECENT]

    def beginning_with(self, entry: Entry) -> list[Entry]:
        """Other entries that begin with all of `entry`'s tokens."""
        if not self._cuts:
            return []
        return [e for e in self._trees[entry.tree].longest(entry.tokens).holders if e is not entry]

    def of_pin(self, record: PinRecord) -> Entry | None:
        """The entry that holds the pin's KV."""
        return next((e for e in self._entries if e.pin is record), None)

    def victim(self, exclusive_cells: Callable[[int], int], keep: Entry | None = None) -> Entry | None:
        """The resident entry to give up first: the least in kind, then used longest ago, of those that free cells."""
        resident = [(e, e.seq) for e in self._entries if e is not keep and e.seq is not None]
        resident.sort(key=lambda pair: (pair[0].kind, pair[0].used))
        return next((e for e, seq in resident if exclusive_cells(seq)), resident[0][0] if resident else None)
