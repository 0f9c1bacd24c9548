"""Draft-verify decoding against plain decoding: the same requests on the same prefix, one after the other."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from pinfold.bench.workloads import Turn, Workload
from pinfold.errors import ContextOverflowError
from pinfold.results import Completion
from pinfold.runtime import Runtime

__all__ = ["DraftBench", "DraftRow", "bench_draft"]


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One workload.

    Attributes:
        plain_tps: tokens a second without drafts, prefill left out; `draft_tps` with them.
        ratio: the median over pairs of runs, one after the other.
        limit: what `ratio` would be if these forwards took just what forwards of so many tokens take, and the rest no
            time at all.
        effective: the drafters whose guesses were verified.
        same_text: whether all answers were the same, near-ties not allowed for.
    """

    workload: str
    plain_tps: float
    draft_tps: float
    ratio: float
    limit: float
    effective: str
    drafted: int
    accepted: int
    same_text: bool


@dataclass(frozen=True, slots=True)
class DraftBench:
    """`ceiling`: how many times faster a copy could be at most: prefill speed over plain decoding speed, both of the
    first workload.

    `skipped`: workloads that do not fit into the context.
    """

    model: str
    ceiling: float
    rows: tuple[DraftRow, ...]
    skipped: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Model, ceiling and rows as plain values."""
        return {"model": self.model, "ceiling": round(self.ceiling, 3), "rows": [asdict(row) for row in self.rows]}


def bench_draft(
    rt: Runtime, workloads: Sequence[Workload], repeats: int = 3, tell: Callable[[str], None] = lambda _: None
) -> DraftBench:
    """Runs the workloads. `tell` is called with the name of each before it runs."""
    rows: list[DraftRow] = []
    skipped: list[str] = []
    ceiling = 0.0
    salt = f"bench {secrets.token_hex(8)}"  # nothing of it is known before
    for workload in workloads:
        tell(workload.name)
        turns = [replace(turn, options={**turn.options, "salt": salt}) for turn in workload.turns]
        try:
            first = [_ask(rt, turn, mode) for mode in ("off", "auto") for turn in turns]  # computes the prefixes
        except ContextOverflowError:
            skipped.append(workload.name)
            continue
        rows.append(_row(workload.name, list(_pairs(rt, turns, repeats))))
        ceiling = ceiling or (first[0].timings.prompt_tps or 0.0) / rows[0].plain_tps
    return DraftBench(rt.model, ceiling, tuple(rows), tuple(skipped))


def _pairs(rt: Runtime, turns: Sequence[Turn], repeats: int) -> Iterator[tuple[list[Completion], list[Completion]]]:
    """Plain and drafted answers, in turn first and second."""
    for number in range(repeats):
        modes = ("off", "auto") if number % 2 == 0 else ("auto", "off")
        found = {mode: [_ask(rt, turn, mode) for turn in turns] for mode in modes}
        yield found["off"], found["auto"]


def _row(name: str, pairs: Sequence[tuple[list[Completion], list[Completion]]]) -> DraftRow:
    drafted = [done for _, answers in pairs for done in answers]
    sources = dict.fromkeys(source for done in drafted for source in done.draft.sources)
    return DraftRow(
        workload=name,
        plain_tps=median(_tps(plain) for plain, _ in pairs),
        draft_tps=median(_tps(answers) for _, answers in pairs),
        ratio=median(_tps(answers) / _tps(plain) for plain, answers in pairs),
        limit=_tokens(drafted) / max(sum(map(_forwards, drafted)), 1e-9),
        effective="+".join(sources) or "off",
        drafted=sum(done.draft.drafted for done in drafted) // len(pairs),
        accepted=sum(done.draft.accepted for done in drafted) // len(pairs),
        same_text=all(_texts(plain) == _texts(answers) for plain, answers in pairs),
    )


def _ask(rt: Runtime, turn: Turn, draft: str) -> Completion:
    return rt.chat(turn.messages, max_tokens=turn.max_tokens, draft=draft, **turn.options)


def _tps(answers: Sequence[Completion]) -> float:
    """Tokens a second over all of a workload's answers."""
    return _tokens(answers) / max(sum(done.timings.decode_s for done in answers), 1e-9)


def _tokens(answers: Sequence[Completion]) -> int:
    """Tokens that were decoded; the first of each answer comes out of the prefill."""
    return max(sum((done.usage.completion_tokens or 1) - 1 for done in answers), 1)


def _forwards(done: Completion) -> float:
    """What an answer cost, in forwards of one token."""
    draft = done.draft
    plain = (done.usage.completion_tokens or 1) - 1 - draft.accepted - (draft.rounds or 0)
    return max(plain, 0) + (draft.cost or 0.0)


def _texts(answers: Sequence[Completion]) -> list[Any]:
    return [(done.text, [(call.name, call.arguments) for call in done.tool_calls]) for done in answers]
