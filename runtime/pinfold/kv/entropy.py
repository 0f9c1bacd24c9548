"""Small whole numbers -> bytes, close to their entropy, and back at about a gigabyte a second.

Channels (rows) are put together by how far their codes reach: codes of a narrow channel go several to a byte, so that
zstd's Huffman stage, which spends a whole bit at least on each byte, wastes little; a wide one takes two bytes a code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

import numpy as np
import zstandard
from numpy.typing import NDArray

from pinfold.errors import SessionCorruptError
from pinfold.kv.lossless import unpack_bytes

__all__ = ["WIDEST", "decode_rows", "encode_rows"]

# Largest code of each class, and how many of them share a byte; the last class takes two bytes for one.
_REACH = (0, 1, 2, 7, 127)
_TOGETHER = (0, 5, 3, 2, 1)
_WIDE = len(_REACH)
WIDEST = 32_000
"""Largest code that can be stored."""
# Codes of one frame: fewer and its Huffman table weighs, more and channels of unlike spread share a table.
_FRAME = 1 << 15
_FRAME_HEAD = struct.Struct("<BHI")
_LEVEL = zstandard.ZstdCompressionParameters.from_level(1, min_match=7, write_content_size=True, write_checksum=True)

Codes = NDArray[np.int16]


def encode_rows(codes: Codes, order: NDArray[np.intp]) -> tuple[NDArray[np.uint8], bytes]:
    """Bytes of `codes` (int16 [rows, columns], within WIDEST), and the class of each row (uint8 [rows]).

    `order` sorts the rows by their usual spread, so that rows of like spread share a frame.
    """
    reach = np.abs(codes).max(axis=1, initial=0)
    classes = np.searchsorted(_REACH, reach, side="left").astype(np.uint8)
    compressor = zstandard.ZstdCompressor(compression_params=_LEVEL)
    parts: list[bytes] = []
    for number, rows in _frames(classes, order, codes.shape[1]):
        frame = compressor.compress(_pack(codes[rows].reshape(-1), number))
        parts += [_FRAME_HEAD.pack(number, len(rows), len(frame)), frame]
    return classes, b"".join(parts)


def decode_rows(
    data: memoryview, classes: NDArray[np.uint8], order: NDArray[np.intp], columns: int
) -> NDArray[np.int16 | np.int8]:
    """The codes, int8 [rows, columns] where all fit, else int16.

    Raises:
        SessionCorruptError: the bytes are not what `encode_rows` gives for these classes.
    """
    if classes.max(initial=0) > _WIDE:
        msg = "a folded plane names a class of codes that there is not"
        raise SessionCorruptError(msg)
    wide = bool((classes == _WIDE).any())
    codes = np.zeros((len(classes), columns), dtype=np.int16 if wide else np.int8)
    decompressor = zstandard.ZstdDecompressor()
    at = 0
    for number, rows in _frames(classes, order, columns):
        if at + _FRAME_HEAD.size > len(data):
            msg = "a folded plane ends before its last frame"
            raise SessionCorruptError(msg)
        head = _FRAME_HEAD.unpack_from(data, at)
        at += _FRAME_HEAD.size
        if head[:2] != (number, len(rows)) or head[2] > len(data) - at:
            msg = "a frame of a folded plane does not belong where it stands"
            raise SessionCorruptError(msg)
        size = _packed_size(number, len(rows) * columns)
        packed = unpack_bytes(data[at : at + head[2]], size, decompressor)
        codes[rows] = _unpack(packed, number, len(rows) * columns).reshape(len(rows), columns)
        at += head[2]
    if at != len(data):
        msg = "a folded plane has bytes after its last frame"
        raise SessionCorruptError(msg)
    return codes


def _frames(
    classes: NDArray[np.uint8], order: NDArray[np.intp], columns: int
) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """The rows of each frame: of one class, in `order`. Rows of class 0 hold nothing but zeros and need none."""
    for number in range(1, _WIDE + 1):
        rows = order[classes[order] == number]
        count = max(_FRAME // max(columns, 1), 1)
        for at in range(0, len(rows), count):
            yield number, rows[at : at + count]


def _packed_size(number: int, count: int) -> int:
    return 2 * count if number == _WIDE else -(-count // _TOGETHER[number])


def _pack(codes: Codes, number: int) -> bytes:
    if number == _WIDE:  # low bytes, then high bytes
        low_high: NDArray[np.uint8] = codes.astype("<i2").view(np.uint8).reshape(-1, 2)
        return low_high.T.tobytes()
    if _TOGETHER[number] == 1:
        return codes.astype(np.int8).tobytes()
    together, base = _TOGETHER[number], 2 * _REACH[number] + 1
    digits = np.zeros(-(-len(codes) // together) * together, dtype=np.uint8)
    digits[: len(codes)] = codes + _REACH[number]
    # Digits of one byte lie far apart in the row, so that no carry along it is needed to take them apart.
    columns = digits.reshape(together, -1)
    packed: NDArray[np.uint8] = columns[0].copy()
    for column in columns[1:]:
        packed = packed * base + column
    return packed.tobytes()


def _unpack(packed: NDArray[np.uint8], number: int, count: int) -> NDArray[np.int16 | np.int8]:
    if number == _WIDE:
        return packed.reshape(2, -1).T.copy().view("<i2").reshape(-1).astype(np.int16)
    if _TOGETHER[number] == 1:
        return packed.view(np.int8)
    table = _digits(number)
    digits: NDArray[np.int8] = np.empty((len(table), len(packed)), dtype=np.int8)
    for digit, column in zip(table, digits, strict=True):
        np.take(digit, packed, out=column)
    return digits.reshape(-1)[:count]


@cache
def _digits(number: int) -> NDArray[np.int8]:
    """int8 [together, 256]: the codes that share each byte."""
    together, base = _TOGETHER[number], 2 * _REACH[number] + 1
    value = np.arange(256)
    digits = np.empty((together, 256), dtype=np.int8)
    for at in range(together - 1, -1, -1):
        digits[at] = value % base - _REACH[number]
        value //= base
    return digits
