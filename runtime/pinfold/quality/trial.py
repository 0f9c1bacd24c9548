"""A prompt whose KV is changed, and how far the model's next-token distributions move.

The figure is the Kullback-Leibler divergence in nats of each of the tokens that follow, teacher-forced, against the KV
as the engine computed it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.base import Engine, ForwardInterrupted, Span
from pinfold.kv.brain import as_half
from pinfold.kv.snapshot import Snapshot

__all__ = ["Divergence", "Seq", "Trial", "prepare", "take_snapshot"]

F32 = NDArray[np.float32]
Steps = Generator[None, None, Any]
Seq = Callable[[int], int]
"""Gives an unused sequence id with room for so many tokens."""

# Rows of logits held at a time: a vocabulary of 150,000 makes 40 MB of them.
_ROWS = 64
# Tokens of a forward: one that a request interrupts is made again, so small ones get on between frequent requests.
_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Divergence:
    """One token's figures, as arrays over all tokens evaluated: `kld` in nats, and whether the likeliest one stayed."""

    kld: NDArray[np.float64]
    same_top: NDArray[np.bool_]

    @staticmethod
    def join(parts: Sequence[Divergence]) -> Divergence:
        """All tokens of several trials."""
        return Divergence(np.concatenate([p.kld for p in parts]), np.concatenate([p.same_top for p in parts]))

    @property
    def mean(self) -> float:
        """Mean divergence."""
        return float(self.kld.mean())

    def quantile(self, q: float) -> float:
        """The divergence that a part `q` of all tokens stay under."""
        return float(np.quantile(self.kld, q))

    @property
    def top1(self) -> float:
        """Part of the tokens whose likeliest successor stayed the same."""
        return float(self.same_top.mean())


class Trial:
    """A prompt's KV and the distributions that follow it, to compare changed KV with."""

    def __init__(self, engine: Engine, new_seq: Seq, state: memoryview, prefix: int, following: list[int]) -> None:
        self._engine, self._new_seq = engine, new_seq
        self._prefix, self._following = prefix, following
        self._state = state
        self._expected: list[F32] = []

    @property
    def snapshot(self) -> Snapshot:
        """The prompt's KV as the engine computed it, in float16; not to be written to."""
        return as_half(self._engine.open_snapshot(self._state, self._prefix))

    def shortened(self, tokens: int) -> Trial:
        """The same trial, judged by the first `tokens` tokens only."""
        short = Trial(self._engine, self._new_seq, self._state, self._prefix, self._following[:tokens])
        whole = np.concatenate(self._expected)[:tokens]
        short._expected = np.split(whole, range(_ROWS, len(whole), _ROWS))
        return short

    def observe(self) -> Steps:
        """Evaluates what follows on the unchanged KV; once, before `compare`."""
        self._expected = yield from self._distributions(self._state)

    def compare(self, changed: Snapshot) -> Generator[None, None, Divergence]:
        """How far `changed` moves the distributions."""
        found = yield from self._distributions(self._engine.close_snapshot(changed))
        klds, same = [], []
        for expected, got in zip(self._expected, found, strict=True):
            klds.append((np.exp(expected, dtype=np.float32) * (expected - got)).sum(axis=1, dtype=np.float64))
            same.append(expected.argmax(axis=1) == got.argmax(axis=1))
        return Divergence(np.concatenate(klds), np.concatenate(same))

    def _distributions(self, state: memoryview) -> Generator[None, None, list[F32]]:
        """Log probabilities [rows, n_vocab] after each token that follows, in blocks."""
        seq = self._new_seq(self._prefix + len(self._following))
        blocks = []
        try:
            self._engine.restore(seq, state, self._prefix)
            for at in range(0, len(self._following), _ROWS):
                span = Span(seq, self._prefix + at, self._following[at : at + _ROWS], "all")
                blocks.append(_log_softmax((yield from _forward(self._engine, span))))
        finally:
            self._engine.drop(seq)
        return blocks


def prepare(
    engine: Engine, new_seq: Seq, tokens: Sequence[int], following: Sequence[int]
) -> Generator[None, None, Trial]:
    """A trial for the prompt `tokens`, judged by the tokens `following` it."""
    state = yield from _compute(engine, new_seq, tokens)
    trial = Trial(engine, new_seq, state, len(tokens), list(following))
    yield from trial.observe()
    return trial


def take_snapshot(engine: Engine, new_seq: Seq, tokens: Sequence[int]) -> Generator[None, None, Snapshot]:
    """The KV of `tokens`."""
    state = yield from _compute(engine, new_seq, tokens)
    return as_half(engine.open_snapshot(state, len(tokens)))


def _compute(engine: Engine, new_seq: Seq, tokens: Sequence[int]) -> Generator[None, None, memoryview]:
    seq = new_seq(len(tokens))
    try:
        for at in range(0, len(tokens), _CHUNK):
            yield from _forward(engine, Span(seq, at, tokens[at : at + _CHUNK], "none"))
        return engine.snapshot(seq)
    finally:
        engine.drop(seq)


def _forward(engine: Engine, span: Span) -> Generator[None, None, F32]:
    while True:
        yield
        try:
            rows = engine.forward([span])[0]
        except ForwardInterrupted:
            continue  # a request came; this goes on when there is none
        return rows if rows is not None else np.empty((0, 0), dtype=np.float32)


def _log_softmax(logits: F32) -> F32:
    rows: F32 = logits - logits.max(axis=1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return rows
