"""What the store promises to the rooms above it."""

from __future__ import annotations

import os
import stat
import unicodedata
from pathlib import Path

import pytest

from pinfold.errors import InvalidRequestError, SessionNotFoundError, StoreError, StoreFullError
from pinfold.store import salt_digest
from tests.support.store_sessions import FACETS, NO_SALT, files_in, opened, put, record, some

HOUR = 3600.0


class Clock:
    def __init__(self) -> None:
        self.time = 1_000.0

    def __call__(self) -> float:
        self.time += 1
        return self.time


def test_what_was_put_comes_back_after_a_restart(tmp_path: Path) -> None:
    tokens, payload = some(1)
    facts = record("a", len(tokens), extra={"layout": {"layers": 2}}, expires=5_000.0)
    with opened(tmp_path / "s") as store:
        entry = store.put(facts, tokens, [payload[:100], memoryview(payload)[100:]])
    with opened(tmp_path / "s") as store:
        back = store.get(entry.key)
        assert (list(back.tokens), bytes(back.payload)) == (tokens, payload)
        assert back.entry == entry == store.entry(entry.key)
        assert back.payload.readonly
        assert store.used_bytes == entry.stored_bytes == files_in(store.folder)[0].stat().st_size


def test_a_session_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        first, second = put(store, "a", 1), put(store, "a", 2)
        assert first.key == second.key
        assert bytes(store.get(first.key).payload) == some(2)[1]
        assert len(files_in(store.folder)) == len(store.entries()) == 1


