"""Texts that the workloads are made of: a module to be edited, passages to be quoted, tools to be called."""

from __future__ import annotations

from typing import Any

__all__ = ["ARTICLES", "MODULE", "TOOLS", "other_module"]

MODULE = '''"""Reads the harbour's ledger and adds up what came in."""

from dataclasses import dataclass
from datetime import date


@dataclass
class Arrival:
    ship: str
    day: date
    barrels: int
    weight_kg: float
    inspected: bool = False


class Ledger:
    """All arrivals of one season, in the order in which they were written down."""

    def __init__(self, season: str) -> None:
        self.season = season
        self.arrivals: list[Arrival] = []

    def add(self, arrival: Arrival) -> None:
        if arrival.barrels < 0:
            raise ValueError(f"{arrival.ship}: a ship cannot bring {arrival.barrels} barrels")
        self.arrivals.append(arrival)

    def total_barrels(self) -> int:
        return sum(arrival.barrels for arrival in self.arrivals)

    def total_weight(self) -> float:
        return sum(arrival.weight_kg for arrival in self.arrivals)

    def by_ship(self, ship: str) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if arrival.ship == ship]

    def not_inspected(self) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if not arrival.inspected]

    def average_weight(self) -> float:
        barrels = self.total_barrels()
        return self.total_weight() / barrels if barrels else 0.0
'''

_OTHER = '''"""Module {n} of the harbour's office: {what}."""


def {name}_of(entries: list[dict[str, int]], least: int = {n}) -> list[dict[str, int]]:
    """Entries of at least `least` {what}, the largest first."""
    chosen = [entry for entry in entries if entry.get("{name}", 0) >= least]
    return sorted(chosen, key=lambda entry: entry["{name}"], reverse=True)


def sum_of_{name}(entries: list[dict[str, int]]) -> int:
    """What all entries have of {what} together, those of the {n} last days left out."""
    return sum(entry.get("{name}", 0) for entry in entries[:-{n}])
'''
_KINDS = ("barrels", "sacks", "crates", "ropes", "lamps", "anchors", "sails", "nets", "oars", "bells")

ARTICLES = """\
[1] The lock at Brackwater was rebuilt in 1911 after the great flood. Its gates are of greenheart timber, each \
weighing nineteen tonnes, and they are opened by a pair of water turbines that the engineer Ada Lindqvist \
designed for the purpose. The turbines have been in daily use ever since, except during the winter of 1962, when \
the canal froze for eleven weeks.

[2] Boats of up to thirty metres may pass the lock at Brackwater between six in the morning and ten at night. \
The keeper charges by the tonne, and boats that carry stone for the sea wall pass free. In 1987 the keeper's \
house was made into a small museum, where the drawings of the turbines and the log books of the first forty \
years are kept.

[3] The sea wall was begun in 1893 and is not finished to this day. It is built of granite blocks that are cut \
at Hollow Quarry and brought down the canal. Each block is marked with the year and the mason's sign, so that \
one can walk along the wall and read its history. The longest stretch built in a single year, four hundred and \
twelve metres, is that of 1926.
"""


def other_module(n: int) -> str:
    """A small module that is unlike the others."""
    kind = _KINDS[n % len(_KINDS)]
    return _OTHER.format(n=n + 2, name=f"{kind}_{n}", what=kind)


def _tool(name: str, what: str, **fields: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in fields.items()}
    schema = {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": what, "parameters": schema}}


TOOLS = [
    _tool("read_source_file", "Read a file of the project.", file_path="Path from the project's root."),
    _tool(
        "replace_in_source_file",
        "Replace a piece of text in a file of the project.",
        file_path="Path from the project's root.",
        old_text="The text as it stands there now.",
        new_text="The text that takes its place.",
    ),
    _tool("run_test_suite", "Run the project's tests in one file.", test_path="Path of the test file."),
    _tool("search_in_project", "Look for a text in all files.", search_text="What to look for."),
]
