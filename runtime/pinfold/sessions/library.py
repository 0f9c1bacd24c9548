"""Who is kept under which name, in this process and on disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinfold.engines.base import Engine
from pinfold.errors import EngineError, PinNotFoundError, SessionError, SessionNotFoundError, StoreError
from pinfold.sessions.pins import PinBook, PinRecord
from pinfold.sessions.shelf import Entry, Kind, Parked, Shelf

if TYPE_CHECKING:
    from pinfold.sessions.early import Early, EarlyPins
    from pinfold.sessions.folder import Folder
    from pinfold.sessions.vault import Vault

__all__ = ["Library"]

# Tokens that the disk must have beyond what is at hand to be worth reading.
_WORTH_READING = 64
# Seconds between two notes to the store that an entry is in use.
_NOTE_EVERY = 30.0


class Library:
    """Pins and sessions by name, and the copies of them that are folded or on disk. Runs on the engine's thread.

    It is the `space.Copies` of the engine's KV.
    """

    def __init__(self, engine: Engine, folder: Folder | None) -> None:
        self._engine = engine
        self._cuts = engine.capabilities.trim == "any"
        self.shelf = Shelf(cuts=self._cuts)
        self.folder = folder
        self.vault: Vault | None = None
        self.early: EarlyPins | None = None
        self.pin_book = PinBook()
        self.sessions: dict[tuple[str | None, str], Entry] = {}

    def attach(self, vault: Vault, early: EarlyPins | None = None) -> None:
        """From now on pins and sessions are kept on disk as well, and those of earlier processes are known."""
        self.vault, self.early = vault, early
        self._meet_pins()
        if early is not None:
            self._remember(vault, early)
            early.keep_only({entry.stored for entry in self.shelf if entry.stored is not None})

    # --- by name

    def open_session(self, name: str, salt: str | None) -> None:
        """Makes the session known: as the disk has it, or empty if it is new."""
        if (salt, name) in self.sessions:
            return
        stored = self.vault.session(name, salt) if self.vault is not None else None
        if stored is not None:
            self._welcome(stored)
        else:
            self.sessions[salt, name] = Entry(Kind.SESSION, name, salt, [], None)

    def session(self, name: str, salt: str | None) -> Entry:
        """The session of that name. Raises SessionNotFoundError."""
        if (salt, name) not in self.sessions and self.vault is not None:
            stored = self.vault.session(name, salt)
            if stored is not None:
                self._welcome(stored)
        try:
            return self.sessions[salt, name]
        except KeyError:
            known = ", ".join(repr(n) for s, n in self.sessions if s == salt) or "none"
            msg = f"There is no session {name!r} (sessions: {known})."
            raise SessionNotFoundError(msg) from None

    def record(self, name: str) -> PinRecord:
        """The live pin of that name, also one that another process made. Raises PinNotFoundError or PinExpiredError."""
        try:
            return self.pin_book.get(name)
        except PinNotFoundError:
            self._meet_pins()
            return self.pin_book.get(name)

    def entry_named(self, name: str, salt: str | None) -> Entry:
        """The session of that name, or else the pin. Raises SessionNotFoundError."""
        record = next((r for r in self.pin_book if r.name == name), None)
        entry = self.shelf.of_pin(record) if record is not None else None
        return entry if entry is not None and (salt, name) not in self.sessions else self.session(name, salt)

    def cells_of(self, session: str | None, salt: str | None) -> str:
        """Types of the cells that requests of `session` run in; "" for the engine's own."""
        entry = self.sessions.get((salt, session)) if session is not None else None
        return entry.cells if entry is not None else ""

    # --- by tokens

    def find(self, tokens: Sequence[int], salt: str | None, cells: str = "") -> tuple[int, Entry | None]:
        """As `Shelf.find`, and on disk, where everything is in the engine's own cells, if that has a good deal more."""
        length, entry = self.shelf.find(tokens, salt, cells)
        if self.vault is None or cells or length + _WORTH_READING >= len(tokens):
            return length, entry
        found = self.vault.find(tokens, salt, whole=not self._cuts)
        if found is None or min(found.length, len(tokens) - 1) < length + _WORTH_READING:
            return length, entry
        try:
            self._welcome(self.vault.adopt(found.entry, salt))
        except (SessionError, StoreError):
            return length, entry
        return self.shelf.find(tokens, salt)

    def why_not(self, tokens: Sequence[int], salt: str | None) -> str:
        """Why nothing of a prompt is reused though it is known: as part of what cannot be cut, or on disk for another
        engine. Empty if it is not known."""
        known = 0 if self._cuts else self.shelf.known(tokens, salt)
        if known >= _WORTH_READING:
            return (
                f"{known} tokens of this prompt are known, and were computed again: this model's state cannot be cut "
                f"back to them. Pin what prompts have in common."
            )
        if self.vault is None or len(tokens) < _WORTH_READING:
            return ""
        return self.vault.explain(tokens, salt, _WORTH_READING)

    # --- copies

    def unfold(self, data: bytes | memoryview, length: int) -> memoryview:
        """The engine's bytes of `length` folded tokens. Raises SessionCorruptError."""
        if self.folder is None:
            msg = "a folded copy, and nothing here that unfolds it"
            raise EngineError(msg)
        return self.folder.unfold(data, length)

    def read(self, entry: Entry) -> Parked:
        """What the disk has of `entry`, unfolded where that was done ahead.

        Raises:
            SessionError, StoreError: it cannot be read, and is then no longer there for us.
        """
        if entry.ahead is not None and not entry.ahead.cancel():
            return entry.ahead.result()  # on its way, and nothing else runs on this thread meanwhile
        if self.vault is None:
            msg = f"{entry.label} is on disk, and there is no store."
            raise SessionNotFoundError(msg)
        early = self._taken(entry)
        if early is not None:
            return Parked(len(entry.tokens), self._engine.close_snapshot(early.snapshot), early.folded)
        return Parked(len(entry.tokens), None, self.vault.load(entry))

    def fetch(self, vault: Vault, entry: Entry, *, unfolds: bool) -> Parked:
        """What the disk has of `entry`, and the engine's bytes of it too if `unfolds`. Safe from any thread.

        Raises:
            SessionError, StoreError: as `read`.
        """
        length, early = len(entry.tokens), self._taken(entry)
        folded = early.folded if early is not None else vault.load(entry)
        if not unfolds:
            return Parked(length, None, folded)
        raw = self._engine.close_snapshot(early.snapshot) if early is not None else self.unfold(folded.data, length)
        return Parked(length, raw, folded)

    def note_use(self, entry: Entry) -> None:
        """Tells the store now and then that `entry` is in use."""
        vault, now = self.vault, time.monotonic()
        if vault is None or self.folder is None or entry.stored is None or now - entry.noted_at < _NOTE_EVERY:
            return
        entry.noted_at = now
        self.folder.later(lambda: vault.note_use(entry, hit=True))

    def erase(self, entry: Entry) -> None:
        """Removes `entry` from the disk, also if it is being written there now."""
        vault, key = self.vault, entry.stored
        if vault is not None and self.folder is not None:
            entry.erased = True
            self.folder.later(lambda: vault.erase(entry, key))

    # --- inside

    def _taken(self, entry: Entry) -> Early | None:
        return self.early.take(entry.stored, entry.tokens) if self.early is not None and entry.stored else None

    def _remember(self, vault: Vault, early: EarlyPins) -> None:
        """Pins that were found damaged: their next use computes them again, and says so."""
        for found, tokens in early.lost():
            record = vault.lost_pin(found, tokens)
            if record is not None and all(each.name != record.name for each in self.pin_book):
                self.pin_book.add(record)

    def _meet_pins(self) -> None:
        if self.vault is not None:
            for entry in self.vault.pins():
                self._welcome(entry)

    def _welcome(self, entry: Entry) -> None:
        """Puts an entry that is on disk on the shelf, under its name where that is free."""
        if any(each.stored == entry.stored for each in self.shelf):
            return
        if entry.kind is Kind.SESSION:
            self.sessions.setdefault((entry.salt, entry.name), entry)
        elif entry.pin is not None:
            if any(record.name == entry.name for record in self.pin_book):
                return
            self.pin_book.add(entry.pin)
        self.shelf.add(entry)
