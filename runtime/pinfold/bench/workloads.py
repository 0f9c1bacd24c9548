"""What agents ask a model to write: much of it stands in the prompt already, or is forced by a grammar; some is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pinfold.bench.texts import ARTICLES, MODULE, TOOLS, other_module

__all__ = ["WORKLOADS", "Turn", "Workload"]

Messages = list[dict[str, Any]]

_CODER = "You are a careful programmer. You answer with code and nothing else."
_OTHER_FILES = 34


@dataclass(frozen=True, slots=True)
class Turn:
    """One request."""

    messages: Messages
    max_tokens: int
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workload:
    """Turns of one kind; `n_ctx`: tokens that the longest takes, prompt and answer, with any tokenizer."""

    name: str
    turns: Sequence[Turn]
    n_ctx: int = 4096


def _edit(before: str = "") -> Turn:
    task = (
        f"{before}This is ledger.py:\n\n```python\n{MODULE}```\n\nRename the class Arrival to Landing everywhere in "
        "ledger.py, and change nothing else. Write out the whole of ledger.py."
    )
    return Turn([{"role": "system", "content": _CODER}, {"role": "user", "content": task}], 300)


def _long_edit() -> Turn:
    files = "".join(f"This is office_{n}.py:\n\n```python\n{other_module(n)}```\n\n" for n in range(_OTHER_FILES))
    return _edit(files)


def _calls() -> list[Turn]:
    system = "You are a coding agent. Answer every request with one call of one tool, with the words of the request."
    old, new = (
        "return self.total_weight() / barrels if barrels else 0.0",
        "return self.total_weight() / max(barrels, 1)",
    )
    asked = (
        "Read src/harbour/ledger/season_totals.py.",
        "Now look for total_weight_of_all_arrivals in the project.",
        f"In src/harbour/ledger/season_totals.py replace `{old}` by `{new}`.",
        "Run the tests in tests/harbour/ledger/test_season_totals.py.",
        f"Undo it: in src/harbour/ledger/season_totals.py replace `{new}` by `{old}` again.",
        "Read tests/harbour/ledger/test_season_totals.py.",
    )
    forced = {"tools": TOOLS, "tool_choice": "required"}
    return [
        Turn([{"role": "system", "content": system}, {"role": "user", "content": text}], 120, forced) for text in asked
    ]


def _quotation() -> Turn:
    task = (
        f"{ARTICLES}\nWhat do these texts say of the lock at Brackwater and of the boats that pass it? Answer with the "
        "sentences of [1] and [2], word for word, each in quotation marks and with its number."
    )
    return Turn([{"role": "user", "content": task}], 220)


def _chat() -> Turn:
    return Turn([{"role": "user", "content": "What should I see on a weekend by the sea in autumn? Be brief."}], 160)


def _prose() -> Turn:
    task = "Write a story about two sisters who keep a lighthouse and do not speak to each other. Tell it slowly."
    return Turn([{"role": "user", "content": task}], 300)


WORKLOADS = (
    Workload("code edit", [_edit()]),
    Workload("tool calls", _calls()),
    Workload("quotation", [_quotation()]),
    Workload("short chat", [_chat()]),
    Workload("long prose", [_prose()]),
    Workload("code edit, long context", [_long_edit()], n_ctx=8192),
)
