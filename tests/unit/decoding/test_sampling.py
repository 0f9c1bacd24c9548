from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pinfold.decoding.sampling import Sampler, _draw
from pinfold.errors import DecodeError
from pinfold.options import GenerationOptions


def sampler(prompt: Sequence[int] = (), answer: Sequence[int] = (), **options: Any) -> Sampler:
    made = Sampler(GenerationOptions(**options), prompt)
    for token in answer:
        made.accept(token)
    return made


def row(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def reference(logits: NDArray[np.float32], prompt: list[int], answer: list[int], o: GenerationOptions) -> Any:
    """The distribution as the options document it, written with loops and whole sorts."""
    values = [float(x) for x in logits]
    seen = (prompt + answer)[-o.penalty_window :] if o.penalty_window else []
    for token in set(seen):
        values[token] *= 1 / o.repetition_penalty if values[token] > 0 else o.repetition_penalty
    for token, count in Counter(answer).items():
        values[token] -= o.presence_penalty + o.frequency_penalty * count
    if o.temperature == 0:
        return np.eye(len(values))[int(np.argmax(np.array(values, np.float32)))]
    order = sorted((i for i, v in enumerate(values) if v > -np.inf), key=lambda i: (-values[i], i))
    if o.top_k:
        order = order[: o.top_k]
    weight = {i: np.exp(values[i] - values[order[0]]) for i in order}
    total, kept, mass = sum(weight.values()), [], 0.0
    for i in order:
        kept.append(i)
        mass += weight[i] / total
        if o.top_p < 1 and mass >= o.top_p - 1e-9:
            break
    kept = [i for i in kept if weight[i] >= o.min_p - 1e-9]
    out = np.zeros(len(values))
    for i in kept:
        out[i] = np.exp((values[i] - values[order[0]]) / o.temperature)
    return out / out.sum()


OPTIONS = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.3, "top_k": 3},
    {"temperature": 2.0, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
    {"repetition_penalty": 1.7},
    {"temperature": 1.0, "repetition_penalty": 0.6, "penalty_window": 3},
    {"temperature": 1.0, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "repetition_penalty": 1.3, "frequency_penalty": -0.5},
]
TOKENS = st.lists(st.integers(0, 11), max_size=12)
# eighths are exact in float32, and no sum of their exponentials meets a bound by accident
LOGITS = st.lists(st.integers(-40, 40).map(lambda i: i / 8), min_size=12, max_size=12, unique=True)


@settings(deadline=None)
@given(LOGITS, TOKENS, TOKENS, st.sampled_from(OPTIONS), st.sets(st.integers(0, 11), max_size=11))
def test_the_distribution_equals_a_slow_reference(
    logits: list[float], prompt: list[int], answer: list[int], options: dict[str, Any], forbidden: set[int]
) -> None:
    values = row(*logits)
    values[list(forbidden)] = -np.inf
    before = values.copy()
    got = sampler(prompt, answer, **options).distribution(values)
    want = reference(values, prompt, answer, GenerationOptions(**options))
    np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_array_equal(values, before)
    assert got[list(forbidden)].sum() == 0


def chi_square(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    live = expected > 0
    assert counts[~live].sum() == 0
    return float((((counts - expected) ** 2)[live] / expected[live]).sum())


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.5, "top_k": 6},
        {"temperature": 1.5, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1, "repetition_penalty": 1.5},
    ],
)
def test_draws_follow_the_distribution(options: dict[str, Any]) -> None:
    logits, n = row(1.0, 0.5, 0.0, -0.5, 2.0, -np.inf, -1.0, 0.25), 4_000
    drawing = sampler([4, 0], seed=7, **options)
    counts = np.bincount([drawing.pick(logits) for _ in range(n)], minlength=len(logits))
    assert chi_square(counts, drawing.distribution(logits) * n) < 24.3  # 0.1% of 7 degrees of freedom


def test_draws_of_a_long_row_follow_the_distribution() -> None:
    """Longer than a block of the draw, with forbidden tokens and an end that weighs nothing."""
    logits = np.full(3000, -np.inf, np.float32)
    live = [0, 511, 512, 1024, 1500, 2900]
    logits[live] = [0.0, 1.0, 0.5, 0.0, 2.0, -1.0]
    drawing, n = sampler(temperature=1.0, seed=1), 4_000
    counts = np.bincount([drawing.pick(logits) for _ in range(n)], minlength=len(logits))
    assert chi_square(counts, drawing.distribution(logits) * n) < 20.5  # 0.1% of 5 degrees of freedom


@pytest.mark.parametrize(("n", "k"), [(200, 3), (200, 64), (200, 150), (6400, 40), (6401, 1), (64, 1)])
def test_top_k_of_long_rows_equals_a_sort(n: int, k: int) -> None:
    logits = np.random.default_rng(n + k).integers(-40, 40, n).astype(np.float32) / 8  # with ties
    got = np.flatnonzero(sampler(temperature=1.0, top_k=k).distribution(logits))
    assert got.tolist() == sorted(np.argsort(-logits, kind="stable")[:k].tolist())


