"""Follows a copy that is changed on the way, as when a file is written out again with a name replaced.

A match is lost at every change, and the next one may be of another place that begins alike. Here the place in the
original is kept: after a change the copy is found again at the nearest token that both have, and what was replaced
by what is remembered, so that the same change is guessed where it is due again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Copy"]

# Tokens of the original, and of the answer, among which a change has to end.
_WINDOW = 24
# Tokens of what is replaced, and of what replaces it, up to which a change is remembered.
_LONGEST_CHANGE = 6
# Changes that are remembered of what begins with one token, the latest.
_MOST_CHANGES = 4
# Tokens that agree from which a copy that was found again counts as found.
_FOUND = 2


class _Change(NamedTuple):
    """What stands in the original, and what the answer has in its place."""

    old: tuple[int, ...]
    new: tuple[int, ...]


class Copy:
    """One copy, from a place of a growing list of tokens to its end.

    Args:
        tokens: of the prompt and of the answer so far.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._seen = len(tokens)
        self._place = 0  # in the original, of the next token; 0 while nothing is followed
        self._agreed = 0  # tokens since the last change
        self._gap: tuple[int, int] | None = None  # where a change began: in the original and in the answer
        self._last_gap: tuple[int, int] | None = None
        self._changes: dict[int, list[_Change]] = {}  # by the first token that is replaced
        self._making: tuple[_Change, int] | None = None  # a change on its way, and how much of it came

    @property
    def agreed(self) -> int:
        """Tokens that came as guessed since the last change; 0 in the middle of one, or if nothing is followed."""
        return self._agreed if self._place and self._gap is None else 0

    def follow(self, place: int, at: int, matched: int) -> None:
        """From `at` on the copy is of what stands at `place`, and the `matched` tokens before each are equal."""
        self._place, self._agreed, self._gap, self._last_gap, self._making = place, matched, None, None, None
        self._seen = at
        self.catch_up()

    def catch_up(self) -> None:
        """Looks at the tokens that came since."""
        for at in range(self._seen, len(self._tokens)):
            if self._place:
                self._look(at)
        self._seen = len(self._tokens)

    def guess(self, most: int) -> list[int]:
        """Up to `most` tokens that come next if the copy goes on, with the changes that are known.

        It goes on in a circle where it reaches the end of what is known.
        """
        place, made, known = self._place, list[int](), len(self._tokens)
        if not self.agreed:
            return made
        if self._making is not None:
            begun, came = self._making
            made += begun.new[came:]
            place += len(begun.old)
        while len(made) < most and place < known + len(made):
            change = self._due(place) if place < known else None
            made += change.new if change else (self._tokens[place] if place < known else made[place - known],)
            place += len(change.old) if change else 1
        return made[:most]

    def _look(self, at: int) -> None:
        token = self._tokens[at]
        if self._gap is not None:
            self._find_again(at, self._gap)
            return
        if self._place >= at:  # so much was left out that the original ended
            self._place = 0
            return
        change, came = self._making or (self._due(self._place), 0)
        if change is not None and change.new[came] == token:
            self._making = (change, came + 1)
            self._agreed += 1
            if came + 1 == len(change.new):
                self._making, self._place = None, self._place + len(change.old)
            return
        if change is not None:
            self._changes[change.old[0]].remove(change)  # no longer so
        self._making = None
        if not came and self._tokens[self._place] == token:
            self._place += 1
            self._agreed += 1
            return
        goes_on = self._last_gap if self._agreed < _FOUND else None  # that was not the place
        self._find_again(at, goes_on or (self._place, at - came))

    def _find_again(self, at: int, gap: tuple[int, int]) -> None:
        """Goes on behind the nearest token of the original that equals the one at `at`."""
        self._gap = gap
        old, new = gap
        if at - new > _WINDOW:
            self._place = 0
            return
        token = self._tokens[at]
        end = min(old + _WINDOW, new)
        for place in range(old, end):
            if self._tokens[place] == token:
                self._remember(_Change(tuple(self._tokens[old:place]), tuple(self._tokens[new:at])))
                self._place, self._agreed, self._gap, self._last_gap = place + 1, 1, None, gap
                return

    def _remember(self, change: _Change) -> None:
        if 0 < len(change.old) <= _LONGEST_CHANGE and 0 < len(change.new) <= _LONGEST_CHANGE:
            known = self._changes.setdefault(change.old[0], [])
            known[:] = [change, *(other for other in known if other.old != change.old)][:_MOST_CHANGES]

    def _due(self, place: int) -> _Change | None:
        """The change that is known of what stands at `place`."""
        for change in self._changes.get(self._tokens[place], ()):
            if tuple(self._tokens[place : place + len(change.old)]) == change.old:
                return change
        return None
