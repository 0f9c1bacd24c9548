"""What followed the same tokens earlier: in the prompt, which holds the conversation, or in the answer itself.

Prompt lookup, after Saxena (github.com/apoorvumang/prompt-lookup-decoding, 2023) and SuffixDecoding (arXiv 2411.04975):
here the places of every three tokens, and of every two, are chained, so that a step costs the same however long the
prompt is. A copy with changes is followed through them (`edits.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pinfold.decoding.drafters.base import Guess
from pinfold.decoding.drafters.edits import Copy
from pinfold.decoding.drafters.runs import MOST_COMPARED, NO_MATCH, Match, RunIndex, best_match, strength_of

__all__ = ["Lookup"]

# Equal tokens from which a match is worth following through changes, as it is found and with what came of it.
_FOLLOWED, _BEGUN = 6, 8
# By this many a match has to be longer than what agreed of the copy since its last change.
_LONGER = 4
# Strengths beyond those of a match's length: another match is as good and goes on otherwise; a copy just found again
# after a change; and one that has agreed for a little longer, which says more than a match of that length.
_SPLIT, _FOUND_AGAIN, _COPY = 5, 6, 7
_AGREED_LITTLE, _AGREED_MUCH = 3, 12


class Lookup:
    """The copy that is under way, or else the longest match among the latest places, of equal ones the latest.

    The index is built at the first guess, which comes after the first token, at under a microsecond a token.
    """

    source = "lookup"
    excuse = ""
    seconds_per_token = 0.0

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._indexes = (RunIndex(tokens, 3), RunIndex(tokens, 2))
        self._copy = Copy(tokens)
        self._last = NO_MATCH, 0  # and how many tokens there were

    def guess(self, ahead: Sequence[int], most: int) -> Guess | None:
        """What follows; it goes on in a circle where a match reaches the end of what is known."""
        if most < 1:
            return None
        match = best_match(self._indexes, [*self._tokens[-MOST_COMPARED:], *ahead][-MOST_COMPARED:])
        if ahead:
            return self._matched(match, ahead, most)
        copy = self._copy
        copy.catch_up()
        if not copy.agreed:
            self._begin_copy()
        if copy.agreed and match.length < copy.agreed + _LONGER and (tokens := copy.guess(most)):
            return Guess(tokens, "lookup", _strength_of_copy(copy.agreed))
        if match.length >= max(_FOLLOWED, copy.agreed + _LONGER):
            copy.follow(match.place, len(self._tokens), match.length)
        self._last = match, len(self._tokens)
        return self._matched(match, ahead, most)

    def close(self) -> None:
        """Nothing is held."""

    def _begin_copy(self) -> None:
        """Follows the last match, if what came behind it was enough of what stands there."""
        (place, matched, _), at = self._last
        came = 0
        while at + came < len(self._tokens) and self._tokens[place + came] == self._tokens[at + came]:
            came += 1
        if place and matched + came >= _BEGUN:
            self._copy.follow(place, at, matched)

    def _matched(self, match: Match, ahead: Sequence[int], most: int) -> Guess | None:
        if not match.place:
            return None
        tokens, place = self._tokens, match.place
        known = [*tokens[place : place + most], *ahead[: max(0, place + most - len(tokens))]]
        circle = known * -(-most // len(known))
        return Guess(circle[:most], "lookup", _SPLIT if match.split else strength_of(match.length))


def _strength_of_copy(agreed: int) -> int:
    if agreed >= _AGREED_MUCH:
        return strength_of(agreed)
    return _FOUND_AGAIN if agreed < _AGREED_LITTLE else _COPY
