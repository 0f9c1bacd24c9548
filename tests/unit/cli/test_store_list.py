"""`pinfold ls`, `show`, `rm` and `warm`, on a store that no Runtime has open."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from pinfold.cli import store as store_module
from pinfold.keeping import sessions_folder
from pinfold.store import SessionStore, salt_digest
from tests.support.store_sessions import files_in, opened, put

Run = Callable[..., Result]
SALT = "tenant-7"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def kept(root: Path) -> SessionStore:
    """An open store with a pin, an ended pin, and two sessions of one name and different salts."""
    root.mkdir(mode=0o700)
    now = time.time()
    with opened(sessions_folder(root)) as store:
        prompt = {"messages": [{"role": "system", "content": "secret words"}], "tools": None}
        put(store, "librarian", 1, kind="pin", expires=now + 10, extra={"ttl": 3600.0, "prompt": prompt})
        put(store, "ended", 2, kind="pin", expires=now - 10, extra={"ttl": 1.0})
        put(store, "task", 3)
        put(store, "task", 4, salt=salt_digest(SALT))
        yield store


@pytest.fixture
def pinfold(run: Run, root: Path) -> Run:
    def pinfold(*args: str, stdin: str = "") -> Result:
        return run(*args, "--store", str(root), stdin=stdin)

    return pinfold


def names(store: SessionStore) -> list[str]:
    return sorted(entry.name for entry in store.entries())


def listed(pinfold: Run) -> list[dict[str, Any]]:
    return json.loads(pinfold("ls", "--json").stdout)


class TestNoStore:
    def test_ls_says_so_and_that_is_no_error(self, pinfold: Run, root: Path) -> None:
        result = pinfold("ls")
        assert result.exit_code == 0
        assert "There is no store in" in result.stderr
        assert listed(pinfold) == []
        assert not root.exists()

    @pytest.mark.parametrize("args", [["show", "a"], ["rm", "a"], ["warm", "a"], ["export", "a", "f"]])
    def test_others_name_the_remedy(self, pinfold: Run, root: Path, args: list[str]) -> None:
        result = pinfold(*args)
        assert result.exit_code == 1
        assert "pinfold spill" in result.stderr
        assert not root.exists()

    def test_a_store_that_is_off(self, run: Run) -> None:
        assert "--store or PINFOLD_STORE" in run("ls").stderr  # tests run with PINFOLD_STORE=off
        assert run("show", "a").exit_code == 1

    def test_a_folder_that_is_none(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "sessions").symlink_to(tmp_path)
        result = run("ls", "--store", str(tmp_path))
        assert result.exit_code == 1
        assert "link" in result.stderr


class TestLs:
    def test_numbers_for_programs(self, pinfold: Run, kept: SessionStore) -> None:
        kept.touch(kept.named("session", "task", salt_digest(None))[0].key, hit=True)
        rows = listed(pinfold)
        assert [row["name"] for row in rows] == ["task", "task", "ended", "librarian"]
        assert [row["salted"] for row in rows] == [False, True, False, False]
        first = rows[0]
        assert (first["hits"], first["tokens"], first["raw_bytes"]) == (1, 64, 1 << 20)
        assert first["times_smaller"] == pytest.approx((1 << 20) / first["stored_bytes"], abs=0.001)
        assert (first["ttl_left"], rows[2]["ttl_left"]) == (None, 0)
        assert 0 < rows[3]["ttl_left"] <= 10

    def test_a_table_for_people(self, pinfold: Run, kept: SessionStore) -> None:
        out = pinfold("ls").stdout
        for words in ("librarian", "no end", "ended", "1.0 MiB", "s ago", kept.entries()[0].key[:12]):
            assert words in out

    def test_an_empty_store(self, pinfold: Run, kept: SessionStore) -> None:
        pinfold("rm", "--all", "--yes")
        assert "empty" in pinfold("ls").stderr

    def test_names_cannot_drive_the_terminal(self, pinfold: Run, kept: SessionStore) -> None:
        put(kept, "a\x1b[31mb", 9)
        assert "\x1b" not in pinfold("ls").stdout


class TestShow:
    def test_all_that_is_known(self, pinfold: Run, kept: SessionStore) -> None:
        result = pinfold("show", "librarian")
        assert result.exit_code == 0
        for words in ("against its digest", "facet: weights", "extra: ttl", "1 messages and 0 tools", "unreadable"):
            assert words in result.stdout

    def test_json_without_prompt_and_salt(self, pinfold: Run, kept: SessionStore) -> None:
        result = pinfold("show", "librarian", "--json")
        data = json.loads(result.stdout)
        assert (data["prompt"]["messages"], data["extra"], data["verified"]) == (1, {"ttl": 3600.0}, True)
        assert data["readable"] is False  # the payload of this test is no folded KV
        assert "secret words" not in result.stdout
        salted = next(row for row in listed(pinfold) if row["salted"])
        assert salt_digest(SALT) not in pinfold("show", salted["key"], "--json").stdout

    def test_a_name_that_two_have_lists_both(self, pinfold: Run, kept: SessionStore) -> None:
        result = pinfold("show", "task")
        assert result.exit_code == 1
        keys = [row["key"] for row in listed(pinfold) if row["name"] == "task"]
        assert all(key[:12] in result.stderr for key in keys)
        assert pinfold("show", keys[0][:12]).exit_code == 0

    def test_a_name_that_none_has_gives_the_nearest(self, pinfold: Run, kept: SessionStore) -> None:
        result = pinfold("show", "libarian")
        assert result.exit_code == 1
        assert "Did you mean 'librarian'?" in result.stderr
        assert pinfold("show", kept.entries()[0].key[:7]).exit_code == 1

    def test_damage_is_found(self, pinfold: Run, kept: SessionStore) -> None:
        pinfold("rm", "ended", *(row["key"] for row in listed(pinfold) if row["name"] == "task"))
        [path] = files_in(kept.folder)
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        result = pinfold("show", "librarian")
        assert result.exit_code == 1
        assert "damaged" in result.stderr


class TestRm:
    def test_those_named_and_no_others(self, pinfold: Run, kept: SessionStore) -> None:
        key = kept.named("session", "task", salt_digest(SALT))[0].key
        result = pinfold("rm", "librarian", key[:8])
        assert result.exit_code == 0
        assert result.stdout.count("deleted") == 2
        assert names(kept) == ["ended", "task"]
        assert len(files_in(kept.folder)) == 2

    def test_one_that_is_not_there_deletes_none(self, pinfold: Run, kept: SessionStore) -> None:
        assert pinfold("rm", "librarian", "nobody").exit_code == 1
        assert len(names(kept)) == 4

    def test_expired(self, pinfold: Run, kept: SessionStore) -> None:
        assert "'ended'" in pinfold("rm", "--expired").stdout
        assert names(kept) == ["librarian", "task", "task"]
        assert "nothing to delete" in pinfold("rm", "--expired").stderr

    def test_all_is_asked_for(self, pinfold: Run, kept: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
        refused = pinfold("rm", "--all")
        assert (refused.exit_code, "--yes" in refused.stderr) == (1, True)
        monkeypatch.setattr(store_module, "_can_ask", lambda: True)
        assert pinfold("rm", "--all", stdin="n\n").exit_code == 1
        assert len(names(kept)) == 4
        asked = pinfold("rm", "--all", stdin="y\n")
        assert "Delete all 4 sessions" in asked.stderr
        assert names(kept) == []

    def test_nothing_named_is_wrong_usage(self, pinfold: Run, kept: SessionStore) -> None:
        assert pinfold("rm").exit_code == 2


class TestWarm:
    def test_the_time_to_live_starts_anew(self, pinfold: Run, kept: SessionStore) -> None:
        result = pinfold("warm", "librarian", "ended")
        assert result.exit_code == 0
        assert result.stdout.count("read pin") == 2
        rows = {row["name"]: row for row in listed(pinfold)}
        assert rows["librarian"]["ttl_left"] == pytest.approx(3600, abs=60)
        assert rows["librarian"]["hits"] == 0
        assert next(iter(rows)) == "ended"  # the most recently used

    def test_a_session_has_no_end_before_and_after(self, pinfold: Run, kept: SessionStore) -> None:
        key = kept.named("session", "task", salt_digest(None))[0].key
        assert pinfold("warm", key).exit_code == 0
        assert kept.entry(key).expires is None


class TestKey:
    def test_the_key_comes_from_the_environment(
        self, pinfold: Run, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root.mkdir(mode=0o700)
        with opened(sessions_folder(root), key=b"k" * 32) as store:
            put(store, "a", 1)
        result = pinfold("ls")
        assert (result.exit_code, "another key" in result.stderr) == (1, True)
        monkeypatch.setenv("PINFOLD_STORE_KEY", "k" * 32)
        assert [row["name"] for row in listed(pinfold)] == ["a"]
        assert "k" * 32 not in pinfold("show", "a").output
