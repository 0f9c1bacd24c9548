"""What happens to kept KV while no request runs: folded, moved down a tier, put on disk; and a model's calibration.

Everything here runs on the engine's thread in small pieces, and only when it is idle; folding and writing go to the
folder's thread. Nothing here is needed for a right answer: a fault is logged, and the KV stays where it was.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinfold.engines.base import Engine
from pinfold.errors import PinfoldError
from pinfold.sessions.folder import Folder
from pinfold.sessions.manager import SessionManager
from pinfold.sessions.shelf import Entry, Kind, Parked

if TYPE_CHECKING:
    from pinfold.kv.codec import FoldedKV
    from pinfold.kv.recipe import Recipe
    from pinfold.sessions.vault import Vault

__all__ = ["IdleTimes", "Upkeep"]

log = logging.getLogger("pinfold.sessions")


@dataclass(frozen=True, slots=True)
class IdleTimes:
    """Seconds without a use after which kept KV moves on.

    Attributes:
        fold: a copy in memory is folded; `pressed` where memory is short.
        save: a pin or named session is put on disk as well.
        resident: it leaves the engine's cells for memory.
        memory: what is on disk leaves memory, pins excepted.
        calibrate: the engine without a request: it then learns how to fold the model, once.
    """

    fold: float = 300.0
    pressed: float = 10.0
    save: float = 3.0
    resident: float = 300.0
    memory: float = 1800.0
    calibrate: float = 5.0


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
        self._calibration: Generator[None, None, Recipe] | None = None
        self._seq: int | None = None
        self._cannot_calibrate = False
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
        if self._calibration is not None:
            self._calibrate(self._calibration)
            return 0.0
        now = time.monotonic()
        waits: list[float] = []
        for entry in self._manager.space.shelf:
            waits += self._care_for(entry, now)
        if self._folder.wants_recipe and not self._cannot_calibrate and self._has_work_for_a_recipe():
            left = self._quiet_since + self._times.calibrate - now
            if left <= 0:
                self._begin_calibration()
                return 0.0
            waits.append(left)
        return min(waits) if waits else None

    def settle(self) -> None:
        """Waits for what the folder's thread is doing; what comes of it has then been posted."""
        if self._calibration is not None:
            self._end_calibration()
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
        waits_for_recipe = self._folder.wants_recipe and not self._cannot_calibrate
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
        return entry.tier == "disk" and entry.kind >= Kind.AUTO_PIN and entry not in self._at_work | self._failed

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
        if ready is not None and ready.codec == "exact" != self._folder.codec:
            ready = None
        state, length = self._state_of(entry)
        if vault is None:
            return
        self._at_work.add(entry)

        def work() -> None:
            folded = ready
            try:
                if folded is None:
                    known = state if state is not None else self._folder.unfold(self._copy_of(vault, entry), length)
                    folded = self._folder.fold(known, length)
                vault.save(entry, folded)
            except PinfoldError as e:
                log.warning("%s stays in memory: %s", entry.label, e)
                self._post(lambda: self._failed.add(entry))
            finally:
                self._post(lambda: self._saved(entry, folded))

        self._folder.later(work)

    def _read(self, entry: Entry) -> None:
        vault = self.vault
        if vault is None:
            return
        self._at_work.add(entry)

        def work() -> None:
            folded = None
            try:
                folded = vault.load(entry)
            except PinfoldError as e:
                log.warning("%s could not be read: %s", entry.label, e)
                self._post(lambda: self._failed.add(entry))
            finally:
                self._post(lambda: self._was_read(entry, folded))

        self._folder.later(work)

    def _was_read(self, entry: Entry, folded: FoldedKV | None) -> None:
        self._at_work.discard(entry)
        space = self._manager.space
        if entry in space.shelf and entry.tier == "lost":
            space.forget(entry)  # a pin: its next use computes it again
        if folded is None or entry.parked is not None or entry not in space.shelf:
            return
        if space.has_memory_for(len(folded.data)):
            entry.parked = Parked(len(entry.tokens), None, folded)
        else:
            self._failed.add(entry)

    def _saved(self, entry: Entry, folded: FoldedKV | None) -> None:
        self._at_work.discard(entry)
        self._stuck.discard(entry)
        space = self._manager.space
        if folded is None or entry not in space.shelf:
            return
        if entry.parked is not None:
            if entry.parked.length == len(entry.tokens):
                entry.parked.folded = folded
        elif entry.kind >= Kind.AUTO_PIN and space.has_memory_for(len(folded.data)):
            entry.parked = Parked(len(entry.tokens), None, folded)

    def _fold(self, entry: Entry) -> None:
        parked = entry.parked
        if parked is None or parked.raw is None:
            return
        if parked.folded is not None:
            parked.raw = None
            return
        if self._folder.wants_recipe and not self._cannot_calibrate:
            return
        self._at_work.add(parked)
        state, length = parked.raw, parked.length

        def work() -> None:
            folded = None
            try:
                folded = self._folder.fold(state, length)
            finally:
                self._post(lambda: self._folded(parked, folded))

        self._folder.later(work)

    def _folded(self, parked: Parked, folded: FoldedKV | None) -> None:
        self._at_work.discard(parked)
        if folded is not None:
            parked.folded, parked.raw = folded, None

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

    def _begin_calibration(self) -> None:
        from pinfold.quality.tune import calibrate

        space = self._manager.space
        seq = self._seq = space.new_seq()

        def room(cells: int) -> int:
            space.make_room(cells)
            return seq

        log.info("learning how to fold this model; requests go first")
        self._calibration = calibrate(self._engine, room)

    def _calibrate(self, calibration: Generator[None, None, Recipe]) -> None:
        failed = True
        try:
            next(calibration)
            failed = False
        except StopIteration as stop:
            self._learnt(stop.value)
            failed = False
        except PinfoldError as e:
            log.warning("the model could not be calibrated, its sessions are kept without loss: %s", e)
        finally:
            if failed:
                self._cannot_calibrate = True
                self._end_calibration()

    def _learnt(self, recipe: Recipe) -> None:
        self._end_calibration()
        self._folder.recipe = recipe
        vault = self.vault
        if vault is not None and not vault.store.read_only:
            self._folder.later(lambda: vault.recipes.keep(recipe))

    def _end_calibration(self) -> None:
        if self._calibration is not None:
            self._calibration.close()
            self._calibration = None
        if self._seq is not None:
            self._manager.space.abandon(self._seq)
            self._seq = None


def _is_named(entry: Entry) -> bool:
    return entry.kind is not Kind.RECENT


def _leave_memory(entry: Entry) -> None:
    entry.parked = None
