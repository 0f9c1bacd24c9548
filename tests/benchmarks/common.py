"""What the benchmarks share: medians and paired ratios, figures with targets, Markdown tables, one way to report."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pinfold.models.lookup import resolve

__all__ = [
    "Figure",
    "Report",
    "command",
    "machine",
    "median",
    "model_path",
    "paired",
    "parser",
    "progress",
    "settle",
    "table",
]

# Longer than llama.cpp's threads spin after a forward, so that one peer's do not take the next one's cores.
_SETTLE_S = 0.3


@dataclass(frozen=True)
class Figure:
    """One measured number and what it should be: at most `target` where lower is better, else at least."""

    name: str
    value: float
    target: float
    better: Literal["lower", "higher"]
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.value <= self.target if self.better == "lower" else self.value >= self.target

    def row(self) -> tuple[str, str, str, str]:
        """Cells of the figures' table."""
        sign = "≤" if self.better == "lower" else "≥"
        unit = f" {self.unit}" if self.unit else ""
        return self.name, f"{self.value:.3f}{unit}", f"{sign} {self.target:g}{unit}", "yes" if self.met else "**no**"


@dataclass(frozen=True)
class Report:
    """What a benchmark found: its figures, and the tables behind them as Markdown."""

    command: str
    model: str
    figures: Sequence[Figure]
    tables: Sequence[str]

    def markdown(self) -> str:
        """The section of docs/benchmarks.md."""
        head = f"Command: `{self.command}`<br>\nModel: {self.model}<br>\nMachine: {machine()}<br>\n{_versions()}"
        figures = table(("figure", "measured", "target", "met"), [f.row() for f in self.figures])
        return "\n\n".join((head, figures, *self.tables)) + "\n"

    def print(self, *, as_json: bool) -> None:
        """To stdout, as Markdown or as one JSON object that holds the figures and the Markdown."""
        if as_json:
            figures = [asdict(f) | {"met": f.met} for f in self.figures]
            print(json.dumps({"figures": figures, "markdown": self.markdown()}))
        else:
            print(self.markdown())


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with the options that every benchmark has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--model", default="smollm2", help="alias or path of a GGUF file")
    options.add_argument("--threads", type=int, default=2, help="threads of a forward, for every peer")
    options.add_argument("--json", action="store_true", help="print one JSON object in place of Markdown")
    return options


def command(script: str, options: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """What was run: the script and whatever differs from the settings that the figures are about."""
    changed = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name, value in vars(args).items()
        if name != "json" and value != options.get_default(name)
    ]
    return " ".join(["python", f"tests/benchmarks/{script}", *changed])


def model_path(name: str) -> Path:
    """The GGUF file that `name` stands for, for peers that know no aliases."""
    path = resolve(name).path
    if path is None:
        msg = f"{name!r} is no GGUF file"
        raise SystemExit(msg)
    return path


def settle() -> None:
    """Lets the threads of whatever ran last fall asleep."""
    time.sleep(_SETTLE_S)


def progress(text: str) -> None:
    """A line for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def median(values: Iterable[float]) -> float:
    """The median; NaN of nothing."""
    kept = list(values)
    return statistics.median(kept) if kept else float("nan")


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of ours/theirs, pair by pair: what drifts between pairs cancels out."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; all columns but the first are set to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in (head, rule, *rows))


def machine() -> str:
    """One line: processor, cores that may be used, system, Python."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cores} cores, {platform.system()}, Python {platform.python_version()}"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    vectors = [name for name in ("avx512f", "avx2") if re.search(rf"^flags\s*:.*\b{name}\b", text, re.MULTILINE)]
    return " ".join([found[1] if found else platform.machine(), *[f"({name})" for name in vectors[:1]]])


def _versions() -> str:
    return f"Library: llama-cpp-python {version('llama-cpp-python')}"
