"""One forward for several sequences of different lengths, one token each.

Everything but attention is one product over all of them; each attends to its own cells, so that nothing is padded, and
packed cells, windows and shared pieces stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pinfold.engines.mlx.attention import Each, attach, finds_attention
from pinfold.engines.mlx.caches import Opened, Slot

__all__ = ["NotTogether", "SharedCache", "runs_together", "share"]

Array = Any
_LENGTHS = (3, 1)
# Of the logits' standard deviation: what another order of sums makes, and a wrong position does not.
_TOLERANCE = 0.05
_FAILURES = (ValueError, TypeError, AttributeError, IndexError, RuntimeError)


class NotTogether(Exception):  # noqa: N818 - tells the engine to evaluate them one by one, never seen by users
    """These sequences need masks of their own."""


class SharedCache:
    """One layer's caches of several sequences, as a model takes them: row n of its batch is `caches[n]`."""

    start_position = 0

    def __init__(self, mx: Any, caches: Sequence[Any]) -> None:
        self._mx = mx
        self._caches = caches

    @property
    def offset(self) -> Array:
        """Where each sequence ends, int32 [sequences]."""
        return self._mx.array([cache.offset for cache in self._caches])

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Each, Each]:
        """Appends a token to each; returns for each what it can see."""
        rows = enumerate(self._caches)
        pairs = [cache.update_and_fetch(keys[n : n + 1], values[n : n + 1]) for n, cache in rows]
        return Each(tuple(k for k, _ in pairs)), Each(tuple(v for _, v in pairs))

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> None:  # noqa: N803
        """None: one token sees all that its cache gives it. Raises NotTogether where it must not."""
        masks = [cache.make_mask(N, return_array, window_size) for cache in self._caches]
        if any(mask is not None for mask in masks):
            raise NotTogether


def share(mx: Any, opened: Sequence[Opened]) -> list[SharedCache]:
    """The caches of several sequences, layer by layer, as one model call takes them."""
    return [SharedCache(mx, caches) for caches in zip(*(one.for_model for one in opened), strict=True)]


def runs_together(
    mx: Any, model: Any, slots: Sequence[Slot], make: Callable[[], Opened], n_tokens: int
) -> tuple[bool, str]:
    """Whether the model evaluates several sequences in one forward as it does each alone, and why not."""
    if any(slot.kind == "drafter" for slot in slots):
        return False, "a drafter reads the layers of each by itself"
    if any(slot.kind not in ("full", "sliding") for slot in slots) or len(model.layers) != len(slots):
        return False, "its layers are not all of full or sliding attention"
    if any(finds_attention(layer) is None for layer in model.layers):
        return False, "its layers attend in a way of their own"
    for layer in model.layers:
        attach(layer)
    tokens = [(11 + 7919 * i) % n_tokens for i in range(max(_LENGTHS) + 1)]
    try:
        alone = [_next(mx, model, [_begun(mx, model, make(), tokens[:n])], tokens[n : n + 1]) for n in _LENGTHS]
        both = [_begun(mx, model, make(), tokens[:n]) for n in _LENGTHS]
        found = _next(mx, model, both, [tokens[n] for n in _LENGTHS])
    except (*_FAILURES, NotTogether) as e:
        return False, f"it does not take them together: {e}"
    expected = np.concatenate(alone)
    if np.abs(found - expected).mean() > _TOLERANCE * expected.std():
        return False, "it answers differently then"
    return True, ""


def _begun(mx: Any, model: Any, opened: Opened, tokens: Sequence[int]) -> Opened:
    model(mx.array(list(tokens))[None], cache=opened.for_model)
    return opened


def _next(mx: Any, model: Any, opened: Sequence[Opened], tokens: Sequence[int]) -> np.ndarray[Any, Any]:
    caches = share(mx, opened) if len(opened) > 1 else opened[0].for_model
    return np.array(model(mx.array(list(tokens))[:, None], cache=caches)[:, -1].astype(mx.float32))
