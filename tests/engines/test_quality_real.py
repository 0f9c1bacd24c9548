"""The fold on the embedded model: what its answers lose, on texts that calibration never saw. A shorter run than
`pinfold quality` makes: a tenth of its tokens."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pytest

from pinfold.engines.base import Engine
from pinfold.kv.codec import fold
from pinfold.kv.recipe import LADDER, PRESETS, Recipe
from pinfold.kv.snapshot import Snapshot
from pinfold.opening import open_engine
from pinfold.options import RuntimeOptions
from pinfold.quality import tune
from pinfold.quality.report import QualityReport, measure
from pinfold.quality.texts import HELD_OUT, sample_texts
from pinfold.quality.trial import take_snapshot

T = TypeVar("T")

# Mean divergences of 128 tokens scatter by about this much around those of a thousand.
SCATTER = 1.4


@dataclass
class Model:
    engine: Engine
    recipe: Recipe


def seq_zero(_cells: int) -> int:
    return 0


def finish(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


@pytest.fixture(scope="module")
def model(smollm2: str) -> Iterator[Model]:
    """Calibrated by the same steps as ever, on less text."""
    engine = open_engine(smollm2, RuntimeOptions.parse({"n_ctx": 2048, "kv_cells": 2048})).open()
    with pytest.MonkeyPatch.context() as shorter:
        shorter.setattr(tune, "_LEARNT", 384)
        shorter.setattr(tune, "_GATE_PREFIX", 192)
        shorter.setattr(tune, "_GATE_TOKENS", 64)
        shorter.setattr(tune, "_PROBE_TOKENS", 8)
        recipe = finish(tune.calibrate(engine, seq_zero))
    yield Model(engine, recipe)
    engine.close()


@pytest.fixture(scope="module")
def report(model: Model) -> QualityReport:
    return finish(
        measure(model.engine, seq_zero, model.recipe, prefix=256, tokens=64, texts=("tools", "prose"), ladder=())
    )


def test_exact_changes_no_distribution(report: QualityReport) -> None:
    exact = report.presets["exact"]
    assert (exact.kld_mean, exact.kld_max, exact.top1) == (0.0, 0.0, 1.0)
    assert exact.times_smaller > 1.05


@pytest.mark.parametrize(("preset", "scheme"), tune.GATES.items())
def test_a_preset_loses_no_more_than_its_gate(report: QualityReport, preset: str, scheme: str) -> None:
    limit = max(report.reference[scheme].kld_mean, report.floor.kld_mean)
    assert 0 < report.presets[preset].kld_mean <= SCATTER * limit
    assert report.presets[preset].top1 > 0.9


def test_the_references_lose_in_their_known_order(report: QualityReport) -> None:
    assert report.reference["q8_0/q8_0"].kld_mean < report.reference["k8v3"].kld_mean
    assert report.floor.kld_mean < report.reference["k8v3"].kld_mean


@pytest.fixture(scope="module")
def thousand(model: Model) -> Snapshot:
    """The KV of a prefix of a thousand tokens."""
    tokens = model.engine.tokenizer.encode(sample_texts(HELD_OUT)["tools"])[:1000]
    return finish(take_snapshot(model.engine, seq_zero, tokens))


@pytest.mark.parametrize(("preset", "least"), [("balanced", 4.1), ("compact", 5.0)])
def test_a_preset_makes_a_prefix_smaller(model: Model, thousand: Snapshot, preset: str, least: float) -> None:
    """On the rung where it begins; everything stored is counted."""
    folded = fold(thousand, model.recipe, LADDER[PRESETS[preset]])
    assert folded.notes == ()
    assert folded.raw_bytes > least * len(folded.data)
