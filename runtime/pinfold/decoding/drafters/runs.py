"""Where in a growing list of tokens each short run of them stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["MOST_COMPARED", "NO_MATCH", "Match", "RunIndex", "best_match", "strength_of"]

MOST_COMPARED = 32
"""Tokens compared at each place."""
_MOST_PLACES = 8
# Equal tokens from which a match is of the next strength.
_STRENGTHS = (3, 6, 12, 24)


class Match(NamedTuple):
    """Of the end of a text with an earlier place of it.

    Attributes:
        place: where what follows it begins; 0 where nothing matches.
        length: tokens that are equal.
        split: another place matches as long, and another token follows there.
    """

    place: int
    length: int
    split: bool


NO_MATCH = Match(0, 0, split=False)


def best_match(indexes: Sequence[RunIndex], tail: Sequence[int]) -> Match:
    """The longest match of `tail` by the first index that has one."""
    for index in indexes:
        index.catch_up()
    found = (index.best(tail) for index in indexes)
    return next((match for match in found if match.place), NO_MATCH)


def strength_of(matched: int) -> int:
    """0 to 4 for a match of so many tokens."""
    return sum(matched >= least for least in _STRENGTHS)


class RunIndex:
    """The places that follow each run of `size` tokens."""

    def __init__(self, tokens: Sequence[int], size: int) -> None:
        self._tokens = tokens
        self._size = size
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: list[int] = [0] * size  # by place: the place before it of the same run, 0 for none

    def catch_up(self) -> None:
        """Adds the runs that end at places which have a token after them by now."""
        tokens, size, latest, earlier = self._tokens, self._size, self._latest, self._earlier
        for place in range(len(earlier), len(tokens)):
            run = tuple(tokens[place - size : place])
            earlier.append(latest.get(run, 0))
            latest[run] = place

    def best(self, tail: Sequence[int]) -> Match:
        """The longest match of `tail` among the latest places, of equal ones the latest."""
        best = longest = 0
        split = False
        place = self._latest.get(tuple(tail[-self._size :]), 0)
        for _ in range(_MOST_PLACES):
            if not place:
                break
            matched = self._matched(place, tail)
            if matched > longest:
                best, longest, split = place, matched, False
            elif matched == longest:
                split = split or self._tokens[place] != self._tokens[best]
            place = self._earlier[place]
        return Match(best, longest, split)

    def _matched(self, place: int, tail: Sequence[int]) -> int:
        tokens, most = self._tokens, min(place, len(tail))
        matched = self._size
        while matched < most and tokens[place - matched - 1] == tail[-matched - 1]:
            matched += 1
        return matched
