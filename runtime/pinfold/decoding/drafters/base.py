"""The contract of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Drafter", "Guess"]


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next.

    Attributes:
        tokens: at least one token id.
        source: the drafter's name.
        strength: what backs it, by the drafter's own classes; how often guesses come true is counted apart for each.
    """

    tokens: Sequence[int]
    source: str
    strength: int = 0


class Drafter(Protocol):
    """Guesses for one request, whose `tokens` list it was made with and which grows between two calls."""

    @property
    def source(self) -> str:
        """The name that its guesses bear."""

    @property
    def excuse(self) -> str:
        """Why it has nothing to say for this request, if there is more to it than that nothing came to its mind."""

    @property
    def seconds_per_token(self) -> float:
        """What a token of a guess costs to make; 0 where that is next to nothing beside a forward."""

    def guess(self, ahead: Sequence[int], most: int) -> Guess | None:
        """Up to `most` tokens that may follow the request's tokens and `ahead`, which others have guessed."""

    def close(self) -> None:
        """The request has ended."""
