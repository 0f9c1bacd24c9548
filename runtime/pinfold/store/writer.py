"""Puts a session on the disk so that a failure at any point leaves what was there before, or nothing."""

from __future__ import annotations

import base64
import logging
import os
import shutil
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pinfold.errors import StoreFullError
from pinfold.store.budget import rows_to_give_up
from pinfold.store.envelope import FileHeader, Seal, pack_head
from pinfold.store.files import store_error
from pinfold.store.index import Index
from pinfold.store.layout import Layout
from pinfold.store.lookup import marks_of
from pinfold.store.records import Row, StoredEntry, StoredRecord

__all__ = ["Payload", "Writer"]

Payload = bytes | bytearray | memoryview | Sequence[bytes | bytearray | memoryview]

_log = logging.getLogger("pinfold.store")


class Writer:
    """Writes payload files and their rows, and makes room for them."""

    def __init__(self, layout: Layout, index: Index, seal: Seal, *, budget: int, min_free: int) -> None:
        self._layout = layout
        self._index = index
        self._seal = seal
        self._budget = budget
        self._min_free = min_free

    def put(self, record: StoredRecord, key: str, tokens: array[int], payload: Payload, now: float) -> StoredEntry:
        """Stores a session under `key`, in place of the one that is there.

        Raises:
            StoreFullError, StoreReadOnlyError, StoreBusyError, StoreError: nothing was changed.
        """
        parts = _parts(payload)
        head = pack_head(FileHeader(key=key, record=record), tokens, parts, self._seal)
        size = len(head) + sum(len(part) for part in parts)
        self._make_room(key, size, now)
        entry = StoredEntry(**record.model_dump(), key=key, stored_bytes=size, used=now)
        marks = base64.b64encode(marks_of(tokens)).decode()
        row = Row(entry=entry, file=self._layout.new_name(key), origin=key, marks=marks)
        with self._written(row.file, [memoryview(head), *parts]):
            replaced = self._enter(row, now)
        self.discard(replaced)
        return entry

    def discard(self, rows: Iterable[Row]) -> None:
        """Removes the files of rows that are no longer in the index."""
        for row in rows:
            try:
                self._layout.remove(row.file)
            except OSError as e:  # it has no row, so nobody reads it, and the next opening of the store removes it
                _log.warning("%s could not be removed yet: %s", self._layout.payload(row.file), e.strerror)

    def _make_room(self, key: str, size: int, now: float) -> None:
        if size > self._budget:
            msg = (
                f"A session of {size:,} bytes is larger than the store's budget of {self._budget:,}. Raise the budget."
            )
            raise StoreFullError(msg)
        self._index.refresh()
        free = shutil.disk_usage(self._layout.root).free - self._min_free
        with self._index.lock:
            catalogue = self._index.catalogue
            old = catalogue.rows.get(key)
            kept = catalogue.used_bytes - (old.entry.stored_bytes if old else 0)
            budget = min(self._budget, kept + free)
            if not rows_to_give_up(catalogue.rows.values(), key, size, budget, now):
                return
        with self._index.transaction() as catalogue:
            given_up = rows_to_give_up(catalogue.rows.values(), key, size, budget, now)
            for row in given_up:
                self._index.drop(row.entry.key)
        self.discard(given_up)

    def _enter(self, row: Row, now: float) -> list[Row]:
        """Puts the row into the index; returns the rows that went for it."""
        key = row.entry.key
        with self._index.transaction() as catalogue:
            gone = rows_to_give_up(catalogue.rows.values(), key, row.entry.stored_bytes, self._budget, now)
            for other in gone:
                self._index.drop(other.entry.key)
            if key in catalogue.rows:
                gone.append(catalogue.rows[key])
            self._index.set(row)
        return gone

    @contextmanager
    def _written(self, name: str, parts: Sequence[memoryview]) -> Iterator[None]:
        """The file is on the disk and in its place within; an error removes it again."""
        arriving = self._layout.incoming / name
        try:
            handle = self._layout.files.create(arriving)
        except OSError as e:
            raise store_error(e, arriving) from e
        try:
            for part in parts:
                self._layout.files.write(handle, part)
            self._layout.files.sync(handle)
            self._layout.bring_in(arriving, name)
            yield
        except OSError as e:
            self._undo(arriving, name)
            raise store_error(e, arriving) from e
        except BaseException:
            self._undo(arriving, name)
            raise
        finally:
            os.close(handle)

    def _undo(self, arriving: Path, name: str) -> None:
        arriving.unlink(missing_ok=True)
        self._layout.remove(name)


def _parts(payload: Payload) -> list[memoryview]:
    parts = [payload] if isinstance(payload, bytes | bytearray | memoryview) else payload
    return [memoryview(part).cast("B") for part in parts]
