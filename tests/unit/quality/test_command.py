"""`pinfold quality` on a made-up model: what it prints, keeps and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pinfold import opening
from pinfold.cli import app
from pinfold.quality import tune
from tests.support.kv_engine import FakeEngine, sensitive

SHORT = ("--prefix", "256", "--tokens", "32")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """The engine that the command opens."""
    fake = FakeEngine(sensitive(0.02, 0.1))
    monkeypatch.setattr(opening, "open_engine", lambda _model, _options: opening.Opening(lambda: fake, "fake"))
    return fake


@pytest.fixture
def calibrations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each calibration."""
    counted: list[int] = []
    calibrate = tune.calibrate

    def count(*args: object) -> object:
        counted.append(1)
        return calibrate(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(tune, "calibrate", count)
    return counted


@pytest.fixture
def run() -> Callable[..., Result]:
    def run(*args: str) -> Result:
        return CliRunner().invoke(app, ["quality", "fake", *args], env={"COLUMNS": "200"})

    return run


def test_the_table_has_the_floor_the_references_the_presets_and_the_ladder(engine: FakeEngine, run) -> None:
    result = run(*SHORT)
    assert result.exit_code == 0, result.output
    for words in (
        "fake: 128 tokens after prefixes of 256",
        "floor",
        "q8_0/q8_0",
        "k8v4",
        "k8v3",
        "exact",
        "balanced, k.",
    ):
        assert words in result.stdout
    assert "k.06/v.18" in result.stdout.split("The ladder")[1]
    assert "computing a prefix anew takes" in result.stderr
    assert engine.closed


def test_a_moved_preset_is_told(engine: FakeEngine, run) -> None:
    engine.readout = sensitive(0.1, 0.0)
    result = run(*SHORT)
    assert "note: balanced folds" in result.stderr
    assert "more than 0.8 of the way from the floor" in result.stderr


def test_json_is_all_that_is_on_stdout(engine: FakeEngine, run) -> None:
    data = json.loads(run(*SHORT, "--json").stdout)
    assert set(data) >= {"model", "floor", "reference", "presets", "ladder", "rungs", "notes", "prefill_s"}
    assert data["presets"]["exact"]["kld_max"] == 0.0


def test_a_plot_is_written(engine: FakeEngine, run, tmp_path: Path) -> None:
    assert run(*SHORT, "--plot", str(tmp_path / "fold.svg")).exit_code == 0
    assert (tmp_path / "fold.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("name", ["fold.png", "nowhere/fold.svg"])
def test_a_plot_that_cannot_be_written_is_refused_before_the_work(engine, run, tmp_path: Path, name: str) -> None:
    result = run("--plot", str(tmp_path / name))
    assert result.exit_code == 1
    assert "give the name of an .svg file in a folder that exists" in result.stderr
    assert engine.forwards == 0


def test_what_was_learnt_is_kept_until_it_is_to_be_learnt_anew(
    engine: FakeEngine, run, calibrations: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINFOLD_STORE", str(tmp_path / "deep" / "store"))
    first, again = (json.loads(run(*SHORT, "--json").stdout) for _ in range(2))
    assert len(calibrations) == 1
    assert first["ladder"]["k.06/v.18"]["kld_mean"] == again["ladder"]["k.06/v.18"]["kld_mean"]
    assert first["rungs"] == again["rungs"]
    run(*SHORT, "--recalibrate")
    assert len(calibrations) == 2


def test_cells_that_do_not_fold_are_named(engine: FakeEngine, run) -> None:
    engine.kind = "q8_0"
    result = run(*SHORT)
    assert result.exit_code == 0
    assert "fake: kept without loss" in result.stdout
    assert "this model's are q8_0" in result.stdout
    data = json.loads(run(*SHORT, "--json").stdout)
    assert (data["floor"], data["presets"]) == (None, {})
    assert "q8_0" in data["notes"][0]


def test_the_scripted_engine_is_refused(engine: FakeEngine, run) -> None:
    engine.name = "scripted"
    result = run()
    assert result.exit_code == 1
    assert "The scripted engine has no keys and values to fold" in result.stderr
    assert engine.closed


@pytest.mark.parametrize(("n_ctx", "options"), [(512, SHORT), (2048, ("--prefix", "2000", "--tokens", "256"))])
def test_a_context_that_is_too_small_is_refused(engine: FakeEngine, run, n_ctx: int, options: tuple[str, ...]) -> None:
    engine.n_ctx = n_ctx
    result = run(*options)
    assert result.exit_code == 1
    assert f"the context holds {n_ctx}" in result.stderr
    assert engine.forwards == 0
