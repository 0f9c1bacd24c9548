"""Kills, full disks, read-only folders and many processes. A seed is printed; PINFOLD_SEED repeats a run."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pinfold.errors import StoreError, StoreFullError
from tests.support.store_sessions import Failing, files_in, opened, put, quick_folder, some

ROOT = Path(__file__).parents[2]


@pytest.fixture
def seed() -> int:
    given = int(os.environ.get("PINFOLD_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"PINFOLD_SEED={given}")  # noqa: T201 - a failure names its seed
    return given


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as base:
        yield base / "store"


def python(*args: object) -> list[str]:
    return [sys.executable, "-m", *map(str, args)]


def run(*args: object) -> None:
    done = subprocess.run(python(*args), cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kill_9_leaves_the_old_the_new_or_nothing(folder: Path, seed: int) -> None:
    run("tests.support.store_kills", folder, seed, 54)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_kill_9_many_times(tmp_path: Path, seed: int) -> None:
    run("tests.support.store_kills", tmp_path / "store", seed, 504)


def storm(folder: Path, seed: int, operations: int) -> None:
    opened(folder).close()
    workers = [
        subprocess.Popen(
            python("tests.support.store_workers", folder, seed + n, operations),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for n in range(8)
    ]
    outputs = [worker.communicate(timeout=3000)[0] for worker in workers]
    assert all(worker.returncode == 0 for worker in workers), "\n".join(outputs)
    with opened(folder) as store:
        report = store.check(deep=True)
        assert report.ok, report
        assert report.quarantined == ()
        assert len(files_in(folder)) == report.entries > 0


def test_many_processes_on_few_names_with_kills(folder: Path, seed: int) -> None:
    storm(folder, seed, 250)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_processes_for_long(tmp_path: Path, seed: int) -> None:
    storm(tmp_path / "store", seed, 2000)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_at_any_write(tmp_path: Path, code: int) -> None:
    with opened(tmp_path / "s") as store:
        old = put(store, "a", 1)
        other = put(store, "b", 2)
    for step in range(1, 20):
        files = Failing(step, code)
        with opened(tmp_path / "s", files=files) as store:
            try:
                put(store, "a", 100 + step)
            except StoreFullError:
                assert bytes(store.get(old.key).payload) == some(1)[1]
            else:
                break
            assert bytes(store.get(other.key).payload) == some(2)[1]
            assert len(files_in(store.folder)) == len(store.entries()) == 2
            assert store.check(deep=True).ok
    assert files.left > 0
    assert step > 6


@pytest.mark.parametrize("step", range(1, 7))
def test_a_disk_that_fails_is_no_full_disk(tmp_path: Path, step: int) -> None:
    with opened(tmp_path / "s", files=Failing(step, errno.EIO)) as store:
        with pytest.raises(StoreError, match="Check the disk") as caught:
            put(store, "a", 1)
        assert type(caught.value) is StoreError
        assert files_in(store.folder) == store.entries() == []


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    run("tests.support.store_limits", tmp_path / "store", "large")


def test_hostile_sizes_never_come_into_memory(tmp_path: Path) -> None:
    run("tests.support.store_limits", tmp_path / "store", "memory")


def test_a_small_disk_that_fills_up(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=2m tmpfs {tmp_path}"
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
    with suppress(FileNotFoundError):
        if subprocess.run([*unshare, mount], capture_output=True, check=False).returncode == 0:
            script = f"{mount} && exec {sys.executable} -m tests.support.store_limits {tmp_path}/store full"
            done = subprocess.run(
                [*unshare, script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return
    pytest.skip("this user may not mount a small disk")


def test_a_folder_that_cannot_be_written() -> None:
    with quick_folder() as base:  # every user may come to it, which is not so in pytest's own
        try:
            run("tests.support.store_limits", base, "read-only")
        finally:
            for path in [base, *(p for p in base.rglob("*") if p.is_dir())]:
                path.chmod(0o700)
