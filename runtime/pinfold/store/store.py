"""The session store: what other rooms call."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from pinfold.errors import (
    InvalidRequestError,
    StoreReadOnlyError,
)
from pinfold.store.check import StoreReport, correct_modes, damaged_rows, survey, wrong_modes
from pinfold.store.envelope import DamagedError, Seal
from pinfold.store.files import FileSystem, store_error
from pinfold.store.index import Index
from pinfold.store.keeper import Keeper
from pinfold.store.layout import Layout
from pinfold.store.opening import open_index
from pinfold.store.reader import Reader
from pinfold.store.records import Kind, Row, StoredEntry, StoredMatch, StoredRecord, StoredSession, int32, key_of
from pinfold.store.upkeep import reclaim
from pinfold.store.writer import Payload, Writer

__all__ = ["SessionStore"]

MIN_FREE = 256 << 20
MIN_KEY_BYTES = 16

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("pinfold.store")


def _guarded(method: Callable[Concatenate[SessionStore, P], T]) -> Callable[Concatenate[SessionStore, P], T]:
    """Rebuilds a damaged index and tries again; warns once where the folder turns out not to be writable."""

    @functools.wraps(method)
    def call(self: SessionStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            try:
                return method(self, *args, **kwargs)
            except DamagedError as e:
                open_index(self._layout, self._index, self._seal, damage=str(e))
                return method(self, *args, **kwargs)
        except StoreReadOnlyError as e:
            self._warn_read_only(str(e))
            raise

    return call


class SessionStore:
    """Sessions on disk, shared by threads and processes.

    Every method may raise `StoreError`, or `StoreBusyError` after five seconds in which others kept the index locked.
    In a folder that cannot be written reading works, and each method that writes raises `StoreReadOnlyError`.

    Args:
        folder: the store's own folder; made if it is not there. Not on a network file system.
        budget: bytes that all sessions together may take.
        min_free: bytes of the disk that are left free.
        key: a secret of at least 16 bytes, kept elsewhere: with it, files that someone else put into the folder are
            not believed.
        now: the clock, in Unix seconds.
        files: every change of a file goes through it.

    Raises:
        StoreError: the folder belongs to someone else, may be written by others, was written with another key, or
            holds other things; the message has the remedy.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        budget: int,
        min_free: int = MIN_FREE,
        key: bytes | None = None,
        now: Callable[[], float] = time.time,
        files: FileSystem | None = None,
    ) -> None:
        if key is not None and len(key) < MIN_KEY_BYTES:
            msg = f"The store's key has {len(key)} bytes; give at least {MIN_KEY_BYTES} random ones."
            raise InvalidRequestError(msg)
        self._now = now
        self._warned = False
        self._seal = Seal(key)
        self._layout = Layout(Path(folder).expanduser().absolute(), files or FileSystem())
        self._read_only = not self._layout.prepare()
        if self._read_only:
            self._warn_read_only(f"{self._layout.root} cannot be written; sessions are restored from it only.")
        self._index = Index(self._layout.index, self._seal, read_only=self._read_only)
        self._reader = Reader(self._layout, self._seal, budget)
        self._keeper = Keeper(self._layout, self._index, self._reader, read_only=self._read_only)
        self._writer = Writer(self._layout, self._index, self._seal, budget=budget, min_free=min_free)
        open_index(self._layout, self._index, self._seal)

    @property
    def folder(self) -> Path:
        """Where the store lies."""
        return self._layout.root

    @property
    def read_only(self) -> bool:
        """Whether the folder could not be written when the store was opened."""
        return self._read_only

    @property
    @_guarded
    def used_bytes(self) -> int:
        """Bytes that the sessions' files take."""
        self._index.refresh()
        return self._index.catalogue.used_bytes

    @_guarded
    def put(self, record: StoredRecord, tokens: Sequence[int], payload: Payload) -> StoredEntry:
        """Stores a session, in place of the one of that kind, name, salt and fingerprint.

        Args:
            record: what is known of it.
            tokens: its `record.n_tokens` token ids.
            payload: its folded KV, whole or in parts.

        Raises:
            StoreFullError: disk or budget have no room; nothing was removed for it that would not have sufficed.
            InvalidRequestError: the tokens are not as many as the record says, or no token ids.
        """
        self._require_writable()
        ids = int32(tokens)
        if len(ids) != record.n_tokens:
            msg = f"The record speaks of {record.n_tokens} tokens and {len(ids)} were given."
            raise InvalidRequestError(msg)
        key = key_of(record.kind, record.name, record.salt, record.fingerprint, ids)
        return self._writer.put(record, key, ids, payload, self._now())

    @_guarded
    def find(self, tokens: Sequence[int], fingerprint: str, salt: str, *, whole: bool = False) -> StoredMatch | None:
        """The session that shares the longest prefix with `tokens`; token ids are compared, not hashes.

        Args:
            tokens: the prompt's token ids.
            fingerprint: of the engine that asks; sessions of another are not considered.
            salt: `salt_digest(salt)`.
            whole: only sessions all of whose tokens the prompt begins with, for engines that cannot cut.
        """
        self._index.refresh()
        return self._keeper.longest(int32(tokens), fingerprint, salt, whole=whole)

    @_guarded
    def near(self, tokens: Sequence[int], fingerprint: str, salt: str) -> list[StoredMatch]:
        """For each fingerprint but this one, the session that shares most with `tokens`; the longest first."""
        self._index.refresh()
        ids = int32(tokens)
        others = [f for f in self._index.catalogue.fingerprints(salt) if f != fingerprint]
        found = [match for other in others if (match := self._keeper.longest(ids, other, salt, whole=False))]
        return sorted(found, key=lambda match: match.length, reverse=True)

    @_guarded
    def get(self, key: str) -> StoredSession:
        """Reads a session, verified whole before any of it is returned.

        Raises:
            SessionNotFoundError: it is not stored, or its file has vanished.
            SessionCorruptError: its file is damaged; it was moved to quarantine.
        """
        return self._keeper.read(key)

    @_guarded
    def tokens(self, key: str) -> array[int]:
        """The token ids of a session, int32, without its payload; errors as `get`."""
        return self._keeper.tokens(key)

    @_guarded
    def touch(self, key: str, *, hit: bool, expires: float | None = None) -> StoredEntry:
        """Notes a use: it becomes the most recently used, counts a hit, and ends at `expires` if that is given."""
        self._require_writable()
        with self._index.transaction():
            row = self._keeper.known(key)
            ends = row.entry.expires if expires is None else float(expires)
            return self._keeper.change(row, used=self._now(), hits=row.entry.hits + hit, expires=ends)

    @_guarded
    def retag(
        self, key: str, *, kind: Kind | None = None, name: str | None = None, expires: float | None = None
    ) -> StoredEntry:
        """Gives a session another kind, name and end (None: for ever); what had that name before is removed.

        An index that is rebuilt after damage gives it the kind, name and end back that it was stored with.
        """
        self._require_writable()
        replaced: Row | None = None
        with self._index.transaction() as catalogue:
            row = self._keeper.known(key)
            kind, name = kind or row.entry.kind, name or row.entry.name
            if not name:
                msg = "A stored session that has no name needs one to become a pin or a named session."
                raise InvalidRequestError(msg)
            new_key = key_of(kind, name, row.entry.salt, row.entry.fingerprint)
            if new_key != key:
                replaced = catalogue.rows.get(new_key)
                self._index.drop(key)
            entry = self._keeper.change(row, key=new_key, kind=kind, name=name, expires=expires)
        self._writer.discard([replaced] if replaced else [])
        return entry

    @_guarded
    def delete(self, key: str) -> bool:
        """Removes a session so that no bytes of it stay in the folder; returns whether it was there."""
        self._require_writable()
        with self._index.transaction() as catalogue:
            row = catalogue.rows.get(key)
            if row is None:
                return False
            self._index.drop(key)
        try:
            self._layout.remove(row.file, wipe=True)
        except OSError as e:
            raise store_error(e, self._layout.payload(row.file)) from e
        self._keeper.forget()
        return True

    @_guarded
    def expire(self) -> list[StoredEntry]:
        """Pins whose time to live has ended become ``recent``; returns them."""
        self._require_writable()
        self._index.refresh()
        now = self._now()
        if not any(_ended(row, now) for row in list(self._index.catalogue.rows.values())):
            return []
        with self._index.transaction() as catalogue:
            ended = [row for row in catalogue.rows.values() if _ended(row, now)]
            return [self._keeper.change(row, kind="recent") for row in ended]

    @_guarded
    def entries(self) -> list[StoredEntry]:
        """All sessions, the most recently used first."""
        self._index.refresh()
        with self._index.lock:
            entries = [row.entry for row in self._index.catalogue.rows.values()]
        return sorted(entries, key=lambda entry: entry.used, reverse=True)

    @_guarded
    def entry(self, key: str) -> StoredEntry:
        """What is known of a session.

        Raises:
            SessionNotFoundError: it is not stored.
        """
        return self._keeper.row(key).entry

    def named(self, kind: Kind, name: str, salt: str) -> list[StoredEntry]:
        """The sessions of a kind, name and salt, one for each fingerprint; the most recently used first."""
        return [e for e in self.entries() if (e.kind, e.name, e.salt) == (kind, name, salt)]

    @_guarded
    def check(self, *, fix: bool = False, deep: bool = False) -> StoreReport:
        """Examines every file; `deep` reads the payloads too, `fix` puts right what it can."""
        if fix:
            self._require_writable()
        self._index.refresh()
        corrupt, modes = damaged_rows(self._index, self._reader, deep=deep), wrong_modes(self._layout)
        corrupt = [(row, reason) for row, reason in corrupt if not self._keeper.superseded(row)]
        report = survey(self._layout, self._index, corrupt, modes, fixed=fix)
        if not fix:
            return report
        correct_modes(modes)
        reclaim(self._layout, self._index)
        for row, reason in corrupt:
            self._keeper.set_aside(row, reason)
        return dataclasses.replace(report, quarantined=tuple(self._layout.quarantined()))

    def close(self) -> None:
        """Closes the index; what is stored stays. A second time does nothing."""
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _require_writable(self) -> None:
        if self._read_only:
            msg = f"{self.folder} was not writable when the store was opened. Make it writable and open it again."
            raise StoreReadOnlyError(msg)

    def _warn_read_only(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("%s", what)


def _ended(row: Row, now: float) -> bool:
    return row.entry.kind == "pin" and not row.entry.live_pin(now)
