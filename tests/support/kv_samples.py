"""Snapshots of made-up models: correlated keys and values, as neighbouring layers of a real one have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pinfold.kv.calibration import learn
from pinfold.kv.recipe import Recipe
from pinfold.kv.rope import Turn
from pinfold.kv.snapshot import Heads, Plane, Rope, Section, Snapshot

__all__ = ["Geometry", "make_recipe", "make_section", "make_snapshot"]

_HALVES = Rope(10_000.0, 1.0, 32, halves=True)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Layers, heads of one layer and their sizes, and how keys are turned."""

    layers: int = 3
    heads: int = 2
    k_size: int = 32
    v_size: int = 32
    rope: Rope | None = _HALVES

    @property
    def described(self) -> Heads:
        return Heads(self.k_size, self.v_size, self.rope)


def _plane(layer: int, part: str, values: NDArray[np.float64]) -> Plane:
    rows = np.ascontiguousarray(values, dtype=np.float16).view(np.uint8).reshape(len(values), -1)
    return Plane(layer, "k" if part == "k" else "v", "f16", rows)


def make_section(geometry: Geometry, tokens: int, seed: int = 0) -> Section:
    """Each layer mixes the one before with something new, by weights that `seed` does not change."""
    weights, noise = np.random.default_rng(7), np.random.default_rng(seed)
    k_width, v_width = geometry.heads * geometry.k_size, geometry.heads * geometry.v_size
    positions = np.arange(tokens, dtype=np.int32)
    turn = Turn(geometry.rope, positions) if geometry.rope is not None else None
    keys, values = [], []
    last = noise.normal(size=(tokens, 16))
    for layer in range(geometry.layers):
        now = last + 0.5 * noise.normal(size=last.shape)
        k = now @ weights.normal(size=(16, k_width)) + 3 * weights.normal(size=k_width)
        v = now @ weights.normal(size=(16, v_width)) * np.exp(0.3 * noise.normal(size=(tokens, 1)))
        if turn is not None and tokens:
            by_head = np.ascontiguousarray(k.T, dtype=np.float32).reshape(geometry.heads, geometry.k_size, tokens)
            turn.do(by_head)
            k = by_head.reshape(k_width, tokens).T.astype(np.float64)
        keys.append(_plane(layer, "k", k))
        values.append(_plane(layer, "v", v))
        last = now
    return Section(5, positions, geometry.described, keys + values)


def make_snapshot(geometry: Geometry, tokens: int, seed: int = 0) -> Snapshot:
    """One section of it."""
    return Snapshot(tokens, b"headhead", [make_section(geometry, tokens, seed)])


def make_recipe(geometry: Geometry, tokens: int = 200, *, from_both: bool = True) -> Recipe:
    """What calibration learns of the made-up model."""
    samples = [make_snapshot(geometry, tokens, seed) for seed in (101, 102)]
    return learn(samples, "made up", 10**12 if from_both else 1)
