"""A short forward at load: it shows the shapes of a model's caches, and that using them again changes no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pinfold.engines.mlx.caches import Opened
from pinfold.errors import ModelFormatError, UnsupportedModeError

__all__ = ["Shapes", "rehearse"]

_TOKENS = 6
_CUT = 4
# Of the logits' standard deviation, the mean difference that rounding may make (seen: 0.02) and a wrong cache will not.
_TOLERANCE = 0.25

Array = Any


@dataclass(frozen=True, slots=True)
class Shapes:
    """Heads and size of K and V for each attention layer, (type, shape) of each recurrent array, and the logits."""

    attention: tuple[tuple[int, int, int, int], ...]
    recurrent: tuple[tuple[str, tuple[int, ...], int] | None, ...]
    n_vocab: int


def rehearse(mx: Any, model: Any, make: Callable[[], Opened], n_tokens: int) -> Shapes:
    """Evaluates a few of the `n_tokens` token ids whole, then in two parts on a copied cache.

    Raises:
        ModelFormatError: the model cannot be evaluated, or gives no numbers.
        UnsupportedModeError: the second answer is another than the first.
    """
    tokens = [(7 + 7919 * i) % n_tokens for i in range(_TOKENS)]
    try:
        whole = make()
        expected = _logits(mx, model, tokens, whole)
        begun = make()
        _logits(mx, model, tokens[:_CUT], begun)
        found = _logits(mx, model, tokens[_CUT:], _copied(begun, make()))
        shapes = _shapes(whole, len(expected))
    except (ValueError, TypeError, AttributeError, IndexError, RuntimeError) as e:
        msg = f"The model cannot be evaluated: {e}. Check that its files belong together, or use a GGUF file of it."
        raise ModelFormatError(msg) from e
    if not np.isfinite(expected).all():
        msg = "The model gives logits that are no numbers. Check its files, or try kv_resident='f32'."
        raise ModelFormatError(msg)
    if np.abs(expected - found).mean() > _TOLERANCE * expected.std():
        msg = "This model answers differently once its KV is reused, so Pinfold cannot run it. Use a GGUF file of it."
        raise UnsupportedModeError(msg)
    return shapes


def _logits(mx: Any, model: Any, tokens: list[int], caches: Opened) -> np.ndarray[Any, np.dtype[np.float32]]:
    logits = model(mx.array(tokens)[None], cache=caches.for_model)
    return np.array(logits[0, -1].astype(mx.float32))


def _copied(source: Opened, target: Opened) -> Opened:
    for old, new in zip(source.attention, target.attention, strict=True):
        new.fill([old.part(0, _CUT)])
    for old, new in zip(source.recurrent, target.recurrent, strict=True):
        new.cache = list(old.cache)
    return target


def _shapes(caches: Opened, n_vocab: int) -> Shapes:
    attention = []
    for cache in caches.attention:
        if cache.keys is None or cache.values is None:
            msg = "one of its layers left its cache empty"
            raise ValueError(msg)
        (_, k_heads, _, k_size), (_, v_heads, _, v_size) = cache.keys.shape, cache.values.shape
        attention.append((k_heads, k_size, v_heads, v_size))
    recurrent = [
        None if array is None else (str(array.dtype), tuple(array.shape), int(array.nbytes))
        for cache in caches.recurrent
        for array in cache.cache
    ]
    return Shapes(tuple(attention), tuple(recurrent), n_vocab)
