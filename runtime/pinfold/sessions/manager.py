"""A request's way through the kept KV, and the names that KV is kept under.

Sequence ids are cheap handles on shared cells. A request always runs on a fork of the best source, so nothing that is
kept is ever written to; what it leaves behind is committed as a session or as a recent request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pinfold.engines.base import Engine
from pinfold.errors import (
    CacheFullError,
    EngineError,
    InvalidRequestError,
    PinNotFoundError,
    SessionError,
    SessionNotFoundError,
    StoreBusyError,
    StoreError,
)
from pinfold.sessions.pins import Pin, PinBook, PinRecord, Tier
from pinfold.sessions.shelf import MIN_REUSE, Entry, Kind, Parked
from pinfold.sessions.space import KVSpace

if TYPE_CHECKING:
    from pinfold.kv.codec import FoldedKV
    from pinfold.sessions.folder import Folder
    from pinfold.sessions.vault import Vault

__all__ = ["SessionInfo", "SessionManager", "Start"]

# Tokens that the disk must have beyond what is at hand to be worth reading.
_WORTH_READING = 64
# Seconds between two notes to the store that an entry is in use.
_NOTE_EVERY = 30.0


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A named session as users see it: the tokens whose KV it held last, and where that is now."""

    name: str
    tokens: int
    salt: str | None
    tier: Tier


@dataclass(frozen=True, slots=True)
class Start:
    """Where a request begins: on `seq`, which holds the first `length` tokens, taken from `source`.

    `hit` says where those were, and `restore_s` how long it took to bring them back from there.
    """

    seq: int
    length: int
    source: str | None
    hit: Literal["miss", "resident", "memory", "disk"]
    restore_s: float = 0.0
    note: str = ""


