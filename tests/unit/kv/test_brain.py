"""bfloat16 sections on their way into the fold and back."""

from __future__ import annotations

import numpy as np
import pytest

from pinfold.kv.brain import as_half, from_half
from pinfold.kv.snapshot import Heads, Opaque, Plane, Section, Snapshot


def brain(values: np.ndarray) -> np.ndarray:
    """Rows of bfloat16, cut off."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def snapshot(*planes: Plane) -> Snapshot:
    section = Section(0, np.arange(4, dtype=np.int32), Heads(4, 4, None), list(planes))
    return Snapshot(4, b"head", [section, Opaque(b"state", "recurrent")])


def plane(values: np.ndarray, part: str = "k") -> Plane:
    return Plane(0, part, "bf16", brain(values))  # type: ignore[arg-type]


def test_what_float16_reaches_comes_back_bit_for_bit() -> None:
    values = np.random.default_rng(1).normal(size=(4, 64)) * 100
    values = np.where(np.abs(values) < 2.0**-14, 1.0, values)
    given = snapshot(plane(values), plane(values * 3, "v"))
    half = as_half(given)
    assert [p.kind for _, p in half.planes()] == ["f16", "f16"]
    assert half.sections[1] is given.sections[1]
    for (_, before), (_, after) in zip(given.planes(), half.planes(), strict=True):
        np.testing.assert_array_equal(from_half(after.rows), before.rows)


def test_small_values_move_by_less_than_float16_can_show() -> None:
    values = np.full((4, 64), 2.0**-20 * 1.01)
    ((_, half),) = as_half(snapshot(plane(values))).planes()
    assert np.abs(half.rows.view(np.float16).astype(np.float64) - values).max() < 2.0**-25 + 2.0**-27


@pytest.mark.parametrize("large", [70_000.0, np.inf, np.nan])
def test_what_float16_does_not_reach_stays(large: float) -> None:
    values = np.ones((4, 64))
    values[2, 3] = large
    assert {p.kind for _, p in as_half(snapshot(plane(np.ones((4, 64))), plane(values, "v"))).planes()} == {"bf16"}


def test_other_types_stay() -> None:
    rows = np.ones((4, 64), dtype=np.float16).view(np.uint8)
    given = snapshot(Plane(0, "k", "f16", rows), plane(np.ones((4, 64)), "v"))
    assert [p.rows is q.rows for (_, p), (_, q) in zip(given.planes(), as_half(given).planes(), strict=True)] == [
        True
    ] * 2


def test_halves_round_to_the_nearest() -> None:
    rows = np.array([[1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-8 + 2.0**-10]], dtype=np.float16).view(np.uint8)
    back = (from_half(rows).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(back, [[1.0, 1.0 + 2.0**-6, 1.0 + 2.0**-7]])
