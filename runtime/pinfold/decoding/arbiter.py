"""The arbiter: what is drafted for each request, and how much of it pays.

A draft is worth its forward if the tokens it is expected to bring come faster than one by one. The chance of each token
is counted (`acceptance.py`), the cost of a forward is measured (`costs.py`); what does not pay is not verified, but
still watched: the tokens that come anyway show whether the guess was right, so drafting starts again when it would pay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from pinfold.decoding.acceptance import DEPTH_OF, Acceptance
from pinfold.decoding.costs import MOST_ROWS, POINTS, ForwardCosts
from pinfold.decoding.drafters.base import Drafter, Guess
from pinfold.decoding.job import DraftFacts, SourceFacts

__all__ = ["Arbiter", "Trail"]

# A gain below this is within the noise of the costs.
_LEAST_GAIN = 1.04
# Chances below this are not looked at.
_LEAST_CHANCE = 0.02
# Tokens of a guess that are watched while nothing is drafted.
_WATCHED = 8
# Of the time of plain decoding, what may go into guesses that are only watched, where making one takes time.
_WATCHING = 0.01
# Forwards that a request may lose by drafts at its start, and for each token of its answer.
_STAKE = 2.0
_LEEWAY = 0.01


class Arbiter:
    """Chooses how many guessed tokens to verify. One for each engine.

    Args:
        recomputes: whether a guess that fails costs a second forward, for the tokens before it.
    """

    def __init__(self, costs: ForwardCosts, *, recomputes: bool = False) -> None:
        self.costs = costs
        self._recomputes = recomputes
        self.acceptance = Acceptance()

    def length(
        self, guesses: Sequence[Guess], acceptance: Acceptance, rows: int, each: float = 0.0, risk: float = inf
    ) -> int:
        """How many tokens of `guesses`, one after the other, give the most tokens a second; 0 if none pay.

        Args:
            rows: of the forward without them.
            each: seconds that making one of the tokens takes.
            risk: forwards without drafts whose time may be lost if all that is not forced is wrong.
        """
        if not guesses or acceptance.first(guesses[0]) < self.costs.least_chance(rows, _LEAST_GAIN):
            return 0  # as for nearly every token of text that repeats nothing
        best, best_rate = 0, _LEAST_GAIN * rows / self.costs.seconds(rows)
        chance, expected, count = 1.0, float(rows), 0
        forced = sum(len(guess.tokens) for guess in guesses if guess.source == "grammar")
        most = self.costs.seconds(rows) * (1 + risk + forced)
        for guess in guesses:
            chances = acceptance.chances(guess)
            last = len(guess.tokens) - 1
            for place, depth in zip(range(last + 1), DEPTH_OF, strict=False):
                chance *= chances[depth]
                if chance < _LEAST_CHANCE:
                    return best
                expected += chance
                count += 1
                if rows + count in _SIZES or place == last:
                    if self.costs.seconds(rows + count) > most:
                        return best
                    again = (1 - chance) * self.costs.seconds(rows) if self._recomputes else 0.0
                    rate = expected / (self.costs.seconds(rows + count) + each * count + again)
                    if rate > best_rate:
                        best, best_rate = count, rate
        return best


_SIZES = frozenset(POINTS)


@dataclass(slots=True)
class _Watched:
    """A guess that was not verified, and how much of it has come true."""

    guesses: Sequence[Guess]
    tokens: Sequence[int]
    right: int = 0


class Trail:
    """Drafts of one request, and what became of them.

    Args:
        drafters: asked in this order; each goes on where the one before it ended.
        valid: how many of the first of some tokens may come next at all, where a grammar rules the answer.
    """

    def __init__(
        self, arbiter: Arbiter, drafters: Sequence[Drafter], valid: Callable[[Sequence[int]], int] | None = None
    ) -> None:
        self._arbiter = arbiter
        self._drafters = drafters
        self._valid = valid
        self._acceptance = Acceptance(arbiter.acceptance)
        self._guesses: Sequence[Guess] = ()
        self._watched: _Watched | None = None
        self._rounds = 0
        self._cost = 0.0
        self._balance = self._risked = 0.0  # forwards gained so far, and what the last draft cost
        self._unasked = 0  # rounds since a drafter that takes its time was asked
        self._counts: dict[str, list[int]] = {}

    def draft(self, rows: int, most: int) -> list[int]:
        """Up to `most` tokens to verify in a forward that has `rows` rows without them; none if that does not pay."""
        most = min(most, MOST_ROWS - rows)
        if most < 1:
            return []
        guesses = self._guess(rows, most)
        length = self._arbiter.length(guesses, self._acceptance, rows, risk=_STAKE + self._balance)
        if length:
            self._risked = self._arbiter.costs.seconds(rows + length) / self._arbiter.costs.seconds(rows) - 1
            self._guesses = guesses
            self._watched = None
        elif self._watched is None and guesses:
            self._watched = _Watched(guesses, _first_tokens(guesses, _WATCHED))
        return _first_tokens(guesses, length)

    def verified(self, drafted: int, right: int, tried: int) -> None:
        """Of `drafted` tokens the first `right` came true; `tried` were looked at, one more unless all or the end."""
        self._rounds += 1
        self._balance += right - self._risked + _LEEWAY * (right + 1)
        self._cost += self._arbiter.costs.seconds(1 + drafted) / self._arbiter.costs.seconds(1)
        self._learn(self._guesses, right, tried)
        left, left_right = drafted, right
        for guess in self._guesses:
            counts = self._counts.setdefault(guess.source, [0, 0])
            counts[0] += min(left, len(guess.tokens))
            counts[1] += min(left_right, len(guess.tokens))
            left, left_right = max(0, left - len(guess.tokens)), max(0, left_right - len(guess.tokens))

    def came(self, token: int) -> None:
        """A token came without a draft: it shows how good the guess was."""
        self._balance += _LEEWAY
        watched = self._watched
        if watched is None:
            return
        hit = watched.tokens[watched.right] == token
        watched.right += hit
        if not hit or watched.right == len(watched.tokens):
            self._learn(watched.guesses, watched.right, watched.right + (not hit))
            self._watched = None

    def facts(self) -> DraftFacts:
        """What was drafted and accepted so far."""
        sources = {source: SourceFacts(*counts) for source, counts in self._counts.items()}
        excuses = "; ".join(filter(None, (d.excuse for d in self._drafters)))
        return DraftFacts(self._rounds, sources, excuses, self._cost)

    def close(self) -> None:
        """The request has ended."""
        for drafter in self._drafters:
            drafter.close()

    def _guess(self, rows: int, most: int) -> list[Guess]:
        guesses: list[Guess] = []
        ahead: list[int] = []
        for drafter in self._drafters:
            room = most - len(ahead)
            if drafter.seconds_per_token:
                room = self._room_for(drafter, rows, room) if not ahead else 0
            guess = drafter.guess(ahead, room) if room > 0 else None
            if guess is not None and self._valid is not None and guess.source != "grammar":
                guess = self._cut(ahead, guess, self._valid)
            if guess is not None:
                guesses.append(guess)
                ahead += guess.tokens
        return guesses

    @staticmethod
    def _cut(ahead: Sequence[int], guess: Guess, valid: Callable[[Sequence[int]], int]) -> Guess | None:
        """`guess` up to where the grammar forbids it."""
        size = valid([*ahead, *guess.tokens]) - len(ahead)
        return replace(guess, tokens=guess.tokens[:size]) if size > 0 else None

    def _room_for(self, drafter: Drafter, rows: int, most: int) -> int:
        """How many tokens of a drafter that takes its time would pay; now and then a few, to see whether they would."""
        each = drafter.seconds_per_token
        room = self._arbiter.length([Guess(range(most), drafter.source)], self._acceptance, rows, each)
        self._unasked += 1
        if not room and each * _WATCHED < _WATCHING * self._unasked * self._arbiter.costs.seconds(rows):
            room = min(most, _WATCHED)
        self._unasked = 0 if room else self._unasked
        return room

    def _learn(self, guesses: Sequence[Guess], right: int, tried: int) -> None:
        for guess in guesses:
            size = len(guess.tokens)
            self._acceptance.learn(guess, min(right, size), min(tried, size))
            right, tried = right - size, tried - size
            if tried <= 0:
                return


def _first_tokens(guesses: Sequence[Guess], count: int) -> list[int]:
    tokens: list[int] = []
    for guess in guesses:
        tokens += guess.tokens[: count - len(tokens)]
    return tokens
