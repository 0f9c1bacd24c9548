"""Reads just enough of a GGUF file to know that it is one, and that it is whole, before an engine maps it.

Every length in the file is checked against the file's own size before it is used, so no number in it can make this
module allocate or loop beyond that size.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pinfold.errors import ModelFormatError

__all__ = ["TENSOR_TYPES", "check_gguf", "models_among", "split_parts", "tensor_names"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEY_BYTES = 65535
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
AGAIN = "Download the file again."

_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

# ggml's id of a tensor type -> (weights in a block, bytes of a block)
TENSOR_TYPES = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


def split_parts(file: str) -> list[str]:
    """`file` itself, or every part, first one first, of the split model that it is a part of."""
    match = _SPLIT.fullmatch(file)
    if match is None:
        return [file]
    return [f"{match[1]}-{n:05d}-of-{match[3]}.gguf" for n in range(1, int(match[3]) + 1)]


def models_among(files: Iterable[str]) -> list[str]:
    """The GGUF models among relative paths, sorted; a split model is its first part, and a projector is no model."""
    return sorted({split_parts(file)[0] for file in files if _is_model(PurePosixPath(file))})


def _is_model(file: PurePosixPath) -> bool:
    inside = not file.is_absolute() and ".." not in file.parts and "\\" not in str(file)
    name = file.name.lower()
    return inside and name.endswith(".gguf") and not name.startswith("mmproj")


def check_gguf(path: Path) -> None:
    """Checks that `path` is a GGUF file whose header parses and whose last tensor ends within it.

    Raises:
        ModelFormatError: it is no GGUF file, of a version that is not supported, damaged, or cut short.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
            _check_start(path, start)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _check_whole(path, data)
    except OSError as e:
        msg = f"{path} cannot be read: {e.strerror or e}. Check the file's permissions."
        raise ModelFormatError(msg) from e


def _check_start(path: Path, start: bytes) -> None:
    if not start:
        msg = f"{path} is empty. {AGAIN}"
        raise ModelFormatError(msg)
    if start[:4] != MAGIC:
        msg = (
            f"{path} is no GGUF file (it begins with {start[:4]!r}). Use a model in GGUF format; "
            f"on Hugging Face, look for a repository whose name ends in -GGUF."
        )
        raise ModelFormatError(msg)
    version = int.from_bytes(start[4:8], "little")
    if version not in VERSIONS:
        msg = (
            f"{path} is GGUF of version {version}, and versions {VERSIONS[0]} and {VERSIONS[1]} (little-endian) are "
            f"supported. Use a newer conversion of the model."
        )
        raise ModelFormatError(msg)


def _check_whole(path: Path, data: mmap.mmap) -> None:
    reader = _Reader(data, len(MAGIC) + 4)
    try:
        needed = _end_of_tensors(reader)
    except _DamagedError as e:
        msg = f"{path} is cut short or damaged: {e} (the file has {len(data):,} bytes). {AGAIN}"
        raise ModelFormatError(msg) from e
    if needed > len(data):
        msg = f"{path} is cut short: it has {len(data):,} bytes and its tensors need {needed:,}. {AGAIN}"
        raise ModelFormatError(msg)


class _DamagedError(Exception):
    """The header cannot be read; the message says where."""


class _Reader:
    """A cursor over the file. Everything that moves it checks the file's end first."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data = data
        self._size = len(data)
        self._at = at

    @property
    def at(self) -> int:
        return self._at

    def skip(self, count: int) -> int:
        """Moves on by `count` bytes and returns where they began."""
        start = self._at
        if count > self._size - start:
            msg = f"the header goes on past the end, at byte {start:,}"
            raise _DamagedError(msg)
        self._at = start + count
        return start

    def u32(self) -> int:
        return int(_U32.unpack_from(self._data, self.skip(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self._data, self.skip(8))[0])

    def key(self) -> bytes:
        length = self.u64()
        if length > MAX_KEY_BYTES:
            msg = f"a key of {length:,} bytes before byte {self._at:,}"
            raise _DamagedError(msg)
        start = self.skip(length)
        return self._data[start : start + length]

    def skip_strings(self, count: int) -> None:
        # The one long loop (a vocabulary of 260,000 tokens takes 60 ms), hence the local names.
        data, at, last = self._data, self._at, self._size - 8
        unpack = _U64.unpack_from
        for _ in range(count):
            if at > last:
                msg = "a list of strings goes on past the end"
                raise _DamagedError(msg)
            at += 8 + unpack(data, at)[0]
        self._at = at
        self.skip(0)


def tensor_names(path: Path) -> frozenset[str]:
    """The names of the tensors in a file that `check_gguf` has found whole.

    Raises:
        ModelFormatError: it is none.
    """
    check_gguf(path)
    names: list[bytes] = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _end_of_tensors(_Reader(data, len(MAGIC) + 4), names)
    return frozenset(name.decode("utf-8", "replace") for name in names)


def _end_of_tensors(reader: _Reader, names: list[bytes] | None = None) -> int:
    """How many bytes a file with this header must have; the tensors' names go into `names`."""
    n_tensors, n_values = reader.u64(), reader.u64()
    alignment = DEFAULT_ALIGNMENT
    for _ in range(n_values):
        key, kind = reader.key(), reader.u32()
        if key == b"general.alignment" and kind == 4:
            alignment = reader.u32()
        else:
            _skip_value(reader, kind)
    if alignment == 0 or alignment & (alignment - 1):
        msg = f"general.alignment is {alignment}, which is no power of two"
        raise _DamagedError(msg)
    data_bytes = 0
    for _ in range(n_tensors):
        name, end = _end_of_tensor(reader)
        data_bytes = max(data_bytes, end)
        if names is not None:
            names.append(name)
    return -(-reader.at // alignment) * alignment + data_bytes if n_tensors else reader.at


def _skip_value(reader: _Reader, kind: int) -> None:
    count = 1
    if kind == _ARRAY:
        kind, count = reader.u32(), reader.u64()
    if kind == _STRING:
        reader.skip_strings(count)
    elif kind in _SCALAR_BYTES:
        reader.skip(count * _SCALAR_BYTES[kind])
    else:
        msg = f"a value of the unknown type {kind} before byte {reader.at:,}"
        raise _DamagedError(msg)


def _end_of_tensor(reader: _Reader) -> tuple[bytes, int]:
    """The next tensor's name, and where its bytes end, counted from the start of the tensor data."""
    name = reader.key()
    n_dimensions = reader.u32()
    if n_dimensions > MAX_DIMENSIONS:
        msg = f"a tensor of {n_dimensions} dimensions before byte {reader.at:,}"
        raise _DamagedError(msg)
    weights = 1
    for _ in range(n_dimensions):
        weights *= reader.u64()
    kind, offset = reader.u32(), reader.u64()
    # A type that is newer than this table is the engine's to judge; its first byte must be there all the same.
    per_block, block_bytes = TENSOR_TYPES.get(kind, (max(weights, 1), 1))
    return name, offset + -(-weights // per_block) * block_bytes
