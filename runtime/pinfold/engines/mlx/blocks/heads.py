"""From the slots of a block to tokens: each by itself, or from left to right, where a token sees the one before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pinfold.engines.mlx.blocks.config import BlockConfig
from pinfold.engines.mlx.blocks.network import Shapes

__all__ = ["Head", "head_shapes"]

Array = Any
# A token that the confidence head gives less is not worth a row: such drafts are right less than every third time.
_LEAST_CONFIDENCE = 0.3


def head_shapes(config: BlockConfig) -> Shapes:
    """Each weight that the head reads, with its shape."""
    rank, shapes = config.selector_rank, Shapes()
    if rank:
        shapes["candidate_selector.hidden_projection.weight"] = (rank, config.hidden)
        shapes["candidate_selector.predecessor_codebook"] = (config.n_vocab, rank)
        shapes["candidate_selector.successor_codebook"] = (config.n_vocab, rank)
    if config.markov:
        rank = config.markov_rank
        shapes["markov_head.markov_w1.weight"] = (config.n_vocab, rank)
        shapes["markov_head.markov_w2.weight"] = (config.n_vocab, rank)
    if config.markov == "gated":
        shapes["markov_head.gate_proj.weight"] = (rank, config.hidden + rank)
        shapes["markov_head.gate_proj.bias"] = (rank,)
    if config.confidence:
        width = config.hidden + (config.markov_rank if config.confidence == "markov" else 0)
        shapes["confidence_head.proj.weight"] = (1, width)
        shapes["confidence_head.proj.bias"] = (1,)
    return shapes


@dataclass(frozen=True, slots=True)
class Head:
    """Picks the tokens of a block greedily. `logits_of` is the target's own last step, [1, slots, hidden] -> logits."""

    mx: Any
    config: BlockConfig
    weights: Mapping[str, Array]
    logits_of: Any

    def pick(self, hidden: Array, anchor: int) -> list[int]:
        """The guesses from the slots `hidden`, [1, slots, hidden], after the token `anchor`; fewer where unsure."""
        logits = self._scaled(self.logits_of(hidden))[0].astype(self.mx.float32)
        if self.config.selector_rank:
            return self._select(hidden[0], logits, anchor)
        if self.config.markov or self.config.confidence:
            return self._walk(hidden[0], logits, anchor)
        tokens: list[int] = logits.argmax(axis=-1).tolist()
        return tokens

    def _scaled(self, logits: Array) -> Array:
        logits = logits * self.config.output_scale
        cap = self.config.softcap
        return self.mx.tanh(logits / cap) * cap if cap else logits

    def _select(self, hidden: Array, logits: Array, anchor: int) -> list[int]:
        """Of each slot's best candidates the one that its own logit and the token before it speak for."""
        most = self.config.selector_top_k
        candidates = self.mx.argpartition(logits, -most, axis=-1)[:, -most:]
        own = self.mx.take_along_axis(logits, candidates, axis=-1)
        wanted = hidden @ self.weights["candidate_selector.hidden_projection.weight"].T
        before, after = (self.weights[f"candidate_selector.{which}_codebook"] for which in ("predecessor", "successor"))
        previous, picked = self.mx.array(anchor), []
        for slot in range(len(hidden)):
            link = after[candidates[slot]] @ (before[previous] * wanted[slot])
            previous = candidates[slot][(own[slot] + link).argmax()]
            picked.append(previous)
        tokens: list[int] = self.mx.stack(picked).tolist()
        return tokens

    def _walk(self, hidden: Array, logits: Array, anchor: int) -> list[int]:
        """Adds to each slot's logits what the token before it says, and stops at the first of little confidence."""
        previous, picked, sure = self.mx.array(anchor), [], []
        for slot in range(len(hidden)):
            known = self.weights["markov_head.markov_w1.weight"][previous] if self.config.markov else None
            sure.append(self._confidence(hidden[slot], known))
            row = logits[slot] if known is None else logits[slot] + self._bias(hidden[slot], known)
            previous = row.argmax()
            picked.append(previous)
        tokens: list[int] = self.mx.stack(picked).tolist()
        chances: list[float] = self.mx.stack(sure).tolist()
        count = next((place for place, chance in enumerate(chances) if chance < _LEAST_CONFIDENCE), len(tokens))
        return tokens[:count]

    def _bias(self, hidden: Array, known: Array) -> Array:
        if self.config.markov == "gated":
            both = self.mx.concatenate([hidden, known.astype(hidden.dtype)])
            gate = both @ self.weights["markov_head.gate_proj.weight"].T + self.weights["markov_head.gate_proj.bias"]
            known = self.mx.sigmoid(gate) * known
        return self.weights["markov_head.markov_w2.weight"] @ known

    def _confidence(self, hidden: Array, known: Array | None) -> Array:
        """The chance that the slot's token is right, as the drafter sees it; 1 where it does not say."""
        if not self.config.confidence:
            return self.mx.array(1.0)
        if self.config.confidence == "markov" and known is not None:
            hidden = self.mx.concatenate([hidden, known.astype(hidden.dtype)])
        score = self.weights["confidence_head.proj.weight"][0] @ hidden + self.weights["confidence_head.proj.bias"][0]
        return self.mx.sigmoid(score.astype(self.mx.float32))
