"""What followed the same tokens earlier: in the prompt, which holds the conversation, or in the answer itself.

Prompt lookup, after Saxena (github.com/apoorvumang/prompt-lookup-decoding, 2023) and SuffixDecoding (arXiv 2411.04975):
here the places of every three tokens, and of every two, are chained, so that a step costs the same however long the
prompt is.
"""

from __future__ import annotations

from collections.abc import Sequence

from pinfold.decoding.drafters.base import Guess
from pinfold.decoding.drafters.runs import MOST_COMPARED, RunIndex, best_match, strength_of

__all__ = ["Lookup"]


class Lookup:
    """The longest match among the latest places, of equal ones the latest.

    The index is built at the first guess, which comes after the first token, at under a microsecond a token.
    """

    source = "lookup"
    excuse = ""
    seconds_per_token = 0.0

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._indexes = (RunIndex(tokens, 3), RunIndex(tokens, 2))

    def guess(self, ahead: Sequence[int], most: int) -> Guess | None:
        """What followed the longest match; it goes on in a circle where that reaches the end of what is known."""
        tokens = self._tokens
        place, matched = best_match(self._indexes, [*tokens[-MOST_COMPARED:], *ahead][-MOST_COMPARED:])
        if not place or most < 1:
            return None
        known = [*tokens[place : place + most], *ahead[: max(0, place + most - len(tokens))]]
        circle = known * -(-most // len(known))
        return Guess(circle[:most], "lookup", strength_of(matched))

    def close(self) -> None:
        """Nothing is held."""