def test_pick_at_the_last_of_the_unit_interval_draws_what_weighs_something() -> None:
    assert _draw(row(0.0, 1.0, 3.0, 0.0), 1.0) == 2
    assert _draw(row(0.0, 1.0, 3.0, 0.0), 0.0) == 1
    assert _draw(row(0.0, 1.0, 3.0, 0.0), 0.25) == 2


@settings(deadline=None)
@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30))
def test_greedy_is_the_first_highest(logits: list[float]) -> None:
    assert sampler().pick(row(*logits)) == logits.index(max(logits))


def test_greedy_takes_the_highest_after_penalties() -> None:
    assert sampler([0], repetition_penalty=1.5).pick(row(3.0, 2.5, -1.0)) == 1
    assert sampler([0], repetition_penalty=2.0).pick(row(-1.0, -1.5)) == 1
    assert sampler([0], presence_penalty=5.0).pick(row(3.0, 2.5)) == 0  # a prompt token is not a generated one
    assert sampler([], [0], presence_penalty=1.0).pick(row(3.0, 2.5)) == 1
    assert sampler([], [0, 0, 0], frequency_penalty=0.2).pick(row(3.0, 2.5)) == 1


def test_the_window_forgets() -> None:
    made = sampler([0], repetition_penalty=2.0, penalty_window=2)
    logits = row(3.0, 2.0, 0.0)
    assert made.pick(logits) == 1
    made.accept(2)
    assert made.pick(logits) == 1
    made.accept(2)
    assert made.pick(logits) == 0
    assert sampler([0], repetition_penalty=2.0, penalty_window=0).pick(logits) == 0


def test_a_seed_repeats_and_none_does_not() -> None:
    logits = np.zeros(1000, np.float32)
    draw = [[s.pick(logits) for _ in range(20)] for s in (sampler(temperature=1.0, seed=seed) for seed in (3, 3, 4))]
    assert draw[0] == draw[1] != draw[2]
    fresh = [[s.pick(logits) for _ in range(20)] for s in (sampler(temperature=1.0), sampler(temperature=1.0))]
    assert fresh[0] != fresh[1]


def test_top_p_keeps_at_least_one_and_the_one_that_reaches_it() -> None:
    logits = np.log(row(0.5, 0.3, 0.2))
    for top_p, kept in [(1e-6, 1), (0.49, 1), (0.6, 2), (0.81, 3), (1.0, 3)]:
        assert np.count_nonzero(sampler(temperature=1.0, top_p=top_p).distribution(logits)) == kept


@pytest.mark.parametrize("top_p", [0.5, 0.999])
def test_top_p_of_a_flat_row_is_that_part_of_it(top_p: float) -> None:
    n = 4_000
    kept = np.flatnonzero(sampler(temperature=1.0, top_p=top_p).distribution(np.zeros(n, np.float32)))
    assert len(kept) == pytest.approx(top_p * n, abs=2)
    assert kept[-1] == len(kept) - 1  # of equals, those with the lower ids


def test_top_k_of_equals_is_k_with_the_lower_ids() -> None:
    assert np.flatnonzero(sampler(temperature=1.0, top_k=2).distribution(row(1, 2, 1, 1))).tolist() == [0, 1]
    assert np.count_nonzero(sampler(temperature=1.0, top_k=9).distribution(row(1, 2))) == 2


def test_top_k_larger_than_what_is_allowed() -> None:
    got = sampler(temperature=1.0, top_k=3).distribution(row(-np.inf, 0.0, -np.inf, -np.inf))
    assert got.tolist() == [0, 1, 0, 0]


def test_min_p_of_one_keeps_the_best() -> None:
    assert sampler(temperature=5.0, min_p=1.0).distribution(row(1, 3, 2)).tolist() == [0, 1, 0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 100.0])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    got = sampler(temperature=temperature, top_p=0.9999).distribution(row(80.0, -80.0, 79.0))
    assert np.isfinite(got).all()
    assert got.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("values", "words"),
    [((1.0, np.nan, 2.0), "no numbers"), ((np.inf, 1.0), "no numbers"), ((-np.inf, -np.inf), "forbidden")],
)
def test_logits_that_cannot_be_used(options: dict[str, Any], values: tuple[float, ...], words: str) -> None:
    for use in (sampler(**options).pick, sampler(**options).distribution):
        with pytest.raises(DecodeError, match=words):
            use(row(*values))


def test_state_is_as_large_as_the_window() -> None:
    made = sampler(range(100_000), repetition_penalty=1.1, penalty_window=64)
    for token in range(1000):
        made.accept(token)
    assert len(made._window) == len(made._recent) == 64
    assert not made._generated
