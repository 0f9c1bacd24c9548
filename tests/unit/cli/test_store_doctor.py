"""What `pinfold doctor` says of the store, and what it puts right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from pinfold.keeping import sessions_folder
from tests.support.store_sessions import files_in, opened, put

Run = Callable[..., Result]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of two sessions, the payload of the one named "bad" damaged."""
    with opened(sessions_folder(tmp_path)) as store:
        put(store, "bad", 1)
        [path] = files_in(store.folder)
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        put(store, "good", 2)
    return tmp_path


def examined(run: Run, root: Path, *args: str) -> dict[str, Any]:
    result = run("doctor", "--store", str(root), "--json", *args)
    assert result.exit_code == 0
    return json.loads(result.stdout)["store"]


def test_a_sound_store(run: Run, tmp_path: Path) -> None:
    with opened(sessions_folder(tmp_path)) as store:
        put(store, "a", 1)
    state = examined(run, tmp_path, "--deep")
    assert (state["ok"], state["entries"], state["error"], state["read_only"]) == (True, 1, None, False)
    assert state["bytes"] < state["budget"]
    out = run("doctor", "--store", str(tmp_path)).stdout
    for words in ("Engines", "Store", "sound", "20.0 GiB", str(tmp_path)):
        assert words in out


def test_damage_is_seen_by_deep_and_put_right_by_fix(run: Run, root: Path) -> None:
    assert examined(run, root)["ok"]  # the heads are whole
    assert [name for name, _ in examined(run, root, "--deep")["corrupt"]] == ["bad"]
    out = run("doctor", "--store", str(root), "--deep").stdout
    assert "bad: its payload fails its digest" in out
    assert "--fix" in out
    fixed = examined(run, root, "--deep", "--fix")
    assert (fixed["fixed"], fixed["ok"]) == (True, False)
    assert fixed["quarantined"][0][1] == "its payload fails its digest"
    after = examined(run, root, "--deep")
    assert (after["ok"], after["entries"]) == (True, 1)
    assert "quarantined" in run("doctor", "--store", str(root)).stdout


def test_files_that_others_may_read(run: Run, root: Path) -> None:
    path = files_in(sessions_folder(root))[0]
    path.chmod(0o644)
    assert examined(run, root)["modes"] == [str(path.relative_to(sessions_folder(root)))]
    assert "open to others" in run("doctor", "--store", str(root)).stdout
    examined(run, root, "--fix")
    assert path.stat().st_mode & 0o077 == 0


def test_a_store_that_cannot_be_opened_is_a_finding(run: Run, root: Path) -> None:
    sessions_folder(root).chmod(0o777)
    state = examined(run, root, "--fix")
    assert "chmod 700" in state["error"]
    assert "chmod 700" in run("doctor", "--store", str(root)).stdout


def test_no_store(run: Run, tmp_path: Path) -> None:
    assert "no store in" in examined(run, tmp_path)["missing"]
    off = json.loads(run("doctor", "--json").stdout)["store"]
    assert (off["folder"], "off" in off["missing"]) == (None, True)
    assert list(tmp_path.iterdir()) == []
