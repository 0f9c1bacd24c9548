"""The form of a payload file, and its verification.

::

    magic 8 | version 2 | flags 2 | header bytes 4 | tokens bytes 8 | payload bytes 8 | digest of the payload 32
    | digest of everything here, above and in the next two 32 | header, canonical JSON | tokens, int32 | payload

Numbers are little-endian. A digest is SHA-256, or HMAC-SHA256 where the store has a key.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO

from pydantic import ValidationError

from pinfold.store.records import MAX_TOKENS, Digest, StoredRecord, StrictModel, canonical, little_endian

__all__ = ["DamagedError", "FileHeader", "Head", "Seal", "check_payload", "pack_head", "read_head", "read_payload"]

MAGIC = b"PINFOLD\0"
VERSION = 1
KEYED = 1
MAX_HEADER_BYTES = 256 << 10

_FIXED = struct.Struct("<8sHHIQQ32s")
_DIGEST_BYTES = 32
_CHUNK = 1 << 20


class DamagedError(Exception):
    """A stored file or the index is not what was written; the message says where."""


class FileHeader(StrictModel):
    """The facts that never change of a stored session: as it was put, and the key that it was put under."""

    key: Digest
    record: StoredRecord


class Seal:
    """Makes digests that show damage and, with a key, also that the store's owner wrote them."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key

    @property
    def keyed(self) -> bool:
        """Whether digests depend on a key."""
        return self._key is not None

    def start(self) -> hmac.HMAC | hashlib._Hash:
        """A digest to update."""
        return hashlib.sha256() if self._key is None else hmac.new(self._key, digestmod=hashlib.sha256)

    def digest(self, *parts: bytes | memoryview) -> bytes:
        """32 bytes over all parts in order."""
        state = self.start()
        for part in parts:
            state.update(part)
        return state.digest()

    def holds(self, digest: bytes, *parts: bytes | memoryview) -> bool:
        """Whether `digest` is that of the parts."""
        return hmac.compare_digest(digest, self.digest(*parts))

    @property
    def key_id(self) -> str:
        """Tells keys apart without giving them away; empty without a key."""
        return self.digest(b"pinfold store key").hex()[:16] if self.keyed else ""


@dataclass(frozen=True, slots=True)
class Head:
    """The verified head of a file; the payload begins at byte `payload_at`."""

    header: bytes
    tokens: array[int]
    payload_at: int
    payload_bytes: int
    payload_digest: bytes

    def parse(self) -> FileHeader:
        """The header's facts.

        Raises:
            DamagedError: it is no header that this version writes.
        """
        try:
            parsed = FileHeader.model_validate_json(self.header)
            whole = canonical(parsed.model_dump()) == self.header
        except (ValidationError, ValueError) as e:
            msg = "its header is none that this version writes"
            raise DamagedError(msg) from e
        if not whole or parsed.record.n_tokens != len(self.tokens):
            msg = "its header disagrees with its contents"
            raise DamagedError(msg)
        return parsed


def pack_head(header: FileHeader, tokens: array[int], payload: Sequence[memoryview], seal: Seal) -> bytes:
    """Everything that stands before the payload."""
    facts, ids = canonical(header.model_dump()), little_endian(tokens)
    size = sum(len(part) for part in payload)
    flags = KEYED if seal.keyed else 0
    fixed = _FIXED.pack(MAGIC, VERSION, flags, len(facts), len(ids), size, seal.digest(*payload))
    return b"".join((fixed, seal.digest(fixed, facts, ids), facts, ids))


def read_head(file: FileIO, size: int, seal: Seal) -> Head:
    """Reads and verifies the head of a file of `size` bytes, without reading or allocating more than it needs.

    Raises:
        DamagedError: a length, a digest or the form is wrong.
    """
    fixed = _read(file, _FIXED.size)
    magic, version, flags, header_bytes, tokens_bytes, payload_bytes, payload_digest = _FIXED.unpack(fixed)
    if magic != MAGIC or version != VERSION or flags & ~KEYED:
        msg = "it is no session file of this version"
        raise DamagedError(msg)
    _check_key(bool(flags & KEYED), seal)
    payload_at = _FIXED.size + _DIGEST_BYTES + header_bytes + tokens_bytes
    if payload_at + payload_bytes != size:
        msg = f"it has {size:,} bytes where its head says {payload_at + payload_bytes:,}"
        raise DamagedError(msg)
    if header_bytes > MAX_HEADER_BYTES or tokens_bytes % 4 or not 0 < tokens_bytes <= 4 * MAX_TOKENS:
        msg = "a length in its head is out of range"
        raise DamagedError(msg)
    digest, facts, ids = _read(file, _DIGEST_BYTES), _read(file, header_bytes), _read(file, tokens_bytes)
    if not seal.holds(digest, fixed, facts, ids):
        msg = (
            "its head fails its digest, or was written with another key" if seal.keyed else "its head fails its digest"
        )
        raise DamagedError(msg)
    tokens = array("i", ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return Head(facts, tokens, payload_at, payload_bytes, payload_digest)


def read_payload(file: FileIO, head: Head, seal: Seal) -> memoryview:
    """The payload, verified; `file` stands at its first byte.

    Raises:
        DamagedError: it is cut short or fails its digest.
    """
    data = memoryview(bytearray(head.payload_bytes))
    at = 0
    while at < len(data):
        count = file.readinto(data[at:])
        if not count:
            msg = "it ends too soon"
            raise DamagedError(msg)
        at += count
    if not seal.holds(head.payload_digest, data):
        msg = "its payload fails its digest"
        raise DamagedError(msg)
    return data.toreadonly()


def check_payload(file: FileIO, head: Head, seal: Seal) -> None:
    """Verifies the payload without holding it in memory; raises as `read_payload`."""
    state = seal.start()
    while chunk := file.read(_CHUNK):
        state.update(chunk)
    if not hmac.compare_digest(head.payload_digest, state.digest()):
        msg = "its payload fails its digest"
        raise DamagedError(msg)


def _check_key(keyed: bool, seal: Seal) -> None:
    if keyed != seal.keyed:
        msg = "it was written with a key, and the store has none" if keyed else "it was written without the key"
        raise DamagedError(msg)


def _read(file: FileIO, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = file.read(count - len(data))
        if not more:
            msg = "it ends too soon"
            raise DamagedError(msg)
        data += more
    return data
