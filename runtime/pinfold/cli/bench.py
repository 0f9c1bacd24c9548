"""`pinfold bench`: what this machine gets out of a model, measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pinfold.cli.opening import Engine, Json, Model, opened
from pinfold.cli.terminal import aside, console, is_terminal, json_out, table
from pinfold.engines.probe import AUTO
from pinfold.errors import InvalidRequestError, UnsupportedModeError
from pinfold.options import is_address

if TYPE_CHECKING:
    from pinfold.bench.draft import DraftBench

__all__ = ["app"]

app = typer.Typer(help="Measure what a model gives on this machine.", no_args_is_help=True)

_COLUMNS = ("workload", "plain tok/s", "drafted tok/s", "times", "at most", "from", "drafted", "accepted", "same text")


@app.callback()
def _bench() -> None:
    """Measure what a model gives on this machine."""


@app.command()
def draft(
    model: Model,
    engine: Engine = AUTO,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each workload, with drafts and without.")] = 3,
    plot: Annotated[Path | None, typer.Option(help="Also draw the ratios, into this SVG file.")] = None,
    as_json: Json = False,
) -> None:
    """Measure draft-verify decoding against plain decoding: edits, tool calls, quotations, chat and prose.

    Greedy, on one Runtime and the same prefixes, prefill left out. Takes some minutes.
    """
    from pinfold.bench.draft import bench_draft
    from pinfold.bench.workloads import WORKLOADS

    if plot is not None and (plot.suffix.lower() != ".svg" or not plot.absolute().parent.is_dir()):
        msg = f"--plot {plot}: give the name of an .svg file in a folder that exists."
        raise InvalidRequestError(msg)
    if is_address(model):
        msg = f"{model} is a server, whose decoding Pinfold does not change. Give a model of this process."
        raise UnsupportedModeError(msg)
    n_ctx = max(workload.n_ctx for workload in WORKLOADS)
    with (
        opened(model, engine=engine, n_ctx=n_ctx) as rt,
        console(stderr=True).status("starting") as status,
    ):
        found = bench_draft(rt, WORKLOADS, repeats, lambda name: status.update(name) if is_terminal() else None)
    if plot is not None:
        _write_plot(plot, found)
    if as_json:
        json_out(found.to_json())
    else:
        _print(found)


def _write_plot(path: Path, found: DraftBench) -> None:
    from pinfold.bench.plot import svg

    try:
        path.write_text(svg(found), encoding="utf-8")
    except OSError as e:
        msg = f"--plot {path} cannot be written: {e}. Give another file."
        raise InvalidRequestError(msg) from e


def _print(found: DraftBench) -> None:
    rows = [
        (
            row.workload,
            f"{row.plain_tps:.1f}",
            f"{row.draft_tps:.1f}",
            f"{row.ratio:.2f}",
            f"{row.limit:.2f}",
            row.effective,
            f"{row.drafted:,}",
            f"{row.accepted:,}",
            "yes" if row.same_text else "no",
        )
        for row in found.rows
    ]
    table(f"{found.model}: a copy could be at most {found.ceiling:.1f} times faster", _COLUMNS, rows)
    for name in found.skipped:
        aside(f"{name!r} does not fit into this model's context and was left out", "yellow")
