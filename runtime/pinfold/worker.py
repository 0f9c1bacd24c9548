"""The engine's one thread: a queue in front of it, batching on it, cancellation through it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from pinfold.decoding.drafting import Drafting
from pinfold.decoding.job import Failed, Job
from pinfold.decoding.loop import BatchLoop
from pinfold.engines.base import Engine
from pinfold.errors import EngineError, PinfoldError, RuntimeClosedError
from pinfold.sessions.manager import SessionManager
from pinfold.sessions.upkeep import Upkeep

__all__ = ["Worker"]

log = logging.getLogger("pinfold.worker")
R = TypeVar("R")
Post = Callable[[Callable[[], None]], None]
Keep = Callable[[Engine, Post], tuple[SessionManager, Upkeep]]
Draft = Callable[[Engine, SessionManager], Drafting | None]

_AFTER_A_FAULT = 60.0


def _no_drafting(_engine: Engine, _manager: SessionManager) -> None:
    """Decoding is plain."""


class Worker:
    """Opens the engine on a thread of its own and runs jobs on it until `close`. Safe from any thread.

    `keep` makes the engine's sessions and their upkeep, which runs while no job does; `draft` makes its drafting.
    """

    def __init__(
        self, open_engine: Callable[[], Engine], keep: Keep, draft: Draft = _no_drafting, *, prefill_chunk: int
    ) -> None:
        self._open_engine = open_engine
        self._keep = keep
        self._draft = draft
        self._prefill_chunk = prefill_chunk
        self._resting = False
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        opened: Future[Engine] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="pinfold-engine", daemon=True)
        self._thread.start()
        self.engine = opened.result()

    def submit(self, job: Job) -> None:
        """Queues `job`; its events go to its sink. Raises RuntimeClosedError."""
        self._put(lambda: self._submit(job))
        self._end_rest()

    @contextmanager
    def running(self, job: Job) -> Iterator[None]:
        """Submits `job`; however the block is left, its work has ended or is cancelled."""
        self.submit(job)
        try:
            yield
        finally:
            self.cancel(job)

    def cancel(self, job: Job) -> None:
        """Stops `job` within one step; a forward that only serves cancelled jobs is interrupted."""
        if job.ended:
            return
        job.cancelled = True
        in_flight = self._loop.in_flight
        if in_flight and all(g.job.cancelled for g in in_flight):
            self.engine.interrupt()
        self._commands.put(_nothing)

    def call(self, function: Callable[[SessionManager], R]) -> R:
        """Runs `function` on the engine's thread, between two steps, and returns what it returns."""
        future: Future[R] = Future()

        def run() -> None:
            try:
                future.set_result(function(self._manager))
            except PinfoldError as e:
                future.set_exception(e)

        self._put(run)
        return future.result()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def close(self) -> None:
        """Ends all requests with RuntimeClosedError and frees the engine. Calling it twice is fine."""
        with self._lock:
            self._closing.set()
        self.engine.interrupt()
        self._commands.put(_nothing)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _put(self, command: Callable[[], None]) -> None:
        with self._lock:  # nothing may enter the queue after the thread has emptied it for the last time
            if self._closing.is_set():
                msg = "This Runtime is closed. Open a new one."
                raise RuntimeClosedError(msg)
            self._commands.put(command)

    def _submit(self, job: Job) -> None:
        if self._closing.is_set():
            job.sink.put(Failed(RuntimeClosedError("The Runtime was closed before the request ran.")))
        else:
            self._loop.submit(job)

    def _run(self, opened: Future[Engine]) -> None:
        try:
            engine = self._open_engine()
        except Exception as e:  # noqa: BLE001 - whatever it is, it belongs to the caller who waits for the engine
            opened.set_exception(e)
            return
        try:
            self._manager, self._upkeep = self._keep(engine, self._commands.put)
        except Exception as e:  # noqa: BLE001 - as above
            engine.close()
            opened.set_exception(e)
            return
        try:
            self._drafting = self._draft(engine, self._manager)
        except Exception as e:  # noqa: BLE001 - as above
            self._put_in_order()
            engine.close()
            opened.set_exception(e)
            return
        self._loop = BatchLoop(engine, self._manager, self._prefill_chunk, self._drafting)
        opened.set_result(engine)
        try:
            patience: float | None = 0.0
            while not self._closing.is_set():
                self._drain(patience)
                self._step()
                patience = 0.0 if self._loop.busy else self._rest()
        finally:
            self._loop.fail_all(RuntimeClosedError("The Runtime was closed while the request ran."))
            self._drain(0.0)
            self._put_in_order()
            if self._drafting is not None:
                self._drafting.close()
            engine.close()

    def _drain(self, patience: float | None) -> None:
        """Runs what is queued; waits for the first up to `patience` seconds, None for ever."""
        try:
            self._commands.get(block=patience != 0.0, timeout=patience or None)()
            while True:
                self._commands.get(block=False)()
        except queue.Empty:
            return

    def _rest(self) -> float | None:
        """Nothing runs: does a piece of upkeep; returns the seconds until the next."""
        self._resting = True
        try:
            if self._drafting is not None and self._drafting.rest():
                return 0.0
            return self._upkeep.step()
        except Exception:
            log.exception("upkeep failed; it goes on later")
            return _AFTER_A_FAULT
        finally:
            self._resting = False

    def _end_rest(self) -> None:
        """A request waits: a forward that only serves upkeep is interrupted, and made again later."""
        if self._resting:
            self.engine.interrupt()

    def _put_in_order(self) -> None:
        try:
            self._upkeep.settle()
            self._drain(0.0)  # what its thread had to say
            self._upkeep.flush()
        except Exception:
            log.exception("not everything was put on disk")

    def _step(self) -> None:
        if not self._loop.busy:
            return
        self._upkeep.disturbed()
        try:
            self._loop.step()
        except Exception as e:
            log.exception("a step failed")
            error = EngineError(f"The engine's thread met an unexpected fault ({type(e).__name__}: {e}).")
            error.__cause__ = e
            self._loop.fail_all(error)


def _nothing() -> None:
    """Wakes the thread up."""
