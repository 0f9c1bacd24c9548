"""Which drafters help a request, and their share of each forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pinfold.decoding.arbiter import Arbiter, Trail
from pinfold.decoding.costs import MOST_ROWS, ForwardCosts
from pinfold.decoding.drafters.base import Drafter
from pinfold.decoding.drafters.block import BlockModel
from pinfold.decoding.drafters.grammar import Forced
from pinfold.decoding.drafters.history import Answers, History
from pinfold.decoding.drafters.lookup import Lookup
from pinfold.decoding.generation import Generation
from pinfold.decoding.trial import CostTrial
from pinfold.engines.base import Engine

__all__ = ["DraftModel", "Drafting"]


class DraftModel(Protocol):
    """A second model that drafts for any number of requests."""

    def drafter(self, tokens: Sequence[int]) -> Drafter:
        """A drafter for the request with this list of tokens, which grows."""

    def close(self) -> None:
        """Frees the model."""


class Drafting:
    """Plans drafts for all running requests of one engine. Everything runs on the engine's thread.

    Args:
        trial: measures the costs where they are not known yet.
        keep: is given seconds by rows to be known to a later process.
        model: drafts as well where it was given.
        blocks: the engine's own drafter, where it has one.
        answers: earlier ones are drafted from where this was given.
    """

    def __init__(
        self,
        engine: Engine,
        costs: ForwardCosts,
        trial: CostTrial | None = None,
        keep: Callable[[Mapping[int, float]], None] | None = None,
        model: DraftModel | None = None,
        answers: Answers | None = None,
        blocks: BlockModel | None = None,
    ) -> None:
        self._engine = engine
        self._arbiter = Arbiter(costs, recomputes=engine.capabilities.trim != "any")
        self._trial = trial
        self._keep = keep
        self._model = model
        self._blocks = blocks
        self._answers = answers

    def begin(self, g: Generation) -> None:
        """Gives a request the drafters that it may use."""
        mode, drafters = g.job.draft, list[Drafter]()
        if g.job.constraint is not None and mode in ("auto", "grammar"):
            drafters.append(Forced(g.job.constraint))
        if mode in ("auto", "lookup"):
            drafters.append(Lookup(g.tokens))
            if self._answers is not None:
                drafters.append(History(self._answers, g.job.salt, g.tokens))
        if self._model is not None and mode in ("auto", "model"):
            drafters.append(self._model.drafter(g.tokens))
        if self._blocks is not None and mode in ("auto", self._blocks.kind):
            drafters.append(self._blocks.drafter(g.tokens, lambda: g.seq))
        if drafters:
            valid = None if g.job.constraint is None else g.job.constraint.first_valid
            g.trail = Trail(self._arbiter, drafters, valid)

    def ended(self, g: Generation) -> None:
        """A request has its answer."""
        if self._answers is not None:
            self._answers.remember(g.job.salt, g.tokens[len(g.job.tokens) :])

    def plan(self, running: Sequence[Generation]) -> None:
        """Sets each request's `draft`. While a prompt is computed there is none: the forward is large enough."""
        if any(g.in_prefill for g in running):
            for g in running:
                g.draft = []
            return
        if not any(g.trail for g in running):
            return
        engine, rows = self._engine, len(running)
        room = min(MOST_ROWS, engine.max_rows, engine.max_tokens, engine.free_cells()) - rows
        for g in running:
            drafted = g.plan_draft(rows, room)
            rows, room = rows + drafted, room - drafted

    def rest(self) -> bool:
        """No request runs: measures one forward; False once nothing is left to measure."""
        if self._trial is None:
            return False
        self._trial.step()
        if self._trial.over:
            self._trial = None
            self._note_costs()
        return self._trial is not None

    def close(self) -> None:
        """Keeps what was learnt, and frees the draft model."""
        self._note_costs()
        if self._model is not None:
            self._model.close()

    def _note_costs(self) -> None:
        known = self._arbiter.costs.known()
        if self._keep is not None and known:
            self._keep(known)

    def learn(self, rows: int, seconds: float) -> None:
        """A forward of `rows` rows and nothing else took so long."""
        self._arbiter.costs.learn(rows, seconds)
