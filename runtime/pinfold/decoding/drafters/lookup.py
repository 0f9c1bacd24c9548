"""What followed the same tokens earlier: in the prompt, which holds the conversation, or in the answer itself.

Prompt lookup, after Saxena (github.com/apoorvumang/prompt-lookup-decoding, 2023) and SuffixDecoding (arXiv 2411.04975):
here the places of every three tokens are chained, so that a step costs the same however long the prompt is.
"""

from __future__ import annotations

from collections.abc import Sequence

from pinfold.decoding.drafters.base import Guess

__all__ = ["Lookup"]

Gram = tuple[int, int, int]

# Fewer equal tokens than this are coincidence more often than not.
_GRAM = 3
# Places looked at, latest first, and tokens compared at each.
_MOST_PLACES = 8
_MOST_COMPARED = 32
# Equal tokens from which a guess is of the next strength.
_STRENGTHS = (5, 9, 17)


class Lookup:
    """The longest match among the latest places, of equal ones the latest.

    The index is built at the first guess, which comes after the first token, at under half a microsecond a token.
    """

    seconds_per_token = 0.0

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._latest: dict[Gram, int] = {}
        self._earlier: list[int] = [0] * _GRAM  # by place: the place before it of the same gram, 0 for none

    def guess(self, ahead: Sequence[int], most: int) -> Guess | None:
        """What followed the longest match; it goes on in a circle where that reaches the end of what is known."""
        tokens = self._tokens
        tail = [*tokens[-_MOST_COMPARED:], *ahead][-_MOST_COMPARED:]
        if len(tail) < _GRAM or most < 1:
            return None
        self._catch_up()
        place, matched = self._best_place(tail)
        if not place:
            return None
        known = [*tokens[place : place + most], *ahead[: max(0, place + most - len(tokens))]]
        guess = [known[i % len(known)] for i in range(most)]
        return Guess(guess, "lookup", sum(matched >= least for least in _STRENGTHS))

    def close(self) -> None:
        """Nothing is held."""

    def _catch_up(self) -> None:
        """Adds the grams that end at places which have a token after them by now."""
        tokens, latest, earlier = self._tokens, self._latest, self._earlier
        start = len(earlier) - _GRAM
        new = tokens[start : len(tokens) - 1]
        for place, gram in enumerate(zip(new, new[1:], new[2:], strict=False), len(earlier)):
            earlier.append(latest.get(gram, 0))
            latest[gram] = place

    def _best_place(self, tail: Sequence[int]) -> tuple[int, int]:
        """Where what follows a match begins, and how many tokens match; (0, 0) if none do."""
        best, longest = 0, 0
        place = self._latest.get((tail[-3], tail[-2], tail[-1]), 0)
        for _ in range(_MOST_PLACES):
            if not place:
                break
            matched = self._matched(place, tail)
            if matched > longest:
                best, longest = place, matched
            place = self._earlier[place]
        return best, longest

    def _matched(self, place: int, tail: Sequence[int]) -> int:
        tokens, most = self._tokens, min(place, len(tail))
        matched = _GRAM
        while matched < most and tokens[place - matched - 1] == tail[-matched - 1]:
            matched += 1
        return matched
