"""What others store, to compare with: ggml's q8_0, and 8-bit affine keys with rotated Lloyd-Max values (K8/V4, K8/V3).

Each scheme gives back a snapshot with the loss that it has; nothing is stored. Bits include scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pinfold.kv.snapshot import Opaque, Plane, Section, Snapshot

__all__ = ["NOISE", "REFERENCES", "Scheme", "change_planes"]

F32 = NDArray[np.float32]
Change = Callable[[F32, Section, Plane], F32]

# Points that stand for the normal distribution, each for an equal part of it.
_SAMPLE = 1 << 14


@dataclass(frozen=True, slots=True)
class Scheme:
    """`bits` of one element of K or V, and what the scheme makes of a snapshot."""

    bits: float
    apply: Callable[[Snapshot], Snapshot]


def change_planes(snapshot: Snapshot, change: Change) -> Snapshot:
    """A copy with each float16 plane replaced by `change` of its values, float32 [tokens, channels]."""
    changed = Snapshot(snapshot.tokens, snapshot.head)
    for section in snapshot.sections:
        if isinstance(section, Opaque):
            changed.sections.append(section)
            continue
        planes = [
            Plane(p.layer, p.part, p.kind, _changed(section, p, change) if p.kind == "f16" else p.rows)
            for p in section.planes
        ]
        changed.sections.append(Section(section.seq, section.positions, section.heads, planes))
    return changed


def _changed(section: Section, plane: Plane, change: Change) -> NDArray[np.uint8]:
    values = change(plane.rows.view(np.float16).astype(np.float32), section, plane)
    return np.ascontiguousarray(values.astype(np.float16)).view(np.uint8)


def _q8_0(values: F32, _section: Section, _plane: Plane) -> F32:
    blocks = values.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    rounded: F32 = np.rint(blocks / np.where(scale > 0, scale, 1)) * scale
    return rounded.reshape(values.shape)


def _affine8(values: F32) -> F32:
    blocks = values.reshape(-1, 64)
    low = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - low) / 255
    rounded: F32 = np.rint((blocks - low) / np.where(scale > 0, scale, 1)) * scale + low
    return rounded.reshape(values.shape)


def _lloyd_max(values: F32, size: int, bits: int) -> F32:
    heads = values.reshape(-1, size)
    norms = np.maximum(np.linalg.norm(heads, axis=1, keepdims=True), 1e-12)
    turn, codebook = _rotation(size), _codebook(bits)
    unit = heads / norms @ turn * np.sqrt(size)
    codes = codebook[np.searchsorted((codebook[1:] + codebook[:-1]) / 2, unit)]
    restored: F32 = codes / np.sqrt(size) @ turn.T * norms
    return restored.reshape(values.shape)


def _k8(bits: int) -> Change:
    def change(values: F32, section: Section, plane: Plane) -> F32:
        return _affine8(values) if plane.part == "k" else _lloyd_max(values, section.heads.v_size, bits)

    return change


def _noise(values: F32, _section: Section, _plane: Plane) -> F32:
    random = np.random.default_rng(0)
    return values * (1 + random.uniform(-1e-3, 1e-3, values.shape).astype(np.float32))


@cache
def _rotation(size: int) -> F32:
    """Hadamard times random signs where `size` is a power of two, else a random orthogonal matrix."""
    random = np.random.default_rng(size)
    if size & (size - 1):
        return np.linalg.qr(random.standard_normal((size, size)))[0].astype(np.float32)
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    signed: NDArray[np.float64] = matrix * random.choice((-1.0, 1.0), size)[:, None] / np.sqrt(size)
    return signed.astype(np.float32)


@cache
def _codebook(bits: int) -> F32:
    """The best levels for a normal distribution."""
    upper = [NormalDist().inv_cdf(0.5 + (i + 0.5) / _SAMPLE) for i in range(_SAMPLE // 2)]
    sample = np.array([-x for x in reversed(upper)] + upper)
    levels: NDArray[np.float64] = np.quantile(sample, (np.arange(1 << bits) + 0.5) / (1 << bits))
    for _ in range(300):
        edges = np.searchsorted(sample, (levels[1:] + levels[:-1]) / 2)
        levels = np.array([part.mean() for part in np.split(sample, edges)])
    return levels.astype(np.float32)


REFERENCES = {
    "q8_0/q8_0": Scheme(8.5, lambda snapshot: change_planes(snapshot, _q8_0)),
    "k8v4": Scheme(6.4, lambda snapshot: change_planes(snapshot, _k8(4))),
    "k8v3": Scheme(5.9, lambda snapshot: change_planes(snapshot, _k8(3))),
}
# A change that no cache could avoid: it shows how far rounding in the engine alone moves the figures.
NOISE = Scheme(16.0, lambda snapshot: change_planes(snapshot, _noise))
