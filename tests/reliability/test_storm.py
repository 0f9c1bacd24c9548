"""Storms of requests; the long ones by `make soak`. A seed is printed; PINFOLD_SEED repeats a run."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from pinfold import Runtime, Script
from tests.reliability.invariants import assert_tokens_and_kv_agree, idle

SYSTEM = {"role": "system", "content": "You answer with a short list of words and nothing else. " * 4}


@pytest.fixture
def seed() -> int:
    given = int(os.environ.get("PINFOLD_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"PINFOLD_SEED={given}")  # noqa: T201 - a failure names its seed
    return given


def question(rng: random.Random) -> list[dict[str, Any]]:
    topics = ("animals", "trees", "rivers", "tools", "colours")
    history = [SYSTEM]
    for _ in range(rng.randint(1, 4)):
        history += [
            {"role": "user", "content": f"Name {rng.randint(2, 9)} {rng.choice(topics)}."},
            {"role": "assistant", "content": "Certainly."},
        ]
    return history[:-1]


def storm(rt: Runtime, seed: int, requests: int) -> None:
    """Requests of every kind from 16 threads, a third of them left early; the KV's books are right afterwards."""

    def one(number: int) -> None:
        rng = random.Random(seed + number)  # noqa: S311 - repeatable, not secret
        options: dict[str, Any] = {"salt": rng.choice((None, "a")), "max_tokens": rng.randint(1, 16)}
        if rng.random() < 0.3:
            options["session"] = f"s{rng.randint(0, 5)}"
        if rng.random() < 0.1:
            rt.pin([SYSTEM, {"role": "user", "content": str(rng.randint(0, 9))}], name=f"p{rng.randint(0, 3)}")
        with closing(rt.stream(question(rng), **options)) as deltas:
            for _, _ in zip(deltas, range(rng.choice((0, 1, 5, 100))), strict=False):
                pass

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(requests)))
    assert idle(rt)
    assert_tokens_and_kv_agree(rt)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_storm_on_the_embedded_model_with_too_few_cells(smollm2: str, seed: int) -> None:
    with Runtime(smollm2, n_ctx=512, kv_cells=1024, kv_memory=20 << 20, max_sequences=12) as rt:
        storm(rt, seed, 400)


@pytest.mark.parametrize("requests", [400, pytest.param(4000, marks=pytest.mark.soak)])
def test_a_storm_on_the_scripted_engine(seed: int, requests: int) -> None:
    with Runtime(Script(lambda prompt: prompt[-40:] * 5), n_ctx=4096, kv_cells=6000, kv_memory=9000) as rt:
        storm(rt, seed, requests)
