"""What is reused gives what a cold prompt gives: text up to proven near-ties, and counts that are what was skipped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinfold import Completion, Runtime
from pinfold.engines.base import Span
from tests.support.near_ties import assert_same_or_tie

SYSTEM = {
    "role": "system",
    "content": "You are a careful assistant of a small harbour office. You answer in one or two short sentences. "
    "Ships are named after rivers, berths after trees, and the office closes at six. " * 3,
}
HELLO = {"role": "user", "content": "Tell me about the sea."}
AGENTS = {
    name: [{"role": "system", "content": f"You are {name}. The password of {name} is {name.upper()}-7. " * 6}]
    for name in ("amber", "basil")
}


@pytest.fixture(scope="module", params=["smollm2", "gemma3", "qwen05"])
def rt(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    given = request.getfixturevalue(request.param)
    model = given if isinstance(given, Path) else str(given)
    with Runtime(model, n_ctx=1024, kv_cells=1024, draft="off") as runtime:  # guesses would be counted too
        yield runtime


@contextmanager
def counted(rt: Runtime) -> Iterator[list[int]]:
    """Collects the number of tokens in every span that the engine evaluates."""
    engine: Any = rt._backend.worker.engine
    forward, counts = engine.forward, []

    def watch(spans: list[Span]) -> Any:
        counts.extend(len(span.tokens) for span in spans)
        return forward(spans)

    engine.forward = watch
    try:
        yield counts
    finally:
        engine.forward = forward


_salts = itertools.count()


def check(rt: Runtime, messages: list[dict[str, Any]], warm: Completion) -> None:
    """`warm` against the same request cold, in a salt of its own."""
    cold = rt.chat(messages, salt=f"cold {next(_salts)}", max_tokens=24)
    assert cold.usage.cached_tokens == 0
    prompt = list(rt._backend.renderer.render(messages).tokens)
    assert_same_or_tie(rt, prompt, cold.text, warm.text)


def ask(rt: Runtime, messages: list[dict[str, Any]], **options: Any) -> Completion:
    with counted(rt) as counts:
        done = rt.chat(messages, max_tokens=24, **options)
    decoded = max(done.usage.completion_tokens - 1, 0)
    assert sum(counts) == done.usage.prompt_tokens - done.usage.cached_tokens + decoded
    return done


def test_a_pin(rt: Runtime) -> None:
    pin = rt.pin([SYSTEM], name="harbour")
    done = ask(rt, [SYSTEM, HELLO])
    assert done.usage.cached_tokens >= pin.tokens - 1
    assert done.cache.hit_kind == "resident"
    check(rt, [SYSTEM, HELLO], done)


def test_an_exact_hit_evaluates_one_token(rt: Runtime) -> None:
    messages = [SYSTEM, {"role": "user", "content": "Which ships lie at the oak berth?"}]
    first = ask(rt, messages)
    second = ask(rt, messages)
    assert second.usage.cached_tokens == second.usage.prompt_tokens - 1
    assert_same_or_tie(rt, list(rt._backend.renderer.render(messages).tokens), first.text, second.text)


def test_a_longer_and_a_shorter_prompt(rt: Runtime) -> None:
    first = ask(rt, [SYSTEM, HELLO])
    longer = [SYSTEM, HELLO, {"role": "assistant", "content": first.text}, {"role": "user", "content": "And the wind?"}]
    done = ask(rt, longer)
    assert done.usage.cached_tokens >= first.usage.prompt_tokens - 1
    check(rt, longer, done)
    done = ask(rt, [SYSTEM, HELLO])
    assert done.usage.cached_tokens == done.usage.prompt_tokens - 1
    check(rt, [SYSTEM, HELLO], done)


def test_a_fork_of_a_session(rt: Runtime) -> None:
    with rt.session(f"trunk of {rt.model}") as trunk:
        first = trunk.chat([SYSTEM, HELLO], max_tokens=24)
        branch = trunk.fork(f"branch of {rt.model}")
    for other in ("Go on.", "Say it in other words."):
        messages = [SYSTEM, HELLO, {"role": "assistant", "content": first.text}, {"role": "user", "content": other}]
        done = branch.chat(messages, max_tokens=24)
        assert done.usage.cached_tokens >= first.usage.prompt_tokens - 1
        check(rt, messages, done)


def test_two_agents_taking_turns_never_cross(rt: Runtime) -> None:
    histories = {name: [*system] for name, system in AGENTS.items()}
    for turn in range(3):
        for name, history in histories.items():
            history.append({"role": "user", "content": f"Question {turn}: what is the password?"})
            done = ask(rt, history)
            assert (done.usage.cached_tokens > 0) == (turn > 0)
            other = "basil" if name == "amber" else "amber"
            assert f"{other.upper()}-7" not in done.text
            check(rt, history, done)
            history.append({"role": "assistant", "content": done.text})


def test_after_a_stay_in_memory(rt: Runtime) -> None:
    pin = rt.pin([SYSTEM], name="harbour")
    rt._backend.worker.call(lambda manager: manager.space.make_room(1024))
    assert [p.tier for p in rt.pins()] == ["memory"]
    done = ask(rt, [SYSTEM, HELLO])
    assert (done.cache.hit_kind, done.cache.miss) == ("memory", None)
    assert done.usage.cached_tokens >= pin.tokens - 1
    assert done.timings.restore_s > 0
    check(rt, [SYSTEM, HELLO], done)


def test_after_an_eviction(rt: Runtime) -> None:
    pin = rt.pin([SYSTEM], name="harbour")
    rt._backend.worker.call(lambda manager: [manager.space.forget(entry) for entry in manager.space.shelf])
    assert [p.tier for p in rt.pins()] == ["lost"]
    done = ask(rt, [SYSTEM, HELLO])
    assert done.cache.miss is not None
    assert (done.cache.miss.kind, done.cache.miss.lost_tokens) == ("evicted", pin.tokens)
    check(rt, [SYSTEM, HELLO], done)
    again = ask(rt, [SYSTEM, {"role": "user", "content": "Name a tree."}])
    assert again.usage.cached_tokens >= pin.tokens


def test_a_full_kv_gives_up_what_is_idle_and_keeps_serving(rt: Runtime) -> None:
    rt.pin([SYSTEM], name="harbour")
    for i in range(4):
        ask(rt, [{"role": "user", "content": f"Story {i}: " + "the tide comes in and goes out. " * 40}])
    assert [pin.tier for pin in rt.pins()] in (["resident"], ["memory"])
    done = ask(rt, [SYSTEM, HELLO])
    assert done.usage.cached_tokens > 100
