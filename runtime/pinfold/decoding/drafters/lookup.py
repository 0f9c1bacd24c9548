"""What followed the same tokens earlier: in the prompt, which holds the conversation, or in the answer itself.

Prompt lookup, after Saxena (github.com/apoorvumang/prompt-lookup-decoding, 2023) and SuffixDecoding (arXiv 2411.04975):
here the places of every three tokens, and of every two, are chained, so that a step costs the same however long the
prompt is.
"""

from __future__ import annotations

from collections.abc import Sequence

from pinfold.decoding.drafters.base import Guess

__all__ = ["Lookup"]

# Places looked at, latest first, and tokens compared at each.
_MOST_PLACES = 8
_MOST_COMPARED = 32
# Equal tokens from which a guess is of the next strength.
_STRENGTHS = (3, 6, 12)


class Lookup:
    """The longest match among the latest places, of equal ones the latest.

    The index is built at the first guess, which comes after the first token, at under a microsecond a token.
    """

    seconds_per_token = 0.0

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._indexes = (_Index(tokens, 3), _Index(tokens, 2))

    def guess(self, ahead: Sequence[int], most: int) -> Guess | None:
        """What followed the longest match; it goes on in a circle where that reaches the end of what is known."""
        tokens = self._tokens
        tail = [*tokens[-_MOST_COMPARED:], *ahead][-_MOST_COMPARED:]
        place = matched = 0
        for index in self._indexes:
            index.catch_up()
            if not place:
                place, matched = index.best(tail)
        if not place or most < 1:
            return None
        known = [*tokens[place : place + most], *ahead[: max(0, place + most - len(tokens))]]
        guess = [known[i % len(known)] for i in range(most)]
        return Guess(guess, "lookup", sum(matched >= least for least in _STRENGTHS))

    def close(self) -> None:
        """Nothing is held."""


class _Index:
    """The places that follow each run of `size` tokens."""

    def __init__(self, tokens: Sequence[int], size: int) -> None:
        self._tokens = tokens
        self._size = size
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: list[int] = [0] * size  # by place: the place before it of the same run, 0 for none

    def catch_up(self) -> None:
        """Adds the runs that end at places which have a token after them by now."""
        latest, earlier = self._latest, self._earlier
        new = self._tokens[len(earlier) - self._size : len(self._tokens) - 1]
        runs = zip(*(new[at:] for at in range(self._size)), strict=False)
        for place, run in enumerate(runs, len(earlier)):
            earlier.append(latest.get(run, 0))
            latest[run] = place

    def best(self, tail: Sequence[int]) -> tuple[int, int]:
        """Where what follows a match of `tail` begins, and how many tokens match; (0, 0) if none do."""
        best = longest = 0
        place = self._latest.get(tuple(tail[-self._size :]), 0)
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
        matched = self._size
        while matched < most and tokens[place - matched - 1] == tail[-matched - 1]:
            matched += 1
        return matched
