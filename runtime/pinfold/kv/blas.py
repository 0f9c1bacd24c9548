"""Keeping matrix products to the thread that calls them."""

from __future__ import annotations

import threading
from functools import cache

import threadpoolctl

__all__ = ["ONE_THREAD"]


class _OneThread:
    """While anyone is inside, BLAS starts no threads: the caller's priority and share of the cores are what was meant.

    The limit is the process's, so the first to enter sets it and the last to leave lifts it. threadpoolctl lets only
    the thread that set a limit lift it, and the last to leave may be another: so a thread of its own holds it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._leave = threading.Event()
        self._holder: threading.Thread | None = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                held, self._leave = threading.Event(), threading.Event()
                name = "pinfold-one-thread"
                self._holder = threading.Thread(target=_hold, args=(held, self._leave), name=name, daemon=True)
                self._holder.start()
                held.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._holder is not None:
                self._leave.set()
                self._holder.join()
                self._holder = None


ONE_THREAD = _OneThread()
"""Enter it around matrix products, from any number of threads."""


def _hold(held: threading.Event, leave: threading.Event) -> None:
    try:
        with _pools().limit(limits=1, user_api="blas"):
            held.set()
            leave.wait()
    finally:
        held.set()


@cache
def _pools() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()
