"""What followed the same tokens in earlier answers of the same salt: agents repeat themselves across sessions."""

from __future__ import annotations

from collections.abc import Sequence

from pinfold.decoding.drafters.base import Guess
from pinfold.decoding.drafters.runs import MOST_COMPARED, RunIndex, best_match, strength_of

__all__ = ["Answers", "History"]

# Tokens that are remembered for a salt, and salts that are; older ones go first.
_MOST_TOKENS = 1 << 16
_MOST_SALTS = 64
_RUN = 4
# Stands between two answers, and equals no token.
_BETWEEN = -1


class Answers:
    """The answers of one engine, by salt."""

    def __init__(self) -> None:
        self._texts: dict[str | None, tuple[list[int], RunIndex]] = {}

    def remember(self, salt: str | None, answer: Sequence[int]) -> None:
        """Adds an answer's tokens."""
        tokens, index = self._texts.pop(salt) if salt in self._texts else self._start([])
        tokens += (_BETWEEN, *answer)
        if len(tokens) > _MOST_TOKENS:
            tokens, index = self._start(tokens[-_MOST_TOKENS // 2 :])
        self._texts[salt] = tokens, index
        if len(self._texts) > _MOST_SALTS:
            del self._texts[next(iter(self._texts))]

    def following(self, salt: str | None, tail: Sequence[int], most: int) -> Guess | None:
        """Up to `most` tokens that followed `tail` in an answer."""
        if salt not in self._texts:
            return None
        tokens, index = self._texts[salt]
        place, matched, _ = best_match((index,), tail)
        guess = tokens[place : place + most] if place else []
        if _BETWEEN in guess:
            guess = guess[: guess.index(_BETWEEN)]
        return Guess(guess, "history", strength_of(matched)) if guess else None

    @staticmethod
    def _start(tokens: list[int]) -> tuple[list[int], RunIndex]:
        return tokens, RunIndex(tokens, _RUN)


class History:
    """`base.Drafter` of one request over the answers of its salt."""

    source = "history"
    excuse = ""
    seconds_per_token = 0.0

    def __init__(self, answers: Answers, salt: str | None, tokens: Sequence[int]) -> None:
        self._answers = answers
        self._salt = salt
        self._tokens = tokens

    def guess(self, ahead: Sequence[int], most: int) -> Guess | None:
        """Nothing behind a guess of the request's own text, which is nearer."""
        tail = [*self._tokens[-MOST_COMPARED:], *ahead][-MOST_COMPARED:]
        return self._answers.following(self._salt, tail, most) if most > 0 else None

    def close(self) -> None:
        """The answers stay."""
