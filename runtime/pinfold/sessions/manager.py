"""A request's way through the kept KV, and the names that KV is kept under.

Sequence ids are cheap handles on shared cells. A request always runs on a fork of the best source, so nothing that is
kept is ever written to; what it leaves behind is committed as a session or as a recent request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pinfold.engines.base import Engine
from pinfold.errors import (
    CacheFullError,
    EngineError,
    InvalidRequestError,
    PinNotFoundError,
    SessionError,
    StoreBusyError,
    StoreError,
)
from pinfold.sessions.library import Library
from pinfold.sessions.pins import Pin, PinRecord, Tier
from pinfold.sessions.shelf import MIN_REUSE, Entry, Kind
from pinfold.sessions.space import KVSpace

if TYPE_CHECKING:
    from pinfold.sessions.folder import Folder

__all__ = ["SessionInfo", "SessionManager", "Start"]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A named session as users see it: the tokens whose KV it held last, and where that is now.

    `tokens` is None, and `tier` ``server``, for one whose KV a server has and does not count.
    """

    name: str
    tokens: int | None
    salt: str | None
    tier: Tier | Literal["server"]


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
        self.engine = engine
        self._now = now
        self.library = Library(engine, folder)
        self.space = KVSpace(engine, memory, self.library)
        self.pin_book = self.library.pin_book

    # --- a request's way through

    def best_length(self, tokens: Sequence[int], salt: str | None, cells: str = "") -> int:
        """Tokens that a request for `tokens` would find computed."""
        return self.space.shelf.find(tokens, salt, cells)[0]

    def start(
        self, tokens: Sequence[int], salt: str | None, cells: str = "", *, cold: bool = False, alone: bool = False
    ) -> Start:
        """A sequence for `tokens` that begins with the longest prefix known, at least one token short of all.

        `cells`: as `Entry.cells`, of those that are searched.
        `cold` leaves out the search. A prefix that cannot be brought back or forked is forgotten, unless it was for
        lack of room, and the request starts cold. `alone`: no other request runs, so that idle KV may leave the cells.

        Raises:
            CacheFullError: no sequence id is left.
        """
        length, entry = (0, None) if cold else self.library.find(tokens, salt, cells)
        if alone:  # before anything is brought back: it then lands in the low cells, and attention walks no further
            self.space.clear_for(tokens, length if entry is not None and entry.seq is not None else 0, entry)
        if entry is None:
            note = "" if cold else self.library.why_not(tokens, salt)
            return Start(self.space.new_seq(), 0, None, "miss", note=note)
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
        self.engine.fork(seq, new, length)
        return Start(new, length, "a request in flight", "resident")

    def finish(self, seq: int, tokens: Sequence[int], salt: str | None, session: str | None) -> None:
        """Keeps what a request left on `seq`: as `session`, or as a recent request if it is worth keeping."""
        kept, cells = list(tokens[: self.engine.length(seq)]), self.engine.kv_types(seq)
        if session is not None:
            self.keep_session(Entry(Kind.SESSION, session, salt, kept, seq, cells=cells))
        elif len(kept) < MIN_REUSE or self.space.shelf.holds(kept, salt, cells):
            self.space.abandon(seq)
        else:
            self.space.keep(Entry(Kind.RECENT, "", salt, kept, seq, cells=cells))

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
        record = self.library.record(name)
        self.pin_book.remove(record)
        entry = self.space.shelf.of_pin(record)
        if entry is not None:
            self.library.erase(entry)
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
        return self.view(self.library.record(name))

    def pin_prompt(self, name: str) -> tuple[Mapping[str, Any], str | None]:
        """Messages and tools of the live pin called `name`, and its salt.

        Raises:
            PinNotFoundError, PinExpiredError: there is none, or what it was made from was too long to keep on disk.
        """
        self.expire_pins()
        record = self.library.record(name)
        if record.prompt is None:
            msg = f"The pin {name!r} was read from disk without its messages, which were too long. Pin them again."
            raise PinNotFoundError(msg)
        return record.prompt, record.salt

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
            for (salt, name), e in self.library.sessions.items()
        ]

    def open_session(self, name: str, salt: str | None) -> None:
        """Makes the session known: as the disk has it, or empty if it is new."""
        self.library.open_session(name, salt)

    def fork_session(self, name: str, new_name: str, salt: str | None) -> None:
        """Makes `new_name` hold what `name` holds, at no cost in cells.

        Raises:
            SessionNotFoundError: there is no session `name`.
            InvalidRequestError: `new_name` exists already.
        """
        source = self.library.session(name, salt)
        if (salt, new_name) in self.library.sessions:
            msg = f"A session {new_name!r} exists already. Fork to a new name, or drop_session({new_name!r}) first."
            raise InvalidRequestError(msg)
        if source not in self.space.shelf:
            self.library.sessions[salt, new_name] = Entry(Kind.SESSION, new_name, salt, source.tokens, None)
            return
        seq = self._start_on(source, len(source.tokens)).seq
        self.keep_session(Entry(Kind.SESSION, new_name, salt, source.tokens, seq, cells=source.cells))

    def drop_session(self, name: str, salt: str | None) -> None:
        """Forgets the session and its KV. Raises SessionNotFoundError."""
        entry = self.library.session(name, salt)
        del self.library.sessions[salt, name]
        self.library.erase(entry)
        if entry in self.space.shelf:
            self.space.forget(entry)

    # --- inside

    def _start_on(self, entry: Entry, length: int) -> Start:
        hit = entry.tier if entry.tier != "lost" else "miss"
        restore_s = self.space.bring_back(entry)
        seq = self.space.new_seq(keep=entry)
        try:
            self.engine.fork(entry.seq if entry.seq is not None else -1, seq, length)
        except EngineError:
            self.space.abandon(seq)
            raise
        self.space.shelf.touch(entry)
        self.library.note_use(entry)
        return Start(seq, length, entry.label, hit, restore_s)

    def _pinned(self, seq: int, record: PinRecord) -> Entry:
        new = self.space.new_seq()
        self.engine.fork(seq, new, len(record.tokens))
        kind = Kind.AUTO_PIN if record.automatic else Kind.PIN
        cells = self.engine.kv_types(new)
        return Entry(kind, record.name, record.salt, list(record.tokens), new, pin=record, cells=cells)

    def _release_pin(self, record: PinRecord) -> None:
        entry = self.space.shelf.of_pin(record)
        if entry is not None:
            entry.demote()

    def keep_session(self, entry: Entry) -> None:
        """Makes `entry` what its name stands for."""
        old = self.library.sessions.get((entry.salt, entry.name))
        if old is not None:
            old.demote()
        self.library.sessions[entry.salt, entry.name] = entry
        self.space.keep(entry)
