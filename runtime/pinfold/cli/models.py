"""`pinfold models`: which names stand for a model, and what a name resolves to."""

from __future__ import annotations

from typing import Annotated

import typer

from pinfold.cli.opening import Json
from pinfold.cli.terminal import json_out, table
from pinfold.engines.probe import choose_engine
from pinfold.errors import PinfoldError
from pinfold.models import ALIASES, resolve

__all__ = ["models"]


def models(
    name: Annotated[str | None, typer.Argument(help="Find this model; one on Hugging Face is downloaded.")] = None,
    as_json: Json = False,
) -> None:
    """List the aliases, or show what NAME resolves to: kind, engine, file."""
    rows = [_row(alias) for alias in sorted(ALIASES)] if name is None else [_found(name)]
    if as_json:
        json_out(rows)
    else:
        columns = ("name", "kind", "engine", "where")
        table("Models", columns, [[row[c] or "-" for c in columns] for row in rows])


def _found(name: str) -> dict[str, str | None]:
    model = resolve(name)
    engine = choose_engine(model).engine
    return {"name": name, "kind": model.kind, "engine": engine, "where": str(model.path or model.source)}


def _row(alias: str) -> dict[str, str | None]:
    try:
        return _found(alias)
    except PinfoldError as e:
        return {"name": alias, "kind": None, "engine": None, "where": str(e)}
