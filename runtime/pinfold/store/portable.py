"""A stored session as one file that another machine can take in: all of it, and proof that nothing was changed.

::

    magic 8 | version 2 | reserved 2 | record bytes 4 | tokens bytes 8 | payload bytes 8 | recipe bytes 8
    | SHA-256 of everything here, before and after, 32 | record, canonical JSON | tokens, int32 | payload | recipe

Numbers are little-endian. The digest finds damage; it does not say who made the file.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import stat
import struct
import sys
from array import array
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from pydantic import ValidationError

from pinfold.errors import SessionCorruptError, StoreError
from pinfold.store.envelope import MAX_HEADER_BYTES, DamagedError
from pinfold.store.files import FileSystem, store_error
from pinfold.store.records import MAX_TOKENS, StoredRecord, StoredSession, canonical, little_endian

__all__ = ["PortableSession", "read_portable", "write_portable"]

MAGIC = b"PINPORT\0"
VERSION = 1
MAX_PAYLOAD_BYTES = 1 << 36
MAX_RECIPE_BYTES = 1 << 30

_FIXED = struct.Struct("<8sHHIQQQ")
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class PortableSession:
    """What a portable file holds, verified.

    Attributes:
        record: as it was stored, without what a store adds.
        tokens: int32, `record.n_tokens` of them.
        payload: the folded KV.
        recipe: what unfolding needs besides; None where it needs nothing. Whether it is the right one, and whether the
            payload can be unfolded, is for the caller to check.
    """

    record: StoredRecord
    tokens: array[int]
    payload: memoryview
    recipe: bytes | None


def write_portable(path: Path, session: StoredSession, recipe: bytes | None, *, replace: bool = False) -> int:
    """Writes a session, and the recipe that its payload needs, whole or not at all; returns the file's bytes.

    Raises:
        StoreError: there is such a file already and `replace` is not set, or the disk refuses.
    """
    if not replace and os.path.lexists(path):
        raise _in_the_way(path)
    files = FileSystem()
    part = path.with_name(f".{secrets.token_hex(16)}.part")
    try:
        handle = files.create(part)
        try:
            size = 0
            for data in _pack(session, recipe):
                files.write(handle, data)
                size += len(data)
            files.sync(handle)
            _put_in_place(files, part, path, replace=replace)
        finally:
            os.close(handle)
            files.unlink(part)
        files.sync_folder(path.parent)
    except OSError as e:
        raise store_error(e, path) from e
    return size


def read_portable(path: Path) -> PortableSession:
    """What `write_portable` wrote.

    Raises:
        SessionCorruptError: it is no such file, or not as it was written.
        StoreError: it cannot be read.
    """
    try:
        with FileIO(path, opener=_open) as file:
            return _read(file, os.fstat(file.fileno()))
    except DamagedError as e:
        msg = f"{path} is no session that can be imported: {e}. Nothing was stored; export the session again."
        raise SessionCorruptError(msg) from e
    except OSError as e:
        msg = f"{path} cannot be read: {e.strerror or e}. Give a file that `pinfold export` wrote."
        raise StoreError(msg) from e


def _pack(session: StoredSession, recipe: bytes | None) -> list[bytes | memoryview]:
    """The parts of the file, in order."""
    facts = canonical(session.entry.model_dump(include=set(StoredRecord.model_fields)))
    ids, rest = little_endian(session.tokens), recipe or b""
    fixed = _FIXED.pack(MAGIC, VERSION, 0, len(facts), len(ids), len(session.payload), len(rest))
    return [fixed, _digest(fixed, facts, ids, session.payload, rest), facts, ids, session.payload, rest]


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _put_in_place(files: FileSystem, part: Path, path: Path, *, replace: bool) -> None:
    if not replace:
        try:
            os.link(part, path)  # unlike a rename it replaces nothing
        except FileExistsError as e:
            raise _in_the_way(path) from e
        except OSError as e:
            if e.errno not in {errno.EPERM, errno.ENOTSUP, errno.EMLINK}:  # a file system without links
                raise
            if os.path.lexists(path):
                raise _in_the_way(path) from e
        else:
            return
    files.rename(part, path)


def _in_the_way(path: Path) -> StoreError:
    return StoreError(f"{path} is there already. Give another name, or --force to replace it.")


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer would never open


def _read(file: FileIO, about: os.stat_result) -> PortableSession:
    if not stat.S_ISREG(about.st_mode):
        msg = "it is no plain file"
        raise DamagedError(msg)
    fixed = _take(file, _FIXED.size)
    magic, version, reserved, *sizes = _FIXED.unpack(fixed)
    if magic != MAGIC or version != VERSION or reserved:
        msg = "it is no portable session of this version"
        raise DamagedError(msg)
    _check_sizes(sizes, about.st_size)
    digest = _take(file, _DIGEST_BYTES)
    facts, ids, payload, recipe = (_take(file, size) for size in sizes)
    if not hmac.compare_digest(digest, _digest(fixed, facts, ids, payload, recipe)):
        msg = "it fails its digest"
        raise DamagedError(msg)
    record, tokens = _parse(bytes(facts)), array("i", bytes(ids))
    if sys.byteorder == "big":
        tokens.byteswap()
    if record.n_tokens != len(tokens):
        msg = "its record speaks of another number of tokens than it holds"
        raise DamagedError(msg)
    return PortableSession(record, tokens, payload, bytes(recipe) or None)


def _check_sizes(sizes: list[int], whole: int) -> None:
    """Before memory is taken: the lengths fill the file, and each is in its range."""
    if _FIXED.size + _DIGEST_BYTES + sum(sizes) != whole:
        msg = f"it has {whole:,} bytes, and its head says another number"
        raise DamagedError(msg)
    facts, ids, payload, recipe = sizes
    ranges = facts <= MAX_HEADER_BYTES and payload <= MAX_PAYLOAD_BYTES and recipe <= MAX_RECIPE_BYTES
    if not ranges or ids % 4 or not 0 < ids <= 4 * MAX_TOKENS:
        msg = "a length in its head is out of range"
        raise DamagedError(msg)


def _parse(facts: bytes) -> StoredRecord:
    try:
        record = StoredRecord.model_validate_json(facts)
        same = canonical(record.model_dump()) == facts
    except (ValidationError, ValueError) as e:
        msg = "its record is none that this version writes"
        raise DamagedError(msg) from e
    if not same:
        msg = "its record has another form than this version writes"
        raise DamagedError(msg)
    return record


def _take(file: FileIO, count: int) -> memoryview:
    data = memoryview(bytearray(count))
    at = 0
    while at < count:
        more = file.readinto(data[at:])
        if not more:
            msg = "it ends too soon"
            raise DamagedError(msg)
        at += more
    return data.toreadonly()
