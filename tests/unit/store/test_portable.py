"""Portable files: what was written comes back, and nothing else does."""

from __future__ import annotations

import errno
import os
import random
import stat
import struct
from array import array
from pathlib import Path

import pytest

from pinfold.errors import SessionCorruptError, StoreError, StoreReadOnlyError
from pinfold.store import StoredEntry, StoredRecord, StoredSession
from pinfold.store import portable as module
from pinfold.store.portable import read_portable, write_portable
from pinfold.store.records import canonical
from tests.support.store_sessions import record, some

HEAD = 40
TOKENS, PAYLOAD = some(7)
RECIPE = b"recipe" * 20


def session(**fields: object) -> StoredSession:
    facts = record("näme", len(TOKENS), extra={"ttl": 60.0, "prompt": {"messages": []}})
    entry = StoredEntry(**{**facts.model_dump(), **fields}, key="0" * 64, stored_bytes=9_000, used=1.0)
    return StoredSession(entry, array("i", TOKENS), memoryview(PAYLOAD))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lib.pinfold"
    write_portable(path, session(), RECIPE)
    return path


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def sealed(facts: bytes, ids: bytes, payload: bytes, recipe: bytes = b"") -> bytes:
    """A file whose lengths and digest are right, whatever it holds."""
    fixed = struct.pack("<8sHHIQQQ", module.MAGIC, 1, 0, len(facts), len(ids), len(payload), len(recipe))
    return b"".join((fixed, module._digest(fixed, facts, ids, payload, recipe), facts, ids, payload, recipe))


def test_what_was_written_comes_back(file: Path) -> None:
    back = read_portable(file)
    assert back.record == StoredRecord.parse(session().entry.model_dump(include=set(StoredRecord.model_fields)))
    assert (list(back.tokens), bytes(back.payload), back.recipe) == (TOKENS, PAYLOAD, RECIPE)
    assert back.payload.readonly
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert names_in(file.parent) == [file.name]


def test_no_recipe_is_none(tmp_path: Path) -> None:
    size = write_portable(tmp_path / "a", session(), None)
    assert read_portable(tmp_path / "a").recipe is None
    assert (tmp_path / "a").stat().st_size == size


def test_a_file_that_is_there_stays_unless_told_otherwise(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()
    with pytest.raises(StoreError, match="--force"):
        write_portable(file, session(), None)
    # as if it had appeared between the look and the write
    monkeypatch.setattr(module.os.path, "lexists", lambda path: False)
    with pytest.raises(StoreError, match="--force"):
        write_portable(file, session(), None)
    assert file.read_bytes() == before
    assert names_in(file.parent) == [file.name]
    write_portable(file, session(), None, replace=True)
    assert read_portable(file).recipe is None


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(StoreError, match="there already"):
        write_portable(tmp_path / "link", session(), None)
    write_portable(tmp_path / "link", session(), None, replace=True)
    assert (tmp_path / "other").read_text() == "mine"
    assert not (tmp_path / "link").is_symlink()


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(module.os, "link", refuse)
    write_portable(tmp_path / "a", session(), None)
    assert read_portable(tmp_path / "a").record.name == "näme"
    assert names_in(tmp_path) == ["a"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(module.FileSystem, "sync", refuse)
    with pytest.raises(StoreError, match="No room"):
        write_portable(tmp_path / "a", session(), None)
    assert names_in(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreReadOnlyError):
        write_portable(tmp_path / "a", session(), None)
    tmp_path.chmod(0o700)


def test_three_hundred_mutations_are_refused(file: Path) -> None:
    whole, rng = file.read_bytes(), random.Random(3)  # noqa: S311 - repeatable, not secret
    refused = 0
    for number in range(300):
        data = bytearray(whole)
        at = rng.randrange(HEAD + 32 if number % 2 else len(data))  # every other one in the head
        match number % 5:
            case 0 | 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at:]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                data[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 1 << 31, 1 << 63, (1 << 64) - 1]))
        if bytes(data) == whole:
            continue
        file.write_bytes(data)
        with pytest.raises(SessionCorruptError, match="Nothing was stored"):
            read_portable(file)
        refused += 1
    assert refused > 290


def test_right_digests_do_not_excuse_wrong_contents(file: Path) -> None:
    facts = session().entry.model_dump(include=set(StoredRecord.model_fields))
    ids = array("i", TOKENS).tobytes()
    hostile = {
        "another number of tokens": (canonical(facts), ids[:-4]),
        "none that this version writes": (canonical(facts | {"facets": {"weights": "b"}}), ids),
        "record is none": (canonical(facts | {"salt": "../../etc"}), ids),
        "record is none that": (canonical(facts | {"n_tokens": float("1e3")}), ids),
        "this version writes": (b"[" * 50_000, ids),
        "another form": (b" " + canonical(facts), ids),
        "out of range": (canonical(facts), ids[:-2]),
        "in its head is out of range": (canonical(facts), b""),
        "a length in its head": (b" " * (300 << 10), ids),
    }
    for problem, (record_bytes, token_bytes) in hostile.items():
        file.write_bytes(sealed(record_bytes, token_bytes, PAYLOAD))
        with pytest.raises(SessionCorruptError, match=problem):
            read_portable(file)
    file.write_bytes(sealed(canonical(facts), ids, PAYLOAD))
    assert bytes(read_portable(file).payload) == PAYLOAD


def test_a_length_takes_no_memory_before_it_is_checked(file: Path) -> None:
    with file.open("r+b") as out:
        out.seek(24)
        out.write(struct.pack("<Q", 1 << 40))
        out.truncate((1 << 40) + HEAD + 32)  # a sparse file of that size: the lengths may even agree
    with pytest.raises(SessionCorruptError):
        read_portable(file)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SessionCorruptError, match="no plain file"):
        read_portable(tmp_path / "pipe")
    for name in (".", "absent"):
        with pytest.raises(StoreError, match="cannot be read"):
            read_portable(tmp_path / name)
    (tmp_path / "foreign").write_bytes(b"GGUF" + bytes(200))
    with pytest.raises(SessionCorruptError, match="no portable session"):
        read_portable(tmp_path / "foreign")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(SessionCorruptError, match="too soon"):
        read_portable(tmp_path / "empty")
