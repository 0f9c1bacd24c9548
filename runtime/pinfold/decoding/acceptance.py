"""How often guesses come true."""

from __future__ import annotations

from collections.abc import Sequence

from pinfold.decoding.costs import MOST_ROWS
from pinfold.decoding.drafters.base import Guess

__all__ = ["DEPTH_OF", "Acceptance"]

Key = tuple[str, int, int]

# By source and strength: the chance of a token whose predecessors came true, before anything was seen.
_BEFORE = {
    "lookup": (0.35, 0.6, 0.75, 0.88, 0.94, 0.3, 0.6, 0.8),
    "history": (0.4, 0.5, 0.7, 0.85),
    "grammar": (0.97,),
    "model": (0.7,),
    "dflash": (0.75,),
    "dspark": (0.75,),
}
_UNKNOWN = (0.5,)
# And what becomes of the chance to be wrong, by class of depth: what was copied so far is copied on.
_DEEPER = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3)
# What the runtime has seen so far, or the guess above, counts as this many tokens seen.
_WEIGHT = 4.0
# Counts fade, so that a change of text is noticed.
_FADE_REQUEST = 0.95
_FADE_RUNTIME = 0.995
# A guess's first tokens fail more often than those that follow many true ones.
_DEPTHS = (1, 2, 4, 8, 16)
DEPTH_OF = tuple(sum(place >= depth for depth in _DEPTHS) for place in range(MOST_ROWS))
"""The class of depth of each place of a guess."""


class Acceptance:
    """The chance that a guessed token is right, given that those before it were.

    Counted by source, strength and depth, for one request over what its runtime (`above`) has seen.
    """

    def __init__(self, above: Acceptance | None = None) -> None:
        self._above = above
        self._fade = _FADE_REQUEST if above is not None else _FADE_RUNTIME
        self._seen: dict[Key, tuple[float, float]] = {}

    def chances(self, guess: Guess) -> list[float]:
        """The chance of a token of the guess, by its class of depth."""
        return [self.chance_of((guess.source, guess.strength, depth)) for depth in range(len(_DEPTHS) + 1)]

    def first(self, guess: Guess) -> float:
        """The chance of its first token, above which none is: those behind it need this one."""
        return self.chance_of((guess.source, guess.strength, 0))

    def learn(self, guess: Guess, right: int, tried: int) -> None:
        """Of the guess's first `tried` tokens the first `right` came true, and the next, if it was tried, did not."""
        for place in range(min(right + 1, tried)):
            self.count((guess.source, guess.strength, DEPTH_OF[place]), right=place < right)

    def chance_of(self, key: Key) -> float:
        """As `chance`, by source, strength and class of depth."""
        right, tried = self._seen.get(key, (0.0, 0.0))
        before = self._above.chance_of(key) if self._above is not None else _prior(key)
        return (right + _WEIGHT * before) / (tried + _WEIGHT)

    def count(self, key: Key, *, right: bool) -> None:
        """One more token that was right, or not."""
        had, tried = self._seen.get(key, (0.0, 0.0))
        self._seen[key] = (had * self._fade + right, tried * self._fade + 1)
        if self._above is not None:
            self._above.count(key, right=right)


def _prior(key: Key) -> float:
    source, strength, depth = key
    chances: Sequence[float] = _BEFORE.get(source, _UNKNOWN)
    return 1 - (1 - chances[min(strength, len(chances) - 1)]) * _DEEPER[depth]
