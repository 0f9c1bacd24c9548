"""Pins: prefixes that stay until their time to live ends."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pinfold.errors import PinExpiredError, PinNotFoundError
from pinfold.sessions.prefix_tree import PrefixTree, common_prefix

__all__ = ["Pin", "PinBook", "PinRecord", "Tier", "digest_of"]

_REMEMBERED = 256
Tier = Literal["resident", "memory", "disk", "lost"]


@dataclass(frozen=True, slots=True)
class Pin:
    """A pin as users see it.

    Attributes:
        name: its name; those made by a cache_control mark are called ``auto:`` and part of the digest.
        tokens: length of the pinned prefix; None where a server does not tell.
        salt: only requests with the same salt reuse it.
        created, expires: Unix seconds; `expires` is None for a pin without an end. Each use starts the TTL anew.
        tier: where its KV is: ``resident`` in the engine's cells, in main ``memory``, on ``disk``, on the ``server``
            that answers, or ``lost`` for lack of room, in which case the next use computes it again.
        hits: requests that reused all of it.
        digest: SHA-256 over salt and tokens, in hex.
        warning: where the prompt is unstable and less was pinned than given, else None.
    """

    name: str
    tokens: int | None
    salt: str | None
    created: float
    expires: float | None
    tier: Tier | Literal["server"]
    hits: int
    digest: str
    warning: str | None = None

    @property
    def resident(self) -> bool:
        """Whether its KV is in the engine's cells now."""
        return self.tier == "resident"


@dataclass(slots=True, eq=False)
class PinRecord:
    """A live pin, as the manager keeps it. `automatic` pins are given up before named ones when room runs out."""

    name: str
    tokens: list[int]
    salt: str | None
    ttl: float | None
    automatic: bool = False
    warning: str | None = None
    created: float = 0.0
    expires: float | None = None
    hits: int = 0
    prompt: Mapping[str, Any] | None = None
    """The messages and tools that it was made from, for sessions that begin with it."""

    def begin(self, now: float) -> None:
        """It is pinned from now on."""
        self.created = now
        self.touch(now)

    def touch(self, now: float) -> None:
        """Starts the TTL anew."""
        self.expires = None if self.ttl is None else now + self.ttl

    def view(self, tier: Tier) -> Pin:
        """The pin as users see it."""
        return Pin(
            name=self.name,
            tokens=len(self.tokens),
            salt=self.salt,
            created=self.created,
            expires=self.expires,
            tier=tier,
            hits=self.hits,
            digest=digest_of(self.tokens, self.salt),
            warning=self.warning,
        )


def digest_of(tokens: Sequence[int], salt: str | None) -> str:
    """SHA-256 over the salt and the token ids (int32, little endian), in hex."""
    digest = hashlib.sha256(repr(salt).encode() + b"\0")
    digest.update(array("i", tokens).tobytes())
    return digest.hexdigest()


class PinBook:
    """All live pins by name, and by salt and tokens. It knows nothing of KV."""

    def __init__(self) -> None:
        self._by_name: dict[str, PinRecord] = {}
        self._trees: dict[str | None, PrefixTree[PinRecord]] = {}
        self._expired: dict[str, None] = {}

    def __iter__(self) -> Iterator[PinRecord]:
        return iter(tuple(self._by_name.values()))

    def add(self, record: PinRecord) -> PinRecord | None:
        """Puts `record` in; returns the pin of that name that it replaced."""
        old = self._by_name.get(record.name)
        if old is not None:
            self.remove(old)
        self._expired.pop(record.name, None)
        self._by_name[record.name] = record
        self._trees.setdefault(record.salt, PrefixTree()).insert(record, record.tokens)
        return old

    def remove(self, record: PinRecord) -> None:
        """Takes `record` out."""
        del self._by_name[record.name]
        tree = self._trees[record.salt]
        tree.remove(record)
        if not len(tree):
            del self._trees[record.salt]

    def get(self, name: str) -> PinRecord:
        """The pin called `name`.

        Raises:
            PinExpiredError: it was there, and its TTL ended.
            PinNotFoundError: it never was, or was unpinned.
        """
        if name in self._by_name:
            return self._by_name[name]
        if name in self._expired:
            msg = f"The pin {name!r} has expired. Pin it again, with a longer ttl if it is used less often."
            raise PinExpiredError(msg)
        known = ", ".join(repr(n) for n in self._by_name) or "none"
        msg = f"There is no pin {name!r} (pins: {known}). Call Runtime.pin(..., name={name!r}) first."
        raise PinNotFoundError(msg)

    def expire(self, now: float) -> list[PinRecord]:
        """Takes out the pins whose TTL has ended, and returns them."""
        over = [p for p in self._by_name.values() if p.expires is not None and p.expires <= now]
        for record in over:
            self.remove(record)
            self._expired[record.name] = None
        while len(self._expired) > _REMEMBERED:
            del self._expired[next(iter(self._expired))]
        return over

    def covering(self, tokens: Sequence[int], salt: str | None) -> list[PinRecord]:
        """The pins that `tokens` begin with, shortest first."""
        tree = self._trees.get(salt)
        return [p for match in tree.prefixes(tokens) for p in match.holders] if tree else []

    def exact(self, tokens: Sequence[int], salt: str | None) -> PinRecord | None:
        """The pin of exactly these tokens."""
        for record in self.covering(tokens, salt):
            if len(record.tokens) == len(tokens):
                return record
        return None

    def nearest(self, tokens: Sequence[int], salt: str | None) -> tuple[PinRecord, int] | None:
        """The pin that shares the longest prefix with `tokens`, and how much; the longest such pin on a tie."""
        tree = self._trees.get(salt)
        if tree is None:
            return None
        match = tree.longest(tokens)
        holders = match.holders or tuple(tree)
        best = max(holders, key=lambda p: (common_prefix(p.tokens, tokens), len(p.tokens)))
        return best, match.length
