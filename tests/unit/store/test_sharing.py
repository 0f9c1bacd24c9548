"""What one process may expect of another that uses the same store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinfold.errors import StoreBusyError
from pinfold.store import index as index_module
from pinfold.store.files import FileSystem
from tests.support.store_sessions import files_in, opened, put, some


def test_a_lock_that_is_held_for_long_is_an_error_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "WAIT_SECONDS", 0.05)
    with opened(tmp_path / "s") as one, opened(tmp_path / "s") as two:
        entry = put(one, "a", 1)
        with one._index.transaction(), pytest.raises(StoreBusyError):
            put(two, "a", 2)
        assert bytes(two.get(entry.key).payload) == some(1)[1]
        assert len(files_in(two.folder)) == 1


def test_what_a_live_process_writes_is_not_reclaimed_and_what_a_dead_one_left_is(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        files = FileSystem()
        alive = store.folder / "incoming" / ("a" * 64)
        dead = store.folder / "incoming" / ("d" * 64)
        handle = files.create(alive)
        dead.write_bytes(b"half a ses")
        with opened(tmp_path / "s") as other:
            assert files_in(other.folder) == [alive]
            assert other.check().orphans == ()
        with open(handle, "wb"):  # noqa: PTH123 - closes it, which ends its lock
            pass
        assert store.check(fix=True).orphans == (f"incoming/{'a' * 64}",)
        assert files_in(store.folder) == []
