"""How commands print: data on stdout, what goes with it on stderr, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["aside", "console", "error", "is_terminal", "json_out", "safe", "size", "span", "table", "yes_no"]

# Columns of a table that goes to a file or a pipe, where nothing needs to be folded.
_WIDE = 200

_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)])
del _CONTROLS[ord("\n")], _CONTROLS[ord("\t")]


def console(*, stderr: bool = False) -> Console:
    """A fresh console: the streams may have been replaced since the last one was made."""
    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=True)


def is_terminal() -> bool:
    """Whether people see both streams, so that colour, prompts and progress bars make sense."""
    return sys.stdout.isatty() and sys.stderr.isatty()


def aside(text: str, style: str = "dim") -> None:
    """One line on stderr that belongs to no data."""
    console(stderr=True).print(Text(safe(text), style))


def error(text: str) -> None:
    """The one line that an error becomes."""
    line = safe(" ".join(text.split()))
    console(stderr=True).print(Text.assemble(("error: ", "bold red"), (line, "red")))


def safe(text: str) -> str:
    """`text` without control characters, so that no model and no file can drive the terminal."""
    return text.translate(_CONTROLS)


def json_out(data: Any) -> None:
    """`data` as indented JSON on stdout."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout, without a header if its columns have no names."""
    grid = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    grid.show_header = any(columns)
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(safe(cell)) for cell in row))
    out = console()
    out.soft_wrap = False
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = _WIDE
    out.print(grid)


def size(count: float) -> str:
    """A number of bytes, in the unit that leaves few digits."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


def span(seconds: float) -> str:
    """A time in the largest unit that it fills."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def yes_no(value: bool) -> str:
    """A fact in a table."""
    return "yes" if value else "no"
