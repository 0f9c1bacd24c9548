"""A block drafter joined to its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pinfold.engines.mlx.blocks.heads import Head
from pinfold.engines.mlx.blocks.network import Network
from pinfold.engines.mlx.blocks.taps import Taps

__all__ = ["BlockDrafter", "Joined"]

Array = Any


class BlockDrafter:
    """Guesses what follows a sequence whose features stand in the drafter's caches, one for each of its layers.

    Attributes:
        identity: a digest that names the weights.
        guesses: tokens of one guess.
    """

    def __init__(self, network: Network, head: Head, embed: Any, identity: str) -> None:
        self._network = network
        self._head = head
        self._embed = embed
        self.identity = identity
        self.kind = network.config.kind
        self.n_layers = network.config.n_layers
        self.guesses = network.config.guesses

    def remember(self, taps: Sequence[Array], caches: Sequence[Any]) -> None:
        """Appends what the target's layers gave for the tokens that came."""
        self._network.remember(taps, caches)

    def draft(self, caches: Sequence[Any], token: int) -> list[int]:
        """What may follow `token`, which follows the tokens whose features are in the drafter's part of `caches`."""
        config, mx = self._network.config, self._network.mx
        slots = self._embed(mx.array([[token] + [config.mask_token] * (config.block - 1)])) * config.embedding_scale
        hidden = self._network.fill(slots, caches[-config.n_layers :])
        return self._head.pick(hidden if config.kind == "dspark" else hidden[:, 1:], token)


class Joined:
    """A target that tells its drafter what its layers give; called like the target, with the caches of both."""

    def __init__(self, target: Any, drafter: BlockDrafter, taps: Taps) -> None:
        self._target = target
        self._drafter = drafter
        self._taps = taps
        self.layers = [*target.layers, *[None] * drafter.n_layers]

    def __call__(self, tokens: Array, cache: Sequence[Any]) -> Array:
        own = len(cache) - self._drafter.n_layers
        logits = self._target(tokens, cache=list(cache[:own]))
        self._drafter.remember(self._taps.take(), cache[own:])
        return logits
