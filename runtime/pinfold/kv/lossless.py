"""Bytes packed without loss: opaque sections, planes of other types, and all planes under ``exact``."""

from __future__ import annotations

import numpy as np
import zstandard
from numpy.typing import NDArray

from pinfold.errors import SessionCorruptError
from pinfold.kv.snapshot import Plane

__all__ = ["pack_bytes", "pack_plane", "unpack_bytes", "unpack_plane"]

_LEVEL = 1


def pack_bytes(data: NDArray[np.uint8] | bytes) -> bytes:
    """`data`, compressed."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(data)


def unpack_bytes(data: memoryview, size: int) -> NDArray[np.uint8]:
    """The `size` bytes that were packed.

    Raises:
        SessionCorruptError: it is something else.
    """
    try:
        found = zstandard.get_frame_parameters(data).content_size
        if found == size:
            plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=max(size, 1))
            return np.frombuffer(plain, dtype=np.uint8)
    except zstandard.ZstdError as e:
        msg = f"packed bytes do not decompress ({e})"
        raise SessionCorruptError(msg) from e
    msg = f"packed bytes hold {found} bytes where {size} belong"
    raise SessionCorruptError(msg)


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
