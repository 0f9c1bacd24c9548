"""Which engine sequence holds what: the longest known prefix for a request, commit after it, eviction before it.

Sequence ids are cheap handles on shared cells. A request always runs on a fork of the best source, so nothing that is
kept is ever written to; what it leaves behind is committed as a session or as a recent request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pinfold.engines.base import Engine
from pinfold.errors import CacheFullError, EngineError, InvalidRequestError, SessionNotFoundError
from pinfold.sessions.pins import Pin, PinBook, PinRecord
from pinfold.sessions.shelf import MIN_REUSE, Entry, Kind, Shelf

__all__ = ["SessionInfo", "SessionManager", "Start"]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A named session as users see it: `tokens` whose KV it holds, and whether that is in the engine now."""

    name: str
    tokens: int
    salt: str | None
    resident: bool


@dataclass(frozen=True, slots=True)
class Start:
    """Where a request begins: on `seq`, which holds the first `length` tokens, taken from `source`."""

    seq: int
    length: int
    source: str | None
    note: str = ""


class SessionManager:
    """Owner of the engine's sequence ids. Every method runs on the engine's thread."""

    def __init__(self, engine: Engine, now: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._now = now
        self._shelf = Shelf(cuts=engine.capabilities.trim == "any")
        self._sessions: dict[tuple[str | None, str], Entry | int] = {}  # an int: tokens of one that was evicted
        self._free_seqs = list(range(engine.capabilities.n_seq - 1, -1, -1))
        self.pin_book = PinBook()

    # --- a request's way through

    def best_length(self, tokens: Sequence[int], salt: str | None) -> int:
        """Tokens that a request for `tokens` would find computed."""
        return self._shelf.find(tokens, salt)[0]

    def start(self, tokens: Sequence[int], salt: str | None, *, cold: bool = False) -> Start:
        """A sequence for `tokens` that begins with the longest prefix known, at least one token short of all.

        `cold` leaves out the search. A prefix that cannot be forked is given up and the request starts cold.

        Raises:
            CacheFullError: no sequence id is left.
        """
        length, entry = (0, None) if cold else self._shelf.find(tokens, salt)
        seq = self._new_seq(keep=entry)
        if entry is None:
            return Start(seq, 0, None)
        try:
            self._engine.fork(entry.seq, seq, length)
        except EngineError as e:
            self._evict(entry)
            return Start(seq, 0, None, f"{entry.label} could not be reused ({e}); the prompt was computed anew")
        self._shelf.touch(entry)
        return Start(seq, length, entry.label)

    def start_from(self, seq: int, length: int) -> Start:
        """A sequence that begins with the first `length` tokens of `seq`, which another request is running on."""
        new = self._new_seq(keep=None)
        self._engine.fork(seq, new, length)
        return Start(new, length, "a request in flight")

    def finish(self, seq: int, tokens: Sequence[int], salt: str | None, session: str | None) -> None:
        """Keeps what a request left on `seq`: as `session`, or as a recent request if it is worth keeping."""
        kept = list(tokens[: self._engine.length(seq)])
        if session is not None:
            self._keep(Entry(Kind.SESSION, session, salt, kept, seq))
        elif len(kept) < MIN_REUSE or self._shelf.holds(kept, salt):
            self.abandon(seq)
        else:
            self._keep(Entry(Kind.RECENT, "", salt, kept, seq))

    def abandon(self, seq: int) -> None:
        """Forgets what is on `seq`."""
        self._engine.drop(seq)
        self._free_seqs.append(seq)

    def make_room(self, cells: int) -> bool:
        """Gives up idle sequences, least recently used first and pins last, until `cells` are free."""
        while self._engine.free_cells() < cells:
            victim = self._shelf.victim(self._engine.exclusive_cells)
            if victim is None:
                return False
            self._evict(victim)
        return True

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
        self._keep(entry)

    def restore_pin(self, seq: int, record: PinRecord) -> None:
        """Makes `record`, whose KV was evicted, resident again from `seq`, which begins with its tokens."""
        if record in self.pin_book and not self.is_resident(record):
            self._keep(self._pinned(seq, record))

    def touch_pin(self, record: PinRecord, *, hit: bool) -> None:
        """A request begins with the pin's tokens: its TTL starts anew; `hit` if it found them computed."""
        record.touch(self._now())
        record.hits += hit
        entry = self._shelf.of_pin(record)
        if entry is not None:
            self._shelf.touch(entry)

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
        return [record.view(resident=self._shelf.of_pin(record) is not None) for record in self.pin_book]

    def pin_named(self, name: str) -> Pin:
        """The live pin called `name`. Raises PinNotFoundError or PinExpiredError."""
        self.expire_pins()
        return self.view(self.pin_book.get(name))

    def view(self, record: PinRecord) -> Pin:
        """`record` as users see it."""
        return record.view(resident=self._shelf.of_pin(record) is not None)

    def is_resident(self, record: PinRecord) -> bool:
        """Whether the pin's KV is in the engine."""
        return self._shelf.of_pin(record) is not None

    # --- sessions

    def sessions(self) -> list[SessionInfo]:
        """All named sessions."""
        return [
            SessionInfo(name, entry if isinstance(entry, int) else len(entry.tokens), salt, not isinstance(entry, int))
            for (salt, name), entry in self._sessions.items()
        ]

    def open_session(self, name: str, salt: str | None) -> None:
        """Makes the session known, empty if it is new."""
        self._sessions.setdefault((salt, name), 0)

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
        if isinstance(source, int):
            self._sessions[salt, new_name] = source
            return
        seq = self._new_seq(keep=source)
        self._engine.fork(source.seq, seq, len(source.tokens))
        self._keep(Entry(Kind.SESSION, new_name, salt, list(source.tokens), seq))

    def drop_session(self, name: str, salt: str | None) -> None:
        """Forgets the session and its KV. Raises SessionNotFoundError."""
        entry = self._session(name, salt)
        del self._sessions[salt, name]
        if not isinstance(entry, int):
            self._forget(entry)

    # --- inside

    def _pinned(self, seq: int, record: PinRecord) -> Entry:
        new = self._new_seq(keep=None)
        self._engine.fork(seq, new, len(record.tokens))
        kind = Kind.AUTO_PIN if record.automatic else Kind.PIN
        return Entry(kind, record.name, record.salt, list(record.tokens), new, pin=record)

    def _keep(self, entry: Entry) -> None:
        if entry.kind is Kind.SESSION:
            old = self._sessions.get((entry.salt, entry.name))
            if isinstance(old, Entry):
                old.demote()
            self._sessions[entry.salt, entry.name] = entry
        self._shelf.add(entry)
        for other in self._shelf.covered_by(entry):
            self._forget(other)

    def _forget(self, entry: Entry) -> None:
        self._shelf.remove(entry)
        self.abandon(entry.seq)

    def _evict(self, entry: Entry) -> None:
        if entry.kind is Kind.SESSION:
            self._sessions[entry.salt, entry.name] = len(entry.tokens)
        self._forget(entry)

    def _new_seq(self, keep: Entry | None) -> int:
        if not self._free_seqs:
            victim = self._shelf.victim(lambda _: 1, keep)
            if victim is None:
                msg = "Every sequence is in use by a running request. Raise max_sequences, or send fewer at once."
                raise CacheFullError(msg)
            self._evict(victim)
        return self._free_seqs.pop()

    def _release_pin(self, record: PinRecord) -> None:
        entry = self._shelf.of_pin(record)
        if entry is not None:
            entry.demote()

    def _session(self, name: str, salt: str | None) -> Entry | int:
        try:
            return self._sessions[salt, name]
        except KeyError:
            known = ", ".join(repr(n) for s, n in self._sessions if s == salt) or "none"
            msg = f"There is no session {name!r} (sessions: {known})."
            raise SessionNotFoundError(msg) from None
