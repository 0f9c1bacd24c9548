"""The index: one row for each stored session, in a database that processes share."""

from __future__ import annotations

import base64
import binascii
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from pinfold.errors import StoreBusyError, StoreError, StoreFullError, StoreReadOnlyError
from pinfold.store.envelope import DamagedError, Seal
from pinfold.store.files import FILE_MODE, refuse_links
from pinfold.store.lookup import Catalogue
from pinfold.store.records import Row, canonical
from pinfold.store.strict_disk import MAX_ROW_BYTES, StrictCache, StrictDisk, inspect, prepare_connection

__all__ = ["DATABASE", "Index"]

DATABASE = "cache.db"
WAIT_SECONDS = 5.0

_DIGEST_BYTES = 32
_SELECT = "SELECT key, raw, mode, filename, value, tag FROM Cache"
_LARGEST_TAG = 1 << 62


class Index:
    """Rows in the database, and the same rows in `catalogue`, which follows what other processes write.

    Every method may be called from any thread. `lock` is held while the catalogue must not change.
    """

    def __init__(self, folder: Path, seal: Seal, *, read_only: bool) -> None:
        self.catalogue = Catalogue()
        self.lock = threading.RLock()
        self.lost_rows = 0  # rows that could not be trusted when last read
        self.is_new = False  # whether there was no database when it was opened
        self._path = folder / DATABASE
        self._seal = seal
        self.read_only = read_only
        self._alone = False
        self._connection: sqlite3.Connection | None = None
        self._file = (0, 0)
        self._version = 0
        self._last_tag = 0
        self._abandoned: list[sqlite3.Connection] = []

    def open(self) -> None:
        """Connects, inspects and reads all rows.

        Raises:
            DamagedError: the database is not one that this store wrote.
            StoreError: it cannot be opened, or is locked for too long.
        """
        with self.lock, self._errors():
            self._connect()

    def close(self) -> None:
        """Closes the connection; a second time does nothing."""
        with self.lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def was_replaced(self) -> bool:
        """Whether the database is another file than the one that was opened."""
        return not self._path.exists() or self._file != _identity(self._path)

    def stand_in(self, rows: Sequence[Row]) -> None:
        """Does without a database, where none can be read and none made: `rows` are all there is."""
        self.close()
        self._alone = True
        self.catalogue.fill(rows)

    def refresh(self) -> None:
        """Takes in what other processes changed."""
        if self._alone:
            return
        with self.lock, self._errors():
            connection = self._current()
            version = connection.execute("PRAGMA data_version").fetchone()[0]
            if version == self._version:
                return
            self._read(connection, since=self._last_tag)
            self._version = version
            ((count,),) = connection.execute("SELECT COUNT(*) FROM Cache").fetchall()
            if count != len(self.catalogue.rows):
                present = {key for (key,) in connection.execute("SELECT key FROM Cache").fetchall()}
                for key in [key for key in self.catalogue.rows if key not in present]:
                    self.catalogue.remove(key)

    @contextmanager
    def transaction(self) -> Iterator[Catalogue]:
        """Alone among all processes, on current rows. What was `set` and `drop`ped within holds at its end, or not.

        Raises:
            StoreBusyError: others wrote for longer than five seconds.
            StoreFullError, StoreReadOnlyError, StoreError: the disk refused; nothing was changed.
        """
        with self.lock, self._errors():
            connection = self._current()
            self._begin(connection)
            try:
                self.refresh()
                yield self.catalogue
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._reload(connection)
                raise

    def set(self, row: Row) -> None:
        """Writes a row; within a transaction."""
        self._last_tag = max(time.time_ns(), self._last_tag + 1)
        value = canonical(row.model_dump())
        self._cache.set(row.entry.key, self._seal.digest(value) + value, tag=self._last_tag)
        self.catalogue.put(row)

    def drop(self, key: str) -> None:
        """Deletes a row if it is there; within a transaction."""
        self._cache.delete(key)
        self.catalogue.remove(key)

    def drop_lost(self) -> None:
        """Deletes the rows that could not be trusted; within a transaction."""
        self._current().executemany(
            "DELETE FROM Cache WHERE key = ? AND typeof(key) = 'text'",
            [(key,) for (key,) in self._current().execute("SELECT key FROM Cache") if key not in self.catalogue.rows],
        )
        self._current().execute("DELETE FROM Cache WHERE typeof(key) != 'text' OR raw != 1 OR mode != 1")
        self.lost_rows = 0

    def _current(self) -> sqlite3.Connection:
        """The connection, opened anew after a fork or where the file was replaced."""
        if self._connection is None:
            msg = "The store has been closed; open a new one."
            raise StoreError(msg)
        if self._process != os.getpid():
            self._abandoned.append(self._connection)  # the parent's: closing it here could undo the parent's work
            self._connect()
        elif self._file != _identity(self._path):
            if self._connection.in_transaction:
                msg = f"The index {self._path} was replaced while it was written. Try again."
                raise StoreError(msg)
            self._connection.close()
            self._connect()
        return self._connection

    def _connect(self) -> None:
        for name in (DATABASE, f"{DATABASE}-journal", f"{DATABASE}-wal", f"{DATABASE}-shm"):
            refuse_links(self._path.with_name(name))
        if not self.read_only:
            self._create()
        mode = "ro" if self.read_only else "rw"
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=WAIT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            self._connection = None
            raise
        self._connection, self._process, self._file = connection, os.getpid(), _identity(self._path)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        prepare_connection(connection)
        ours = inspect(connection)
        if not self.read_only:
            self._begin(connection)
            self.is_new = not ours and not inspect(connection)  # another process may have made it since
            self._cache = StrictCache(connection)
            connection.execute("COMMIT")
        self._reload(connection, empty=self.read_only and not ours)

    def _create(self) -> None:
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        except FileExistsError:
            if self._path.lstat().st_mode & 0o077:
                self._path.chmod(FILE_MODE)
            return  # never opened and closed by us: that would release SQLite's locks of this process
        os.fchmod(handle, FILE_MODE)
        os.close(handle)

    def _begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def _reload(self, connection: sqlite3.Connection, *, empty: bool = False) -> None:
        self.catalogue.fill(())
        self._last_tag = 0
        self._version = connection.execute("PRAGMA data_version").fetchone()[0]
        self.lost_rows = 0
        if not empty:
            self._read(connection)

    def _read(self, connection: sqlite3.Connection, since: int | None = None) -> None:
        where = "" if since is None else f" WHERE tag > {since:d}"
        rows = []
        for key, raw, mode, filename, value, tag in connection.execute(_SELECT + where):
            try:
                rows.append(self._decode(key, raw, mode, filename, value))
            except (DamagedError, ValidationError, ValueError):
                self.lost_rows += 1
            if type(tag) is int and tag < _LARGEST_TAG:
                self._last_tag = max(self._last_tag, tag)
        if since is None:
            self.catalogue.fill(rows)
        else:
            for row in rows:
                self.catalogue.put(row)

    def _decode(self, key: object, raw: object, mode: object, filename: object, value: object) -> Row:
        name = _DISK.get(key, raw)
        data = _DISK.fetch(mode, filename, value, read=False)
        if len(data) > MAX_ROW_BYTES or not self._seal.holds(data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]):
            msg = "a row fails its digest"
            raise DamagedError(msg)
        row = Row.model_validate_json(data[_DIGEST_BYTES:])
        try:
            marks = base64.b64decode(row.marks, validate=True)
        except binascii.Error as e:
            msg = "a row's marks are damaged"
            raise DamagedError(msg) from e
        if row.entry.key != name or len(marks) != row.entry.n_tokens:
            msg = "a row disagrees with its key or its marks"
            raise DamagedError(msg)
        return row

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            raise _typed(e, self._path) from e
        except UnicodeDecodeError as e:  # SQLite's message quotes what it found
            msg = "it holds text that is none"
            raise DamagedError(msg) from e
        except FileNotFoundError as e:
            msg = f"The index {self._path} is gone. Open the store again."
            raise StoreError(msg) from e


_DISK = StrictDisk("/")


def _identity(path: Path) -> tuple[int, int]:
    about = path.lstat()
    return about.st_dev, about.st_ino


def _typed(error: sqlite3.Error, path: Path) -> StoreError | DamagedError:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreBusyError(f"Other processes wrote to {path} for {WAIT_SECONDS:.0f} s without a pause. Try again.")
    if code == sqlite3.SQLITE_FULL:
        return StoreFullError(f"No room is left on the disk of {path}. Free some, or give the store another folder.")
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}:
        return StoreReadOnlyError(
            f"{path} cannot be written. Stored sessions are restored all the same; make the folder writable "
            f"(chmod u+w), or give the store another folder."
        )
    if code in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_MISUSE}:
        return StoreError(f"{path} cannot be used: {error}. Check the disk, or give the store another folder.")
    return DamagedError(str(error))
