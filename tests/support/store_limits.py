"""``python -m tests.support.store_limits FOLDER full|large|read-only|memory``: a store at the machine's limits.

A program of its own, since limits, users and peak memory belong to a process.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pinfold.errors import SessionCorruptError, StoreError, StoreFullError, StoreReadOnlyError
from pinfold.store import SessionStore
from tests.support.store_sessions import files_in, opened, put, some

NOBODY = 65534


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []
        logging.getLogger("pinfold.store").addHandler(self)

    def emit(self, entry: logging.LogRecord) -> None:
        self.seen.append(entry.getMessage())


def expect(condition: bool, what: Any) -> None:
    if not condition:
        sys.exit(f"not so: {what}")


def refused(store: SessionStore, name: str, error: type[StoreError], n_bytes: int = 3000) -> None:
    began = time.monotonic()
    try:
        put(store, name, 9, n_bytes=n_bytes)
    except error:
        expect(time.monotonic() - began < 1, "an answer within a second")
    else:
        sys.exit(f"{name} was stored")


def full(folder: Path) -> None:
    """The folder is on a small disk: everything is stored until it is full, then refused; the old stays readable."""
    with opened(folder) as store:
        entry = put(store, "a", 1)
        stored = 0
        try:
            while stored < 1000:
                put(store, f"pin {stored}", stored, kind="pin", n_bytes=150_000)
                stored += 1
        except StoreFullError:
            pass
        expect(0 < stored < 1000, f"the disk was full after {stored}")
        refused(store, "a", StoreFullError, n_bytes=400_000)
        expect(bytes(store.get(entry.key).payload) == some(1)[1], "the old copy is readable")
        expect(len(files_in(folder)) == len(store.entries()) == stored + 1, "temporary files are gone")
        expect(store.check(deep=True).ok, "the store is whole")


def large(folder: Path) -> None:
    """No file may grow beyond a limit, the index's least of all."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with opened(folder) as store:
        entry = put(store, "a", 1)
        database = (folder / "index" / "cache.db").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (database, database))
        refused(store, "a", StoreFullError, n_bytes=2 * database)
        failures = 0
        for n in range(40):  # small payloads that fit, until the index cannot grow
            try:
                put(store, f"more {n}", n, n_bytes=10)
            except StoreError:
                failures += 1
        expect(failures > 0, "the index met its limit")
        expect(bytes(store.get(entry.key).payload) == some(1)[1], "the old copy is readable")
        expect(len(files_in(folder)) == len(store.entries()), "temporary files are gone")
        expect(store.check(deep=True).ok, "the store is whole")


def read_only(folder: Path) -> None:
    """Before and after the store was opened."""
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        os.setuid(NOBODY)
    warnings = Warnings()
    paths = [folder, *folder.rglob("*")]
    with opened(folder) as store:
        entry = put(store, "a", 1)
        paths = [folder, *folder.rglob("*")]
        for path in reversed(paths):
            path.chmod(0o500 if path.is_dir() else 0o400)
        for _ in range(3):
            refused(store, "b", StoreReadOnlyError)
            refused(store, "a", StoreReadOnlyError)
        expect(bytes(store.get(entry.key).payload) == some(1)[1], "restored after it became read-only")
        expect(len(warnings.seen) == 1, warnings.seen)
    warnings.seen.clear()
    for damage in (False, True):
        if damage:
            database = folder / "index" / "cache.db"
            database.chmod(0o600)
            database.write_bytes(b"no database")
            database.chmod(0o400)
        with opened(folder) as store:
            expect(store.read_only, "read-only")
            for _ in range(3):
                refused(store, "b", StoreReadOnlyError)
            expect(bytes(store.get(entry.key).payload) == some(1)[1], "restored from a read-only folder")
            expect(store.find(some(1)[0], entry.fingerprint, entry.salt) is not None, "found in a read-only folder")
        expect(len(warnings.seen) == 1, warnings.seen)
        warnings.seen.clear()


def memory(folder: Path) -> None:
    """Files that say they are huge, or are, never come into memory."""
    with opened(folder, budget=1 << 40) as store:
        entries = [put(store, f"s{n}", n) for n in range(3)]
        paths = [store._layout.payload(store._index.catalogue.rows[e.key].file) for e in entries]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        os.truncate(paths[0], 1 << 34)
        data = bytearray(paths[1].read_bytes())
        data[24:32] = (1 << 33).to_bytes(8, "little")
        paths[1].write_bytes(data)
        os.truncate(paths[1], 1 << 33)
        data = bytearray(paths[2].read_bytes())
        data[12:16] = b"\xff" * 4
        paths[2].write_bytes(data)
        for entry in entries:
            try:
                store.get(entry.key)
            except SessionCorruptError:
                continue
            sys.exit("a hostile file was read")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        unit = 1 if sys.platform == "darwin" else 1024
        expect(grown * unit < 64 << 20, f"memory grew by {grown * unit:,} bytes")


if __name__ == "__main__":
    {"full": full, "large": large, "read-only": read_only, "memory": memory}[sys.argv[2]](Path(sys.argv[1]))
