"""Draft-verify over the scripted engine: whatever the drafter says, the answer is the one without it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.decoding.costs import POINTS, ForwardCosts
from pinfold.decoding.drafters.base import Guess
from pinfold.decoding.drafting import Drafting
from pinfold.decoding.job import Finished, Job, Piece
from pinfold.decoding.loop import BatchLoop
from pinfold.engines.base import ForwardInterrupted
from pinfold.engines.script import Script
from pinfold.errors import DecodeError, TrimError
from pinfold.options import GenerationOptions
from pinfold.output.constrain import tool_call_constraint
from pinfold.sessions.manager import SessionManager
from tests.support.scripted import Sink, WatchedEngine

REPLY = "The clerk weighs the barrel, and the clerk weighs the barrel, and then the clerk seals the barrel."
PROMPT = "Say of the clerk: the clerk weighs the barrel, and "
Say = Callable[[Sequence[int], int], list[int]]


class Drafter:
    """Guesses what it is told to, and keeps the options of the arbiter open by being called a lookup."""

    source = "model"
    excuse = ""
    seconds_per_token = 0.0

    def __init__(self, tokens: Sequence[int], say: Say) -> None:
        self._tokens, self._say = tokens, say
        self.closed = 0

    def guess(self, ahead: Sequence[int], most: int) -> Guess | None:
        said = self._say([*self._tokens, *ahead], most)[:most]
        return Guess(said, "model", 0) if said else None

    def close(self) -> None:
        self.closed += 1


class Told:
    """A draft model that is told what to say. Its guesses are always worth it."""

    def __init__(self, say: Say) -> None:
        self.say, self.made = say, []

    def drafter(self, tokens: Sequence[int]) -> Drafter:
        self.made.append(Drafter(tokens, self.say))
        return self.made[-1]

    def close(self) -> None: ...


class Bench:
    def __init__(self, say: Say | None = None, reply: str = REPLY, **options: Any) -> None:
        replies = [reply] if reply != REPLY else lambda prompt: REPLY[len(prompt) - len(PROMPT) :]  # it goes on
        self.engine = WatchedEngine(Script(replies), **options)
        self.manager = SessionManager(self.engine, 1 << 30)
        self.told = Told(say) if say else None
        costs = ForwardCosts("cpu", dict.fromkeys(POINTS, 0.01))
        self.loop = BatchLoop(self.engine, self.manager, 64, Drafting(self.engine, costs, model=self.told))

    def put(self, text: str = PROMPT, draft: str = "auto", **fields: Any) -> Job:
        names = ("session", "streams", "constraint", "salt")
        job = {name: fields.pop(name) for name in names if name in fields}
        made = Job(self.engine.tokenizer.encode(text), Sink(), GenerationOptions(**fields), draft=draft, **job)
        self.loop.submit(made)
        return made

    def ask(self, text: str = PROMPT, **fields: Any) -> Any:
        made = self.put(text, **fields)
        self.run()
        return outcome(made)

    def run(self) -> None:
        for _ in range(3000):
            if not self.loop.busy:
                return
            self.loop.step()
        raise AssertionError("the loop never came to rest")


def outcome(job: Job) -> Any:
    last = job.sink.last  # type: ignore[attr-defined]
    assert isinstance(last, Finished), last
    return last.outcome


def oracle(tokens: Sequence[int], most: int) -> list[int]:
    said = len(tokens) - len(PROMPT.encode())
    return list(REPLY.encode())[said : said + most]


def wrong(tokens: Sequence[int], most: int) -> list[int]:
    return [ord("#")] * most


def at_random(tokens: Sequence[int], most: int) -> list[int]:
    numbers = random.Random(len(tokens))  # noqa: S311 - not for secrets
    right = numbers.randint(0, most)
    return oracle(tokens, right) + [ord("#")] * (most - right)


DRAFTERS = {"oracle": oracle, "wrong": wrong, "random": at_random, "lookup": None}
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "short": {"max_tokens": 7},
    "one": {"max_tokens": 1},
    "stop": {"stop": ("barrel, and then",)},
    "stop at once": {"stop": ("T",)},
    "penalties": {"repetition_penalty": 5.0, "presence_penalty": 8.0, "frequency_penalty": 2.0, "max_tokens": 60},
    "sampled": {"temperature": 3.0, "seed": 5, "max_tokens": 60},
    "sampled, few": {"temperature": 5.0, "seed": 6, "top_k": 9, "top_p": 0.9, "max_tokens": 60},
    "streamed": {"streams": True},
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("asked", ASKED)
def test_the_answer_is_the_same(drafter: str, asked: str) -> None:
    plain, bench = Bench(), Bench(DRAFTERS[drafter])
    fields = ASKED[asked]
    before, after = plain.ask(draft="off", **fields), bench.ask(**fields)
    assert (after.text, after.finish_reason) == (before.text, before.finish_reason)
    assert after.completion_tokens == before.completion_tokens
    assert before.draft.rounds == 0


def test_an_oracle_saves_forwards_and_everything_it_said_is_accepted() -> None:
    plain, bench = Bench(), Bench(oracle)
    plain.ask(draft="off")
    done = bench.ask(draft="model")
    assert len(bench.engine.forwards) < len(plain.engine.forwards) / 4
    counts = done.draft.sources["model"]
    assert counts.drafted == counts.accepted > 60


def test_what_is_kept_is_what_stands() -> None:
    bench = Bench(at_random)
    done = bench.ask(session="task")
    (entry,) = [e for e in bench.manager.space.shelf if e.name == "task"]
    kept = bench.engine.tokenizer.decode(entry.tokens)
    assert (PROMPT + done.text).startswith(kept)
    assert bench.engine.length(entry.seq) == len(entry.tokens)
    assert len(entry.tokens) >= len(PROMPT) + len(done.text) - 1
    again = bench.ask(PROMPT + done.text + " And?")
    assert again.cached_tokens == len(entry.tokens)


def test_several_at_once_each_with_its_own_guesses() -> None:
    bench = Bench(at_random)
    jobs = [bench.put(salt=str(n)) for n in range(5)]
    bench.run()
    assert {outcome(job).text for job in jobs} == {REPLY}
    assert max(len(spans) for spans in bench.engine.forwards) == 5
    assert max(sum(len(s.tokens) for s in spans) for spans in bench.engine.forwards if len(spans) == 5) > 5


def test_no_guesses_while_another_prompt_is_computed() -> None:
    bench = Bench(oracle)
    first = bench.put()
    for _ in range(3):
        bench.loop.step()
    bench.put("x" * 1000, salt="other")
    bench.run()
    assert outcome(first).text == REPLY
    for spans in bench.engine.forwards:
        if any(span.logits == "none" for span in spans):
            assert all(span.logits != "all" for span in spans)


TOOLS = [
    {"function": {"name": name, "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}
    for name in ("read_the_file", "write_the_file")
]


def test_a_grammar_guesses_what_it_forces() -> None:
    reply = '<tool_call>\n{"name": "read_the_file", "arguments": {"path": "a.py"}}\n</tool_call>'
    done = {}
    for draft in ("off", "grammar", "auto"):
        bench = Bench(reply=reply)
        constraint = tool_call_constraint(bench.engine.tokenizer.grammar_tokenizer(), TOOLS)
        done[draft] = bench.ask(draft=draft, constraint=constraint)
    assert done["off"].text == done["grammar"].text == done["auto"].text == reply
    assert done["grammar"].draft.sources["grammar"].accepted > 20


def test_a_sequence_that_cannot_be_cut_back_is_computed_again_without_guesses() -> None:
    bench = Bench(at_random)
    trim, tries = bench.engine.trim, []

    def lose(seq: int, length: int) -> None:
        if not tries and length < bench.engine.length(seq):
            tries.append(seq)
            bench.engine.drop(seq)
            raise TrimError("lost")
        trim(seq, length)

    bench.engine.trim = lose  # type: ignore[method-assign]
    done = bench.ask()
    assert tries
    assert done.text == REPLY
    assert "could not be taken back" in done.draft.reason
    assert all(span.logits != "all" for spans in bench.engine.forwards[-20:] for span in spans)


def test_a_forward_that_is_interrupted_is_made_again() -> None:
    bench = Bench(at_random)
    turns = iter(range(10**6))

    def now_and_then(_spans: Any) -> None:
        if next(turns) % 3 == 1:
            raise ForwardInterrupted

    bench.engine.fault = now_and_then
    assert bench.ask().text == REPLY


def test_drafters_are_closed_however_a_request_ends() -> None:
    bench = Bench(oracle)
    bench.ask(max_tokens=5)
    job = bench.put(salt="other")
    bench.loop.step()
    job.cancelled = True
    bench.run()

    def fail(_spans: Any) -> None:
        raise DecodeError("broken")

    bench.engine.fault = fail
    bench.put(salt="third")
    bench.run()
    assert [drafter.closed for drafter in bench.told.made] == [1, 1, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize("steps", range(1, 16))
def test_cancelled_between_rounds_tokens_and_kv_agree(steps: int) -> None:
    bench = Bench(at_random)
    job = bench.put(session="task")
    for _ in range(steps):
        bench.loop.step()
    job.cancelled = True
    bench.run()
    whole = (PROMPT + REPLY).encode()
    for entry in bench.manager.space.shelf:
        assert entry.seq is not None
        assert bench.engine.length(entry.seq) == len(entry.tokens)
        assert whole.startswith(bytes(token for token in entry.tokens if token < 256))
    assert bench.ask().text == REPLY


def test_no_more_than_the_cells_hold() -> None:
    bench = Bench(oracle, n_ctx=64 + len(PROMPT), kv_cells=64 + len(PROMPT))
    plain = Bench(n_ctx=64 + len(PROMPT), kv_cells=64 + len(PROMPT))
    assert bench.ask().text == plain.ask(draft="off").text


@settings(deadline=None, max_examples=60)
@given(st.text("ab ", min_size=1, max_size=80), st.integers(0, 2**16), st.sampled_from((0.0, 4.0)))
def test_any_reply_any_guesses(reply: str, seed: int, temperature: float) -> None:
    def guess(tokens: Sequence[int], most: int) -> list[int]:
        numbers = random.Random(seed + len(tokens))  # noqa: S311 - not for secrets
        return [numbers.choice(b"ab ") for _ in range(numbers.randint(0, most))]

    asked: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_tokens": 50}
    plain, bench = Bench(reply=reply), Bench(guess, reply=reply)
    pieces = bench.put(streams=True, **asked)
    bench.run()
    before, after = plain.ask(draft="off", **asked), outcome(pieces)
    assert (after.text, after.completion_tokens) == (before.text, before.completion_tokens)
    streamed = "".join(e.text for e in pieces.sink.events if isinstance(e, Piece))  # type: ignore[attr-defined]
    assert streamed == after.text
