"""A request's way through the kept KV, and the names that KV is kept under.

Sequence ids are cheap handles on shared cells. A request always runs on a fork of the best source, so nothing that is
kept is ever written to; what it leaves behind is committed as a session or as a recent request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pinfold.engines.base import Engine
from pinfold.errors import CacheFullError, EngineError, InvalidRequestError, SessionNotFoundError
from pinfold.sessions.pins import Pin, PinBook, PinRecord, Tier
from pinfold.sessions.shelf import MIN_REUSE, Entry, Kind
from pinfold.sessions.space import KVSpace

__all__ = ["SessionInfo", "SessionManager", "Start"]


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
    hit: Literal["miss", "resident", "memory"]
    restore_s: float = 0.0
    note: str = ""


class SessionManager:
    """Finds, keeps and names KV. Every method runs on the engine's thread.

    Args:
        memory: bytes of main memory for KV that is not in the engine's cells.
        now: Unix seconds.
    """

    def __init__(self, engine: Engine, memory: int = 1 << 30, now: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._now = now
        self._sessions: dict[tuple[str | None, str], Entry] = {}
        self.space = KVSpace(engine, memory)
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
        length, entry = (0, None) if cold else self.space.shelf.find(tokens, salt)
        if entry is None:
            return Start(self.space.new_seq(), 0, None, "miss")
        try:
            return self._start_on(entry, length)
        except EngineError as e:
            if not isinstance(e, CacheFullError):
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
        record = self.pin_book.get(name)
        self.pin_book.remove(record)
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
        return self.view(self.pin_book.get(name))

    def view(self, record: PinRecord) -> Pin:
        """`record` as users see it."""
        entry = self.space.shelf.of_pin(record)
        return record.view(_tier(entry) if entry is not None else "lost")

    def holds(self, record: PinRecord) -> bool:
        """Whether the pin's KV is in the engine or in memory."""
        return self.space.shelf.of_pin(record) is not None

    # --- sessions

    def sessions(self) -> list[SessionInfo]:
        """All named sessions."""
        return [
            SessionInfo(name, len(e.tokens), salt, _tier(e) if e in self.space.shelf or not e.tokens else "lost")
            for (salt, name), e in self._sessions.items()
        ]

    def open_session(self, name: str, salt: str | None) -> None:
        """Makes the session known, empty if it is new."""
        self._sessions.setdefault((salt, name), Entry(Kind.SESSION, name, salt, [], None))

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
        if entry in self.space.shelf:
            self.space.forget(entry)

    # --- inside

    def _start_on(self, entry: Entry, length: int) -> Start:
        hit: Literal["resident", "memory"] = "memory" if entry.seq is None else "resident"
        restore_s = self.space.bring_back(entry)
        seq = self.space.new_seq(keep=entry)
        try:
            self._engine.fork(entry.seq if entry.seq is not None else -1, seq, length)
        except EngineError:
            self.space.abandon(seq)
            raise
        self.space.shelf.touch(entry)
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


def _tier(entry: Entry) -> Tier:
    return "resident" if entry.seq is not None or not entry.tokens else "memory"
