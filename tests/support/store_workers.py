"""``python -m tests.support.store_workers FOLDER SEED OPERATIONS``: one of several processes that share a store.

It stores, reads, finds and deletes sessions under 50 names, and now and then a child of it is killed while storing.
Every payload says what it must be, so whatever comes back can be verified by any process.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from pinfold.errors import SessionNotFoundError, StoreBusyError
from pinfold.store import SessionStore, fingerprint_of
from pinfold.store.records import key_of
from tests.support.store_sessions import FACETS, NO_SALT, POINTS, Dying, opened, record

NAMES = [f"name {n}" for n in range(50)]
LONGEST_WAIT = 12.0  # five seconds for the lock, twice where a damaged row is set aside, and a slow machine


def contents(name: str, seed: int) -> tuple[list[int], bytes]:
    rng = random.Random(f"{name}/{seed}")  # noqa: S311 - repeatable, not secret
    return [NAMES.index(name), seed, *(rng.randrange(50_000) for _ in range(60))], rng.randbytes(2000)


def store_one(store: SessionStore, name: str, seed: int) -> None:
    tokens, payload = contents(name, seed)
    store.put(record(name, len(tokens)), tokens, payload)


def read_one(store: SessionStore, name: str) -> None:
    try:
        back = store.get(key_of("session", name, NO_SALT, fingerprint_of(FACETS)))
    except SessionNotFoundError:
        return
    if (list(back.tokens), bytes(back.payload)) != contents(name, back.tokens[1]):
        sys.exit(f"{name}: what came back was never stored")


def find_one(store: SessionStore, name: str, seed: int) -> None:
    tokens, _ = contents(name, seed)
    match = store.find(tokens, fingerprint_of(FACETS), NO_SALT)
    if match is not None and match.entry.name != name:
        sys.exit(f"{name}: found as {match.entry.name}")


def die_while_storing(folder: Path, name: str, seed: int, point: str) -> None:
    child = os.fork()
    if child == 0:
        try:
            store_one(opened(folder, files=Dying(point)), name, seed)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def main(folder: Path, seed: int, operations: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    busy = 0
    with opened(folder) as store:
        for _ in range(operations):
            name, draw = rng.choice(NAMES), rng.random()
            began = time.monotonic()
            try:
                if draw < 0.02:
                    die_while_storing(folder, name, rng.randrange(1 << 20), rng.choice(POINTS))
                elif draw < 0.3:
                    store_one(store, name, rng.randrange(1 << 20))
                elif draw < 0.35:
                    store.delete(key_of("session", name, NO_SALT, fingerprint_of(FACETS)))
                elif draw < 0.6:
                    find_one(store, name, rng.randrange(1 << 20))
                else:
                    read_one(store, name)
            except StoreBusyError:
                busy += 1
            if time.monotonic() - began > LONGEST_WAIT:
                sys.exit(f"an operation took {time.monotonic() - began:.1f} s")
    print(f"busy {busy}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
