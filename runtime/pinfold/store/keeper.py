"""Reads sessions by their rows, and sets aside those whose file turns out to be damaged or gone."""

from __future__ import annotations

import logging
from array import array

from pinfold.errors import SessionCorruptError, SessionNotFoundError, StoreBusyError, StoreError
from pinfold.store.envelope import DamagedError
from pinfold.store.files import store_error
from pinfold.store.index import Index
from pinfold.store.layout import Layout
from pinfold.store.reader import Reader
from pinfold.store.records import Row, StoredEntry, StoredMatch, StoredSession

__all__ = ["Keeper"]

READ_ATTEMPTS = 16

_log = logging.getLogger("pinfold.store")


class Keeper:
    """What index and payload files say together. Other processes may replace or remove a file at any moment."""

    def __init__(self, layout: Layout, index: Index, reader: Reader, *, read_only: bool) -> None:
        self._layout = layout
        self._index = index
        self._reader = reader
        self._read_only = read_only

    def read(self, key: str) -> StoredSession:
        """A session, verified whole; errors as `SessionStore.get`."""
        for _ in range(READ_ATTEMPTS):
            row = self.row(key)
            reason: str | None = None
            try:
                return self._reader.session(row)
            except FileNotFoundError:
                pass
            except DamagedError as e:
                reason = str(e)
            except OSError as e:
                raise store_error(e, self._layout.payload(row.file)) from e
            if not self.superseded(row):
                self.set_aside(row, reason)
                raise _unreadable(row, reason)
        msg = f"The stored session {key} was replaced {READ_ATTEMPTS} times while it was read. Try again."
        raise StoreBusyError(msg)

    def longest(self, ids: array[int], fingerprint: str, salt: str, *, whole: bool) -> StoredMatch | None:
        """The session that shares most tokens; what cannot be read is passed over."""
        with self._index.lock:
            best = self._index.catalogue.longest(ids, fingerprint, salt, self._tokens_of, whole=whole)
        return StoredMatch(best[0].entry, best[1]) if best else None

    def tokens(self, key: str) -> array[int]:
        """The tokens of a session; errors as `SessionStore.get`."""
        row = self.row(key)
        found = self._tokens_of(row)
        if found is None:
            raise _unreadable(row, None)
        return found

    def _tokens_of(self, row: Row) -> array[int] | None:
        reason: str | None = None
        try:
            return self._reader.tokens(row)
        except FileNotFoundError:
            pass
        except DamagedError as e:
            reason = str(e)
        except OSError as e:
            _log.warning("A stored session cannot be read: %s", e)
            return None
        if not self.superseded(row):
            self.set_aside(row, reason)
        return None

    def row(self, key: str) -> Row:
        """The row of a key, on current data; raises SessionNotFoundError."""
        self._index.refresh()
        with self._index.lock:
            return self.known(key)

    def known(self, key: str) -> Row:
        """The row of a key, within a transaction; raises SessionNotFoundError."""
        row = self._index.catalogue.rows.get(key)
        if row is None:
            msg = f"No session is stored under the key {key}. It was removed, or made room for others."
            raise SessionNotFoundError(msg)
        return row

    def superseded(self, row: Row) -> bool:
        """Whether the index no longer means that file, so that its state says nothing."""
        self._index.refresh()
        with self._index.lock:
            current = self._index.catalogue.rows.get(row.entry.key)
        return current is None or current.file != row.file

    def change(self, row: Row, **changes: object) -> StoredEntry:
        """Writes a row with some of its entry's fields changed; within a transaction."""
        changed = row.with_entry(**changes)
        self._index.set(changed)
        return changed.entry

    def set_aside(self, row: Row, reason: str | None) -> None:
        """Drops the row of a file that is damaged (or gone, without a reason); a failure to do so changes nothing."""
        if self._read_only:
            return
        try:
            with self._index.transaction() as catalogue:
                current = catalogue.rows.get(row.entry.key)
                if current is None or current.file != row.file:
                    return
                self._index.drop(row.entry.key)
            if reason is not None:
                self._layout.quarantine(self._layout.payload(row.file), reason)
        except (StoreError, OSError) as e:
            _log.warning("A damaged session could not be set aside: %s", e)

    def forget(self) -> None:
        """Gives back the memory in which tokens are kept."""
        with self._index.lock:
            self._reader.forget()


def _unreadable(row: Row, reason: str | None) -> SessionCorruptError | SessionNotFoundError:
    what = repr(row.entry.name[:64]) if row.entry.name else row.entry.key
    if reason is None:
        return SessionNotFoundError(f"The file of the stored session {what} is gone. Its next use computes it again.")
    return SessionCorruptError(
        f"The stored session {what} is damaged: {reason}. It was moved to quarantine, and its next use computes it "
        f"again; `pinfold doctor` lists what is there."
    )
