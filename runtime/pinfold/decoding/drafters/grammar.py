"""What the grammar forces: names of tools, keys, punctuation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinfold.decoding.drafters.base import Guess

if TYPE_CHECKING:
    from pinfold.output.constraint import Constraint

__all__ = ["Forced"]


class Forced:
    """The tokens that the grammar leaves no choice about, cut into tokens as the vocabulary would."""

    source = "grammar"
    excuse = ""
    seconds_per_token = 0.0

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint

    def guess(self, ahead: Sequence[int], most: int) -> Guess | None:
        """What is forced where the answer stands; nothing after others' guesses."""
        forced = self._constraint.forced() if not ahead else []
        return Guess(forced[:most], "grammar") if forced and most > 0 else None

    def close(self) -> None:
        """The grammar belongs to the request."""
