"""The arithmetic of divergences, on an engine whose distributions are known."""

from __future__ import annotations

import math

import numpy as np

from pinfold.kv.snapshot import Plane, Section, Snapshot
from pinfold.quality.schemes import change_planes
from pinfold.quality.trial import Divergence, prepare, take_snapshot
from tests.support.kv_engine import FakeEngine, finish, sensitive, seq_zero

PROMPT, FOLLOWING = list(range(100)), list(range(100, 250))


def odds(k: np.ndarray, v: np.ndarray, token: int) -> np.ndarray:
    """Two words; the log odds between them are what stands in the value of the first token."""
    return np.array([v[0, 0], 0.0], dtype=np.float32)


def set_value(snapshot: Snapshot, to: float) -> Snapshot:
    def change(values: np.ndarray, _section: Section, plane: Plane) -> np.ndarray:
        return np.full_like(values, to) if plane.part == "v" else values

    return change_planes(snapshot, change)


def test_the_same_kv_has_no_divergence_at_all() -> None:
    trial = finish(prepare(FakeEngine(sensitive(1.0, 1.0)), seq_zero, PROMPT, FOLLOWING))
    found = finish(trial.compare(trial.snapshot))
    assert len(found.kld) == len(FOLLOWING)
    assert (found.mean, found.quantile(1.0), found.top1) == (0.0, 0.0, 1.0)


def test_a_known_change_has_the_divergence_of_the_textbook() -> None:
    engine = FakeEngine(odds)
    before = finish(take_snapshot(engine, seq_zero, PROMPT))
    value = float(next(p for _, p in before.planes() if p.part == "v" and p.layer == 1).rows.view(np.float16)[0, 0])
    trial = finish(prepare(engine, seq_zero, PROMPT, FOLLOWING))
    found = finish(trial.compare(set_value(trial.snapshot, -1.5)))
    p, q = (1 / (1 + math.exp(-x)) for x in (value, -1.5))
    expected = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    np.testing.assert_allclose(found.kld, expected, rtol=1e-3)
    assert found.top1 == float((value > 0) == (-1.5 > 0))


def test_a_shortened_trial_judges_by_the_first_tokens() -> None:
    trial = finish(prepare(FakeEngine(sensitive(1.0, 1.0)), seq_zero, PROMPT, FOLLOWING))
    changed = set_value(trial.snapshot, 0.5)
    whole, short = finish(trial.compare(changed)), finish(trial.shortened(70).compare(changed))
    np.testing.assert_array_equal(short.kld, whole.kld[:70])


def test_an_interrupted_forward_is_tried_again() -> None:
    engine = FakeEngine(sensitive(1.0, 1.0), interruptions=3)
    trial = finish(prepare(engine, seq_zero, PROMPT, FOLLOWING))
    assert finish(trial.compare(trial.snapshot)).mean == 0.0


def test_no_sequence_is_left_behind_even_if_the_work_is_given_up() -> None:
    engine = FakeEngine(sensitive(1.0, 1.0))
    steps = prepare(engine, seq_zero, PROMPT, FOLLOWING)
    for _ in range(3):
        next(steps)
    assert engine.held
    steps.close()
    assert not engine.held


def test_figures_of_several_trials_are_those_of_all_their_tokens() -> None:
    a = Divergence(np.array([0.0, 1.0]), np.array([True, True]))
    b = Divergence(np.array([2.0, 5.0]), np.array([True, False]))
    both = Divergence.join([a, b])
    assert (both.mean, both.quantile(0.5), both.quantile(1.0), both.top1) == (2.0, 1.5, 5.0, 0.75)
