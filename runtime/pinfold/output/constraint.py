"""Where an answer stands in its grammar, and what it may go on with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pinfold.errors import DecodeError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray

__all__ = ["Constraint", "first_line"]

# By byte of a mask: for each bit the highest that a logit may be, +inf where its token is allowed and -inf where not.
# One look-up for eight tokens is ten times as fast as unpacking the bits.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_HIGHEST_OF_BYTE = np.where(_BITS, np.inf, -np.inf).astype(np.float32)


class Constraint:
    """Where one answer stands in its grammar. Owned by one request; not for several threads at once."""

    __slots__ = ("_ends", "_highest", "_matcher", "_past_end", "_tokenizer")

    def __init__(self, matcher: LLMatcher, tokenizer: LLTokenizer) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._ends = frozenset(tokenizer.eos_tokens)
        self._highest: NDArray[np.float32] = np.empty(0, dtype=np.float32)
        self._past_end = 0  # end tokens after the grammar was complete; the matcher does not count those

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Sets the logits of all tokens that may not come next to -inf, in place.

        `logits` has shape [n_vocab]; entries past the tokenizer's vocabulary are forbidden too.

        Raises:
            DecodeError: the grammar became too complex to follow.
        """
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        if len(self._highest) != 8 * len(mask):
            self._highest = np.empty(8 * len(mask), dtype=np.float32)
        np.take(_HIGHEST_OF_BYTE, mask, axis=0, out=self._highest.reshape(-1, 8), mode="clip")
        known = min(self._tokenizer.vocab_size, len(logits))
        np.fmin(logits[:known], self._highest[:known], out=logits[:known])
        logits[known:] = -np.inf

    def allows(self, token: int) -> bool:
        """Whether `apply` would leave `token` possible, found for a fraction of its cost.

        Raises:
            DecodeError: as `apply`.
        """
        if self.finished:
            return token in self._ends
        forced = self._matcher.compute_ff_tokens()
        allowed = token == forced[0] if forced else self._matcher.validate_tokens([token]) == 1
        self._check()
        return bool(allowed)

    def accept(self, token: int) -> None:
        """Goes on by `token`, one that `apply` left possible. An end-of-sequence token counts as one.

        Raises:
            DecodeError: the grammar forbids `token` here.
        """
        if token in self._ends and self.finished:
            self._past_end += 1
            return
        self._matcher.consume_token(token)
        self._check()

    def forced(self) -> list[int]:
        """Tokens that the grammar leaves no choice about, as far as their cut into tokens is sure; may be none."""
        return [] if self.finished else list(self._matcher.compute_ff_tokens())

    def first_valid(self, tokens: Sequence[int]) -> int:
        """How many of the first of `tokens` may come next, one after the other. Goes nowhere."""
        return 0 if self.finished else int(self._matcher.validate_tokens(list(tokens)))

    @property
    def finished(self) -> bool:
        """The grammar is complete: nothing but the end may follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    @property
    def allowed_end(self) -> bool:
        """The answer may end here; it may also go on, unless it is `finished`."""
        return bool(self._matcher.is_accepting())

    def rollback(self, tokens: int) -> None:
        """Takes back the last `tokens` accepted.

        Raises:
            DecodeError: fewer were accepted, or the grammar has failed.
        """
        past_end = min(tokens, self._past_end)
        self._past_end -= past_end
        if tokens > past_end and not self._matcher.rollback(tokens - past_end):
            msg = f"The grammar cannot go back by {tokens} tokens: {first_line(self._matcher.get_error())}"
            raise DecodeError(msg)

    def copy(self) -> Constraint:
        """A second constraint at the same place, to go on apart from this one."""
        twin = Constraint(self._matcher.deep_copy(), self._tokenizer)
        twin._past_end = self._past_end
        return twin

    def _check(self) -> None:
        if self._matcher.is_error():
            msg = (
                f"The grammar of this answer could not be followed: {first_line(self._matcher.get_error())}. "
                f"Simplify the schema that constrains it."
            )
            raise DecodeError(msg)


def first_line(error: str) -> str:
    """What is wrong, without where in our rules it was noticed."""
    return error.partition("\n")[0].rpartition("failed to compile JSON schema: ")[2].rstrip(".")
