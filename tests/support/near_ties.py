"""Whether two greedy answers are the same, up to places where the model itself wavers.

Batches of other shapes round differently, so that a cold prompt cut in other pieces may already pick another token.
A difference counts as a tie only where that is shown: evaluated cold in several cuts, the likeliest tokens' logits move
by as much as the two tokens' logits are apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pinfold import Runtime
from pinfold.engines.base import Span
from pinfold.sessions.manager import SessionManager

_CUTS = (256, 61, 32, 7)
_LIKELIEST = 10


def cold_logits(rt: Runtime, tokens: list[int], cut: int) -> NDArray[np.float32]:
    """Logits [n_vocab] after `tokens`, evaluated from nothing in pieces of `cut`."""

    def evaluate(manager: SessionManager) -> NDArray[np.float32]:
        engine, seq = manager.engine, manager.space.new_seq()
        manager.space.make_room(len(tokens))
        last = None
        for at in range(0, len(tokens), cut):
            last = engine.forward([Span(seq, at, tokens[at : at + cut])])[0]
        assert last is not None
        logits = last[-1].copy()
        manager.space.abandon(seq)
        return logits

    return rt._backend.worker.call(evaluate)


def assert_same_or_tie(rt: Runtime, prompt: list[int], cold: str, warm: str) -> None:
    """Fails unless `warm` is `cold`, or parts from it at a proven near-tie."""
    if warm == cold:
        return
    cold_tokens, warm_tokens = rt.tokenize(cold), rt.tokenize(warm)
    at = next(
        (i for i, (a, b) in enumerate(zip(cold_tokens, warm_tokens, strict=False)) if a != b),
        min(len(cold_tokens), len(warm_tokens)),
    )
    ends = sorted(rt._backend.worker.engine.tokenizer.end_tokens)
    logits = [cold_logits(rt, prompt + cold_tokens[:at], cut) for cut in _CUTS]
    cold_rest, warm_rest = (rt.detokenize(tokens[at:]) for tokens in (cold_tokens, warm_tokens))
    likeliest = [int(token) for token in logits[0].argsort()[-_LIKELIEST:]]
    a = [*cold_tokens[at : at + 1], *_begin(rt, likeliest, cold_rest, warm_rest)] or ends
    b = [*warm_tokens[at : at + 1], *_begin(rt, likeliest, warm_rest, cold_rest)] or ends
    gaps = [float(row[a].max() - row[b].max()) for row in logits]
    moves = max(float(np.abs(row - logits[0])[likeliest].max()) for row in logits)
    assert min(map(abs, gaps)) <= 2 * moves, f"token {at} of {cold!r} and {warm!r}: apart by {gaps}, moves {moves}"


def _begin(rt: Runtime, tokens: list[int], text: str, other: str) -> list[int]:
    """Those that `text` begins with and `other` does not: a model may write a text in other tokens than a tokenizer."""
    written = {token: rt.detokenize([token]) for token in tokens}
    return [t for t, piece in written.items() if piece and text.startswith(piece) and not other.startswith(piece)]
