"""Bytes packed without loss: opaque sections, planes of other types, and all planes under ``exact``."""

from __future__ import annotations

import numpy as np
import zstandard
from numpy.typing import NDArray

from pinfold.errors import SessionCorruptError
from pinfold.kv.snapshot import Plane

__all__ = ["pack_bytes", "pack_plane", "packed_size", "unpack_bytes", "unpack_plane"]

_LEVEL = 1


def pack_bytes(data: NDArray[np.uint8] | bytes) -> bytes:
    """`data`, compressed, with a checksum."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    return compressor.compress(data if isinstance(data, bytes) else data.data)


def packed_size(data: memoryview) -> int:
    """How many bytes `data` says that it holds. Raises SessionCorruptError."""
    try:
        return zstandard.get_frame_parameters(data).content_size
    except zstandard.ZstdError as e:
        msg = f"packed bytes have no head ({e})"
        raise SessionCorruptError(msg) from e


def unpack_bytes(
    data: memoryview, size: int, decompressor: zstandard.ZstdDecompressor | None = None
) -> NDArray[np.uint8]:
    """The `size` bytes that were packed. `decompressor` saves making one for each of many.

    Raises:
        SessionCorruptError: it is something else.
    """
    found = packed_size(data)
    if found != size:
        msg = f"packed bytes hold {found} bytes where {size} belong"
        raise SessionCorruptError(msg)
    try:
        plain = (decompressor or zstandard.ZstdDecompressor()).decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as e:
        msg = f"packed bytes do not decompress ({e})"
        raise SessionCorruptError(msg) from e
    if len(plain) != size:  # a frame to be skipped
        msg = f"packed bytes gave {len(plain)} bytes where {size} belong"
        raise SessionCorruptError(msg)
    return np.frombuffer(plain, dtype=np.uint8)


def pack_plane(plane: Plane) -> bytes:
    """A plane's rows; a channel's bytes stand together, exponents apart from the rest."""
    columns = plane.rows.T
    if plane.kind == "f16":
        columns = np.concatenate((columns[1::2], columns[::2]))
    return pack_bytes(np.ascontiguousarray(columns).reshape(-1))


def unpack_plane(data: memoryview, kind: str, tokens: int, width: int) -> NDArray[np.uint8]:
    """The rows, uint8 [tokens, width]. Raises SessionCorruptError."""
    columns = unpack_bytes(data, tokens * width).reshape(width, tokens)
    if kind != "f16":
        return np.ascontiguousarray(columns.T)
    rows = np.empty((tokens, width), dtype=np.uint8)
    rows[:, 1::2], rows[:, ::2] = columns[: width // 2].T, columns[width // 2 :].T
    return rows
