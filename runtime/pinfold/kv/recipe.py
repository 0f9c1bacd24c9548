"""What calibration learns of a model, and how coarse a fold is: a rung of the ladder.

A layer's keys and values are predicted from the layer before, as that comes out of the fold, and only what is left is
stored: cross-layer prediction is from AQUA-KV (arXiv 2501.19392), here by ridge regression and with an entropy coder
behind it. What is left is turned into the model's own principal axes for each head.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["LADDER", "PRESETS", "LayerRecipe", "Recipe", "Rung"]

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rung:
    """Quantizer steps: of keys in units of their head's spread, of values in units of their token's norm."""

    name: str
    k_step: float
    v_step: float


# From fine to coarse. A preset that fails its gate on a model takes the next finer one.
LADDER: tuple[Rung, ...] = (
    Rung("k.06/v.18", 0.06, 0.18),
    Rung("k.08/v.24", 0.08, 0.24),
    Rung("k.1/v.3", 0.10, 0.30),
    Rung("k.125/v.35", 0.125, 0.35),
    Rung("k.175/v.35", 0.175, 0.35),
    Rung("k.2/v.42", 0.20, 0.42),
    Rung("k.25/v.5", 0.25, 0.50),
    Rung("k.3/v.55", 0.30, 0.55),
    Rung("k.35/v.6", 0.35, 0.60),
)
# Where each preset begins; ``exact`` is no rung: it loses nothing.
PRESETS = {"balanced": 4, "compact": 8}


@dataclass(slots=True, eq=False)
class LayerRecipe:
    """One layer. H heads of sizes k and v, dk = H x k, dv = H x v; all float32.

    Attributes:
        k_from: [dk, dk + dv]: this layer's keys from the last layer's keys and values; or [dk, dk]: from the keys
            alone, where a restore would take too long; None in the first layer.
        v_from: [dv, dk + dv]: this layer's values from its own keys and the last layer's values, or [dv, dv]: from the
            values alone.
        k_axes, v_axes: [H, size, size]: columns are the axes of what prediction leaves, strongest first.
        k_spread: [H]: the keys' standard deviation in a head, in units of which its step is given.
        k_order, v_order: channels by usual spread, to be coded together.
        k_gain, v_gain: this layer's steps in units of the rung's; below 1 where loss hurts more.
    """

    k_from: F32 | None
    v_from: F32 | None
    k_axes: F32
    v_axes: F32
    k_spread: F32
    k_order: NDArray[np.intp]
    v_order: NDArray[np.intp]
    k_gain: float = 1.0
    v_gain: float = 1.0

    def k_reads(self, seen: F32) -> F32:
        """What keys are predicted from: `seen`, [dk + dv, tokens], is the last layer's keys, then its values."""
        return seen if self.k_from is None else seen[: self.k_from.shape[1]]

    def v_reads(self, seen: F32) -> F32:
        """What values are predicted from: `seen` is this layer's keys, then the last layer's values."""
        return seen if self.v_from is None else seen[-self.v_from.shape[1] :]

    @property
    def k_width(self) -> int:
        """Channels of a row of keys."""
        return int(self.k_axes.shape[0] * self.k_axes.shape[1])

    @property
    def v_width(self) -> int:
        """Channels of a row of values."""
        return int(self.v_axes.shape[0] * self.v_axes.shape[1])


@dataclass(slots=True, eq=False)
class Recipe:
    """All layers of all sections, and the rung that each preset came to on this model.

    Attributes:
        fingerprint: of the engine and model that it was learnt on.
        rungs: preset -> place on `LADDER`, -1 for none (the preset then folds without loss).
        notes: preset -> why it is not where it begins.
    """

    fingerprint: str
    sections: list[list[LayerRecipe]]
    rungs: dict[str, int] = field(default_factory=lambda: dict(PRESETS))
    notes: dict[str, str] = field(default_factory=dict)
    _of_arrays: bytes | None = field(default=None, init=False, repr=False)

    def digest(self) -> str:
        """SHA-256 over what unfolding needs, in hex: sessions name the recipe that they were folded by.

        Arrays are read once, at the first call, and never change after; gains may.
        """
        if self._of_arrays is None:
            self._of_arrays = self._digest_arrays()
        digest = hashlib.sha256(self._of_arrays)
        for section in self.sections:
            gains = [(layer.k_gain, layer.v_gain) for layer in section]
            digest.update(np.array(gains, dtype="<f8").tobytes())
        return digest.hexdigest()

    def _digest_arrays(self) -> bytes:
        digest = hashlib.sha256(self.fingerprint.encode())
        for number, section in enumerate(self.sections):
            for layer in section:
                matrices = (layer.k_from, layer.v_from, layer.k_axes, layer.v_axes, layer.k_spread)
                for array in (*matrices, layer.k_order, layer.v_order):
                    if array is None:
                        digest.update(b"-")
                        continue
                    digest.update(f"{number} {array.shape}".encode())
                    plain = array.astype("<i4" if array.dtype.kind == "i" else "<f4", order="C", copy=False)
                    digest.update(plain.data)
        return digest.digest()
