"""Logits to the next token: penalties, then top-k, top-p, min-p, then temperature, as llama.cpp orders them.

Penalties change the logits. Top-k, top-p and min-p then drop tokens by their probability *before* the temperature, each
on what the one before it left; the temperature reshapes what remains, and one token is drawn from it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pinfold.errors import DecodeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pinfold.options import GenerationOptions

    Row = NDArray[np.float32]
    Ids = NDArray[np.intp]

__all__ = ["Sampler"]

_COLDEST = 1e-30  # about what float32 can divide by; colder is the same
_FOLD = 64
_BLOCK = 512


class Sampler:
    """Picks the tokens of one answer.

    Owned by one request: it remembers the last `penalty_window` tokens and the counts of those generated, as far as the
    options need them. The rows it is given, float32 of shape [n_vocab], are read and never written. A forbidden
    token has the logit -inf and is never picked.
    """

    def __init__(self, options: GenerationOptions, prompt_tokens: Sequence[int]) -> None:
        self._options = options
        self._greedy = options.temperature == 0
        self._repeats = options.repetition_penalty != 1 and options.penalty_window > 0
        self._counts = options.presence_penalty != 0 or options.frequency_penalty != 0
        self._random = np.random.Generator(np.random.PCG64(options.seed))
        self._generated: Counter[int] = Counter()
        recent = prompt_tokens[-options.penalty_window :] if self._repeats else ()
        self._window = deque(recent, maxlen=options.penalty_window)
        self._recent = Counter(self._window)

    def pick(self, logits: Row) -> int:
        """The next token. Greedy takes the highest logit, the first of equals.

        Raises:
            DecodeError: a logit is NaN or +inf, or every token is forbidden.
        """
        if self._greedy:
            row = self._penalised(logits)
            best = int(row.argmax())  # of a row with a NaN, argmax is that NaN
            _check_best(row[best])
            return best
        ids, weights = self._shortlist(logits)
        drawn = _draw(weights, self._random.random())
        return drawn if ids is None else int(ids[drawn])

    def likeliest(self, logits: Row) -> int | None:
        """What greedy `pick` takes of a row that it can pick from; None if another way of picking was asked for."""
        if not self._greedy:
            return None
        row = self._penalised(logits)
        best = int(row.argmax())
        return best if math.isfinite(row[best]) else None

    def accept(self, token: int) -> None:
        """Records `token` as part of the answer; the penalties count it from now on."""
        if self._counts:
            self._generated[token] += 1
        if self._repeats:
            if len(self._window) == self._window.maxlen:
                self._forget(self._window[0])
            self._window.append(token)
            self._recent[token] += 1

    def distribution(self, logits: Row) -> NDArray[np.float64]:
        """The probabilities, shape [n_vocab], that `pick` draws from; for greedy, 1 at its choice.

        Raises:
            DecodeError: as `pick`.
        """
        probabilities = np.zeros(len(logits))
        if self._greedy:
            probabilities[self.pick(logits)] = 1.0
        else:
            ids, weights = self._shortlist(logits)
            probabilities[slice(None) if ids is None else ids] = weights / weights.sum(dtype=np.float64)
        return probabilities

    def _forget(self, token: int) -> None:
        self._recent[token] -= 1
        if not self._recent[token]:
            del self._recent[token]

    def _penalised(self, logits: Row) -> Row:
        if not self._recent and not self._generated:
            return logits
        options, row = self._options, logits.copy()
        if self._recent:
            ids, _ = _arrays(self._recent)
            seen = row[ids]
            row[ids] = np.where(seen > 0, seen / options.repetition_penalty, seen * options.repetition_penalty)
        if self._generated:
            ids, counts = _arrays(self._generated)
            row[ids] -= (options.presence_penalty + options.frequency_penalty * counts).astype(np.float32)
        return row

    def _shortlist(self, logits: Row) -> tuple[Ids | None, Row]:
        """The tokens that may be drawn, None for all, and weights in proportion to their probabilities."""
        options, row = self._options, self._penalised(logits)
        best = row.max()  # of a row with a NaN, max is NaN
        _check_best(best)
        ids: Ids | None = None
        kept = row - best
        if 0 < options.top_k < len(row):
            ids = _top_k(row, options.top_k)
            kept = kept[ids]
        if options.top_p < 1:
            nucleus = _top_p(kept, options.top_p)
            ids, kept = _among(ids, nucleus), kept[nucleus]
        if options.min_p > 0:
            likely = np.flatnonzero(kept >= math.log(options.min_p))
            ids, kept = _among(ids, likely), kept[likely]
        with np.errstate(over="ignore"):  # to -inf, whose weight of 0 is right
            return ids, np.exp(kept / max(options.temperature, _COLDEST))


def _check_best(best: Any) -> None:
    if math.isfinite(best):
        return
    if best == -np.inf:
        msg = "Every token is forbidden at this place of the answer; loosen the schema or the tools that constrain it."
    else:
        msg = "The model gave logits that are no numbers. Check its file, and try kv_resident='f16'."
    raise DecodeError(msg)


def _arrays(counts: Mapping[int, int]) -> tuple[Ids, NDArray[np.int64]]:
    return (
        np.fromiter(counts.keys(), dtype=np.intp, count=len(counts)),
        np.fromiter(counts.values(), dtype=np.int64, count=len(counts)),
    )


def _among(ids: Ids | None, chosen: Ids) -> Ids:
    return chosen if ids is None else ids[chosen]


def _top_k(row: Row, k: int) -> Ids:
    """The k highest, of equal ones those with the lower ids; fewer where others are forbidden.

    The k-th of the highest in each column of a folded row is no higher than the k-th of all, and quickly found.
    """
    columns = row[: len(row) // _FOLD * _FOLD].reshape(_FOLD, -1).max(axis=0)
    some = columns if len(columns) >= k else row
    least = np.partition(some, len(some) - k)[len(some) - k]
    ids = np.flatnonzero((row >= least) & (row > -np.inf))
    return ids[_highest(row[ids], k)] if len(ids) > k else ids


def _top_p(kept: Row, p: float) -> Ids:
    """The fewest most likely whose probabilities reach p.

    Those below 1/n of the mass that may be left out can be left out all together: only the others are sorted.
    """
    weights = np.exp(kept)
    mass = float(weights.sum(dtype=np.float64))
    ids = np.flatnonzero(weights >= (1 - p) * mass / len(weights))
    likely = weights[ids]
    reached = np.cumsum(np.sort(likely)[::-1].astype(np.float64))
    count = int(np.searchsorted(reached, p * mass)) + 1
    return ids[_highest(likely, count)] if count < len(ids) else ids


def _highest(values: Row, count: int) -> Ids:
    """Where the `count` highest are, of equal ones the first; `count` is less than there are."""
    least = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > least)
    return np.concatenate((above, np.flatnonzero(values == least)[: count - len(above)]))


def _draw(weights: Row, at: float) -> int:
    """The token that the fraction `at` of all the weight falls on: its block is found first, then its place there."""
    starts = np.arange(0, len(weights), _BLOCK)
    block, at = _place(np.add.reduceat(weights, starts, dtype=np.float64), at)
    start = int(starts[block])
    return start + _place(weights[start : start + _BLOCK].astype(np.float64), at)[0]


def _place(weights: NDArray[np.float64], at: float) -> tuple[int, float]:
    """Which weight the fraction `at` of their sum falls on, when they are laid end to end, and which fraction of it."""
    upto = np.cumsum(weights)
    goal = at * upto[-1]
    last = np.searchsorted(upto, upto[-1])  # those behind it weigh nothing
    place = int(min(np.searchsorted(upto, goal, side="right"), last))
    before = upto[place - 1] if place else 0.0
    return place, float((goal - before) / weights[place])
