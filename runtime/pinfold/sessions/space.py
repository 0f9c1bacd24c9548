"""Sequence ids, cells and memory: where kept KV lives, and how room is made.

Resident in the engine's cells, or parked as bytes in main memory: attention walks over every cell up to the highest in
use, also those of other sequences, so on a CPU what a request does not need is parked before it starts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from pinfold.engines.base import Engine
from pinfold.errors import CacheFullError
from pinfold.sessions.prefix_tree import common_prefix
from pinfold.sessions.shelf import Entry, Parked, Shelf

__all__ = ["Copies", "KVSpace"]

# Fewer idle cells slow a request down less than parking them costs: on the embedded model each costs a token 1.6 us.
_IDLE_CELLS = 128
# Tokens copied before one request, at some milliseconds for each thousand.
_MOST_COPIED_AT_ONCE = 6144


class Copies(Protocol):
    """All that is kept, and copies of it that are not as the engine gives them."""

    @property
    def shelf(self) -> Shelf: ...

    def unfold(self, data: bytes | memoryview, length: int) -> memoryview:
        """The engine's bytes of `length` folded tokens. Raises SessionCorruptError."""

    def read(self, entry: Entry) -> Parked:
        """What the disk has of `entry`. Raises SessionError or StoreError; `entry.stored` is then None."""


