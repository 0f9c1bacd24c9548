"""What a block drafter in the engine says: several tokens from one forward of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from pinfold.decoding.drafters.base import Guess
from pinfold.engines.base import BlockDrafts, Engine
from pinfold.errors import PinfoldError

__all__ = ["BlockModel"]

log = logging.getLogger("pinfold.drafts")

_FADE = 0.9
_SITS_OUT = "the session was restored without what its drafter needs to know of it"


class BlockModel:
    """The engine's drafter as a source of guesses, named `kind`, for any number of requests."""

    def __init__(self, engine: Engine, blocks: BlockDrafts, kind: str) -> None:
        self._engine = engine
        self._blocks = blocks
        self.kind = kind
        self.seconds_per_token = 0.0

    def drafter(self, tokens: Sequence[int], seq: Callable[[], int | None]) -> _BlockDrafter:
        """A drafter for the request with this list of tokens, which grows, and whose sequence `seq` tells."""
        return _BlockDrafter(self, tokens, seq)

    def can_draft(self, tokens: Sequence[int], seq: int) -> bool:
        """Whether the features of all of `tokens` but the last are known."""
        return self._engine.length(seq) == len(tokens) - 1 and self._blocks.knows_features(seq)

    def draft(self, tokens: Sequence[int], seq: int) -> list[int]:
        """What may follow `tokens`, all but the last of which are in `seq`."""
        began = time.perf_counter()
        try:
            guess = self._blocks.draft_block(seq, tokens[-1])
        except PinfoldError as e:
            log.warning("a draft failed: %s", e)
            return []
        spent = (time.perf_counter() - began) / self._blocks.block_size
        known = self.seconds_per_token or spent
        self.seconds_per_token = _FADE * known + (1 - _FADE) * spent
        return guess


class _BlockDrafter:
    """`base.Drafter` of one request."""

    def __init__(self, model: BlockModel, tokens: Sequence[int], seq: Callable[[], int | None]) -> None:
        self._model = model
        self._tokens = tokens
        self._seq = seq
        self.excuse = ""

    @property
    def source(self) -> str:
        return self._model.kind

    @property
    def seconds_per_token(self) -> float:
        return self._model.seconds_per_token

    def guess(self, ahead: Sequence[int], most: int) -> Guess | None:
        seq = self._seq()
        if ahead or seq is None:  # a block begins at the last token of the answer
            return None
        if not self._model.can_draft(self._tokens, seq):
            self.excuse = _SITS_OUT
            return None
        tokens = self._model.draft(self._tokens, seq)[:most]
        return Guess(tokens, self._model.kind) if tokens else None

    def close(self) -> None:
        """Nothing is held."""
