"""Events of a job -> the deltas and the completion that the caller sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from pinfold.decoding.job import DraftFacts, Event, Finished, MissFacts, Outcome, Piece, Progress
from pinfold.output.parser import OutputParser, Parsed
from pinfold.prompt.renderer import Prompt
from pinfold.results import CacheReport, Completion, Delta, DraftReport, FinishReason, Miss, Timings, Usage

__all__ = ["Answer", "PlainText", "miss_of"]


class PlainText:
    """A parser for answers that are text and nothing else."""

    def feed(self, text: str) -> Parsed:
        """All of `text`."""
        return Parsed(text=text)

    def finish(self, *, cut: bool = False) -> Parsed:  # noqa: ARG002 - text has no end that could be missing
        """Nothing: no text is ever held back."""
        return Parsed()


class Answer:
    """Assembles one answer. `feed` gives a delta for each event that has something to show; the last has `done`."""

    def __init__(
        self,
        prompt: Prompt,
        parser: OutputParser | PlainText,
        *,
        model: str,
        draft: str,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._prompt = prompt
        self._parser = parser
        self._model = model
        self._draft = draft
        self._progress = progress
        self._whole = Parsed()
        self._streamed = False

    def feed(self, event: Event) -> Delta | None:
        """What `event` adds to the answer, None if there is nothing to show."""
        if isinstance(event, Piece):
            self._streamed = True
            parsed = self._add(self._parser.feed(event.text))
            return _delta(parsed) if parsed != Parsed() else None
        if isinstance(event, Finished):
            return self._finish(event.outcome)
        if isinstance(event, Progress) and self._progress is not None:
            self._progress(event.done, event.total)
        return None

    def _add(self, parsed: Parsed) -> Parsed:
        self._whole += parsed
        return parsed

    def _finish(self, outcome: Outcome) -> Delta:
        parsed = Parsed() if self._streamed else self._add(self._parser.feed(outcome.text))
        parsed += self._add(self._parser.finish(cut=outcome.finish_reason == "length"))
        return _delta(parsed, self._completion(outcome))

    def _completion(self, outcome: Outcome) -> Completion:
        whole = self._whole
        called = bool(whole.tool_calls or whole.invalid_tool_calls) and outcome.finish_reason == "stop"
        reason: FinishReason = "tool_calls" if called else outcome.finish_reason
        return Completion(
            text=whole.text,
            reasoning=whole.reasoning,
            tool_calls=whole.tool_calls,
            invalid_tool_calls=whole.invalid_tool_calls,
            finish_reason=reason,
            model=self._model,
            usage=Usage(
                prompt_tokens=outcome.prompt_tokens,
                cached_tokens=outcome.cached_tokens,
                cache_creation_tokens=outcome.created_tokens,
                completion_tokens=outcome.completion_tokens,
                reasoning_tokens=outcome.reasoning_tokens,
            ),
            cache=CacheReport(
                hit_kind=outcome.hit,
                cached_tokens=outcome.cached_tokens,
                source=outcome.source,
                miss=miss_of(self._prompt, outcome.miss) if outcome.miss else None,
                notes=(*self._prompt.notes, *outcome.notes),
            ),
            draft=_draft_report(self._draft, outcome.draft),
            timings=_timings(outcome),
        )


def miss_of(prompt: Prompt, facts: MissFacts) -> Miss:
    """Where `prompt` parted from its nearest pin, in words."""
    lost = facts.length - facts.shared
    if facts.evicted:
        reason = "Its KV was lost for lack of room and is computed again now. Raise kv_cells or kv_memory."
        return Miss(facts.pin, "evicted", "the KV of the pin", facts.shared, lost, reason)
    if facts.shared >= len(prompt.tokens):
        reason = "The prompt ends before the pinned prefix does."
        return Miss(facts.pin, "message", "the end of the prompt", facts.shared, lost, reason)
    place = prompt.place(facts.shared)
    reason = f"The prompt differs from pin {facts.pin!r} in {place.where}; what follows cannot be reused."
    return Miss(facts.pin, place.kind, place.where, facts.shared, lost, reason)


def _delta(parsed: Parsed, done: Completion | None = None) -> Delta:
    return Delta(parsed.text, parsed.reasoning, parsed.tool_calls, parsed.invalid_tool_calls, done)


def _draft_report(requested: str, facts: DraftFacts) -> DraftReport:
    used = {source: asdict(counts) for source, counts in facts.sources.items() if counts.drafted}
    reason = facts.reason
    if requested == "off":
        reason = "it was asked for"
    elif not used:
        reason = reason or "nothing that could be guessed was worth verifying"
    return DraftReport(
        requested=requested,
        effective="+".join(used) or "off",
        reason=reason,
        rounds=facts.rounds,
        cost=round(facts.cost, 2),
        drafted=sum(counts["drafted"] for counts in used.values()),
        accepted=sum(counts["accepted"] for counts in used.values()),
        sources=used,
    )


def _timings(outcome: Outcome) -> Timings:
    computed = outcome.prompt_tokens - outcome.cached_tokens
    steps = outcome.completion_tokens - 1  # the first token comes out of the prefill
    return Timings(
        queue_s=outcome.queue_s,
        ttft_s=outcome.ttft_s,
        restore_s=outcome.restore_s,
        prefill_s=outcome.prefill_s,
        decode_s=outcome.decode_s,
        prompt_tps=computed / outcome.prefill_s if outcome.prefill_s > 0 else 0.0,
        decode_tps=steps / outcome.decode_s if outcome.decode_s > 0 and steps > 0 else 0.0,
    )
