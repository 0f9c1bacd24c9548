"""What happens to kept KV while no request runs: folded, moved down a tier, put on disk; and a model's calibration.

Everything here runs on the engine's thread in small pieces, and only when it is idle; folding and writing go to the
folder's thread. Nothing here is needed for a right answer: a fault is logged, and the KV stays where it was.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from pinfold.engines.base import Engine
from pinfold.sessions.folder import Folder
from pinfold.sessions.idle import IdleTimes
from pinfold.sessions.learning import Learning
from pinfold.sessions.manager import SessionManager
from pinfold.sessions.shelf import Entry, Kind, Parked

if TYPE_CHECKING:
    from pinfold.kv.codec import FoldedKV
    from pinfold.sessions.vault import Vault

__all__ = ["Upkeep"]

log = logging.getLogger("pinfold.sessions")

T = TypeVar("T")


class Upkeep:
    """`step` does one piece of it. `post` runs a function on the engine's thread, from any thread."""

    def __init__(
        self,
        engine: Engine,
        manager: SessionManager,
        folder: Folder,
        times: IdleTimes,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._engine = engine
        self._manager = manager
        self._folder = folder
        self._times = times
        self._post = post
        self._quiet_since = time.monotonic()
        self._learning = Learning(engine, manager.space)
        self._at_work: set[Parked | Entry] = set()
        self._failed: set[Entry] = set()
        self._stuck: set[Entry] = set()

    @property
    def vault(self) -> Vault | None:
        """The disk, once it is known."""
        return self._manager.library.vault

    def disturbed(self) -> None:
        """A request runs."""
        self._quiet_since = time.monotonic()

    def step(self) -> float | None:
        """Does what is due; returns the seconds until it wants to be called again, None for never."""
        if self._learning.runs:
            self._learn()
            return 0.0
        now = time.monotonic()
        waits: list[float] = []
        for entry in self._manager.space.shelf:
            waits += self._care_for(entry, now)
        if self._folder.wants_recipe and not self._learning.failed and self._has_work_for_a_recipe():
            left = self._quiet_since + self._times.calibrate - now
            if left <= 0:
                self._learning.begin()
                return 0.0
            waits.append(left)
        return min(waits) if waits else None

    def settle(self) -> None:
        """Waits for what the folder's thread is doing; what comes of it has then been posted."""
        self._learning.end()
        self._folder.close()

    def flush(self) -> None:
        """Puts pins and sessions on disk that are not there yet, after `settle` and before the engine closes."""
        if self._can_save():
            for entry in self._manager.space.shelf:
                if _is_named(entry) and entry.stored is None and entry not in self._at_work:
                    self._save(entry)
        self._folder.close()

    # --- one entry

    def _care_for(self, entry: Entry, now: float) -> list[float]:
        """Does what is due for `entry`; returns the seconds until each thing that is not."""
        times, idle = self._times, now - entry.used_at
        todo = (
            (0.0, self._wants_reading, self._read),
            (times.save, self._wants_saving, self._save),
            (self._fold_after(), self._wants_folding, self._fold),
            (times.resident, self._may_leave_cells, self._park),
            (times.memory, self._may_leave_memory, _leave_memory),
        )
        waits = []
        for after, wanted, action in todo:
            if wanted(entry):
                if idle >= after:
                    action(entry)
                else:
                    waits.append(after - idle)
        return waits

    def _fold_after(self) -> float:
        return min(self._times.fold, self._times.pressed if self._manager.space.memory_is_short else math.inf)

    def _can_save(self) -> bool:
        return self.vault is not None and not self.vault.store.read_only

    def _wants_saving(self, entry: Entry) -> bool:
        waits_for_recipe = self._folder.wants_recipe and not self._learning.failed
        return (
            self._can_save()
            and _is_named(entry)
            and (entry.stored is None or self._is_coarser_now(entry))
            and entry not in self._at_work
            and entry not in self._failed
            and not waits_for_recipe
        )

    def _is_coarser_now(self, entry: Entry) -> bool:
        """Whether it was stored without loss only because the model was not calibrated yet."""
        return entry.codec == "exact" and self._folder.codec != "exact"

    def _wants_reading(self, entry: Entry) -> bool:
        """A pin is at least in memory."""
        busy = self._at_work | self._failed
        return entry.tier == "disk" and entry.kind >= Kind.AUTO_PIN and not entry.cells and entry not in busy

    def _wants_folding(self, entry: Entry) -> bool:
        parked = entry.parked
        return parked is not None and parked.raw is not None and parked not in self._at_work

    def _may_leave_cells(self, entry: Entry) -> bool:
        return entry.seq is not None and entry not in self._stuck

    def _may_leave_memory(self, entry: Entry) -> bool:
        return entry.parked is not None and entry.stored is not None and entry.kind < Kind.AUTO_PIN

    def _park(self, entry: Entry) -> None:
        if entry.stored is not None and entry.kind < Kind.AUTO_PIN:
            self._manager.space.leave_cells(entry)
        elif not self._manager.space.park(entry):
            self._stuck.add(entry)  # no room in memory: it stays where it is until it is on disk, or room is needed

    def _save(self, entry: Entry) -> None:
        vault, ready = self.vault, entry.parked.folded if entry.parked is not None else None
        if entry.cells or (ready is not None and ready.codec == "exact" != self._folder.codec):
            ready = None
        state, length = self._state_of(entry)
        if vault is None:
            return

        def save() -> FoldedKV:
            folded = ready
            if folded is None:
                known = state if state is not None else self._folder.unfold(self._copy_of(vault, entry), length)
                if entry.cells:  # what is on disk is in the engine's own types
                    known = self._engine.transcode(known, length, "")
                folded = self._folder.fold(known, length)
            vault.save(entry, folded)
            return folded

        self._hand_over(entry, save, lambda saved: self._saved(entry, saved))

    def _saved(self, entry: Entry, saved: Future[FoldedKV]) -> None:
        self._stuck.discard(entry)
        space = self._manager.space
        if not self._went_well(entry, saved, "stays in memory") or entry not in space.shelf:
            return
        folded = saved.result()
        if entry.cells:
            return
        if entry.parked is not None:
            if entry.parked.length == len(entry.tokens):
                entry.parked.folded = folded
        elif entry.kind >= Kind.AUTO_PIN and space.has_memory_for(len(folded.data)):
            entry.parked = Parked(len(entry.tokens), None, folded)

    def _read(self, entry: Entry) -> None:
        vault, space, library = self.vault, self._manager.space, self._manager.library
        if vault is None:
            return
        raw_bytes = len(entry.tokens) * self._engine.capabilities.bytes_per_token
        unfolds = not space.memory_is_short and space.has_memory_for(2 * raw_bytes)
        entry.ahead = self._hand_over(
            entry,
            lambda: library.fetch(vault, entry, unfolds=unfolds),
            lambda copy: self._was_read(entry, copy),
        )

    def _was_read(self, entry: Entry, copy: Future[Parked]) -> None:
        entry.ahead = None
        space = self._manager.space
        if entry in space.shelf and entry.tier == "lost":
            space.forget(entry)  # a pin: its next use computes it again
        if not self._went_well(entry, copy, "could not be read") or entry.parked or entry not in space.shelf:
            return
        if space.has_memory_for(copy.result().nbytes):
            entry.parked = copy.result()
        else:
            self._failed.add(entry)

    def _fold(self, entry: Entry) -> None:
        parked = entry.parked
        if parked is None or parked.raw is None:
            return
        if parked.folded is not None:
            parked.raw = None
            return
        if self._folder.wants_recipe and not self._learning.failed:
            return
        state, length = parked.raw, parked.length
        self._hand_over(parked, lambda: self._folder.fold(state, length), lambda folded: _folded(parked, folded))

    def _hand_over(self, what: Parked | Entry, job: Callable[[], T], then: Callable[[Future[T]], None]) -> Future[T]:
        """Has the folder's thread do `job` for `what`, and the engine's thread `then`."""

        def back(done: Future[T]) -> None:
            self._at_work.discard(what)
            then(done)

        self._at_work.add(what)
        future = self._folder.later(job)
        future.add_done_callback(lambda done: self._post(lambda: back(done)))
        return future

    def _went_well(self, entry: Entry, done: Future[T], otherwise: str) -> bool:
        """Whether there is a result; what went wrong is logged, and not tried again."""
        if done.cancelled():
            return False
        error = done.exception()
        if error is not None:
            log.warning("%s %s: %s", entry.label, otherwise, error)
            self._failed.add(entry)
        return error is None

    @staticmethod
    def _copy_of(vault: Vault, entry: Entry) -> bytes | memoryview:
        parked = entry.parked
        return parked.folded.data if parked is not None and parked.folded is not None else vault.load(entry).data

    def _state_of(self, entry: Entry) -> tuple[memoryview | None, int]:
        """The engine's bytes of exactly this entry, if they are at hand without unfolding."""
        parked = entry.parked
        if parked is not None and parked.raw is not None and parked.length == len(entry.tokens):
            return parked.raw, parked.length
        if entry.seq is not None:
            return self._engine.snapshot(entry.seq), len(entry.tokens)
        return None, len(entry.tokens)

    # --- calibration

    def _has_work_for_a_recipe(self) -> bool:
        due = time.monotonic() - self._fold_after()
        return any(
            (_is_named(e) and self._can_save()) or (e.parked is not None and e.parked.raw and e.used_at <= due)
            for e in self._manager.space.shelf
        )

    def _learn(self) -> None:
        recipe = self._learning.step()
        if recipe is None:
            return
        self._folder.recipe = recipe
        vault = self.vault
        if vault is not None and not vault.store.read_only:
            self._folder.later(lambda: vault.recipes.keep(recipe))


def _is_named(entry: Entry) -> bool:
    return entry.kind is not Kind.RECENT


def _folded(parked: Parked, folded: Future[FoldedKV]) -> None:
    if folded.exception() is None:
        parked.folded, parked.raw = folded.result(), None


def _leave_memory(entry: Entry) -> None:
    entry.parked = None
