"""Many threads and tasks on one engine, and requests that are cancelled at every stage."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from itertools import islice
from typing import Any

import pytest

from pinfold import Runtime
from tests.reliability.invariants import assert_tokens_and_kv_agree, idle
from tests.support.near_ties import assert_same_or_tie

SYSTEM = {"role": "system", "content": "You answer with a short list of words and nothing else. " * 4}
TOKENS = 12


@pytest.fixture(scope="module")
def rt(smollm2: str) -> Iterator[Runtime]:
    with Runtime(smollm2, n_ctx=1024, kv_cells=4096) as runtime:
        yield runtime


def question(i: int) -> list[dict[str, Any]]:
    canary = f"key-{100_000 + i * 7919}"
    return [SYSTEM, {"role": "user", "content": f"My secret is {canary}. Name {i + 2} animals and repeat the secret."}]


@pytest.fixture(scope="module")
def alone(rt: Runtime) -> list[str]:
    """The answer to each question when nothing else runs."""
    return [rt.chat(question(i), salt="alone", max_tokens=TOKENS).text for i in range(32)]


def check(rt: Runtime, i: int, alone: list[str], text: str) -> None:
    assert_same_or_tie(rt, list(rt._backend.renderer.render(question(i)).tokens), alone[i], text)
    for j in range(32):
        assert j == i or f"key-{100_000 + j * 7919}" not in text


def wait_until(condition: Callable[[], object]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.001)


def test_32_threads(rt: Runtime, alone: list[str]) -> None:
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda i: rt.chat(question(i), salt="threads", max_tokens=TOKENS), range(32)))
    for i, done in enumerate(answers):
        check(rt, i, alone, done.text)
    assert sum(done.usage.cached_tokens > 40 for done in answers) >= 31  # the system prompt was computed once
    assert_tokens_and_kv_agree(rt)


async def test_32_tasks_and_the_event_loop_stays_responsive(rt: Runtime, alone: list[str]) -> None:
    beats = 0

    async def heart() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.005)
            beats += 1

    beating = asyncio.create_task(heart())
    answers = await asyncio.gather(*(rt.achat(question(i), salt="tasks", max_tokens=TOKENS) for i in range(32)))
    beating.cancel()
    for i, done in enumerate(answers):
        check(rt, i, alone, done.text)
    assert beats > 20
    assert_tokens_and_kv_agree(rt)


@pytest.mark.parametrize("after", [0, 1, 5])
def test_streams_that_are_closed_leave_tokens_and_kv_in_agreement(rt: Runtime, alone: list[str], after: int) -> None:
    for i in range(12):
        with closing(rt.stream(question(i), salt="closed", max_tokens=6 * TOKENS)) as deltas:
            list(islice(deltas, after))
        assert idle(rt)
        assert_tokens_and_kv_agree(rt)
    for i in range(3):
        check(rt, i, alone, rt.chat(question(i), salt="closed", max_tokens=TOKENS).text)


async def test_tasks_cancelled_in_prefill_free_the_engine_and_lose_nothing(rt: Runtime) -> None:
    long = [SYSTEM, {"role": "user", "content": "The tide comes in and goes out again. " * 80}]
    for i in range(14):
        task = asyncio.create_task(rt.achat(long, salt=f"prefill {i}", max_tokens=4))
        await asyncio.to_thread(wait_until, lambda: rt._backend.worker._loop.in_flight)
        await asyncio.sleep(0.01 * (i % 4))
        began = asyncio.get_running_loop().time()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(idle, rt)
        assert asyncio.get_running_loop().time() - began < 5
        await asyncio.to_thread(assert_tokens_and_kv_agree, rt)
    done = await rt.achat(long, salt="prefill 0", max_tokens=TOKENS)
    cold = await rt.achat(long, salt="prefill cold", max_tokens=TOKENS)
    await asyncio.to_thread(
        assert_same_or_tie, rt, list(rt._backend.renderer.render(long).tokens), cold.text, done.text
    )


async def test_an_async_stream_that_is_left_early(rt: Runtime) -> None:
    for after in (1, 3):
        async with aclosing(rt.astream(question(after), salt="left", max_tokens=200)) as deltas:
            seen = 0
            async for _ in deltas:
                seen += 1
                if seen == after:
                    break
        assert await asyncio.to_thread(idle, rt)
        assert_tokens_and_kv_agree(rt)


def test_closing_the_runtime_while_threads_wait(smollm2: str) -> None:
    from pinfold.errors import RuntimeClosedError

    rt = Runtime(smollm2, n_ctx=512)
    outcomes: list[Any] = []

    def ask(i: int) -> None:
        try:
            outcomes.append(rt.chat(question(i), max_tokens=400))
        except RuntimeClosedError as e:
            outcomes.append(e)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: rt._backend.worker._loop.in_flight)
    rt.close()
    for thread in threads:
        thread.join(timeout=30)
    assert len(outcomes) == 6
    assert all(isinstance(outcome, RuntimeClosedError) for outcome in outcomes)