def test_requests_without_a_name_are_known_by_their_tokens(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        assert put(store, "", 1).key == put(store, "", 1).key != put(store, "", 2).key
        assert len(store.entries()) == 2


def test_the_record_and_the_tokens_must_agree(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store, pytest.raises(InvalidRequestError, match="4 tokens and 2"):
        store.put(record("a", 4), [1, 2], b"")


def test_the_longest_prefix_is_found_and_whole_ones_on_request(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        short = store.put(record("short", 3), [1, 2, 3], b"x")
        long = store.put(record("long", 6), [1, 2, 3, 4, 5, 6], b"y")
        match = store.find([1, 2, 3, 4, 9], short.fingerprint, NO_SALT)
        assert match is not None
        assert (match.entry.key, match.length) == (long.key, 4)
        whole = store.find([1, 2, 3, 4, 9], short.fingerprint, NO_SALT, whole=True)
        assert whole is not None
        assert (whole.entry.key, whole.length) == (short.key, 3)
        assert store.find([7], short.fingerprint, NO_SALT) is None
        # tokens decide: these have the same lowest bytes
        assert store.find([257, 2, 3], short.fingerprint, NO_SALT) is None


def test_tenants_never_meet(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        entry = put(store, "a", 1, salt=salt_digest("red"))
        tokens = some(1)[0]
        assert store.find(tokens, entry.fingerprint, salt_digest("blue")) is None
        assert store.find(tokens, entry.fingerprint, NO_SALT) is None
        assert store.near(tokens, "0" * 64, salt_digest("blue")) == []
        assert store.named("session", "a", NO_SALT) == []
        assert store.find(tokens, entry.fingerprint, salt_digest("red")) is not None


def test_a_miss_can_be_explained(tmp_path: Path) -> None:
    tokens = some(1)[0]
    with opened(tmp_path / "s") as store:
        put(store, "a", 1, facets={**FACETS, "engine": "scripted 0"})
        now = record("a")
        assert store.find(tokens, now.fingerprint, NO_SALT) is None
        (near,) = store.near(tokens, now.fingerprint, NO_SALT)
        assert (near.entry.facets["engine"], near.length) == ("scripted 0", len(tokens))


def test_uses_are_counted_and_survive(tmp_path: Path) -> None:
    with opened(tmp_path / "s", now=Clock()) as store:
        key = put(store, "a", 1).key
        store.touch(key, hit=True, expires=9_000.0)
        after = store.touch(key, hit=False)
        assert (after.hits, after.expires) == (1, 9_000.0)
    with opened(tmp_path / "s") as store:
        assert store.entry(key) == after
        with pytest.raises(SessionNotFoundError):
            store.touch("0" * 64, hit=True)


def test_a_session_can_be_given_another_name(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        old, other = put(store, "a", 1), put(store, "b", 2, kind="pin")
        new = store.retag(old.key, kind="pin", name="b", expires=9e9)
        assert new.key == other.key
        assert (new.kind, new.name, new.expires) == ("pin", "b", 9e9)
        assert bytes(store.get(new.key).payload) == some(1)[1]
        assert len(files_in(store.folder)) == 1
        again = put(store, "a", 3)
        assert {e.key for e in store.entries()} == {new.key, again.key}
        nameless = put(store, "", 4)
        with pytest.raises(InvalidRequestError, match="needs one"):
            store.retag(nameless.key, kind="pin")
        assert store.check(deep=True).ok
    with opened(tmp_path / "s") as store:
        assert bytes(store.get(new.key).payload) == some(1)[1]


def test_pins_end(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path / "s", now=clock) as store:
        pin = put(store, "p", 1, kind="pin", expires=clock.time + HOUR)
        endless = put(store, "q", 2, kind="pin")
        assert store.expire() == []
        clock.time += 2 * HOUR
        assert [e.key for e in store.expire()] == [pin.key]
        assert store.entry(pin.key).kind == "recent"
        assert store.entry(endless.key).kind == "pin"
        assert store.named("pin", "p", NO_SALT) == []


def test_the_least_recently_used_make_room_and_live_pins_stay(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path / "s", budget=20_000, now=clock) as store:
        pin = put(store, "pin", 0, kind="pin")
        ended = put(store, "ended", 1, kind="pin", expires=clock.time + 1)
        sessions = [put(store, f"s{n}", 10 + n) for n in range(2)]
        store.touch(sessions[0].key, hit=True)
        clock.time += 10
        seen = []
        for n in range(6):
            newest = put(store, f"t{n}", 20 + n)
            keys = {e.key for e in store.entries()}
            assert {pin.key, newest.key} <= keys
            assert store.used_bytes <= 20_000
            seen.append(keys)
        gone = [next(i for i, keys in enumerate(seen) if e.key not in keys) for e in (ended, sessions[1], sessions[0])]
        assert gone == sorted(gone)
        assert len(files_in(store.folder)) == len(store.entries())


def test_one_that_is_larger_than_the_budget_is_refused_and_others_stay(tmp_path: Path) -> None:
    with opened(tmp_path / "s", budget=20_000) as store:
        kept = [put(store, f"s{n}", n).key for n in range(3)]
        with pytest.raises(StoreFullError, match="budget"):
            put(store, "s0", 9, n_bytes=30_000)
        assert sorted(e.key for e in store.entries()) == sorted(kept)
        assert bytes(store.get(kept[0]).payload) == some(0)[1]


def test_live_pins_that_fill_the_budget_are_named_as_the_reason(tmp_path: Path) -> None:
    with opened(tmp_path / "s", budget=12_000) as store:
        for n in range(2):
            put(store, f"p{n}", n, kind="pin")
        put(store, "session", 5)
        with pytest.raises(StoreFullError, match="live pins take"):
            put(store, "large", 6, n_bytes=7_000)
        assert len(store.entries()) == 3


def test_the_disk_is_left_some_room(tmp_path: Path) -> None:
    with opened(tmp_path / "s", min_free=1 << 62) as store, pytest.raises(StoreFullError, match="disk space"):
        put(store, "a", 1)


@pytest.mark.parametrize(
    "name",
    [
        "../../escape",
        "/etc/passwd",
        "x" * 4096,
        "a\0b",
        "..",
        "CON",
        "sp ace/\\:*",
        unicodedata.normalize("NFC", "é"),
        unicodedata.normalize("NFD", "é"),
    ],
)
def test_names_never_reach_the_file_system(tmp_path: Path, name: str) -> None:
    with opened(tmp_path / "s") as store:
        entry = put(store, name, 1)
        (file,) = files_in(store.folder)
        assert len(file.name) == 64
        assert set(file.name) <= set("0123456789abcdef")
        assert file.name != entry.key
        assert store.named("session", name, NO_SALT) == [entry]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s"]


def test_twins_in_case_and_normal_form_are_different_names(tmp_path: Path) -> None:
    names = ["Abc", "abc", unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")]
    with opened(tmp_path / "s") as store:
        assert len({put(store, name, n).key for n, name in enumerate(names)}) == len(store.entries()) == 4


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_everything_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with opened(tmp_path / "s") as store:
            put(store, "a", 1)
            with store._index.transaction():
                store._index.drop("0" * 64)
                store._index.set(store._index.catalogue.rows[store.entries()[0].key])
                names = {p.name for p in store.folder.rglob("*")}
                modes = {p: stat.S_IMODE(p.lstat().st_mode) for p in [store.folder, *store.folder.rglob("*")]}
    finally:
        os.umask(before)
    assert "cache.db-journal" in names
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items())


def test_a_deleted_session_leaves_no_bytes(tmp_path: Path) -> None:
    canary = b"CANARY-0123456789-CANARY"
    tokens = [0x41424344] * 16
    with opened(tmp_path / "s") as store:
        put(store, "other", 2)
        facts = record(canary.decode(), len(tokens), extra={"said": canary.decode()})
        key = store.put(facts, tokens, canary * 100).key
        for _ in range(5):
            store.touch(key, hit=True)
        (path,) = [p for p in files_in(store.folder) if canary in p.read_bytes()]
        second_name = tmp_path / "watch"
        handle = path.open("rb")
        assert store.delete(key)
        assert not store.delete(key)
        everything = b"".join(p.read_bytes() for p in store.folder.rglob("*") if p.is_file())
        assert canary not in everything
        assert b"DCBA" * 2 not in everything
        with handle:
            assert not any(handle.read())
        assert not second_name.exists()
        with pytest.raises(SessionNotFoundError):
            store.get(key)
        assert len(store.entries()) == 1


def test_a_vanished_file_is_a_session_that_is_not_stored(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        entry = put(store, "a", 1)
        files_in(store.folder)[0].unlink()
        with pytest.raises(SessionNotFoundError, match="is gone"):
            store.get(entry.key)
        assert store.entries() == []
        put(store, "b", 2)
        files_in(store.folder)[0].unlink()
        assert store.find(some(2)[0], entry.fingerprint, NO_SALT) is None
        assert store.entries() == []


def test_two_stores_on_one_folder_see_each_other(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as one, opened(tmp_path / "s") as two:
        key = put(one, "a", 1).key
        assert bytes(two.get(key).payload) == some(1)[1]
        put(two, "a", 2)
        assert bytes(one.get(key).payload) == some(2)[1]
        two.touch(key, hit=True)
        assert one.entry(key).hits == 1
        assert one.delete(key)
        assert two.entries() == []
        assert two.used_bytes == 0


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.entries()


def test_a_folder_of_other_things_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(StoreError, match="no session store"):
        opened(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_a_folder_that_others_may_write_in_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(0o777)
    with pytest.raises(StoreError, match="chmod 700"):
        opened(tmp_path / "s")


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "real").close()
    (tmp_path / "s").symlink_to(tmp_path / "real")
    with pytest.raises(StoreError, match="link"):
        opened(tmp_path / "s")


def test_a_store_of_another_key_is_refused_and_nothing_in_it_is_touched(tmp_path: Path) -> None:
    with opened(tmp_path / "s", key=b"k" * 32) as store:
        entry = put(store, "a", 1)
    for key in (None, b"z" * 32):
        with pytest.raises(StoreError, match="another key"):
            opened(tmp_path / "s", key=key)
    with opened(tmp_path / "s", key=b"k" * 32) as store:
        assert bytes(store.get(entry.key).payload) == some(1)[1]
        assert store.check(deep=True).quarantined == ()
    with pytest.raises(InvalidRequestError, match="at least 16"):
        opened(tmp_path / "t", key=b"short")


def test_a_check_finds_and_mends(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        good, bad, gone = put(store, "good", 1), put(store, "bad", 2), put(store, "gone", 3)
        assert store.check(deep=True).ok
        paths = {e.key: store._layout.payload(store._index.catalogue.rows[e.key].file) for e in (good, bad, gone)}
        data = bytearray(paths[bad.key].read_bytes())
        data[-1] ^= 1
        paths[bad.key].write_bytes(data)
        paths[gone.key].unlink()
        paths[good.key].chmod(0o644)
        (store.folder / "incoming" / ("f" * 64)).write_bytes(b"left behind")
        shallow = store.check()
        assert [name for name, _ in shallow.corrupt] == ["gone"]
        report = store.check(deep=True)
        assert dict(report.corrupt) == {"bad": "its payload fails its digest", "gone": "its file is gone"}
        assert report.orphans == (f"incoming/{'f' * 64}",)
        assert report.modes
        assert not report.ok
        assert not report.fixed
        assert len(store.entries()) == 3
        fixed = store.check(deep=True, fix=True)
        assert fixed.fixed
        assert [reason for _, reason in fixed.quarantined] == ["its payload fails its digest"]
        assert store.check(deep=True).ok
        assert [e.key for e in store.entries()] == [good.key]
