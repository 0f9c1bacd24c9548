"""Opens the index of a store and, where it is damaged, sets it aside and builds it anew from the payload files."""

from __future__ import annotations

import logging

from pinfold.errors import StoreBusyError, StoreError, StoreReadOnlyError
from pinfold.store.envelope import DamagedError, Seal
from pinfold.store.index import DATABASE, Index
from pinfold.store.layout import Layout
from pinfold.store.upkeep import adopt, drop_vanished, reclaim, rows_from_files

__all__ = ["open_index"]

_log = logging.getLogger("pinfold.store")


def open_index(layout: Layout, index: Index, seal: Seal, *, damage: str | None = None) -> None:
    """Leaves `index` open and in agreement with the folder; `damage` says what was found while it was in use.

    Raises:
        StoreError: another key is needed, or the disk refuses.
        StoreBusyError: others kept the store locked for more than five seconds.
    """
    if index.read_only:
        _open_for_reading(layout, index, seal)
        return
    with layout.opening(seal):
        if damage is not None and not index.was_replaced():  # another process may have done it already
            _set_aside(layout, index, damage)
        try:
            _open_for_writing(layout, index, seal)
        except DamagedError as e:
            _set_aside(layout, index, str(e))
            _open_for_writing(layout, index, seal)


def _open_for_writing(layout: Layout, index: Index, seal: Seal) -> None:
    index.close()
    index.open()
    if index.lost_rows:
        _log.warning("%d rows of %s were damaged; read from the files again", index.lost_rows, layout.index)
    if index.lost_rows or index.is_new:
        adopt(layout, index, seal)
    _tidy(layout, index)


def _open_for_reading(layout: Layout, index: Index, seal: Seal) -> None:
    layout.check_key(seal)
    try:
        index.open()
    except (DamagedError, StoreReadOnlyError):  # damaged, not there, or with a journal that cannot be played back
        rows, _ = rows_from_files(layout, seal)
        index.stand_in(rows)


def _set_aside(layout: Layout, index: Index, reason: str) -> None:
    _log.warning("The index of %s is damaged (%s). It was set aside and built anew.", layout.root, reason)
    index.close()
    layout.quarantine(layout.index / DATABASE, reason)
    for side_file in ("journal", "wal", "shm"):
        layout.files.unlink(layout.index / f"{DATABASE}-{side_file}")


def _tidy(layout: Layout, index: Index) -> None:
    """What dead writers left is reclaimed. A store that cannot be tidied now is as good as one that was not."""
    try:
        gone, removed = drop_vanished(layout, index), reclaim(layout, index)
    except StoreBusyError:
        _log.info("%s is busy; left as it is", layout.root)
    except OSError as e:
        msg = f"{layout.root} cannot be tidied: {e.strerror or e}. Check the folder with: pinfold doctor"
        raise StoreError(msg) from e
    else:
        if gone or removed:
            _log.info("%s: %d rows without a file and %d files without a row were removed", layout.root, gone, removed)
