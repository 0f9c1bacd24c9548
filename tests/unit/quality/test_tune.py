"""Calibration of a made-up model: gates hold where little is lost, and move a preset where much is."""

from __future__ import annotations

import pytest

from pinfold.kv.recipe import LADDER, PRESETS
from pinfold.quality import tune
from pinfold.quality.tune import calibrate
from tests.support.kv_engine import FakeEngine, finish, sensitive, seq_zero


def test_a_model_that_does_not_mind_folds_where_the_presets_begin() -> None:
    told: list[float] = []
    engine = FakeEngine(sensitive(0.0, 0.0))
    recipe = finish(calibrate(engine, seq_zero, told.append))
    assert recipe.rungs == PRESETS
    assert recipe.notes == {}
    assert told == sorted(told)
    assert (told[-1], engine.held) == (1.0, {})


def test_a_model_whose_keys_matter_most_folds_finer_and_says_so() -> None:
    """K8/V4 hardly touches keys, and values have no say here: whatever rounds keys more coarsely loses more."""
    recipe = finish(calibrate(FakeEngine(sensitive(0.1, 0.0)), seq_zero))
    for preset, scheme in tune.GATES.items():
        place = recipe.rungs[preset]
        assert place < PRESETS[preset]
        assert "more than 0.8 of the way from the floor" in recipe.notes[preset]
        assert f"to what {scheme} loses" in recipe.notes[preset]
        assert (f"folds on {LADDER[place].name}" if place >= 0 else "folds without loss") in recipe.notes[preset]


def test_a_preset_stops_at_the_first_rung_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of the rungs are given; the gate stands between two of them."""
    losses = {rung.name: 0.001 * (place + 1) for place, rung in enumerate(LADDER)}

    def compare(_trials: object, change: object) -> object:
        yield
        given = 0.0015 if change == tune.NOISE.apply else 0.0035
        return type("Loss", (), {"mean": change if isinstance(change, float) else given})

    monkeypatch.setattr(tune, "_folder", lambda _recipe, rung: losses[rung.name])
    monkeypatch.setattr(tune, "_compare", compare)
    recipe = finish(calibrate(FakeEngine(), seq_zero))
    assert recipe.rungs == {"balanced": 2, "compact": 2}  # 0.003 <= 0.0015 + 0.8 * 0.002 < 0.004
    assert recipe.notes["balanced"] == (
        f"balanced folds on {LADDER[2].name}: on {LADDER[PRESETS['balanced']].name} this model lost 0.00500 nats "
        "a token, more than 0.8 of the way from the floor (0.00150) to what k8v4 loses (0.00350)"
    )


def test_layers_that_matter_more_get_finer_steps_at_the_same_bits_over_all() -> None:
    gains = tune._gains([0.001, 0.004, 0.016])
    assert gains[0] > gains[1] > gains[2]
    assert gains[0] * gains[1] * gains[2] == pytest.approx(1.0)
    assert tune._gains([1e-6, 1e6]) == list(reversed(tune._GAINS))


def test_cells_that_are_quantized_already_are_kept_and_the_reason_is_told() -> None:
    engine = FakeEngine(kind="q8_0")
    recipe = finish(calibrate(engine, seq_zero))
    assert not any(recipe.sections)
    assert recipe.rungs == {"balanced": -1, "compact": -1}
    assert all("q8_0: kept without loss" in note for note in recipe.notes.values())
