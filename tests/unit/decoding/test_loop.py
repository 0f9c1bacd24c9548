"""The batch loop over the scripted engine: sharing a forward, waiting for a prefix, running out of room, faults."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from pinfold.decoding.job import Failed, Finished, Job, Mark, Piece
from pinfold.decoding.loop import BatchLoop
from pinfold.engines.base import ForwardInterrupted, Span
from pinfold.engines.script import Script
from pinfold.errors import CacheFullError, DecodeError, RequestCancelledError, RequestTimeoutError
from pinfold.options import GenerationOptions
from pinfold.sessions.manager import SessionManager
from pinfold.sessions.pins import PinRecord
from tests.support.scripted import Sink, WatchedEngine

SYSTEM = "You are a careful assistant. " * 10


class Bench:
    """A loop, and the jobs put into it."""

    def __init__(self, replies: Any = ("An answer.",), chunk: int = 64, memory: int = 1 << 30, **options: Any) -> None:
        self.engine = WatchedEngine(Script(replies), **options)
        self.manager = SessionManager(self.engine, memory)
        self.loop = BatchLoop(self.engine, self.manager, chunk)

    def put(self, text: str, *, max_tokens: int | None = None, stop: tuple[str, ...] = (), **job: Any) -> Job:
        options = GenerationOptions(max_tokens=max_tokens, stop=stop)
        made = Job(self.engine.tokenizer.encode(text), Sink(), options, **job)
        self.loop.submit(made)
        return made

    def run(self, steps: int = 2000) -> None:
        for _ in range(steps):
            if not self.loop.busy:
                return
            self.loop.step()
        raise AssertionError("the loop never came to rest")

    def ask(self, text: str, **job: Any) -> Any:
        made = self.put(text, **job)
        self.run()
        return outcome(made)


def outcome(job: Job) -> Any:
    last = job.sink.last  # type: ignore[attr-defined]
    assert isinstance(last, Finished), last
    return last.outcome


def failure(job: Job) -> Exception:
    last = job.sink.last  # type: ignore[attr-defined]
    assert isinstance(last, Failed), last
    return last.error


def test_cached_tokens_are_exactly_what_was_skipped() -> None:
    bench = Bench()
    assert bench.ask(SYSTEM + "one").cached_tokens == 0
    before = bench.engine.evaluated
    done = bench.ask(SYSTEM + "two")
    assert done.cached_tokens == len(SYSTEM)
    assert done.prompt_tokens - done.cached_tokens == 3
    decoded = done.completion_tokens - 1  # the first token comes out of the prefill
    assert bench.engine.evaluated - before == 3 + decoded


def test_everyone_in_flight_shares_each_forward() -> None:
    bench = Bench(replies=["a" * 30, "b" * 30, "c" * 30])
    jobs = [bench.put(text, streams=True) for text in ("first", "other", "third")]
    bench.run()
    assert [outcome(job).text[0] for job in jobs] == ["a", "b", "c"]
    assert max(len(spans) for spans in bench.engine.forwards) == 3
    assert len(bench.engine.forwards) < 40


def test_a_long_prompt_does_not_stall_the_tokens_of_others() -> None:
    bench = Bench(replies=["x" * 200, "y"])
    running = bench.put("go", streams=True)
    for _ in range(3):
        bench.loop.step()
    bench.put("z" * 1000)
    bench.engine.forwards.clear()
    for _ in range(20):
        bench.loop.step()
    assert all([len(span.tokens) for span in spans] == [1, 16] for spans in bench.engine.forwards)
    assert sum(isinstance(e, Piece) for e in running.sink.events) == 23  # type: ignore[attr-defined]


def test_a_short_prompt_does_not_wait_for_a_long_one_and_the_long_one_does_not_starve() -> None:
    bench = Bench(chunk=64)
    bench.put("z" * 1000)
    bench.put("short")
    bench.loop.step()
    assert sorted(len(span.tokens) for span in bench.engine.forwards[0]) == [5, 59]


def test_a_prefix_that_several_wait_for_is_computed_once() -> None:
    bench = Bench()
    jobs = [bench.put(SYSTEM + text) for text in ("alpha", "beta", "gamma")]
    bench.run()
    assert [outcome(job).cached_tokens for job in jobs] == [0, len(SYSTEM), len(SYSTEM)]
    prompts = len(SYSTEM) + len("alpha") + len("beta") + len("gamma")
    assert bench.engine.evaluated == prompts + sum(outcome(job).completion_tokens - 1 for job in jobs)


def test_salts_do_not_wait_for_each_other() -> None:
    bench = Bench()
    jobs = [bench.put(SYSTEM + "same", salt=salt) for salt in ("a", "b")]
    bench.run()
    assert [outcome(job).cached_tokens for job in jobs] == [0, 0]


def test_the_one_that_others_wait_for_may_be_cancelled() -> None:
    bench = Bench()
    first, second = bench.put(SYSTEM + "first"), bench.put(SYSTEM + "second")
    bench.loop.step()
    first.cancelled = True
    bench.run()
    assert isinstance(failure(first), RequestCancelledError)
    assert outcome(second).cached_tokens == 64  # what was computed before the cancellation


@pytest.mark.parametrize("steps", range(8))
def test_a_cancelled_request_leaves_tokens_and_kv_in_agreement(steps: int) -> None:
    bench = Bench(replies=["An answer that goes on for a while."])
    job = bench.put(SYSTEM)
    for _ in range(steps):
        bench.loop.step()
    job.cancelled = True
    bench.loop.step()
    assert not bench.loop.busy
    assert isinstance(failure(job), RequestCancelledError)
    for entry in bench.manager.space.shelf:
        assert entry.seq is not None
        assert bench.engine._sequences[entry.seq].tokens == entry.tokens
    assert bench.ask(SYSTEM + "!").text == "An answer that goes on for a while."


def test_an_interrupted_forward_is_done_again() -> None:
    bench = Bench()
    faults = iter([ForwardInterrupted(), None, ForwardInterrupted()])

    def fault(_: Sequence[Span]) -> None:
        if (error := next(faults, None)) is not None:
            raise error

    bench.engine.fault = fault
    assert bench.ask("Hello there").text == "An answer."


def test_a_deadline_stops_a_request_that_runs_and_one_that_waits() -> None:
    bench = Bench(replies=["x" * 10_000], n_ctx=20_000)
    job = bench.put("go", deadline=time.perf_counter() + 0.02)
    late = bench.put("go", deadline=time.perf_counter() - 1)
    bench.run(steps=20_000)
    assert isinstance(failure(job), RequestTimeoutError)
    assert isinstance(failure(late), RequestTimeoutError)


def test_the_youngest_is_paused_when_the_kv_is_full_and_ends_the_same() -> None:
    bench = Bench(replies=lambda prompt: prompt[0] * (310 - len(prompt)), n_ctx=512, kv_cells=512)
    jobs = [bench.put("a question"), bench.put("b question")]
    bench.run()
    assert [outcome(job).text for job in jobs] == ["a" * 300, "b" * 300]
    assert any("paused" in note for note in outcome(jobs[1]).notes)
    assert outcome(jobs[1]).cached_tokens == 0  # what it found after the pause was its own work


def test_a_kv_that_is_full_for_one_request_fails_that_request_only() -> None:
    bench = Bench()

    def fault(_: Sequence[Span]) -> None:
        bench.engine.fault = None
        raise CacheFullError("full")

    bench.engine.fault = fault
    job = bench.put("question")
    bench.run()
    assert isinstance(failure(job), CacheFullError)
    assert bench.ask("question").text == "An answer."


def test_a_failed_forward_on_a_reused_prefix_is_tried_again_from_the_start() -> None:
    bench = Bench()
    bench.ask(SYSTEM + "one")

    def fault(_: Sequence[Span]) -> None:
        bench.engine.fault = None
        raise DecodeError("broken")

    bench.engine.fault = fault
    done = bench.ask(SYSTEM + "two")
    assert done.text == "An answer."
    assert done.cached_tokens == 0
    assert "from the start" in done.notes[0]


def test_a_failed_forward_without_reuse_fails_the_request_and_leaves_nothing_behind() -> None:
    bench = Bench()

    def fault(_: Sequence[Span]) -> None:
        raise DecodeError("broken")

    bench.engine.fault = fault
    job = bench.put(SYSTEM)
    bench.run()
    assert isinstance(failure(job), DecodeError)
    assert len(bench.manager.space.shelf) == 0
    assert bench.engine.free_cells() == bench.engine.capabilities.n_cells


def test_logits_that_are_no_numbers_fail_one_request() -> None:
    bench = Bench()
    good, bad = bench.put("good question"), bench.put("bad question")
    evaluate = bench.engine._evaluate

    def poison(span: Span) -> Any:
        rows = evaluate(span)
        if rows is not None and bench.engine._sequences[span.seq].tokens[:3] == list(b"bad"):
            rows[:] = float("nan")
        return rows

    bench.engine._evaluate = poison  # type: ignore[method-assign]
    bench.run()
    assert isinstance(failure(bad), DecodeError)
    assert outcome(good).text == "An answer."


def test_a_mark_pins_the_prefix_once_and_counts_what_it_cost() -> None:
    bench = Bench()
    mark = Mark(len(SYSTEM), 60.0)
    first = bench.ask(SYSTEM + "one", marks=(mark,))
    assert first.created_tokens == len(SYSTEM)
    second = bench.ask(SYSTEM + "two", marks=(mark,))
    assert (second.cached_tokens, second.created_tokens) == (len(SYSTEM), 0)
    assert second.source.startswith("pin 'auto:")
    (pin,) = bench.manager.pins()
    assert (pin.tokens, pin.hits) == (len(SYSTEM), 1)


def test_a_pin_that_was_evicted_is_named_in_the_report_and_comes_back() -> None:
    bench = Bench(n_ctx=512, kv_cells=512, memory=0)
    done = bench.ask(SYSTEM, pin=PinRecord("coder", bench.engine.tokenizer.encode(SYSTEM), None, None))
    assert done.pin.tokens == len(SYSTEM)
    assert done.created_tokens == len(SYSTEM)
    bench.manager.space.make_room(512)
    again = bench.ask(SYSTEM + "question")
    assert (again.miss.pin, again.miss.evicted, again.cached_tokens) == ("coder", True, 0)
    third = bench.ask(SYSTEM + "another")
    assert (third.miss, third.source) == (None, "pin 'coder'")


def test_a_miss_says_where_the_prompt_left_the_nearest_pin() -> None:
    bench = Bench()
    bench.ask(SYSTEM, pin=PinRecord("coder", bench.engine.tokenizer.encode(SYSTEM), None, None))
    miss = bench.ask(SYSTEM[:100] + "#" + SYSTEM[101:]).miss
    assert (miss.pin, miss.shared, miss.length, miss.evicted) == ("coder", 100, len(SYSTEM), False)


def test_a_stop_string_ends_the_answer_and_never_shows() -> None:
    bench = Bench(replies=["one two STOP three"])
    job = bench.put("go", stop=("STOP",), streams=True)
    bench.run()
    assert outcome(job).text == "one two "
    assert "".join(e.text for e in job.sink.events if isinstance(e, Piece)) == "one two "  # type: ignore[attr-defined]


def test_max_tokens_and_the_context_end_an_answer() -> None:
    bench = Bench(replies=["x" * 1000], n_ctx=128)
    done = bench.ask("go", max_tokens=7)
    assert (done.text, done.finish_reason, done.completion_tokens) == ("x" * 7, "length", 7)
    done = bench.ask("go")
    assert (done.finish_reason, done.prompt_tokens + done.completion_tokens) == ("length", 128)
