"""Records, tokens and payloads for the tests of the store, and file systems that fail where they are told to."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import tempfile
from array import array
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pinfold.store import SessionStore, StoredEntry, StoredRecord, fingerprint_of, salt_digest
from pinfold.store.envelope import FileHeader, pack_head
from pinfold.store.files import FileSystem
from pinfold.store.lookup import marks_of
from pinfold.store.records import Row, key_of

FACETS = {"weights": "a" * 64, "kv": "f16", "engine": "scripted 1"}
NO_SALT = salt_digest(None)
BUDGET = 1 << 28
POINTS = (
    "before write",
    "mid write",
    "after write before sync",
    "after sync before rename",
    "after rename before index",
    "after index before unlink",
)


def record(name: str = "", n_tokens: int = 4, *, facets: dict[str, str] | None = None, **fields: Any) -> StoredRecord:
    facets = FACETS if facets is None else facets
    values: dict[str, Any] = {
        "kind": "session" if name else "recent",
        "name": name,
        "model": "scripted",
        "fingerprint": fingerprint_of(facets),
        "facets": facets,
        "salt": NO_SALT,
        "created": 1_000.0,
        "n_tokens": n_tokens,
        "codec": "none",
        "raw_bytes": 1 << 20,
    }
    return StoredRecord.parse(values | fields)


def some(seed: int, n_tokens: int = 64, n_bytes: int = 3000) -> tuple[list[int], bytes]:
    """Tokens and a payload that depend on the seed only."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    return [rng.randrange(0, 50_000) for _ in range(n_tokens)], rng.randbytes(n_bytes)


def put(store: SessionStore, name: str, seed: int, n_bytes: int = 3000, **fields: Any) -> StoredEntry:
    tokens, payload = some(seed, n_bytes=n_bytes)
    return store.put(record(name, len(tokens), **fields), tokens, payload)


def opened(folder: Path, **options: Any) -> SessionStore:
    return SessionStore(folder, **({"budget": BUDGET, "min_free": 0} | options))


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in main memory where the machine has one: most tests are not about the disk."""
    memory = Path("/dev/shm")  # noqa: S108
    base = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
    try:
        yield base
    finally:
        shutil.rmtree(base)


def fill(store: SessionStore, sessions: Iterable[tuple[StoredRecord, array[int], bytes]]) -> list[StoredEntry]:
    """Stores many sessions in one transaction, none synced: the same files and rows in a fraction of the time."""
    entries = []
    with store._index.transaction():
        for facts, tokens, payload in sessions:
            key = key_of(facts.kind, facts.name, facts.salt, facts.fingerprint, tokens)
            head = pack_head(FileHeader(key=key, record=facts), tokens, [memoryview(payload)], store._seal)
            size = len(head) + len(payload)
            entry = StoredEntry(**facts.model_dump(), key=key, stored_bytes=size, used=facts.created)
            row = Row(
                entry=entry, file=store._layout.new_name(key), origin=key, marks=b64encode(marks_of(tokens)).decode()
            )
            path = store._layout.payload(row.file)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.touch(mode=0o600)
            path.write_bytes(head + payload)
            store._index.set(row)
            entries.append(entry)
    return entries


def files_in(folder: Path) -> list[Path]:
    """All plain files below a store's folder that hold sessions, whole or not."""
    return [p for part in ("payload", "incoming") for p in sorted((folder / part).rglob("*")) if p.is_file()]


class Dying(FileSystem):
    """Kills its own process, as kill -9 does, at one of `POINTS`."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._renamed = False

    def _at(self, point: str) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)

    def create(self, path: Path) -> int:
        handle = super().create(path)
        self._at("before write")
        return handle

    def write(self, handle: int, data: bytes | memoryview) -> None:
        half = len(data) // 2
        super().write(handle, data[:half])
        self._at("mid write")
        super().write(handle, data[half:])

    def sync(self, handle: int) -> None:
        self._at("after write before sync")
        super().sync(handle)

    def rename(self, source: Path, target: Path) -> None:
        self._at("after sync before rename")
        super().rename(source, target)
        self._renamed = True

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        if self._renamed:
            self._at("after rename before index")

    def unlink(self, path: Path) -> None:
        self._at("after index before unlink")
        super().unlink(path)


class Failing(FileSystem):
    """The `count`th call that changes something fails with `code`."""

    def __init__(self, count: int, code: int = errno.ENOSPC) -> None:
        self.left = count
        self._code = code

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(self._code, os.strerror(self._code))

    def create(self, path: Path) -> int:
        self._step()
        return super().create(path)

    def write(self, handle: int, data: bytes | memoryview) -> None:
        super().write(handle, data[: len(data) // 2])
        self._step()
        super().write(handle, data[len(data) // 2 :])

    def sync(self, handle: int) -> None:
        self._step()
        super().sync(handle)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def sync_folder(self, path: Path) -> None:
        self._step()
        super().sync_folder(path)
