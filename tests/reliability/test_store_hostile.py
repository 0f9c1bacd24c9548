"""Files and an index that someone changed, by accident or on purpose. A seed is printed; PINFOLD_SEED repeats a run."""

from __future__ import annotations

import json
import os
import pickle
import random
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pinfold.errors import SessionCorruptError
from pinfold.store import SessionStore, StoredEntry
from pinfold.store.envelope import _FIXED, MAGIC, DamagedError, Seal
from pinfold.store.records import canonical
from tests.support.store_sessions import files_in, opened, put, quick_folder, record, some

KEY = b"a key kept outside the store...."


@pytest.fixture
def seed() -> int:
    given = int(os.environ.get("PINFOLD_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"PINFOLD_SEED={given}")  # noqa: T201 - a failure names its seed
    return given


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In place of pytest's own, which lies on the disk."""
    with quick_folder() as base:
        yield base


@pytest.fixture(params=[None, KEY], ids=["plain", "keyed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with opened(tmp_path / "s", key=request.param) as store:
        yield store


def path_of(store: SessionStore, entry: StoredEntry) -> Path:
    return store._layout.payload(store._index.catalogue.rows[entry.key].file)


def refuses(store: SessionStore, entry: StoredEntry, data: bytes) -> str:
    """The reason for which the reader refuses the entry's file with these contents."""
    row = store._index.catalogue.rows[entry.key]
    path_of(store, entry).write_bytes(data)
    with pytest.raises(DamagedError) as whole:
        store._reader.session(row)
    return str(whole.value)


def test_every_truncation_is_noticed(store: SessionStore, seed: int) -> None:
    entry = put(store, "a", 1)
    data = path_of(store, entry).read_bytes()
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    lengths = {*range(100), *(rng.randrange(len(data)) for _ in range(200))}
    for length in lengths:
        refuses(store, entry, data[:length])
        refuses(store, entry, data[:length] + bytes(len(data) - length))  # a tail that never reached the disk
    assert len(lengths) >= 200


def test_every_flipped_bit_is_noticed(store: SessionStore, seed: int) -> None:
    entry = put(store, "a", 1)
    data = path_of(store, entry).read_bytes()
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    head = len(data) - 3000
    places = [
        *range(_FIXED.size + 32),
        *(rng.randrange(head) for _ in range(230)),
        *(rng.randrange(head, len(data)) for _ in range(230)),
    ]
    assert len(places) >= 500  # in a plain store and in a keyed one
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        refuses(store, entry, bytes(flipped))


def test_a_damaged_session_is_quarantined_and_can_be_stored_again(store: SessionStore) -> None:
    entry, other = put(store, "a", 1), put(store, "b", 2)
    path = path_of(store, entry)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(SessionCorruptError, match="payload fails its digest"):
        store.get(entry.key)
    assert [e.key for e in store.entries()] == [other.key]
    assert store.check().quarantined == ((path.name, "its payload fails its digest"),)
    assert not path.exists()
    assert store.check(deep=True).ok
    put(store, "a", 1)
    assert bytes(store.get(entry.key).payload) == some(1)[1]


def test_a_damaged_head_is_a_miss_when_searched(store: SessionStore) -> None:
    entry = put(store, "a", 1)
    short = store.put(record("short", 10), some(1)[0][:10], b"x")
    store._reader.forget()
    path = path_of(store, entry)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    match = store.find(some(1)[0], entry.fingerprint, entry.salt)
    assert match is not None
    assert (match.entry.key, match.length) == (short.key, 10)
    assert len(store.check().quarantined) == 1


def seal_file(fields: dict[str, Any], facts: bytes, ids: bytes, payload: bytes) -> bytes:
    """A file whose digests hold, as anyone can write without a key."""
    seal = Seal()
    values = {
        "magic": MAGIC, "version": 1, "flags": 0, "facts": len(facts), "ids": len(ids), "payload": len(payload),
        "digest": seal.digest(payload),
    } | fields  # fmt: skip
    fixed = _FIXED.pack(*values.values())
    return fixed + seal.digest(fixed, facts, ids) + facts + ids + payload


def hostile_file(rng: random.Random, facts: bytes, ids: bytes, payload: bytes) -> bytes:
    """A file that is wrong in one way, digests excepted."""
    huge = rng.choice((1 << 31, (1 << 32) - 1, 1 << 62, 1 << 63, (1 << 64) - 1, rng.randrange(1 << 64)))
    header = json.loads(facts)
    about = header["record"]
    field = rng.choice(list(about))
    strange = rng.choice((None, -1, 1 << 70, "", "\ud800", [], {"a": {}}, True, 1e308, "../../x", "x" * 5000))
    ways: list[Callable[[], bytes]] = [
        lambda: seal_file({"facts": huge & 0xFFFFFFFF}, facts, ids, payload),
        lambda: seal_file({"ids": huge}, facts, ids, payload),
        lambda: seal_file({"payload": huge}, facts, ids, payload),
        lambda: seal_file({"version": rng.randrange(2, 1 << 16)}, facts, ids, payload),
        lambda: seal_file({"flags": rng.randrange(1, 1 << 16)}, facts, ids, payload),
        lambda: seal_file({"digest": rng.randbytes(32)}, facts, ids, payload),
        lambda: seal_file({"facts": len(facts) + 4, "ids": len(ids) - 4}, facts, ids, payload),
        lambda: seal_file({}, facts, ids + b"\0", payload),
        lambda: seal_file({}, facts, b"", payload),
        lambda: seal_file({}, facts, ids + bytes(4), payload),
        lambda: seal_file({}, facts, ids, payload + b"\0"),
        lambda: seal_file({}, b"[" * 100_000, ids, payload),
        lambda: seal_file({}, facts[:-1] + b',"key":"' + b"0" * 64 + b'"}', ids, payload),
        lambda: seal_file({}, facts.replace(b":", b": ", 1), ids, payload),
        lambda: seal_file({}, facts.replace(b'"created":1000.0', b'"created":NaN'), ids, payload),
        lambda: seal_file({}, json.dumps(header | {"record": about | {field: strange}}).encode(), ids, payload),
        lambda: seal_file({}, canonical(header | {"key": "0" * 64}), ids, payload),
        lambda: seal_file({}, canonical(header | {"record": about | {"salt": "0" * 64}}), ids, payload),
        lambda: seal_file({}, canonical(header | {"record": about | {"codec": "other"}}), ids, payload),
        lambda: pickle.dumps(payload),
        lambda: rng.randbytes(rng.randrange(5000)),
    ]  # fmt: skip
    return rng.choice(ways)()


def try_hostile_files(folder: Path, seed: int, count: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    with opened(folder) as store:
        entry = put(store, "a", 1)
        data = path_of(store, entry).read_bytes()
        ids = struct.pack("<64i", *some(1)[0])
        at = data.index(ids)
        facts, payload = data[_FIXED.size + 32 : at], data[at + len(ids) :]
        assert seal_file({}, facts, ids, payload) == data
        before = sorted(folder.parent.rglob("*"))
        for _ in range(count):
            refuses(store, entry, hostile_file(rng, facts, ids, payload))
        assert sorted(folder.parent.rglob("*")) == before


def test_files_made_to_harm_are_refused(tmp_path: Path, seed: int) -> None:
    try_hostile_files(tmp_path / "s", seed, 1000)


@pytest.mark.soak
def test_many_files_made_to_harm_are_refused(tmp_path: Path, seed: int) -> None:
    try_hostile_files(tmp_path / "s", seed, 10_000)


def test_whoever_lacks_the_key_cannot_write_a_session(tmp_path: Path) -> None:
    with opened(tmp_path / "plain") as plain, opened(tmp_path / "other", key=b"z" * 32) as other:
        forged = [path_of(s, put(s, "a", 2)).read_bytes() for s in (plain, other)]
    with opened(tmp_path / "s", key=KEY) as store:
        entry = put(store, "a", 1)
        assert "without the key" in refuses(store, entry, forged[0])
        assert "another key" in refuses(store, entry, forged[1])
        with closing(sqlite3.connect(store.folder / "index" / "cache.db", isolation_level=None)) as database:
            (value,) = database.execute("SELECT value FROM Cache").fetchone()
            text = value[32:].replace(b'"name":"a"', b'"name":"b"')
            database.execute("UPDATE Cache SET value = ?, tag = tag + 1", (Seal().digest(text) + text,))
    with opened(tmp_path / "s", key=KEY) as store:
        assert store.entries() == []
        assert len(store.check().quarantined) == 1


@pytest.mark.parametrize("kind", ["symbolic", "hard", "folder", "fifo", "parent"])
def test_links_and_other_things_are_no_sessions(store: SessionStore, tmp_path: Path, kind: str) -> None:
    entry = put(store, "a", 1)
    path = path_of(store, entry)
    elsewhere = tmp_path / "elsewhere"
    if kind == "parent":
        path.parent.rename(elsewhere)
        path.parent.symlink_to(elsewhere)
    else:
        path.rename(elsewhere)
        {
            "symbolic": lambda: path.symlink_to(elsewhere),
            "hard": lambda: path.hardlink_to(elsewhere),
            "folder": path.mkdir,
            "fifo": lambda: os.mkfifo(path),
        }[kind]()
    with pytest.raises(SessionCorruptError, match="link"):
        store.get(entry.key)
    assert elsewhere.exists()
    if kind == "parent":
        assert [p.name for p in elsewhere.iterdir()] == [path.name]


Attack = Callable[[sqlite3.Connection, Path], object]


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self._path}",)


def insert(
    database: sqlite3.Connection, key: object, raw: object, mode: int, filename: str | None, value: object
) -> None:
    database.execute(
        "INSERT INTO Cache (key, raw, store_time, mode, filename, value, tag) VALUES (?, ?, 0, ?, ?, ?, ?)",
        (key, raw, mode, filename, value, 1 << 61),
    )


ATTACKS: dict[str, Attack] = {
    "pickled value": lambda d, t: insert(d, "0" * 64, 1, 4, None, pickle.dumps(Bomb(t))),
    "pickled key": lambda d, t: insert(d, pickle.dumps(Bomb(t)), 0, 1, None, b"x"),
    "pickled file": lambda d, t: insert(d, "1" * 64, 1, 4, f"../../{t.name}.victim", None),
    "file elsewhere": lambda d, t: insert(d, "2" * 64, 1, 2, f"../../{t.name}.victim", None),
    "text value": lambda d, t: insert(d, "3" * 64, 1, 3, None, "text"),
    "path as key": lambda d, t: insert(d, "../../x", 1, 1, None, b"x"),
    "number as key": lambda d, t: insert(d, 7, 1, 1, None, b"x"),
    "damaged row": lambda d, t: d.execute("UPDATE Cache SET value = zeroblob(100)"),
    "row under another key": lambda d, t: d.execute("UPDATE Cache SET key = ?", ("4" * 64,)),
    "row of a terabyte's tag": lambda d, t: d.execute("UPDATE Cache SET tag = 9223372036854775807"),
    "huge row": lambda d, t: insert(d, "5" * 64, 1, 1, None, bytes(40 << 20)),
    "eviction": lambda d, t: d.execute("UPDATE Settings SET value = 'x' WHERE key = 'eviction_policy'"),
    "cull": lambda d, t: d.execute("UPDATE Settings SET value = 1000 WHERE key = 'cull_limit'"),
    "pickle protocol": lambda d, t: d.execute("UPDATE Settings SET value = 5 WHERE key = 'disk_pickle_protocol'"),
    "new setting": lambda d, t: d.execute("INSERT INTO Settings VALUES ('sqlite_query_only', 1)"),
    "setting of bytes": lambda d, t: d.execute("UPDATE Settings SET value = x'ff' WHERE key = 'count'"),
    "text that is none": lambda d, t: d.execute("UPDATE Settings SET value = CAST(x'ff' AS TEXT) WHERE key = 'count'"),
    "trigger": lambda d, t: d.execute("CREATE TRIGGER t AFTER INSERT ON Cache BEGIN DELETE FROM Cache; END"),
    "view": lambda d, t: d.execute("CREATE VIEW v AS SELECT * FROM Cache"),
    "other schema": lambda d, t: d.execute("DROP TABLE Settings"),
    "write-ahead log": lambda d, t: d.execute("PRAGMA journal_mode = wal"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
@pytest.mark.parametrize("running", [False, True], ids=["before opening", "while open"])
def test_an_index_that_was_tampered_with(tmp_path: Path, attack: Attack, running: bool) -> None:
    victim, token = tmp_path / "token.victim", tmp_path / "token"
    victim.write_bytes(pickle.dumps(Bomb(token)))
    with opened(tmp_path / "s") as store:
        entry = put(store, "a", 1)
        if not running:
            store.close()
        with closing(sqlite3.connect(tmp_path / "s" / "index" / "cache.db", isolation_level=None)) as database:
            attack(database, token)
        if running:
            keys = {e.key for e in store.entries()}
            assert keys <= {entry.key}
            put(store, "b", 2)
    with opened(tmp_path / "s") as store:
        assert bytes(store.get(entry.key).payload) == some(1)[1]
        put(store, "c", 3)
        assert store.check(deep=True).ok
    assert not token.exists()
    assert victim.exists()


@pytest.mark.parametrize("kind", ["empty", "garbage", "short", "symbolic", "hard", "folder", "gone", "stale journal"])
def test_an_index_file_that_is_none(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "s") as store:
        entry = put(store, "a", 1)
    database = tmp_path / "s" / "index" / "cache.db"
    data = database.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    if kind == "stale journal":
        database.with_name("cache.db-journal").write_bytes(os.urandom(4096))
    else:
        database.rename(elsewhere)
    if kind in {"empty", "garbage", "short"}:
        database.write_bytes({"empty": b"", "garbage": os.urandom(9000), "short": data[: len(data) // 2]}[kind])
    elif kind == "symbolic":
        database.symlink_to(elsewhere)
    elif kind == "hard":
        database.hardlink_to(elsewhere)
    elif kind == "folder":
        database.mkdir()
    with opened(tmp_path / "s") as store:
        found = store.entries()
        put(store, "b", 2)
        assert store.check(deep=True).ok
    assert [e.key for e in found] == [entry.key]
    assert kind == "stale journal" or elsewhere.read_bytes() == data


def flip_the_index(folder: Path, seed: int, count: int) -> None:
    with opened(folder) as store:
        entries = {put(store, f"s{n}", n).key: n for n in range(4)}
    database = folder / "index" / "cache.db"
    files = {p: p.read_bytes() for p in files_in(folder)}
    data = database.read_bytes()
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    for _ in range(count):
        for path, contents in files.items():
            path.write_bytes(contents)
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        database.write_bytes(flipped)
        with opened(folder) as store:
            for entry in store.entries():
                back = store.get(entry.key)
                tokens, payload = some(entries[entry.key])
                assert (list(back.tokens), bytes(back.payload)) == (tokens, payload)
                assert entry.name == f"s{entries[entry.key]}"
            assert store.check(deep=True).ok


def test_flipped_bits_in_the_index(tmp_path: Path, seed: int) -> None:
    flip_the_index(tmp_path / "s", seed, 200)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_many_flipped_bits_in_the_index(tmp_path: Path, seed: int) -> None:
    flip_the_index(tmp_path / "s", seed, 1000)


def test_nothing_in_the_runtime_unpickles() -> None:
    runtime = Path(__file__).parents[2] / "runtime"
    words = ("import pickle", "from pickle", "marshal", "shelve", "cloudpickle", "dill")
    found = [p.name for p in runtime.rglob("*.py") if any(word in p.read_text("utf-8") for word in words)]
    assert found == []
