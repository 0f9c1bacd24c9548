"""The schemes that others ship lose what they are known to lose."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pinfold.kv.snapshot import Opaque, Plane, Section, Snapshot
from pinfold.quality.schemes import NOISE, REFERENCES, _codebook, _rotation, change_planes


def values(snapshot: Snapshot, part: str) -> np.ndarray:
    return np.stack([p.rows.view(np.float16).astype(np.float64) for _, p in snapshot.planes() if p.part == part])


def error(a: np.ndarray, b: np.ndarray) -> float:
    """Relative squared error."""
    return float(((a - b) ** 2).sum() / (a**2).sum())


def test_the_levels_are_those_of_lloyd_and_max() -> None:
    known = [0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0691, 2.7326]  # Max 1960, table I, 16 levels
    levels = _codebook(4)
    np.testing.assert_allclose(levels[8:], known, atol=0.03)
    np.testing.assert_allclose(levels[:8], -levels[:7:-1], atol=0.03)
    np.testing.assert_allclose(_codebook(3)[4:], [0.2451, 0.7560, 1.3439, 2.1520], atol=0.02)


@pytest.mark.parametrize("size", [32, 80])
def test_the_rotation_turns_and_no_more(size: int) -> None:
    np.testing.assert_allclose(_rotation(size) @ _rotation(size).T, np.eye(size), atol=1e-5)


def test_q8_0_stays_within_half_a_step(snapshot: Snapshot) -> None:
    changed = REFERENCES["q8_0/q8_0"].apply(snapshot)
    for part in ("k", "v"):
        before, after = values(snapshot, part), values(changed, part)
        most = np.abs(before.reshape(-1, 32)).max(axis=1, keepdims=True)
        off = np.abs(after - before).reshape(-1, 32)
        assert (off <= most / 127 * 0.5 + most * 2e-3).all()
        assert off.max() > 0


def test_affine_keys_stay_within_half_a_step(snapshot: Snapshot) -> None:
    before, after = values(snapshot, "k"), values(REFERENCES["k8v4"].apply(snapshot), "k")
    groups = before.reshape(-1, 64)
    steps = (groups.max(axis=1) - groups.min(axis=1)) / 255
    slack = np.abs(groups).max(axis=1) * 2e-3  # float16
    assert (np.abs(after.reshape(-1, 64) - groups).max(axis=1) <= steps / 2 + slack).all()


def test_values_lose_what_the_theory_says(snapshot: Snapshot) -> None:
    """Lloyd and Max: 0.0095 of the variance at 4 bits, 0.0345 at 3."""
    v = values(snapshot, "v")
    assert error(v, values(REFERENCES["k8v4"].apply(snapshot), "v")) == pytest.approx(0.0095, rel=0.15)
    assert error(v, values(REFERENCES["k8v3"].apply(snapshot), "v")) == pytest.approx(0.0345, rel=0.15)


def test_the_noise_is_a_thousandth(snapshot: Snapshot) -> None:
    before, after = values(snapshot, "k"), values(NOISE.apply(snapshot), "k")
    assert 0 < np.abs(after / before - 1).max() < 2e-3


@pytest.mark.parametrize("scheme", [*(s.apply for s in REFERENCES.values()), NOISE.apply])
def test_what_is_no_float16_is_left_alone(snapshot: Snapshot, scheme: Callable[[Snapshot], Snapshot]) -> None:
    (section,) = snapshot.sections
    assert isinstance(section, Section)
    quantized = [Plane(p.layer, p.part, "q8_0", p.rows) for p in section.planes]
    state = Opaque(b"state", "recurrent")
    other = Snapshot(64, b"", [Section(0, section.positions, section.heads, quantized), state])
    changed = scheme(other)
    assert [p.rows.tobytes() for _, p in changed.planes()] == [p.rows.tobytes() for p in quantized]
    assert changed.sections[1] is state


def test_a_change_leaves_the_original_as_it_was(snapshot: Snapshot) -> None:
    before = [p.rows.copy() for _, p in snapshot.planes()]
    change_planes(snapshot, lambda values, _section, _plane: values * 2)
    assert all((p.rows == b).all() for (_, p), b in zip(snapshot.planes(), before, strict=True))
