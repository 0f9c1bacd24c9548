"""Many sessions in one store: how long opening and searching take, and what stays when room runs out."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.store import StoredRecord
from tests.support.store_sessions import NO_SALT, fill, opened, put, quick_folder, record, some

N_TOKENS = 2_000
PAYLOAD = bytes(100)


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as base:
        yield base / "store"


def sequences(count: int) -> Iterator[array[int]]:
    """Half of them begin with the same 1,000 tokens and part at the next; the others are a family each of ten."""
    rng = random.Random(7)  # noqa: S311 - repeatable, not secret
    common = [rng.randrange(50_000) for _ in range(1_000)]
    family: list[int] = []
    for number in range(count):
        if number % 10 == 0:
            family = [rng.randrange(50_000) for _ in range(1_500)]
        start = common if number % 2 else family
        yield array("i", [*start, *(rng.randrange(50_000) for _ in range(N_TOKENS - len(start)))])


def sessions(count: int) -> Iterator[tuple[StoredRecord, array[int], bytes]]:
    for number, tokens in enumerate(sequences(count)):
        kind = "pin" if number % 100 == 0 else "session"
        yield record(f"s{number}", N_TOKENS, kind=kind, created=1_000.0 + number), tokens, PAYLOAD


def measure(folder: Path, count: int) -> tuple[float, float]:
    """Fills a store; returns seconds that opening takes and the 99th percentile of a search, each search verified."""
    with opened(folder, budget=1 << 40) as store:
        fill(store, sessions(count))
    began = time.perf_counter()
    store = opened(folder, budget=1 << 40)
    opening = time.perf_counter() - began
    rng = random.Random(11)  # noqa: S311 - repeatable, not secret
    fingerprint = record("x").fingerprint
    times = []
    with store:
        assert len(store.entries()) == count
        for number, tokens in enumerate(sequences(count)):
            if rng.random() > 1_000 / count:
                continue
            cut = rng.randrange(1_001, N_TOKENS)
            prompt = [*tokens[:cut], *(rng.randrange(60_000, 70_000) for _ in range(300))]
            began = time.perf_counter()
            match = store.find(prompt, fingerprint, NO_SALT)
            times.append(time.perf_counter() - began)
            assert match is not None
            assert match.length == cut
            if cut > 1_500:
                assert match.entry.name == f"s{number}"
    times.sort()
    return opening, times[int(len(times) * 0.99)]


def budget_is_kept(folder: Path, more: int) -> None:
    """`more` sessions are stored where none is free; pins stay, and the budget is kept after each."""
    with opened(folder, budget=1 << 40) as store:
        used = store.used_bytes
        pins = {e.key for e in store.entries() if e.kind == "pin"}
    with opened(folder, budget=used) as store:
        for number in range(more):
            put(store, f"new {number}", number, n_bytes=20_000)
            assert store.used_bytes <= used
        entries = store.entries()
        assert pins <= {e.key for e in entries}
        assert entries[0].name == f"new {more - 1}"
        assert bytes(store.get(entries[0].key).payload) == some(more - 1, n_bytes=20_000)[1]
        assert store.check().ok


def test_a_thousand_sessions(folder: Path) -> None:
    opening, search = measure(folder, 1_000)
    assert opening < 2.0
    assert search < 0.025  # five times what the long run asks for: other tests share the machine
    budget_is_kept(folder, 5)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_ten_thousand_sessions(folder: Path) -> None:
    opening, search = measure(folder, 10_000)
    print(f"opening {opening:.2f} s, search p99 {search * 1e3:.2f} ms")  # noqa: T201
    assert opening < 2.0
    assert search < 0.005
    budget_is_kept(folder, 50)
