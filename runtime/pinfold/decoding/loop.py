"""One forward per step for all requests in flight."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinfold.decoding.drafting import Drafting
from pinfold.decoding.generation import Generation
from pinfold.decoding.job import Job
from pinfold.decoding.pinning import Pinning
from pinfold.decoding.planner import Planner
from pinfold.engines.base import Engine, ForwardInterrupted, Span
from pinfold.errors import (
    CacheFullError,
    DecodeError,
    PinfoldError,
    RequestCancelledError,
    RequestTimeoutError,
    TrimError,
)
from pinfold.sessions.manager import SessionManager
from pinfold.sessions.pins import PinRecord
from pinfold.sessions.prefix_tree import common_prefix
from pinfold.sessions.shelf import MIN_REUSE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["BatchLoop"]

log = logging.getLogger("pinfold.worker")

# Cells kept free for each request's answer when another is let in; one that outgrows them may pause the youngest.
_HEADROOM = 128
# Ids kept free for the pins that running requests make.
_SPARE_SEQS = 2
# Seconds between the pieces of a stream on a CPU, where the reader takes a core from the forward each time it wakes.
_STREAM_PAUSE = 0.03
# Times that one request is paused for others before it fails.
_MOST_PAUSES = 8


class BatchLoop:
    """Lets requests in, runs them together, and hands their KV back. Everything runs on the engine's thread."""

    def __init__(
        self, engine: Engine, manager: SessionManager, prefill_chunk: int, drafting: Drafting | None = None
    ) -> None:
        self._engine = engine
        self._drafting = drafting
        self._pinning = Pinning(manager)
        self._manager = manager
        self._capabilities = engine.capabilities
        self._cuts = engine.capabilities.trim == "any"
        self._planner = Planner(prefill_chunk, engine.max_tokens, cuts=self._cuts)
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self.in_flight: tuple[Generation, ...] = ()
        """Requests in the forward that runs now; read by other threads that want to interrupt it."""

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._waiting or self._running)

    def submit(self, job: Job) -> None:
        """Takes the job in; it starts when there is room."""
        room = self._capabilities.n_ctx - len(job.tokens)
        limit = min(job.options.max_tokens or room, room)
        pause = _STREAM_PAUSE if self._capabilities.device == "cpu" else 0.0
        g = Generation(job, self._engine.tokenizer, limit, pause)
        if self._drafting is not None:
            self._drafting.begin(g)
        g.cells = self._manager.library.cells_of(job.session, job.salt)
        self._waiting.append(g)

    def step(self) -> None:
        """One forward, and what follows from it."""
        self._reap()
        if self._waiting:
            self._manager.expire_pins()
            self._admit()
        if self._drafting is not None:
            self._drafting.plan(self._running)
        planned = self._plan_within_room()
        if not planned:
            return
        spans = [span for _, span in planned]
        self.in_flight = tuple(g for g, _ in planned)
        began = time.perf_counter()
        try:
            logits = self._engine.forward(spans)
        except ForwardInterrupted:
            return
        except CacheFullError as e:
            self._make_way(e)
            return
        except DecodeError as e:
            self._recover([g for g, _ in planned], e)
            return
        finally:
            self.in_flight = ()
        if self._drafting is not None and not any(g.in_prefill for g, _ in planned):
            self._drafting.learn(sum(len(span.tokens) for span in spans), time.perf_counter() - began)
        for (g, span), rows in zip(planned, logits, strict=True):
            self._advance(g, span, rows)

    def fail_all(self, error: PinfoldError) -> None:
        """Ends every request with `error`."""
        for g in [*self._running, *self._waiting]:
            self._fail(g, error)

    # --- letting requests in

    def _reap(self) -> None:
        now = time.perf_counter()
        for g in [*self._running, *self._waiting]:
            if g.job.cancelled:
                self._fail(g, RequestCancelledError("The request was cancelled."))
            elif g.job.deadline is not None and now > g.job.deadline:
                msg = f"The request was stopped after {now - g.job.created:.1f} s. Give it a longer timeout."
                self._fail(g, RequestTimeoutError(msg))

    def _admit(self) -> None:
        alone = not self._running  # several that start together all find the cells cleared
        for g in list(self._waiting):
            if len(self._running) + _SPARE_SEQS >= self._capabilities.n_seq or not self._fits(g):
                return
            if self._should_wait(g):
                continue
            try:
                self._start(g, alone=alone)
            except PinfoldError as e:
                self._fail(g, e)
            else:
                self._waiting.remove(g)
                self._running.append(g)

    def _fits(self, g: Generation) -> bool:
        held = sum(len(other.tokens) + _HEADROOM for other in self._running)
        return not self._running or held + len(g.tokens) + _HEADROOM <= self._capabilities.n_cells

    def _should_wait(self, g: Generation) -> bool:
        """Whether a running request is about to compute a longer prefix of `g` than is known: compute it once."""
        if not self._cuts or g.cold:
            return False
        if g.waits_for is not None:
            other, length = g.waits_for
            if other.seq is not None:
                return other.evaluated < length
            g.waits_for = None  # it has ended, or was paused: look again
        best, length = self._longest_in_flight(g)
        if best is None or length < self._manager.best_length(g.tokens, g.job.salt, g.cells) + MIN_REUSE:
            return False
        g.waits_for = (best, length)
        return best.evaluated < length

    def _longest_in_flight(self, g: Generation) -> tuple[Generation | None, int]:
        best, longest = None, 0
        for other in self._running:
            if (other.job.salt, other.cells) == (g.job.salt, g.cells):
                shared = min(common_prefix(other.tokens, g.tokens), len(g.tokens) - 1)
                if shared > longest:
                    best, longest = other, shared
        return best, longest

    def _start(self, g: Generation, *, alone: bool) -> None:
        tokens, salt = g.tokens, g.job.salt
        other, length = g.waits_for or (None, 0)
        if other is not None and other.seq is not None and other.evaluated >= length:
            start = self._manager.start_from(other.seq, length)
        else:
            start = self._manager.start(tokens, salt, g.cells, cold=g.cold, alone=alone)
        if g.cells and not start.length:
            g.note(f"nothing in {g.cells} cells begins this prompt: it runs in the engine's own")
            g.cells = ""
        if start.note:
            g.note(start.note)
        g.started(start, self._pinning.use(g, start.length))

    # --- running them

    def _plan_within_room(self) -> list[tuple[Generation, Span]]:
        while self._running:
            planned = self._planner.plan(self._running)
            if self._manager.space.make_room(sum(len(span.tokens) for _, span in planned)):
                return planned
            self._make_way(CacheFullError("The KV is full and nothing idle is left to give up. Raise kv_cells."))
        return []

    def _make_way(self, error: CacheFullError) -> None:
        """Pauses the youngest request for the others' sake; fails it if it is the only one, or was paused too often."""
        youngest = self._running[-1]
        if len(self._running) == 1 or youngest.pauses >= _MOST_PAUSES:
            self._fail(youngest, error)
            return
        self._abandon(youngest)
        youngest.pauses += 1
        youngest.note("paused and computed again, because the KV was full")
        self._waiting.appendleft(youngest)

    def _recover(self, hit: Sequence[Generation], error: DecodeError) -> None:
        """After a failed forward: a request that began on a reused prefix is tried once more from the start."""
        log.error("a forward failed: %s", error)
        for g in hit:
            if g.cached and not g.cold:
                self._abandon(g)
                g.cold = True
                g.note("the forward failed on a reused prefix; the prompt was computed again from the start")
                self._waiting.append(g)
            else:
                self._fail(g, error)

    def _advance(self, g: Generation, span: Span, rows: NDArray[np.float32] | None) -> None:
        g.evaluated += len(span.tokens) - len(g.draft)
        if g.marks or g.lost_pins:
            self._pinning.keep_due(g)
        if g.job.pin is not None and g.evaluated == len(g.tokens):
            self._finish_pin(g, g.job.pin)
        elif rows is None:
            g.report_progress()
        else:
            self._take(g, rows)

    def _take(self, g: Generation, rows: NDArray[np.float32]) -> None:
        """Takes what the rows say, and cuts the KV back to the tokens that stand."""
        drafted, reason = bool(g.draft), None
        try:
            reason = g.take_all(rows)
        except PinfoldError as e:
            if not drafted or self._cut_back(g):
                self._fail(g, e)
            else:
                self._abandon(g)
                g.fail(e)
            return
        cut = not drafted or self._cut_back(g)
        if reason is not None:
            if self._drafting is not None:
                self._drafting.ended(g)
            self._give_back(g) if cut else self._abandon(g)
            g.finish(reason)
        elif not cut:
            self._abandon(g)
            self._waiting.appendleft(g)

    def _cut_back(self, g: Generation) -> bool:
        """Drops the KV of guesses that were wrong; False if the sequence was lost, and with it the right to draft."""
        if g.seq is None:
            return False
        try:
            self._engine.trim(g.seq, g.evaluated)
            if self._engine.length(g.seq) == g.evaluated:
                return True
            why = f"the KV has {self._engine.length(g.seq)} tokens and not {g.evaluated}"
        except TrimError as e:
            why = str(e)
        g.stop_drafting(f"a draft could not be taken back ({why}); what it stood on was computed again")
        return False

    def _finish_pin(self, g: Generation, record: PinRecord) -> None:
        if g.seq is None:
            return
        try:
            self._manager.pin(g.seq, record)
        except PinfoldError as e:
            self._fail(g, e)
            return
        g.created_pin(len(record.tokens))
        self._abandon(g)
        g.finish("stop", self._manager.view(record))

    def _give_back(self, g: Generation) -> None:
        """Keeps the request's KV, which holds exactly the first `evaluated` of its tokens."""
        self._running.remove(g)
        if g.seq is not None:
            self._manager.finish(g.seq, g.tokens, g.job.salt, g.job.session)
        g.paused()

    def _abandon(self, g: Generation) -> None:
        """Forgets the request's KV."""
        self._running.remove(g)
        if g.seq is not None:
            self._manager.space.abandon(g.seq)
        g.paused()

    def _fail(self, g: Generation, error: PinfoldError) -> None:
        if g in self._waiting:
            self._waiting.remove(g)
        elif isinstance(error, DecodeError):
            self._abandon(g)
        else:
            self._give_back(g)
        g.fail(error)
