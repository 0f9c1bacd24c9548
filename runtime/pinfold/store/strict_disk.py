"""diskcache, held to text keys and byte values: nothing is pickled, no file name in a row is ever followed.

A database is inspected before diskcache sees it, because diskcache applies the settings that it finds.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any, NoReturn

from diskcache import UNKNOWN, Cache, Disk
from diskcache.core import METADATA, MODE_RAW

from pinfold.store.envelope import DamagedError

__all__ = ["MAX_ROW_BYTES", "StrictCache", "StrictDisk", "inspect", "prepare_connection"]

MAX_ROW_BYTES = 16 << 20

_KEY = re.compile(r"[0-9a-f]{64}")

# SQLite's own defaults, so that diskcache has nothing to change and can be set up within one transaction. A rollback
# journal leaves no bytes behind, works in a folder that cannot be written, and maps no memory that another could cut.
_PRAGMAS = {"journal_mode": "delete", "synchronous": 2, "auto_vacuum": 0, "cache_size": -2000, "mmap_size": 0}
_SETTINGS = {
    **{f"sqlite_{name}": value for name, value in _PRAGMAS.items()},
    "cull_limit": 0,
    "disk_min_file_size": MAX_ROW_BYTES,
    "disk_pickle_protocol": 0,
    "eviction_policy": "none",
    "size_limit": 1 << 62,
    "statistics": 0,
    "tag_index": 1,
}


class StrictDisk(Disk):  # type: ignore[misc]  # diskcache has no types
    """Keys of 64 hexadecimal digits, values of bytes within the row. Anything else is refused, written or found."""

    def put(self, key: object) -> tuple[str, bool]:
        if type(key) is not str or not _KEY.fullmatch(key):
            _refuse("a key that is no text of 64 hexadecimal digits")
        return key, True

    def get(self, key: object, raw: object) -> str:
        if raw != 1 or type(key) is not str or not _KEY.fullmatch(key):
            _refuse("a key that this store never writes")
        return key

    def store(self, value: object, read: bool, key: object = UNKNOWN) -> tuple[int, int, None, bytes]:  # noqa: ARG002
        if read or type(value) is not bytes:
            _refuse("a value that is no bytes")
        return 0, MODE_RAW, None, value

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> bytes:
        if read or mode != MODE_RAW or filename is not None or type(value) is not bytes:
            _refuse("a value that this store never writes")
        return value

    def filename(self, key: object = UNKNOWN, value: object = UNKNOWN) -> NoReturn:  # noqa: ARG002
        _refuse("a value in a file of its own")

    def remove(self, file_path: object) -> NoReturn:  # noqa: ARG002
        _refuse("a value in a file of its own")


class StrictCache(Cache):  # type: ignore[misc]
    """A cache over a connection that its owner opens, closes and begins every transaction on."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        # The folder is used for values in files only, and there are none; diskcache would create a missing one.
        super().__init__("/", disk=StrictDisk, **_SETTINGS)

    @property
    def _con(self) -> sqlite3.Connection:
        return self._connection

    def close(self) -> None:
        """The owner of the connection closes it."""

    @contextmanager
    def _transact(
        self,
        retry: bool = False,  # noqa: ARG002
        filename: object = None,  # noqa: ARG002
    ) -> Iterator[tuple[Callable[..., sqlite3.Cursor], Callable[[object], None]]]:
        yield self._connection.execute, _no_file


def _no_file(name: object) -> None:
    if name is not None:
        _refuse("a value in a file of its own")


def _refuse(what: str) -> NoReturn:
    msg = f"the index holds, or was given, {what}"
    raise DamagedError(msg)


def prepare_connection(connection: sqlite3.Connection) -> None:
    """Settings of every connection: no trust in what the file says, and deleted bytes are overwritten."""
    connection.text_factory = lambda text: text.decode("utf-8", "backslashreplace")  # what is no text equals nothing
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * MAX_ROW_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "secure_delete=ON", "temp_store=MEMORY", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def inspect(connection: sqlite3.Connection) -> bool:
    """Whether the database holds an index of ours (True) or nothing yet (False).

    Raises:
        DamagedError: it holds something else, or is damaged.
    """
    schema, settings = _schema(connection), None
    if not schema:
        return False
    expected_schema, expected_settings = _blank()
    if schema != expected_schema:
        _refuse("tables or triggers that this store never makes")
    if connection.execute("PRAGMA journal_mode").fetchall() != [("delete",)]:
        _refuse("a journal mode that this store never sets")
    settings = dict(connection.execute("SELECT key, value FROM Settings").fetchall())
    counts = {name: settings.pop(name, None) for name in METADATA}
    if settings != expected_settings or not all(type(count) is int for count in counts.values()):
        _refuse("settings that this store never writes")
    checked = connection.execute("PRAGMA quick_check(1)").fetchall()
    if checked != [("ok",)]:
        _refuse(f"damaged pages ({checked[0][0]})")
    return True


def _schema(connection: sqlite3.Connection) -> set[Any]:
    return set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall())


@cache
def _blank() -> tuple[set[Any], dict[str, Any]]:
    """Schema and settings of a new index."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        StrictCache(connection)
        settings = dict(connection.execute("SELECT key, value FROM Settings").fetchall())
        return _schema(connection), {name: value for name, value in settings.items() if name not in METADATA}
