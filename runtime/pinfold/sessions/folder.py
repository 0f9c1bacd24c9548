"""Folds copies on a thread of its own, at the lowest priority, and unfolds them where they are needed."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from pinfold.engines.base import Engine
from pinfold.errors import PinfoldError
from pinfold.kv.recipe import LADDER, Recipe, Rung

if TYPE_CHECKING:
    from pinfold.kv.codec import FoldedKV

__all__ = ["Folder"]

log = logging.getLogger("pinfold.sessions")

_LOWEST_PRIORITY = 19

T = TypeVar("T")


class Folder:
    """Folds by `preset` once the model's recipe is known, and without loss before. `fold` and `unfold` may run on any
    thread.

    Attributes:
        recipe: of the model; None until calibration has ended or one was read.
        find_recipe: from a digest to an earlier recipe that sessions on disk may need.
    """

    def __init__(self, engine: Engine, preset: str) -> None:
        self._engine = engine
        self.preset = preset
        self.recipe: Recipe | None = None
        self.find_recipe: Callable[[str], Recipe | None] = lambda _: None
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def rung(self) -> Rung | None:
        """The rung that the preset came to on this model; None for no loss."""
        if self.recipe is None or self.preset == "exact":
            return None
        place = self.recipe.rungs.get(self.preset, -1)
        return LADDER[place] if place >= 0 else None

    @property
    def codec(self) -> str:
        """Name of the codec that a fold would use now."""
        rung = self.rung
        return rung.name if rung is not None else "exact"

    @property
    def wants_recipe(self) -> bool:
        """Whether folding would gain by a calibration."""
        return self.preset != "exact" and self.recipe is None

    def fold(self, state: memoryview, length: int, preset: str | None = None) -> FoldedKV:
        """`length` tokens of the engine's bytes, folded by this folder's preset or another one."""
        from pinfold.kv.brain import as_half
        from pinfold.kv.codec import fold

        rung = self.rung
        if preset is not None and self.recipe is not None:
            place = self.recipe.rungs.get(preset, -1)
            rung = LADDER[place] if place >= 0 else None
        snapshot = self._engine.open_snapshot(state, length)
        return fold(snapshot if rung is None else as_half(snapshot), self.recipe, rung)

    def unfold(self, data: bytes | memoryview, length: int) -> memoryview:
        """The engine's bytes of `length` tokens. Raises SessionCorruptError."""
        from pinfold.kv.codec import unfold

        most = 8 * length * self._engine.capabilities.bytes_per_token + (1 << 20)
        frame = self._engine.frame_snapshot
        return self._engine.close_snapshot(unfold(data, self._recipe_of, most_bytes=most, frame=frame))

    def get_ready(self) -> None:
        """Does now what the first unfolding would have to do besides: imports, finding BLAS, the recipe's digest."""
        from pinfold.kv import codec  # noqa: F401 - for later
        from pinfold.kv.blas import ONE_THREAD

        if self.recipe is not None:
            self.recipe.digest()
        with ONE_THREAD:
            pass

    def later(self, job: Callable[[], T]) -> Future[T]:
        """Runs `job` on the folding thread, after those before it; cancelled before that, it never runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="pinfold-fold", daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return future

    def close(self) -> None:
        """Ends the thread once its jobs are done."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _recipe_of(self, digest: str) -> Recipe | None:
        if self.recipe is not None and self.recipe.digest() == digest:
            return self.recipe
        return self.find_recipe(digest)

    def _work(self) -> None:
        _step_back()
        while (each := self._jobs.get()) is not None:
            job, future = each
            if future.set_running_or_notify_cancel():
                try:
                    result = job()
                except Exception as e:
                    if not isinstance(e, PinfoldError):
                        log.exception("a session was not folded, stored or read; it stays where it is")
                    future.set_exception(e)
                else:
                    future.set_result(result)


def _step_back() -> None:
    """Lets every other thread go first: a fold is never in a hurry."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
