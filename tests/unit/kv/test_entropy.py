"""The entropy coder: whatever whole numbers go in come out, and nothing else passes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.errors import SessionCorruptError
from pinfold.kv.entropy import WIDEST, decode_rows, encode_rows

REACHES = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 3000, WIDEST)


def round_trip(codes: np.ndarray, order: np.ndarray) -> np.ndarray:
    classes, data = encode_rows(codes, order)
    decoded = decode_rows(memoryview(data), classes, order, codes.shape[1])
    assert decoded.dtype == (np.int16 if (np.abs(codes) > 127).any() else np.int8)
    return decoded


@given(st.lists(st.sampled_from(REACHES), max_size=40), st.integers(0, 300), st.integers(0, 2**32 - 1))
@settings(max_examples=150)
def test_any_layout_round_trips(reaches: list[int], columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    codes = np.array([random.integers(-r, r + 1, columns) for r in reaches]).reshape(len(reaches), columns)
    codes = codes.astype(np.int16)
    np.testing.assert_array_equal(round_trip(codes, random.permutation(len(reaches))), codes)


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("columns", [1, 2, 5, 40_000])
def test_extremes_of_every_class(reach: int, sign: int, columns: int) -> None:
    codes = np.full((3, columns), sign * reach, dtype=np.int16)
    codes[1] = 0
    codes[2, ::2] *= -1
    np.testing.assert_array_equal(round_trip(codes, np.array([2, 0, 1])), codes)


def test_narrow_codes_cost_less_than_a_bit() -> None:
    codes = np.zeros((64, 2000), dtype=np.int16)
    codes[:, ::50] = 1
    classes, data = encode_rows(codes, np.arange(64))
    assert set(classes) == {1}
    assert 8 * len(data) < 0.3 * codes.size


def test_bytes_of_another_layout_are_refused() -> None:
    codes = np.arange(-20, 20, dtype=np.int16).reshape(4, 10)
    order = np.arange(4)
    classes, data = encode_rows(codes, order)
    whole = memoryview(data)
    for cut in range(len(data)):
        with pytest.raises(SessionCorruptError):
            decode_rows(whole[:cut], classes, order, 10)
    for bad in (whole.tobytes() + b"x",):
        with pytest.raises(SessionCorruptError):
            decode_rows(memoryview(bad), classes, order, 10)
    for other in (classes[::-1] * 0 + 5, np.full(4, 255, dtype=np.uint8), np.zeros(4, dtype=np.uint8)):
        with pytest.raises(SessionCorruptError):
            decode_rows(whole, other.astype(np.uint8), order, 10)
    with pytest.raises(SessionCorruptError):
        decode_rows(whole, classes, order, 11)


def test_every_flipped_bit_is_noticed_or_harmless() -> None:
    codes = np.random.default_rng(0).integers(-9, 10, (6, 50)).astype(np.int16)
    codes[0] *= 100
    classes, data = encode_rows(codes, np.arange(6))
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decoded = decode_rows(memoryview(flipped), classes, np.arange(6), 50)
        except SessionCorruptError:
            continue
        np.testing.assert_array_equal(decoded, codes)
