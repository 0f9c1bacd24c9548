"""The command, its global options, and what becomes of an error."""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pinfold.cli import bench, chat, doctor, lint, models, pins, quality, store, transfer
from pinfold.cli.terminal import error
from pinfold.errors import PinfoldError

__all__ = ["app", "main"]


class _ReportsErrors(TyperGroup):
    """Turns Pinfold's errors into one line and exit code 1. Wrong usage has exit code 2, as everywhere."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PinfoldError as e:
            if ctx.params.get("debug"):
                raise
            error(str(e))
            raise typer.Exit(1) from e


app = typer.Typer(
    cls=_ReportsErrors,
    help="Pins the long prompts of agents: run a local model, see what it reuses.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pinfold {version('pinfold')}")
        raise typer.Exit


@app.callback()
def _global_options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Log everything, and show tracebacks.")] = False,
) -> None:
    logging.basicConfig(level=logging.DEBUG if debug else logging.ERROR, format="%(levelname)s %(name)s: %(message)s")


app.command()(doctor.doctor)
app.command()(chat.chat)
app.add_typer(pins.app, name="pins")
app.command()(lint.lint)
app.add_typer(bench.app, name="bench")
app.command()(models.models)
app.command()(quality.quality)
app.command()(store.ls)
app.command()(store.show)
app.command()(store.rm)
app.command()(store.warm)
app.command()(transfer.spill)
app.command()(transfer.export)
app.command("import")(transfer.import_)


def main() -> None:
    """Entry point of the `pinfold` command."""
    app(prog_name="pinfold")
