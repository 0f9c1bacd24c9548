"""Pins on servers: what they are, which requests they cover, and what a reply says of them. Knows no network."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from pinfold.errors import PinExpiredError, PinNotFoundError
from pinfold.prompt.tools import canonical_json
from pinfold.remote.asking import Asked
from pinfold.results import CacheReport, Miss
from pinfold.sessions.pins import Pin, digest_of

__all__ = ["RemotePin", "RemotePins", "cache_report"]

_BLOCK = 64  # servers reuse whole blocks of tokens: a pin that lacks less than this is there


@dataclass(slots=True, eq=False)
class RemotePin:
    """A prefix that a server was asked to keep.

    Attributes:
        units, tools_unit: its messages and tools, by which the requests that it covers are known.
        ids: its token ids, where it was rendered here.
        tokens: its length, None where nobody told.
        server: the address of the server that holds it.
        slot, file: where a llama-server holds it, and the file that it saved it to.
        warmed: when the server last worked on it, in Unix seconds.
        restore: the server was lost sight of since, so that the file is to be read before the next use.
    """

    name: str
    salt: str | None
    ttl: float | None
    prompt: Mapping[str, Any]
    units: tuple[str, ...]
    tools_unit: str
    server: str
    ids: tuple[int, ...] = field(default=(), repr=False)
    tokens: int | None = None
    warning: str | None = None
    created: float = 0.0
    expires: float | None = None
    warmed: float = 0.0
    hits: int = 0
    slot: int | None = None
    file: str | None = None
    restore: bool = False

    @property
    def digest(self) -> str:
        """SHA-256 over salt and tokens as of a pin in this process, or over salt, tools and messages without tokens."""
        if self.ids:
            return digest_of(self.ids, self.salt)
        return hashlib.sha256(canonical_json([self.salt, self.tools_unit, *self.units]).encode()).hexdigest()

    def covers(self, asked: Asked) -> bool:
        """Whether `asked` begins with it."""
        same = asked.salt == self.salt and asked.tools_unit == self.tools_unit
        return same and asked.units[: len(self.units)] == self.units

    def touch(self) -> None:
        """It was used now: its TTL begins anew."""
        self.warmed = time.time()
        self.expires = None if self.ttl is None else self.warmed + self.ttl

    def view(self) -> Pin:
        """The pin as users see it."""
        return Pin(
            name=self.name,
            tokens=self.tokens,
            salt=self.salt,
            created=self.created,
            expires=self.expires,
            tier="server",
            hits=self.hits,
            digest=self.digest,
            warning=self.warning,
        )

    def record(self) -> dict[str, Any]:
        """What another process needs to know of it."""
        return {
            "server": self.server,
            "name": self.name,
            "salt": self.salt,
            "ttl": self.ttl,
            "prompt": dict(self.prompt),
            "tokens": self.tokens,
            "ids": list(self.ids),
            "created": self.created,
            "expires": self.expires,
            "digest": self.digest,
            "slot": self.slot,
            "file": self.file,
        }


class RemotePins:
    """All live pins of one Runtime by name. Safe from any thread."""

    def __init__(self) -> None:
        self._pins: dict[str, RemotePin] = {}
        self._expired: set[str] = set()
        self._lock = Lock()

    def add(self, pin: RemotePin) -> None:
        """Puts `pin` in place of the one of its name."""
        with self._lock:
            self._pins[pin.name] = pin
            self._expired.discard(pin.name)

    def get(self, name: str) -> RemotePin:
        """The pin called `name`.

        Raises:
            PinExpiredError: its TTL ended.
            PinNotFoundError: it never was, or was unpinned.
        """
        live = {pin.name: pin for pin in self.live()}
        if name in live:
            return live[name]
        if name in self._expired:
            msg = f"The pin {name!r} has expired. Pin it again, with a longer ttl if it is used less often."
            raise PinExpiredError(msg)
        known = ", ".join(map(repr, live)) or "none"
        msg = f"There is no pin {name!r} (pins: {known}). Call Runtime.pin(..., name={name!r}) first."
        raise PinNotFoundError(msg)

    def remove(self, name: str) -> RemotePin:
        """Takes a pin out. Raises as `get`."""
        pin = self.get(name)
        with self._lock:
            self._pins.pop(name, None)
        return pin

    def live(self) -> list[RemotePin]:
        """The pins whose TTL has not ended; the others are forgotten."""
        now = time.time()
        with self._lock:
            for pin in [p for p in self._pins.values() if p.expires is not None and p.expires <= now]:
                del self._pins[pin.name]
                self._expired.add(pin.name)
            return list(self._pins.values())

    def covering(self, asked: Asked) -> RemotePin | None:
        """The longest pin that `asked` begins with."""
        found = [pin for pin in self.live() if pin.covers(asked)]
        return max(found, key=lambda pin: len(pin.units), default=None)

    def nearest(self, salt: str | None) -> list[RemotePin]:
        """The pins of this salt whose tokens are known here."""
        return [pin for pin in self.live() if pin.salt == salt and pin.ids]


def cache_report(pin: RemotePin | None, cached: int | None, notes: Sequence[str]) -> CacheReport:
    """What a reply that reused `cached` tokens says of `pin`, which covers its request, and of the cache.

    Counts a hit, and starts the TTL anew.
    """
    if pin is not None:
        pin.touch()
    if cached is None:
        return CacheReport("unknown", None, None if pin is None else pin.name, notes=tuple(notes))
    held = pin is not None and (pin.tokens is None or cached >= pin.tokens - min(_BLOCK, pin.tokens // 4))
    if pin is None or held:
        if pin is not None and cached:
            pin.hits += 1
        source = pin.name if pin is not None and cached else None
        return CacheReport("server" if cached else "miss", cached, source, notes=tuple(notes))
    lost = (pin.tokens or 0) - cached
    reason = f"The server held {cached} of the {pin.tokens} tokens of pin {pin.name!r} and computed the others again."
    miss = Miss(pin.name, "evicted", "the KV of the pin", cached, lost, reason)
    return CacheReport("server" if cached else "miss", cached, pin.name if cached else None, miss, tuple(notes))
