"""What is known of a stored session: the caller's record, and what the store adds to it."""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, StringConstraints, model_validator

from pinfold.errors import InvalidRequestError
from pinfold.options import Options

__all__ = [
    "MAX_TOKENS",
    "Digest",
    "Kind",
    "Row",
    "StoredEntry",
    "StoredMatch",
    "StoredRecord",
    "StoredSession",
    "StrictModel",
    "canonical",
    "explain_mismatch",
    "fingerprint_of",
    "int32",
    "key_of",
    "little_endian",
    "salt_digest",
]

MAX_TOKENS = 1 << 22
MAX_EXTRA_BYTES = 64 << 10
MAX_FACETS_BYTES = 16 << 10

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

Digest = Annotated[str, StringConstraints(pattern=r"\A[0-9a-f]{64}\z")]
Kind = Literal["pin", "session", "recent"]


class StrictModel(Options):
    """Base of everything that is read back from a disk: nothing is coerced, nothing is unknown."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class StoredRecord(StrictModel):
    """What the caller says of a session. Build it with `StoredRecord.parse({...})` to get typed errors.

    Attributes:
        kind: ``pin``, a named ``session``, or a ``recent`` request.
        name: of a pin or session, any text; empty for a request, which is then known by its tokens.
        model: as the user named it.
        facets: everything that shaped the KV (weights, tokenizer, template, KV types, engine version, ...), as text.
        fingerprint: `fingerprint_of(facets)`.
        salt: `salt_digest(salt)`; entries are found by the same salt only.
        created, expires: Unix seconds; `expires` is None where no end is set.
        n_tokens: tokens that the KV covers, at least one.
        codec: how the payload was folded.
        raw_bytes: bytes of the KV before it was folded.
        extra: whatever else the caller needs to restore it; at most 64 KiB of JSON.
    """

    kind: Kind
    name: str = Field(max_length=16 << 10)
    model: str = Field(max_length=4 << 10)
    fingerprint: Digest
    facets: dict[str, str]
    salt: Digest
    created: float
    expires: float | None = None
    n_tokens: int = Field(ge=1, le=MAX_TOKENS)
    codec: str = Field(max_length=256)
    raw_bytes: int = Field(ge=0, lt=1 << 63)
    extra: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _facets_and_extra_fit(self) -> Self:
        facets = canonical(self.facets)
        if self.fingerprint != hashlib.sha256(facets).hexdigest():
            msg = "fingerprint is not that of the facets"
            raise ValueError(msg)
        if len(facets) > MAX_FACETS_BYTES or (self.extra and len(canonical(self.extra)) > MAX_EXTRA_BYTES):
            msg = f"facets and extra hold at most {MAX_FACETS_BYTES} and {MAX_EXTRA_BYTES} bytes of JSON"
            raise ValueError(msg)
        return self


class StoredEntry(StoredRecord):
    """A record with what the store knows of it.

    Attributes:
        key: 64 hexadecimal digits that name it in the store.
        stored_bytes: the size of its file, everything included.
        hits: how often it was reused.
        used: Unix seconds of its last use.
    """

    key: Digest
    stored_bytes: int = Field(ge=0, lt=1 << 63)
    hits: int = Field(default=0, ge=0, lt=1 << 53)
    used: float

    def live_pin(self, now: float) -> bool:
        """Whether it is a pin whose time to live has not ended."""
        return self.kind == "pin" and (self.expires is None or self.expires > now)


class Row(StrictModel):
    """An entry as the index keeps it.

    Attributes:
        file: the name of its payload file.
        origin: the key that it was written under; differs from the entry's own once it was renamed.
        marks: the lowest byte of each token, in base64: enough to search by, never to decide by.
    """

    entry: StoredEntry
    file: Digest
    origin: Digest
    marks: str = Field(max_length=2 * MAX_TOKENS)

    def with_entry(self, **changes: Any) -> Row:
        """The row with some of its entry's fields changed."""
        return self.model_copy(update={"entry": self.entry.model_copy(update=changes)})


@dataclass(frozen=True, slots=True)
class StoredMatch:
    """A stored entry that shares its first `length` tokens with a prompt; the tokens were compared."""

    entry: StoredEntry
    length: int


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session read back and verified whole: `tokens` int32, `payload` the bytes that were put."""

    entry: StoredEntry
    tokens: array[int]
    payload: memoryview


def canonical(value: Any) -> bytes:
    """The one JSON form of `value`: sorted keys, no spaces, UTF-8.

    Raises:
        ValueError: it holds NaN, an infinity, or text that is no Unicode.
    """
    return _ENCODER.encode(value).encode()


def fingerprint_of(facets: Mapping[str, str]) -> str:
    """SHA-256 of the facets' canonical JSON, in hex."""
    return hashlib.sha256(canonical(dict(facets))).hexdigest()


def salt_digest(salt: str | None) -> str:
    """SHA-256 of a salt, in hex; no salt differs from the empty one."""
    text = b"none" if salt is None else b"salt:" + salt.encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


def key_of(kind: Kind, name: str, salt: str, fingerprint: str, tokens: Sequence[int] = ()) -> str:
    """The key of an entry; one without a name is known by its tokens."""
    about = name or hashlib.sha256(little_endian(int32(tokens))).hexdigest()
    return hashlib.sha256(canonical([kind, bool(name), about, salt, fingerprint])).hexdigest()


def int32(tokens: Sequence[int]) -> array[int]:
    """Token ids as an array of int32.

    Raises:
        InvalidRequestError: one is no whole number of 32 bits.
    """
    try:
        return tokens if isinstance(tokens, array) and tokens.typecode == "i" else array("i", tokens)
    except (OverflowError, TypeError) as e:
        msg = f"Token ids must be integers of 32 bits ({e})."
        raise InvalidRequestError(msg) from e


def little_endian(tokens: array[int]) -> bytes:
    """The bytes of an int32 array, lowest first, whatever the machine."""
    if sys.byteorder == "little":
        return tokens.tobytes()
    swapped = tokens[:]
    swapped.byteswap()
    return swapped.tobytes()


def explain_mismatch(entry: StoredRecord, facets: Mapping[str, str]) -> str:
    """Why `entry` cannot serve an engine of these facets: each facet that differs, there and here."""
    names = sorted(n for n in {*entry.facets, *facets} if entry.facets.get(n) != facets.get(n))
    if not names:
        return "nothing differs"
    parts = [f"{n} ({_short(entry.facets.get(n))} there, {_short(facets.get(n))} here)" for n in names]
    return f"stored with another {', '.join(parts)}"


def _short(value: str | None) -> str:
    if value is None:
        return "none"
    return value if len(value) <= 24 else f"{value[:12]}..."
