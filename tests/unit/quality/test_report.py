"""The report of a made-up model, its JSON and its picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest

from pinfold.errors import InvalidRequestError
from pinfold.kv.recipe import LADDER, Recipe
from pinfold.quality import report as report_module
from pinfold.quality.plot import svg
from pinfold.quality.report import QualityReport, measure
from pinfold.quality.tune import calibrate
from tests.support.kv_engine import FakeEngine, finish, sensitive, seq_zero

ROW = {"bits", "times_smaller", "kld_mean", "kld_p99", "kld_p999", "kld_max", "top1", "fold_ms", "restore_ms"}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return finish(calibrate(FakeEngine(sensitive(0.02, 0.1)), seq_zero))


def run(recipe: Recipe, engine: FakeEngine | None = None, **options: object) -> QualityReport:
    engine = engine or FakeEngine(sensitive(0.02, 0.1))
    report = finish(measure(engine, seq_zero, recipe, prefix=256, tokens=32, **options))
    assert not engine.held
    return report


@pytest.fixture(scope="module")
def report(recipe: Recipe) -> QualityReport:
    return run(recipe)


def test_the_json_has_the_documented_shape(report: QualityReport, recipe: Recipe) -> None:
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert (data["model"], data["prefix_tokens"], data["evaluated_tokens"]) == ("fake", 256, 128)
    assert set(data["reference"]) == {"q8_0/q8_0", "k8v4", "k8v3"}
    assert set(data["presets"]) == {"exact", "balanced", "compact"}
    assert list(data["ladder"]) == [rung.name for rung in LADDER]
    for row in (data["floor"], *(row for key in ("reference", "presets", "ladder") for row in data[key].values())):
        assert set(row) == ROW
    assert data["rungs"]["exact"] == "exact"
    assert data["prefill_s"] > 0
    assert data["notes"] == list(recipe.notes.values())


def test_exact_loses_nothing(report: QualityReport) -> None:
    exact = report.presets["exact"]
    assert (exact.kld_mean, exact.kld_max, exact.top1) == (0.0, 0.0, 1.0)
    assert exact.times_smaller > 1


def test_coarser_rungs_are_smaller_and_lose_more(report: QualityReport) -> None:
    rows = list(report.ladder.values())
    assert all(b.times_smaller > a.times_smaller for a, b in pairwise(rows))
    assert 0 < rows[0].kld_mean < rows[-1].kld_mean
    assert rows[-1].kld_mean <= rows[-1].kld_p99 <= rows[-1].kld_p999 <= rows[-1].kld_max


def test_ours_is_timed_and_counted_in_stored_bytes_and_theirs_is_what_it_says(report: QualityReport) -> None:
    for row in (*report.presets.values(), *report.ladder.values()):
        assert row.fold_ms is not None and row.restore_ms is not None  # noqa: PT018
        assert row.bits == pytest.approx(16 / row.times_smaller)
    assert [report.reference[name].bits for name in ("q8_0/q8_0", "k8v4", "k8v3")] == [8.5, 6.4, 5.9]
    assert report.reference["k8v4"].times_smaller == pytest.approx(2.5)
    assert (report.floor.bits, report.floor.fold_ms) == (16.0, None)


def test_a_preset_is_on_the_rung_that_its_gate_chose(recipe: Recipe) -> None:
    moved = replace(recipe, rungs={"balanced": 1, "compact": -1}, notes={"compact": "compact folds without loss: why"})
    report = run(moved, ladder=LADDER[:2], texts=("prose",))
    assert report.rungs == {"exact": "exact", "balanced": LADDER[1].name, "compact": "exact"}
    assert report.presets["balanced"] == report.ladder[LADDER[1].name]
    assert report.presets["compact"] == report.presets["exact"]
    assert report.notes == ("compact folds without loss: why",)


def test_a_section_that_was_kept_is_told_once(recipe: Recipe) -> None:
    other = Recipe("f", [[]], dict(recipe.rungs))
    report = run(other, ladder=(), texts=("prose", "code"))
    assert report.notes == ("section 0 was kept without loss: the model is not calibrated yet",)


def test_a_text_that_is_too_short_is_refused_with_its_length() -> None:
    with pytest.raises(InvalidRequestError, match=r"'tools' has \d+ tokens of this model"):
        finish(measure(FakeEngine(), seq_zero, Recipe("f", []), prefix=10**6))


def test_rests_do_not_count_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(report_module.time, "perf_counter", lambda: now)

    def work():
        nonlocal now
        for _ in range(3):
            now += 1
            yield
        now += 0.5
        return "done"

    steps = report_module._clocked(work())
    for _ in range(3):
        next(steps)
        now += 100
    with pytest.raises(StopIteration) as stop:
        next(steps)
    assert stop.value.value == ("done", 3.5)


class TestPicture:
    def test_it_shows_every_rung_reference_and_preset(self, report: QualityReport) -> None:
        root = ET.fromstring(svg(report))  # noqa: S314 - our own
        texts = {"".join(text.itertext()) for text in root.iter(f"{SVG}text")}
        presets = {rung: preset for preset, rung in report.rungs.items()}
        assert {f"{presets[name]}, {name}" if name in presets else name for name in report.ladder} <= texts
        assert {*report.reference, "exact: no loss"} <= texts
        assert sum(line.get("class") == "ours" for line in root.iter(f"{SVG}line")) == len(LADDER) - 1

    def test_everything_lies_inside(self, report: QualityReport) -> None:
        root = ET.fromstring(svg(report))  # noqa: S314
        _, _, width, height = map(float, root.get("viewBox", "").split())
        for mark in (*root.iter(f"{SVG}circle"), *root.iter(f"{SVG}rect"), *root.iter(f"{SVG}text")):
            x, y = float(mark.get("cx") or mark.get("x") or 0), float(mark.get("cy") or mark.get("y") or 0)
            assert 0 <= x <= width
            assert 0 <= y <= height

    def test_smaller_is_further_right_and_more_loss_is_higher(self, report: QualityReport) -> None:
        root = ET.fromstring(svg(report))  # noqa: S314
        dots = [c for c in root.iter(f"{SVG}circle") if c.get("class") == "dot"]
        assert [dot.findtext(f"{SVG}title") for dot in dots] == list(report.ladder)
        assert float(dots[0].get("cx", 0)) < float(dots[-1].get("cx", 0))
        assert float(dots[0].get("cy", 0)) > float(dots[-1].get("cy", 0))

    def test_a_model_may_have_any_name(self, report: QualityReport) -> None:
        root = ET.fromstring(svg(replace(report, model='<a & "b">')))  # noqa: S314
        assert root.findtext(f"{SVG}title", "").startswith('<a & "b">:')

    def test_a_model_without_any_loss_can_be_drawn(self, recipe: Recipe) -> None:
        flat = run(recipe, FakeEngine(sensitive(0.0, 0.0)), ladder=(), texts=("prose",))
        ET.fromstring(svg(flat))  # noqa: S314
