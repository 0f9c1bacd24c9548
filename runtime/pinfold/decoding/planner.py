"""Which tokens go into the next forward."""

from __future__ import annotations

from collections.abc import Sequence

from pinfold.decoding.generation import Generation
from pinfold.engines.base import Span

__all__ = ["Planner"]


class Planner:
    """Every decoding request gets its row; prompts share what is left of the chunk.

    While others decode, the chunk is an eighth, so that a long prompt does not stall their tokens. Of several prompts
    the oldest gets at least half and the shortest the rest: neither starves.
    """

    def __init__(self, chunk: int, max_tokens: int, *, cuts: bool) -> None:
        self._chunk = chunk
        self._max_tokens = max_tokens
        self._cuts = cuts

    def plan(self, running: Sequence[Generation]) -> list[tuple[Generation, Span]]:
        """Spans for one forward; at least one if anything runs."""
        prefilling: list[Generation] = []
        planned: list[tuple[Generation, Span]] = []
        for g in running:
            if g.in_prefill:
                prefilling.append(g)
            else:
                planned.append((g, _decode_span(g)))
        if not prefilling:
            return planned
        budget = max(self._chunk // 8, 16) if planned else self._chunk
        budget = min(budget, self._max_tokens - sum(len(span.tokens) for _, span in planned))
        oldest, *others = prefilling
        kept_back = min(self._wanted(oldest), budget // 2)
        shared = []
        for g in sorted(others, key=lambda g: len(g.tokens) - g.evaluated):
            count = min(self._wanted(g), budget - kept_back)
            if count > 0:
                shared.append((g, _span(g, count)))
                budget -= count
        return [*planned, (oldest, _span(oldest, min(self._wanted(oldest), budget))), *shared]

    def _wanted(self, g: Generation) -> int:
        end = len(g.tokens)
        if not self._cuts:  # a state that cannot be cut is pinned where it stands: stop there
            end = min((m.length for m in g.marks if m.length > g.evaluated), default=end)
        return end - g.evaluated


def _decode_span(g: Generation) -> Span:
    if not g.draft:
        return _span(g, 1)
    return Span(g.seq if g.seq is not None else -1, g.evaluated, [g.tokens[-1], *g.draft], "all")


def _span(g: Generation, count: int) -> Span:
    end = g.evaluated + count
    wants = end == len(g.tokens) and g.job.pin is None
    return Span(
        g.seq if g.seq is not None else -1, g.evaluated, g.tokens[g.evaluated : end], "last" if wants else "none"
    )