class SessionManager:
    """Finds, keeps and names KV. Every method runs on the engine's thread.

    Args:
        memory: bytes of main memory for KV that is not in the engine's cells.
        now: Unix seconds.
        folder: folds and unfolds copies; without it they stay as the engine gives them.
    """

    def __init__(
        self,
        engine: Engine,
        memory: int = 1 << 30,
        now: Callable[[], float] = time.time,
        folder: Folder | None = None,
    ) -> None:
        self._engine = engine
        self._now = now
        self._sessions: dict[tuple[str | None, str], Entry] = {}
        self.folder = folder
        self.vault: Vault | None = None
        self.space = KVSpace(engine, memory, self)
        self.pin_book = PinBook()

    # --- a request's way through

    def best_length(self, tokens: Sequence[int], salt: str | None) -> int:
        """Tokens that a request for `tokens` would find computed."""
        return self.space.shelf.find(tokens, salt)[0]

    def start(self, tokens: Sequence[int], salt: str | None, *, cold: bool = False, alone: bool = False) -> Start:
        """A sequence for `tokens` that begins with the longest prefix known, at least one token short of all.

        `cold` leaves out the search. A prefix that cannot be brought back or forked is forgotten, unless it was for
        lack of room, and the request starts cold. `alone`: no other request runs, so that idle KV may leave the cells.

        Raises:
            CacheFullError: no sequence id is left.
        """
        start = self._begin(tokens, salt, cold=cold)
        if alone:
            self.space.clear_for(tokens, start.length)
        return start

    def _begin(self, tokens: Sequence[int], salt: str | None, *, cold: bool) -> Start:
        length, entry = (0, None) if cold else self._find(tokens, salt)
        if entry is None:
            return Start(self.space.new_seq(), 0, None, "miss")
        try:
            return self._start_on(entry, length)
        except (EngineError, SessionError, StoreError) as e:
            if not isinstance(e, CacheFullError | StoreBusyError):
                self.space.forget(entry)
            note = f"{entry.label} could not be reused ({e}); the prompt was computed anew"
            return Start(self.space.new_seq(), 0, None, "miss", note=note)

    def start_from(self, seq: int, length: int) -> Start:
        """A sequence that begins with the first `length` tokens of `seq`, which another request is running on."""
        new = self.space.new_seq()
        self._engine.fork(seq, new, length)
        return Start(new, length, "a request in flight", "resident")

    def finish(self, seq: int, tokens: Sequence[int], salt: str | None, session: str | None) -> None:
        """Keeps what a request left on `seq`: as `session`, or as a recent request if it is worth keeping."""
        kept = list(tokens[: self._engine.length(seq)])
        if session is not None:
            self._keep_session(Entry(Kind.SESSION, session, salt, kept, seq))
        elif len(kept) < MIN_REUSE or self.space.shelf.holds(kept, salt):
            self.space.abandon(seq)
        else:
            self.space.keep(Entry(Kind.RECENT, "", salt, kept, seq))

    # --- pins

    def pin(self, seq: int, record: PinRecord) -> None:
        """Keeps the first ``len(record.tokens)`` tokens of `seq` as a pin; one of the same name is replaced.

        Raises:
            CacheFullError: no sequence id is left.
        """
        entry = self._pinned(seq, record)
        record.begin(self._now())
        replaced = self.pin_book.add(record)
        if replaced is not None:
            self._release_pin(replaced)
        self.space.keep(entry)

    def recover_pin(self, seq: int, record: PinRecord) -> None:
        """Keeps `record`, whose KV was lost, from `seq`, which begins with its tokens."""
        if record in self.pin_book and not self.holds(record):
            self.space.keep(self._pinned(seq, record))

    def touch_pin(self, record: PinRecord, *, hit: bool) -> None:
        """A request begins with the pin's tokens: its TTL starts anew; `hit` if it found them computed."""
        record.touch(self._now())
        record.hits += hit
        entry = self.space.shelf.of_pin(record)
        if entry is not None:
            self.space.shelf.touch(entry)

    def unpin(self, name: str) -> None:
        """Ends the pin called `name`. Raises PinNotFoundError or PinExpiredError."""
        self.expire_pins()
        record = self._record(name)
        self.pin_book.remove(record)
        entry = self.space.shelf.of_pin(record)
        if entry is not None:
            self._erase(entry)
        self._release_pin(record)

    def expire_pins(self) -> None:
        """Ends the pins whose TTL is over; what they held may be reused until room is needed."""
        for record in self.pin_book.expire(self._now()):
            self._release_pin(record)

    def pins(self) -> list[Pin]:
        """All live pins."""
        self.expire_pins()
        return [self.view(record) for record in self.pin_book]

    def pin_named(self, name: str) -> Pin:
        """The live pin called `name`. Raises PinNotFoundError or PinExpiredError."""
        self.expire_pins()
        return self.view(self._record(name))

    def view(self, record: PinRecord) -> Pin:
        """`record` as users see it."""
        entry = self.space.shelf.of_pin(record)
        return record.view(entry.tier if entry is not None else "lost")

    def holds(self, record: PinRecord) -> bool:
        """Whether the pin's KV is anywhere."""
        return self.space.shelf.of_pin(record) is not None

    # --- sessions

    def sessions(self) -> list[SessionInfo]:
        """All named sessions."""
        return [
            SessionInfo(name, len(e.tokens), salt, e.tier if e.tokens else "resident")
            for (salt, name), e in self._sessions.items()
        ]

    def open_session(self, name: str, salt: str | None) -> None:
        """Makes the session known: as the disk has it, or empty if it is new."""
        if (salt, name) in self._sessions:
            return
        stored = self.vault.session(name, salt) if self.vault is not None else None
        if stored is not None:
            self._welcome(stored)
        else:
            self._sessions[salt, name] = Entry(Kind.SESSION, name, salt, [], None)

    def fork_session(self, name: str, new_name: str, salt: str | None) -> None:
        """Makes `new_name` hold what `name` holds, at no cost in cells.

        Raises:
            SessionNotFoundError: there is no session `name`.
            InvalidRequestError: `new_name` exists already.
        """
        source = self._session(name, salt)
        if (salt, new_name) in self._sessions:
            msg = f"A session {new_name!r} exists already. Fork to a new name, or drop_session({new_name!r}) first."
            raise InvalidRequestError(msg)
        if source not in self.space.shelf:
            self._sessions[salt, new_name] = Entry(Kind.SESSION, new_name, salt, source.tokens, None)
            return
        seq = self._start_on(source, len(source.tokens)).seq
        self._keep_session(Entry(Kind.SESSION, new_name, salt, source.tokens, seq))

    def drop_session(self, name: str, salt: str | None) -> None:
        """Forgets the session and its KV. Raises SessionNotFoundError."""
        entry = self._session(name, salt)
        del self._sessions[salt, name]
        self._erase(entry)
        if entry in self.space.shelf:
            self.space.forget(entry)

    # --- folded copies and the disk

    def attach(self, vault: Vault) -> None:
        """From now on pins and sessions are kept on disk as well, and those of earlier processes are known."""
        self.vault = vault
        self._meet_pins()

    def unfold(self, data: bytes | memoryview, length: int) -> memoryview:
        """The engine's bytes of `length` folded tokens. Raises SessionCorruptError."""
        if self.folder is None:
            msg = "a folded copy, and no folder to unfold it"
            raise EngineError(msg)
        return self.folder.unfold(data, length)

    def read(self, entry: Entry) -> FoldedKV:
        """What the disk has of `entry`. Raises SessionError or StoreError."""
        if self.vault is None:
            msg = f"{entry.label} is on disk, and there is no store."
            raise SessionNotFoundError(msg)
        return self.vault.load(entry)

    def refold(self, entry: Entry, preset: str) -> FoldedKV:
        """Folds `entry` anew by `preset` and moves it to memory. Raises SessionNotFoundError, EngineError."""
        self.space.bring_back(entry)
        if entry.seq is None or self.folder is None:
            msg = f"{entry.label} is lost: there is nothing to fold. Its next request computes it again."
            raise SessionNotFoundError(msg)
        folded = self.folder.fold(self._engine.snapshot(entry.seq), len(entry.tokens), preset)
        entry.parked = Parked(len(entry.tokens), None, folded)
        entry.stored = None  # what is on disk is of another preset: it is replaced
        self.space.leave_cells(entry)
        return folded

    def entry_named(self, name: str, salt: str | None) -> Entry:
        """The session of that name, or the pin. Raises SessionNotFoundError."""
        record = next((r for r in self.pin_book if r.name == name), None)
        entry = self.space.shelf.of_pin(record) if record is not None else None
        return entry if entry is not None and (salt, name) not in self._sessions else self._session(name, salt)

    def _find(self, tokens: Sequence[int], salt: str | None) -> tuple[int, Entry | None]:
        """As `Shelf.find`, and on disk where that has a good deal more."""
        shelf = self.space.shelf
        length, entry = shelf.find(tokens, salt)
        if self.vault is None or length + _WORTH_READING >= len(tokens):
            return length, entry
        found = self.vault.find(tokens, salt, whole=self._engine.capabilities.trim != "any")
        if found is None or min(found.length, len(tokens) - 1) < length + _WORTH_READING:
            return length, entry
        try:
            self._welcome(self.vault.adopt(found.entry, salt))
        except (SessionError, StoreError):
            return length, entry
        return shelf.find(tokens, salt)

    def _meet_pins(self) -> None:
        if self.vault is not None:
            known = {record.name for record in self.pin_book}
            for entry in self.vault.pins():
                if entry.name not in known:
                    self._welcome(entry)

    def _welcome(self, entry: Entry) -> None:
        """Puts an entry that is on disk on the shelf, under its name where that is free."""
        if entry.kind is Kind.SESSION:
            self._sessions.setdefault((entry.salt, entry.name), entry)
        elif entry.pin is not None:
            if any(record.name == entry.name for record in self.pin_book):
                return
            self.pin_book.add(entry.pin)
        used = entry.used_at
        self.space.shelf.add(entry)
        entry.used_at = max(used, entry.used_at)

    def _record(self, name: str) -> PinRecord:
        try:
            return self.pin_book.get(name)
        except PinNotFoundError:
            self._meet_pins()  # another process may have made it
            return self.pin_book.get(name)

    def _note_use(self, entry: Entry, *, hit: bool) -> None:
        vault, now = self.vault, time.monotonic()
        if vault is None or self.folder is None or entry.stored is None or now - entry.noted_at < _NOTE_EVERY:
            return
        entry.noted_at = now
        self.folder.later(lambda: vault.note_use(entry, hit=hit))

    def _erase(self, entry: Entry) -> None:
        """Removes `entry` from the disk, also if it is being written there now."""
        vault, key = self.vault, entry.stored
        if vault is not None and self.folder is not None:
            entry.erased = True
            self.folder.later(lambda: vault.erase(entry, key))

    # --- inside

    def _start_on(self, entry: Entry, length: int) -> Start:
        hit = entry.tier if entry.tier != "lost" else "miss"
        restore_s = self.space.bring_back(entry)
        seq = self.space.new_seq(keep=entry)
        try:
            self._engine.fork(entry.seq if entry.seq is not None else -1, seq, length)
        except EngineError:
            self.space.abandon(seq)
            raise
        self.space.shelf.touch(entry)
        self._note_use(entry, hit=True)
        return Start(seq, length, entry.label, hit, restore_s)

    def _pinned(self, seq: int, record: PinRecord) -> Entry:
        new = self.space.new_seq()
        self._engine.fork(seq, new, len(record.tokens))
        kind = Kind.AUTO_PIN if record.automatic else Kind.PIN
        return Entry(kind, record.name, record.salt, list(record.tokens), new, pin=record)

    def _release_pin(self, record: PinRecord) -> None:
        entry = self.space.shelf.of_pin(record)
        if entry is not None:
            entry.demote()

    def _keep_session(self, entry: Entry) -> None:
        old = self._sessions.get((entry.salt, entry.name))
        if old is not None:
            old.demote()
        self._sessions[entry.salt, entry.name] = entry
        self.space.keep(entry)

    def _session(self, name: str, salt: str | None) -> Entry:
        try:
            return self._sessions[salt, name]
        except KeyError:
            known = ", ".join(repr(n) for s, n in self._sessions if s == salt) or "none"
            msg = f"There is no session {name!r} (sessions: {known})."
            raise SessionNotFoundError(msg) from None

