"""What a smaller model of the same vocabulary says, greedily."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pinfold.decoding.drafters.base import Guess
from pinfold.engines.base import Engine, Span
from pinfold.errors import PinfoldError, UnsupportedModeError
from pinfold.sessions.prefix_tree import common_prefix

__all__ = ["SmallModel", "check_vocabulary"]

# Tokens compared one by one, spread over the vocabulary.
_COMPARED = 2048
_FADE = 0.9


def check_vocabulary(target: Engine, small: Engine) -> None:
    """Raises UnsupportedModeError unless both models cut text into the same tokens."""
    ours, theirs = target.tokenizer, small.tokenizer
    step = max(1, min(ours.n_vocab, theirs.n_vocab) // _COMPARED)
    for token in range(0, min(ours.n_vocab, theirs.n_vocab), step):
        if ours.piece(token) != theirs.piece(token):
            msg = (
                f"{small.capabilities.model.name} cannot draft for {target.capabilities.model.name}: token {token} is "
                f"{theirs.piece(token)!r} there and {ours.piece(token)!r} here. Use a smaller model of the same family."
            )
            raise UnsupportedModeError(msg)


class SmallModel:
    """A second engine on the same thread. A request that ends leaves its sequence to the next one that begins alike.

    It guesses tokens below `n_vocab`, the target's: a table that is padded further has rows that mean nothing there.
    """

    def __init__(self, engine: Engine, n_vocab: int) -> None:
        self._engine = engine
        self._n_vocab = n_vocab
        self._tokens: dict[int, list[int]] = {seq: [] for seq in range(engine.capabilities.n_seq)}
        self._taken: set[int] = set()
        self.seconds_per_token = 0.0
        self.seconds_per_token = self._first_cost()

    def drafter(self, tokens: Sequence[int]) -> _ModelDrafter:
        """A drafter for the request with this list of tokens, which grows."""
        return _ModelDrafter(self, tokens)

    def close(self) -> None:
        """Frees the model."""
        self._engine.close()

    def take(self, tokens: Sequence[int]) -> int | None:
        """A sequence that nobody has, the one that holds most of `tokens`; None where there is none."""
        free = [seq for seq in self._tokens if seq not in self._taken]
        if not free:
            return None
        best = max(free, key=lambda seq: common_prefix(self._tokens[seq], tokens))
        self._taken.add(best)
        return best

    def give_back(self, seq: int) -> None:
        """Nobody has `seq` any more; what it holds stays."""
        self._taken.discard(seq)

    def follow(self, seq: int, tokens: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that this model would put after `tokens`; fewer where it has no room or fails."""
        if len(tokens) + most >= self._engine.capabilities.n_ctx:
            return []
        guess: list[int] = []
        try:
            new = self._catch_up(seq, tokens)
            while len(guess) < most:
                began = time.perf_counter()
                guess.append(self._next(seq, new))
                if len(new) == 1:
                    spent = time.perf_counter() - began
                    self.seconds_per_token = _FADE * self.seconds_per_token + (1 - _FADE) * spent
                new = guess[-1:]
        except PinfoldError:
            self._engine.drop(seq)
            self._tokens[seq] = []
        return guess

    def _catch_up(self, seq: int, tokens: Sequence[int]) -> list[int]:
        """Cuts `seq` back to what it shares with `tokens` and computes all of the rest but the last forward's share."""
        held = self._tokens[seq]
        shared = min(common_prefix(held, tokens), len(tokens) - 1)
        self._engine.trim(seq, shared)
        del held[shared:]
        if len(tokens) - shared > self._engine.free_cells():
            self._make_room(seq)
        while len(tokens) - len(held) > self._engine.max_tokens:
            part = list(tokens[len(held) : len(held) + self._engine.max_tokens])
            self._engine.forward([Span(seq, len(held), part, "none")])
            held += part
        return list(tokens[len(held) :])

    def _next(self, seq: int, new: Sequence[int]) -> int:
        held = self._tokens[seq]
        rows = self._engine.forward([Span(seq, len(held), new, "last")])[0]
        held += new
        return int(rows[-1][: self._n_vocab].argmax()) if rows is not None else 0

    def _make_room(self, keep: int) -> None:
        for seq, held in self._tokens.items():
            if held and seq != keep and seq not in self._taken:
                self._engine.drop(seq)
                held.clear()

    def _first_cost(self) -> float:
        began = time.perf_counter()
        self.follow(0, [0, 0], 1)
        return time.perf_counter() - began


class _ModelDrafter:
    """`base.Drafter` of one request."""

    source = "model"
    excuse = ""

    def __init__(self, model: SmallModel, tokens: Sequence[int]) -> None:
        self._model = model
        self._tokens = tokens
        self._seq: int | None = None

    @property
    def seconds_per_token(self) -> float:
        return self._model.seconds_per_token

    def guess(self, ahead: Sequence[int], most: int) -> Guess | None:
        if self._seq is None:
            self._seq = self._model.take(self._tokens)
        if self._seq is None:
            return None
        tokens = self._model.follow(self._seq, [*self._tokens, *ahead], most)
        return Guess(tokens, "model") if tokens else None

    def close(self) -> None:
        if self._seq is not None:
            self._model.give_back(self._seq)
            self._seq = None
