"""`pinfold quality`: what folding a model's KV saves, and what it costs its answers, measured."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from pinfold.cli.opening import Engine, Json, Model, NCtx
from pinfold.cli.terminal import aside, console, is_terminal, json_out, table
from pinfold.engines.probe import AUTO, SCRIPTED
from pinfold.errors import InvalidRequestError, StoreError, UnsupportedModeError
from pinfold.options import RuntimeOptions

if TYPE_CHECKING:
    from pinfold.engines.base import Engine as OpenEngine
    from pinfold.kv.recipe import Recipe
    from pinfold.quality.report import QualityReport, Row
    from pinfold.sessions.model_recipes import ModelRecipes

__all__ = ["quality"]

T = TypeVar("T")
Tell = Callable[[float], None]

# Tokens of a sample text that calibration computes at once.
_CALIBRATION_TOKENS = 1024
_COLUMNS = ("", "bits", "smaller", "mean KLD", "99%", "99.9%", "max", "top-1", "fold ms", "restore ms")


def quality(
    model: Model,
    engine: Engine = AUTO,
    n_ctx: NCtx = RuntimeOptions.model_fields["n_ctx"].default,
    prefix: Annotated[int, typer.Option(min=64, help="Tokens of each of the four prompts that are folded.")] = 2000,
    tokens: Annotated[int, typer.Option(min=16, help="Tokens after each prompt that are evaluated.")] = 256,
    plot: Annotated[Path | None, typer.Option(help="Also draw sizes against losses, into this SVG file.")] = None,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Learn the model anew even if that was kept before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure what the presets save on MODEL and how far they move its answers, beside what others store.

    The figures are Kullback-Leibler divergences, in nats a token, against the f16 cache. Takes some minutes.
    """
    from pinfold.opening import open_engine

    _check_plot(plot)
    options = RuntimeOptions.parse({"engine": engine, "n_ctx": n_ctx, "kv_cells": n_ctx})
    opening = open_engine(model, options)
    with closing(opening.open()) as opened:
        _check_engine(opened, prefix + tokens)
        recipe = _recipe(opened, options, anew=recalibrate)
        if not any(recipe.sections):
            _print_nothing_folds(opening.name, recipe, as_json=as_json)
            return
        report = _report(opened, recipe, prefix, tokens)
    if plot is not None:
        _write_plot(plot, report)
    if as_json:
        json_out(report.to_json())
    else:
        _print(report)


def _one_sequence(_cells: int) -> int:
    """Whoever asks for a sequence drops it before the next is asked for."""
    return 0


def _recipe(engine: OpenEngine, options: RuntimeOptions, *, anew: bool) -> Recipe:
    """What calibration learnt of the model: as it was kept, or learnt now and kept."""
    from pinfold.quality.tune import calibrate

    kept = _kept_recipes(engine, options)
    found = kept.current() if kept is not None and not anew else None
    if found is not None:
        return found
    with _progress("learning the model") as tell:
        recipe = _finish(calibrate(engine, _one_sequence, tell))
    if kept is not None:
        try:
            kept.keep(recipe)
        except StoreError as e:
            aside(f"what was learnt is not kept: {e}", "yellow")
    return recipe


def _kept_recipes(engine: OpenEngine, options: RuntimeOptions) -> ModelRecipes | None:
    """Where a Runtime of the same settings keeps the model's recipe; None if nothing is to be kept."""
    from pinfold.keeping import recipes_folder, store_root
    from pinfold.sessions.fingerprint import file_digest
    from pinfold.sessions.model_recipes import ModelRecipes
    from pinfold.store import fingerprint_of
    from pinfold.store.recipes import RecipeFiles

    capabilities = engine.capabilities
    root = store_root(options, capabilities.engine)
    if root is None:
        return None
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as e:
        aside(f"what is learnt will not be kept: {e}", "yellow")
        return None
    files = RecipeFiles(recipes_folder(root))
    path = capabilities.model.path
    weights = capabilities.model.identity if path is None else file_digest(path, files)
    return ModelRecipes(files, fingerprint_of({**capabilities.facets, "weights": weights}))


def _report(engine: OpenEngine, recipe: Recipe, prefix: int, tokens: int) -> QualityReport:
    from pinfold.quality.report import measure

    with _progress("measuring") as tell:
        return _finish(measure(engine, _one_sequence, recipe, prefix=prefix, tokens=tokens, progress=tell))


def _finish(steps: Generator[None, None, T]) -> T:
    """What the generator returns: nobody else waits for the engine, so it never rests."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


@contextmanager
def _progress(what: str) -> Iterator[Tell]:
    """A bar on stderr while people watch."""
    columns = (TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True, disable=not is_terminal()) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda part: bar.update(task, completed=part)


def _check_engine(engine: OpenEngine, tokens: int) -> None:
    capabilities = engine.capabilities
    if capabilities.engine == SCRIPTED:
        msg = "The scripted engine has no keys and values to fold. Give a model, such as 'smollm2'."
        raise UnsupportedModeError(msg)
    needed = max(tokens, _CALIBRATION_TOKENS)
    if needed > min(capabilities.n_ctx, capabilities.n_cells):
        msg = (
            f"Measuring needs {needed} tokens, but the context holds {capabilities.n_ctx}. "
            f"Give a larger --n-ctx or, for prompts of more than {_CALIBRATION_TOKENS} tokens, a smaller --prefix."
        )
        raise InvalidRequestError(msg)


def _check_plot(path: Path | None) -> None:
    """Before minutes are spent on what cannot be written."""
    if path is not None and (path.suffix.lower() != ".svg" or not path.absolute().parent.is_dir()):
        msg = f"--plot {path}: give the name of an .svg file in a folder that exists."
        raise InvalidRequestError(msg)


def _write_plot(path: Path, report: QualityReport) -> None:
    from pinfold.quality.plot import svg

    try:
        path.write_text(svg(report), encoding="utf-8")
    except OSError as e:
        msg = f"--plot {path} cannot be written: {e}. Give another file."
        raise InvalidRequestError(msg) from e


def _print_nothing_folds(model: str, recipe: Recipe, *, as_json: bool) -> None:
    notes = list(dict.fromkeys(recipe.notes.values()))
    if as_json:
        nothing: dict[str, Any] = {"model": model, "floor": None, "reference": {}, "presets": {}, "notes": notes}
        json_out(nothing)
        return
    table(f"{model}: kept without loss", ("preset", "why"), sorted(recipe.notes.items()))


def _print(report: QualityReport) -> None:
    rows = {"floor": report.floor, **report.reference}
    for preset, row in report.presets.items():
        rung = report.rungs[preset]
        rows[preset if preset == rung else f"{preset}, {rung}"] = row
    title = f"{report.model}: {report.evaluated_tokens:,} tokens after prefixes of {report.prefix_tokens:,}"
    table(title, _COLUMNS, [_cells(name, row) for name, row in rows.items()])
    typer.echo()
    table("The ladder", _COLUMNS, [_cells(name, row) for name, row in report.ladder.items()])
    aside(f"computing a prefix anew takes {report.prefill_s * 1e3:,.0f} ms")
    for note in report.notes:
        aside(f"note: {note}", "yellow")


def _cells(name: str, row: Row) -> tuple[str, ...]:
    nats = [f"{value:.5f}" for value in (row.kld_mean, row.kld_p99, row.kld_p999, row.kld_max)]
    times = [f"{value:.1f}" if value is not None else "-" for value in (row.fold_ms, row.restore_ms)]
    return (name, f"{row.bits:.2f}", f"{row.times_smaller:.2f}", *nats, f"{row.top1:.1%}", *times)
