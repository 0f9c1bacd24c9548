"""The fold: bytes saved against answers moved, and how long folding and restoring take, as `pinfold quality` has it.

Besides --model it measures the models whose paths are in PINFOLD_TEST_QWEN05, PINFOLD_TEST_QWEN15, PINFOLD_TEST_GEMMA3.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import TypeVar

from common import Figure, Report, command, parser, progress, table

from pinfold.opening import open_engine
from pinfold.options import RuntimeOptions
from pinfold.quality.report import QualityReport, Row, measure
from pinfold.quality.tune import GATES, calibrate

T = TypeVar("T")

N_CTX = 4096
OTHERS = ("PINFOLD_TEST_QWEN05", "PINFOLD_TEST_QWEN15", "PINFOLD_TEST_GEMMA3")
SMALLER = {"balanced": 4.1, "compact": 5.0}
BEST_KNOWN = "q8_0/q8_0"
COLUMNS = ("", "bits", "times smaller", "mean KLD", "99%", "99.9%", "max", "top-1", "fold ms", "restore ms")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--prefix", type=int, default=2000, help="tokens of each of the four prompts that are folded")
    options.add_argument("--tokens", type=int, default=256, help="tokens after each prompt that are evaluated")
    args = options.parse_args()
    models = [args.model, *(os.environ[name] for name in OTHERS if os.environ.get(name))]
    reports = [measure_model(model, args) for model in models]
    figures = [figure for report in reports for figure in figures_of(report)]
    tables = [part for report in reports for part in (rows_of(report), *notes_of(report))]
    names = ", ".join(report.model for report in reports)
    Report(command("fold.py", options, args), names, figures, tables).print(as_json=args.json)


def measure_model(model: str, args: argparse.Namespace) -> QualityReport:
    """The model's own report, calibrated for this run alone."""
    settings = {"n_ctx": N_CTX, "kv_cells": N_CTX, "n_threads": args.threads}
    opening = open_engine(model, RuntimeOptions.parse(settings))
    with closing(opening.open()) as engine:
        progress(f"{opening.name}: calibrating")
        recipe = finish(calibrate(engine, lambda _: 0))
        progress(f"{opening.name}: measuring")
        return finish(measure(engine, lambda _: 0, recipe, prefix=args.prefix, tokens=args.tokens))


def finish(steps: Generator[None, None, T]) -> T:
    """What the generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def figures_of(report: QualityReport) -> list[Figure]:
    """What the fold promises, for one model."""
    figures = []
    for preset, scheme in GATES.items():
        row, theirs = report.presets[preset], report.reference[scheme]
        figures += [
            Figure(f"{report.model}, {preset}, times smaller", row.times_smaller, SMALLER[preset], "higher"),
            Figure(f"{report.model}, {preset}, mean KLD / {scheme}'s", row.kld_mean / theirs.kld_mean, 1.0, "lower"),
            Figure(f"{report.model}, {preset}, restore / cold prefill", share(row.restore_ms, report), 0.03, "lower"),
            Figure(f"{report.model}, {preset}, fold / cold prefill", share(row.fold_ms, report), 0.10, "lower"),
        ]
    theirs = report.reference[BEST_KNOWN]
    fine = [row.times_smaller for row in report.ladder.values() if row.kld_mean <= theirs.kld_mean]
    name = f"{report.model}, times smaller at no more than {BEST_KNOWN}'s mean KLD"
    smallest = max(fine, default=report.presets["exact"].times_smaller)
    return [*figures, Figure(name, smallest, theirs.times_smaller, "higher")]


def share(ms: float | None, report: QualityReport) -> float:
    """Part of the cold prefill."""
    return ms / 1e3 / report.prefill_s if ms is not None else float("nan")


def rows_of(report: QualityReport) -> str:
    """All ways of storing the cache; presets stand beside the rung that they are on."""
    presets = {name: ", ".join(p for p, rung in report.rungs.items() if rung == name) for name in report.rungs.values()}
    ladder: Mapping[str, Row] = {"exact": report.presets["exact"], **report.ladder}
    ours = {f"{name} ({presets[name]})" if presets.get(name, name) != name else name: r for name, r in ladder.items()}
    rows = {"floor": report.floor, **report.reference, **ours}
    head = (f"{report.model}, cold prefill {report.prefill_s * 1e3:,.0f} ms", *COLUMNS[1:])
    return table(head, [cells(name, row) for name, row in rows.items()])


def cells(name: str, row: Row) -> tuple[str, ...]:
    nats = [f"{value:.5f}" for value in (row.kld_mean, row.kld_p99, row.kld_p999, row.kld_max)]
    times = [f"{value:.0f}" if value is not None else "" for value in (row.fold_ms, row.restore_ms)]
    return (name, f"{row.bits:.2f}", f"{row.times_smaller:.2f}", *nats, f"{row.top1:.1%}", *times)


def notes_of(report: QualityReport) -> list[str]:
    """What the report says in words, as a list."""
    return ["\n".join(f"- {note}" for note in report.notes)] if report.notes else []


if __name__ == "__main__":
    main()
