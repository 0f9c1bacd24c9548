"""``python -m tests.support.store_kills FOLDER SEED COUNT``: kill -9 while a session is stored, COUNT times.

It forks a child for each kill, so it is a program of its own: one thread, everything imported once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

from tests.support.store_sessions import NO_SALT, POINTS, Dying, files_in, opened, put, record, some


def kill_while_storing(folder: Path, point: str, seed: int) -> None:
    child = os.fork()
    if child == 0:
        put(opened(folder, files=Dying(point)), "a", seed)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    # nothing is unlinked where nothing was replaced
    if not killed and not (point == POINTS[-1] and os.waitstatus_to_exitcode(status) == 0):
        sys.exit(f"{point}: the child ended with status {status}")


def check(folder: Path, point: str, allowed: set[int]) -> int | None:
    """Opens the store as the next process would; returns the seed of what is stored."""
    with opened(folder) as store:
        entries = store.named("session", "a", NO_SALT)
        report = store.check(deep=True)
        if not report.ok or len(files_in(folder)) != len(entries):
            sys.exit(f"{point}: {report}, {files_in(folder)}")
        if not entries:
            return None
        back = store.get(entries[0].key)
        for seed in allowed:
            if (list(back.tokens), bytes(back.payload)) == some(seed):
                match = store.find(some(seed)[0], record().fingerprint, NO_SALT)
                if match is None or match.length != len(back.tokens):
                    sys.exit(f"{point}: not found by its tokens")
                return seed
        sys.exit(f"{point}: neither the old nor the new session came back")


def main(folder: Path, seed: int, count: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    stored: int | None = None
    outcomes = {"old": 0, "new": 0, "none": 0}
    for number in range(count):
        point = POINTS[number % len(POINTS)]
        if stored is not None and rng.random() < 0.3:  # also kill where nothing is stored yet
            with opened(folder) as store:
                store.delete(store.entries()[0].key)
            stored = None
        kill_while_storing(folder, point, number)
        after = check(folder, point, {number} if stored is None else {number, stored})
        expected = number if point == POINTS[-1] else stored
        if after != expected:
            sys.exit(f"{point}: {after} is stored where {expected} should be")
        outcomes["none" if after is None else "new" if after == number else "old"] += 1
        stored = after
    print(outcomes)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
