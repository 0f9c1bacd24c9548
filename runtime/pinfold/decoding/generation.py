"""One request while it runs: its tokens, its sampler, its text and its clock."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pinfold.decoding.arbiter import Trail
from pinfold.decoding.job import DraftFacts, Failed, Finished, Job, Mark, MissFacts, Outcome, Piece, Progress
from pinfold.decoding.sampling import Sampler
from pinfold.decoding.thought import Thought
from pinfold.engines.base import Tokenizer
from pinfold.errors import PinfoldError
from pinfold.output.stop import StopScanner
from pinfold.output.text import TextDecoder
from pinfold.output.tool_calls import MARKUP
from pinfold.sessions.manager import Start
from pinfold.sessions.pins import Pin, PinRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Generation"]

_PROGRESS_AFTER = 1.0
# Control tokens begin so in every vocabulary; asking for each token would cost more than looking.
_FIRST_OF_MARKUP = (b"<", b"[")


class Generation:
    """State of one job. `tokens` is the prompt and what was generated; the first `evaluated` of them are in the KV.

    A streamed piece follows the one before it by at least `pause` seconds.

    It waits while `seq` is None, computes its prompt while more than one token is not evaluated, and then decodes.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer, limit: int, pause: float) -> None:
        self.job = job
        self.tokens = list(job.tokens)
        self.seq: int | None = None
        self.evaluated = 0
        self.cells = ""  # types of the cells that it runs in, as `Entry.cells`
        self.cold = False  # start without looking for a prefix: the last try failed on one
        self.pauses = 0
        self.waits_for: tuple[Generation, int] | None = None
        self.marks: list[Mark] = sorted(job.marks, key=lambda mark: mark.length)
        self.lost_pins: list[PinRecord] = []
        self.trail: Trail | None = None
        self.draft: list[int] = []  # guessed tokens in the forward that runs now
        self._tokenizer = tokenizer
        self._limit = limit
        self._pause = pause
        self._unsent = ""
        self._sent_at = 0.0
        self._sampler = Sampler(job.options, job.tokens)
        self._decoder = TextDecoder()
        self._stops = StopScanner(job.options.stop)
        self._thought = Thought(job.reasoning) if job.reasoning is not None else None
        self._text: list[str] = []
        self._generated = 0
        self._start: Start | None = None
        self._miss: MissFacts | None = None
        self._created_tokens = 0
        self._notes: list[str] = []
        self._started = 0.0
        self._first_token = 0.0
        self._facts = DraftFacts()

    @property
    def in_prefill(self) -> bool:
        """Whether prompt tokens are left to compute."""
        return len(self.tokens) - self.evaluated > 1 or self._generated == 0

    @property
    def cached(self) -> int:
        """Prompt tokens that were found computed when it first started."""
        return self._start.length if self._start else 0

    def started(self, start: Start, miss: MissFacts | None) -> None:
        """It has a sequence now, that begins with ``start.length`` tokens."""
        self.seq = start.seq
        self.evaluated = start.length
        self.waits_for = None
        if self._start is None:
            self._start = start
            self._miss = miss
            self._started = time.perf_counter()
        elif self.cold:
            self._start = start

    def paused(self) -> None:
        """Its sequence was taken away; if it is to go on, it starts from what is then known."""
        self.seq = None
        self.evaluated = 0

    def note(self, text: str) -> None:
        """Something about reuse that the report should say."""
        self._notes.append(text)

    def created_pin(self, length: int) -> None:
        """The first `length` tokens are pinned now, those beyond the cached ones by this request's work."""
        self._created_tokens = max(self._created_tokens, length - self.cached)

    def report_progress(self) -> None:
        """Tells the caller how far the prompt is, once it has taken more than a second."""
        if self.job.reports_progress and time.perf_counter() - self._started > _PROGRESS_AFTER:
            self.job.sink.put(Progress(min(self.evaluated, len(self.job.tokens)), len(self.job.tokens)))

    def plan_draft(self, rows: int, most: int) -> int:
        """Chooses what to verify in a forward that has `rows` rows without it; returns how many tokens, 0 to `most`."""
        most = min(most, self._limit - self._generated - 1)
        self.draft = self.trail.draft(rows, most) if self.trail is not None else []
        return len(self.draft)

    def take_all(self, rows: NDArray[np.float32]) -> Literal["stop", "length"] | None:
        """Takes tokens from rows of logits [1 + drafted, n_vocab] for as long as the draft was right.

        A token is what it would have been without the draft: each row is looked at only if its predecessors came out
        as guessed, and picked from as always. `evaluated` grows by the guesses that came true.

        Raises:
            PinfoldError: as `take`.
        """
        right, reason = 0, None
        for place, row in enumerate(rows):
            known = len(self.tokens)
            reason = self.take(row)
            guessed = self.draft[place] if place < len(self.draft) else None
            hit = len(self.tokens) > known and self.tokens[-1] == guessed
            right += hit
            if reason is not None or not hit:
                break
        self.evaluated += right
        if self.trail is not None:
            if self.draft:
                self.trail.verified(len(self.draft), right, min(place + 1, len(self.draft)))
            elif reason is None:
                self.trail.came(self.tokens[-1])
        self.draft = []
        return reason

    def stop_drafting(self, reason: str) -> None:
        """From now on this request decodes plainly."""
        if self.trail is not None:
            self._facts = replace(self.trail.facts(), reason=reason)
            self._close_trail()

    def _close_trail(self) -> None:
        if self.trail is not None:
            self.trail.close()
            self.trail = None

    def take(self, logits: NDArray[np.float32]) -> Literal["stop", "length"] | None:
        """Picks the next token from a row of logits [n_vocab] (which it may overwrite); says whether that was the last.

        Raises:
            PinfoldError: the logits or the grammar are broken.
        """
        constraint = self.job.constraint
        ending = self._thought.next_of_ending() if self._thought is not None else None
        token = self._pick(logits) if ending is None else ending
        if not self._generated:
            self._first_token = time.perf_counter()
        self._generated += 1
        if token in self._tokenizer.end_tokens:
            return "stop"
        self._sampler.accept(token)
        self.tokens.append(token)
        text = self._decoder.feed(self._said(token))
        if self._thought is not None:
            self._thought.feed(text)
        if self._show(text):
            return "stop"
        if constraint is not None:
            constraint.accept(token)
            if constraint.finished:
                return "stop"
        return "length" if self._generated >= self._limit else None

    def _pick(self, logits: NDArray[np.float32]) -> int:
        """The next token. Where a grammar allows what greedy takes without one, no mask is made."""
        constraint = self.job.constraint
        if constraint is not None:
            likeliest = self._sampler.likeliest(logits)
            if likeliest is not None and constraint.allows(likeliest):
                return likeliest
            constraint.apply(logits)
        return self._sampler.pick(logits)

    def finish(self, reason: Literal["stop", "length"], pin: Pin | None = None) -> None:
        """Tells the caller that it has ended well."""
        if not self._stops.stopped:
            self._show(self._decoder.finish())
            self._emit(self._stops.finish())
        if self.job.streams and self._unsent:
            self._send()
        self.job.ended = True
        self.job.sink.put(Finished(self._outcome(reason, pin)))
        self._close_trail()

    def fail(self, error: PinfoldError) -> None:
        """Tells the caller that it has not."""
        self.job.ended = True
        self.job.sink.put(Failed(error))
        self._close_trail()

    def _said(self, token: int) -> bytes:
        """What `token` says: nothing, where it is markup that no parser reads."""
        piece = self._tokenizer.piece(token)
        if piece[:1] in _FIRST_OF_MARKUP and piece not in MARKUP and self._tokenizer.is_control(token):
            return b""
        return piece

    def _show(self, text: str) -> bool:
        shown, stopped = self._stops.feed(text)
        self._emit(shown)
        return stopped

    def _emit(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._unsent += text
            if self.job.streams and time.perf_counter() - self._sent_at >= self._pause:
                self._send()

    def _send(self) -> None:
        self.job.sink.put(Piece(self._unsent))
        self._unsent = ""
        self._sent_at = time.perf_counter()

    def _outcome(self, reason: Literal["stop", "length"], pin: Pin | None) -> Outcome:
        now = time.perf_counter()
        first = self._first_token or now
        return Outcome(
            text="".join(self._text),
            finish_reason=reason,
            prompt_tokens=len(self.job.tokens),
            hit=self._start.hit if self._start else "miss",
            cached_tokens=self.cached,
            created_tokens=self._created_tokens,
            completion_tokens=self._generated,
            reasoning_tokens=self._thought.tokens if self._thought is not None else 0,
            source=self._start.source if self._start else None,
            miss=self._miss,
            notes=tuple(self._notes),
            queue_s=self._started - self.job.created,
            ttft_s=first - self.job.created,
            restore_s=self._start.restore_s if self._start else 0.0,
            prefill_s=first - self._started,
            decode_s=now - first,
            pin=pin,
            draft=self.trail.facts() if self.trail is not None else self._facts,
        )
