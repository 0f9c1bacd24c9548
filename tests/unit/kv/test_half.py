"""float32 to float16 by shifting bits, against numpy's cast."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pinfold.kv.half import all_finite, channels, half_bits
from pinfold.kv.snapshot import Plane


def test_every_finite_float16_keeps_its_bits() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    halves = bits.view(np.float16)
    finite = np.isfinite(halves)
    np.testing.assert_array_equal(half_bits(halves[finite].astype(np.float32)), bits[finite])


def test_between_two_halves_it_rounds_as_numpy_does() -> None:
    halves = np.arange(0x7BFF, dtype=np.uint16).view(np.float16).astype(np.float32)
    above = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    for part in (0.01, 0.3, 0.49, 0.51, 0.99):
        values = halves + np.float32(part) * (above - halves)
        for signed in (values, -values):
            np.testing.assert_array_equal(half_bits(signed), signed.astype(np.float16).view(np.uint16))
    ties = (halves + above) / 2
    np.testing.assert_array_equal(half_bits(ties), above.astype(np.float16).view(np.uint16))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_any_number_is_as_close_as_numpys(numbers: list[float]) -> None:
    values = np.array(numbers, dtype=np.float32)
    ours = half_bits(values).view(np.float16).astype(np.float64)
    numpys = np.clip(values, -65504, 65504).astype(np.float16).astype(np.float64)
    exact = np.clip(values, -65504, 65504).astype(np.float64)
    assert (np.abs(ours - exact) <= np.abs(numpys - exact)).all()


def test_nothing_but_numbers_comes_out() -> None:
    values = np.array([np.inf, -np.inf, np.nan, -np.nan, 65520, 3e38, -3e38, -0.0], dtype=np.float32)
    found = half_bits(values).view(np.float16)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[[0, 1, 4, 5, 6]], [65504, -65504, 65504, 65504, -65504])
    assert np.signbit(found[7])


def test_channels_and_finiteness() -> None:
    values = np.arange(12, dtype=np.float16).reshape(3, 4)
    plane = Plane(0, "k", "f16", values.view(np.uint8).reshape(3, 8))
    np.testing.assert_array_equal(channels(plane), values.T.astype(np.float32))
    np.testing.assert_array_equal(channels(plane, 1, 2), values[1:2].T.astype(np.float32))
    assert all_finite(plane)
    for bad in (np.inf, -np.inf, np.nan):
        values[1, 2] = bad
        assert not all_finite(plane)
