"""Brings folder and index back into agreement: after a writer that died, and where the index is damaged."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from pinfold.store.envelope import DamagedError, Seal, read_head
from pinfold.store.files import open_regular, try_lock
from pinfold.store.index import Index
from pinfold.store.layout import Layout
from pinfold.store.lookup import marks_of
from pinfold.store.records import Row, StoredEntry

__all__ = ["adopt", "drop_vanished", "orphans", "read_row", "reclaim", "rows_from_files"]


def read_row(file: FileIO, size: int, name: str, seal: Seal) -> Row:
    """The index row of a payload file, from its own head.

    Raises:
        DamagedError: the head is not whole.
    """
    head = read_head(file, size, seal)
    header = head.parse()
    entry = StoredEntry(
        **header.record.model_dump(), key=header.key, stored_bytes=size, hits=0, used=header.record.created
    )
    marks = base64.b64encode(marks_of(head.tokens)).decode()
    return Row(entry=entry, file=name, origin=header.key, marks=marks)


def rows_from_files(layout: Layout, seal: Seal) -> tuple[list[Row], list[tuple[Path, str]]]:
    """A row for each readable file that nobody is writing, oldest first; and what is damaged, with the reason."""
    rows: list[tuple[int, Row]] = []
    damaged: list[tuple[Path, str]] = []
    for path in layout.payload_files():
        try:
            if not layout.is_payload(path):
                msg = "it is no file of this store"
                raise DamagedError(msg)
            file, size = open_regular(path)
            with file:
                if try_lock(file.fileno()):
                    rows.append((os.fstat(file.fileno()).st_mtime_ns, read_row(file, size, path.name, seal)))
        except DamagedError as e:
            damaged.append((path, str(e)))
        except FileNotFoundError:
            continue
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])], damaged


def adopt(layout: Layout, index: Index, seal: Seal) -> None:
    """Gives every readable payload file its row again, where it lost it; sets the others aside."""
    rows, damaged = rows_from_files(layout, seal)
    with index.transaction() as catalogue:
        index.drop_lost()
        lost = {row.entry.key: row for row in rows if row.file not in catalogue.files}
        for key, row in lost.items():
            if key not in catalogue.rows:
                index.set(row)
    for path, reason in damaged:
        if path.name not in index.catalogue.files:
            layout.quarantine(path, reason)


def drop_vanished(layout: Layout, index: Index) -> int:
    """Deletes the rows whose file is gone; returns how many."""
    present = {path.name for path in layout.payload_files()}
    index.refresh()
    suspects = [row for row in index.catalogue.rows.values() if row.file not in present]
    if not any(_gone(layout, row) for row in suspects):
        return 0
    with index.transaction() as catalogue:
        gone = [row for row in suspects if _gone(layout, row) and row.entry.key in catalogue.rows]
        gone = [row for row in gone if catalogue.rows[row.entry.key].file == row.file]
        for row in gone:
            index.drop(row.entry.key)
    return len(gone)


def orphans(layout: Layout, index: Index) -> list[Path]:
    """Files of dead writers, and payload files without a row; those that a live process writes are not among them."""
    found = [*layout.incoming_files(), *layout.payload_files()]
    index.refresh()
    return [path for path in found if not _indexed(layout, index, path) and _is_dead(layout, index, path)]


def reclaim(layout: Layout, index: Index) -> int:
    """Removes the orphans; returns how many."""
    count = 0
    for path in orphans(layout, index):
        with _held(path) as free:
            index.refresh()
            if free and not _indexed(layout, index, path):
                layout.files.unlink(path)
                count += 1
    return count


def _gone(layout: Layout, row: Row) -> bool:
    return not os.path.lexists(layout.payload(row.file))


def _indexed(layout: Layout, index: Index, path: Path) -> bool:
    return path.name in index.catalogue.files and layout.is_payload(path)


def _is_dead(layout: Layout, index: Index, path: Path) -> bool:
    with _held(path) as free:
        index.refresh()  # its writer may have ended, and indexed it, since it was listed
        return free and not _indexed(layout, index, path)


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Whether nobody holds the file, which stays so meanwhile. A link is nobody's; a folder is left alone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    except OSError:
        yield path.is_symlink()
        return
    try:
        yield not stat.S_ISDIR(os.fstat(handle).st_mode) and try_lock(handle)
    finally:
        with suppress(OSError):
            os.close(handle)