class KVSpace:
    """Owner of the engine's sequence ids. `budget` is in bytes of parked KV. Runs on the engine's thread.

    `copies` has the shelf, and knows how to unfold what was folded and to read what is on disk.
    """

    def __init__(self, engine: Engine, budget: int, copies: Copies) -> None:
        self._copies = copies
        self.shelf = copies.shelf
        self._engine = engine
        self._budget = budget
        self._free_seqs = list(range(engine.capabilities.n_seq - 1, -1, -1))

    def new_seq(self, keep: Entry | None = None) -> int:
        """An unused id. Raises CacheFullError when running requests hold them all."""
        while not self._free_seqs:
            victim = self.shelf.victim(lambda _: 1, keep)
            if victim is None:
                msg = "Every sequence is in use by a running request. Raise max_sequences, or send fewer at once."
                raise CacheFullError(msg)
            self.give_up(victim, keep)
        return self._free_seqs.pop()

    def abandon(self, seq: int) -> None:
        """Forgets what is on `seq`."""
        self._engine.drop(seq)
        self._free_seqs.append(seq)

    def keep(self, entry: Entry) -> None:
        """Puts a resident entry on the shelf, and takes off those that it makes superfluous."""
        self.shelf.add(entry)
        for other in self.shelf.covered_by(entry):
            self.forget(other)

    def forget(self, entry: Entry) -> None:
        """Takes `entry` off the shelf, with its KV in cells and in memory. What is on disk stays there."""
        self.shelf.remove(entry)
        entry.parked = entry.stored = None
        self.leave_cells(entry)

    def give_up(self, entry: Entry, keep: Entry | None = None) -> None:
        """Frees the cells of `entry`: parks it where memory allows, else forgets it. `keep` stays what it is."""
        if entry.stored is not None or self._copy(entry, may_forget=True, keep=keep):
            self.leave_cells(entry)
        else:
            self.forget(entry)

    def make_room(self, cells: int, keep: Entry | None = None) -> bool:
        """Gives up idle entries, least recently used first and pins last, until `cells` are free."""
        while self._engine.free_cells() < cells:
            victim = self.shelf.victim(self._engine.exclusive_cells, keep)
            if victim is None:
                return False
            self.give_up(victim, keep)
        return True

    def bring_back(self, entry: Entry) -> float:
        """Makes sure that `entry` is resident; returns the seconds it took, 0 if it was.

        Raises:
            PinfoldError: its copy could not be read or restored, or found no room. It is as it was.
        """
        if entry.seq is not None or (entry.parked is None and entry.stored is None):
            return 0.0
        began = time.perf_counter()
        state, length = self._state(entry)
        seq = self.new_seq(keep=entry)
        try:
            self.make_room(length, keep=entry)
            self._engine.restore(seq, state, length)
            self._engine.trim(seq, len(entry.tokens))
        except BaseException:
            self.abandon(seq)
            raise
        entry.seq = seq
        return time.perf_counter() - began

    def park(self, entry: Entry) -> bool:
        """Moves `entry` from the cells to memory if the budget allows it without forgetting anything."""
        done = self._copy(entry, may_forget=False, keep=None)
        if done:
            self.leave_cells(entry)
        return done

    def _state(self, entry: Entry) -> tuple[memoryview, int]:
        """The engine's bytes of `entry`, and of how many tokens they are."""
        parked = entry.parked
        if parked is None:
            parked = self._copies.read(entry)
            if entry.cells:
                parked = self._in_its_cells(entry, parked)
            if self.has_memory_for(parked.nbytes):
                entry.parked = parked
        if parked.raw is not None:
            return parked.raw, parked.length
        folded = parked.folded.data if parked.folded is not None else b""
        return self._copies.unfold(folded, parked.length), parked.length

    def _in_its_cells(self, entry: Entry, parked: Parked) -> Parked:
        """What the disk has is in the engine's own types."""
        folded = parked.folded.data if parked.folded is not None else b""
        raw = parked.raw if parked.raw is not None else self._copies.unfold(folded, parked.length)
        return Parked(parked.length, self._engine.transcode(raw, parked.length, entry.cells))

    def clear_for(self, tokens: Sequence[int], reused: int, source: Entry | None) -> None:
        """Parks idle entries that a request for `tokens`, begun on `reused` cells of `source`, does not need.

        Each idle cell makes each of its tokens dearer, so it pays where a copy is mostly cells that nobody else holds.
        """
        capabilities = self._engine.capabilities
        if capabilities.device != "cpu" or capabilities.n_cells - self._engine.free_cells() - reused < _IDLE_CELLS:
            return
        idle = [e for e in self.shelf if e.seq is not None and e is not source and self._is_dead_weight(e, tokens)]
        idle.sort(key=lambda e: len(e.tokens), reverse=True)  # prefixes of a longer one then share its copy
        copied = 0
        for entry in idle:
            has_raw = entry.parked is not None and entry.parked.raw is not None
            shares = has_raw or self._copy_of_longer(entry) is not None
            size = 0 if shares else len(entry.tokens)
            if copied + size <= _MOST_COPIED_AT_ONCE and self._copy(entry, may_forget=False, keep=None):
                self.leave_cells(entry)
                copied += size

    def _is_dead_weight(self, entry: Entry, tokens: Sequence[int]) -> bool:
        """Whether most of `entry` is of no use to `tokens`, or a good part of its cells is its own alone."""
        if 2 * common_prefix(entry.tokens, tokens) < len(entry.tokens):
            return True
        return entry.seq is not None and 4 * self._engine.exclusive_cells(entry.seq) >= len(entry.tokens)

    def leave_cells(self, entry: Entry) -> None:
        """Drops `entry` from the engine's cells; the caller has seen that it is elsewhere too."""
        if entry.seq is not None:
            self.abandon(entry.seq)
            entry.seq = None

    def _copy(self, entry: Entry, *, may_forget: bool, keep: Entry | None) -> bool:
        """Makes sure that a copy of `entry` is in memory; False where the budget does not allow it."""
        if entry.parked is None:
            entry.parked = self._copy_of_longer(entry)
        if entry.seq is not None and (entry.parked is None or entry.parked.raw is None):
            size = len(entry.tokens) * self._engine.capabilities.bytes_per_token
            if not self._make_memory(size, entry, may_forget=may_forget, keep=keep):
                return entry.parked is not None
            folded = entry.parked.folded if entry.parked is not None else None
            entry.parked = Parked(len(entry.tokens), self._engine.snapshot(entry.seq), folded)
        return entry.parked is not None

    def _copy_of_longer(self, entry: Entry) -> Parked | None:
        return next((e.parked for e in self.shelf.beginning_with(entry) if e.parked is not None), None)

    def _make_memory(self, size: int, wanted: Entry, *, may_forget: bool, keep: Entry | None) -> bool:
        """Makes `size` bytes free: first copies of what is resident anyway, then what ranks below `wanted`."""
        rank = (wanted.kind, wanted.used)
        copies = [e for e in self.shelf if e.parked is not None and e is not keep]
        copies.sort(key=lambda e: (e.kind, e.used))
        spare = [e for e in copies if e.seq is not None]
        lower = [e for e in copies if e.seq is None and (e.kind, e.used) < rank] if may_forget else []
        while self.memory_used() + size > self._budget:
            if spare:
                spare.pop(0).parked = None
            elif lower:
                self._leave_memory(lower.pop(0))
            else:
                return False
        return True

    @property
    def memory_is_short(self) -> bool:
        """Whether more than half of the budget is taken."""
        return 2 * self.memory_used() > self._budget

    def has_memory_for(self, size: int) -> bool:
        """Whether `size` bytes fit into the budget as it is."""
        return self.memory_used() + size <= self._budget

    def _leave_memory(self, entry: Entry) -> None:
        if entry.stored is not None:
            entry.parked = None
        else:
            self.forget(entry)

    def memory_used(self) -> int:
        """Bytes of parked KV; copies that entries share count once."""
        return sum(parked.nbytes for parked in {e.parked for e in self.shelf if e.parked is not None})
