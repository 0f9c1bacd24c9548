"""What the sessions keep on disk: entries of the shelf as records of the store, and back."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pinfold.errors import SessionCorruptError, SessionError, StoreError
from pinfold.kv.codec import FoldedKV, codec_of
from pinfold.sessions.model_recipes import ModelRecipes
from pinfold.sessions.pins import PinRecord
from pinfold.sessions.shelf import Entry, Kind
from pinfold.store import (
    SessionStore,
    StoredEntry,
    StoredMatch,
    StoredRecord,
    explain_mismatch,
    fingerprint_of,
    salt_digest,
)
from pinfold.store.recipes import RecipeFiles

__all__ = ["Vault"]

log = logging.getLogger("pinfold.sessions")

_KINDS = {Kind.RECENT: "recent", Kind.SESSION: "session", Kind.AUTO_PIN: "pin", Kind.PIN: "pin"}
_OF_KIND = {"recent": Kind.RECENT, "session": Kind.SESSION, "pin": Kind.PIN}
_MOST_EXTRA = 48 << 10


class Vault:
    """The store of one engine. Safe from any thread."""

    def __init__(self, store: SessionStore, files: RecipeFiles, model: str, facets: Mapping[str, str]) -> None:
        self.store = store
        self._model = model
        self._facets = dict(facets)
        self.fingerprint = fingerprint_of(self._facets)
        self.recipes = ModelRecipes(files, self.fingerprint)

    def find(self, tokens: Sequence[int], salt: str | None, *, whole: bool) -> StoredMatch | None:
        """The stored session with the longest prefix of `tokens`; None where there is none or the store fails."""
        try:
            return self.store.find(tokens, self.fingerprint, salt_digest(salt), whole=whole)
        except (StoreError, SessionError) as e:
            log.warning("the store could not be searched: %s", e)
            return None

    def explain(self, tokens: Sequence[int], salt: str | None, least: int) -> str:
        """What keeps a stored prefix of `tokens`, of at least so many, from serving this engine; empty for none."""
        try:
            near = self.store.near(tokens, self.fingerprint, salt_digest(salt))
        except (StoreError, SessionError):
            return ""
        if not near or near[0].length < least:
            return ""
        best = near[0]
        name = f"{best.entry.kind} {best.entry.name!r}" if best.entry.name else "an earlier request"
        why = explain_mismatch(best.entry, self._facets)
        return f"{best.length} tokens are on disk as {name}, but {why}"

    def adopt(self, found: StoredEntry, salt: str | None) -> Entry:
        """A stored session as an entry that is on disk only. Raises SessionError or StoreError."""
        kind = Kind.AUTO_PIN if _automatic(found) else _OF_KIND[found.kind]
        tokens = self.store.tokens(found.key).tolist()
        entry = Entry(kind, found.name, salt, tokens, None, stored=found.key, codec=found.codec)
        if found.kind == "pin":
            entry.pin = _record_of(found, tokens, salt)
        return entry

    def load(self, entry: Entry) -> FoldedKV:
        """The folded bytes of an entry that is on disk.

        Raises:
            SessionError, StoreError: it cannot be read; a damaged file has been set aside.
        """
        key = entry.stored
        if key is None:
            msg = f"{entry.label} is not on disk."
            raise SessionCorruptError(msg)
        try:
            session = self.store.get(key)
            if session.tokens.tolist() != entry.tokens:
                msg = f"{entry.label} on disk holds other tokens than it did."
                raise SessionCorruptError(msg)
        except (SessionError, StoreError):
            entry.stored = None
            raise
        codec, recipe = codec_of(session.payload)
        return FoldedKV(session.payload, codec, recipe, session.entry.raw_bytes)

    def save(self, entry: Entry, folded: FoldedKV) -> None:
        """Puts `entry`, folded, on disk, in place of what it had there, unless it is erased. Raises StoreError."""
        if entry.erased:
            return
        record = entry.pin
        stored = self.store.put(
            StoredRecord.parse(
                {
                    "kind": _KINDS[entry.kind],
                    "name": entry.name,
                    "model": self._model,
                    "fingerprint": self.fingerprint,
                    "facets": self._facets,
                    "salt": salt_digest(entry.salt),
                    "created": record.created if record is not None else time.time(),
                    "expires": record.expires if record is not None else None,
                    "n_tokens": len(entry.tokens),
                    "codec": folded.codec,
                    "raw_bytes": folded.raw_bytes,
                    "extra": _extra_of(record) if record is not None else {},
                }
            ),
            entry.tokens,
            folded.data,
        )
        entry.stored, entry.codec = stored.key, folded.codec

    def note_use(self, entry: Entry, *, hit: bool) -> None:
        """Tells the store that an entry was used, so that others go first and a pin's time begins anew."""
        if entry.stored is None or self.store.read_only:
            return
        try:
            self.store.touch(entry.stored, hit=hit, expires=entry.pin.expires if entry.pin is not None else None)
        except (StoreError, SessionError) as e:
            log.info("a use was not noted: %s", e)

    def expire(self) -> None:
        """Lets pins whose time is over make room first; a failure is logged."""
        try:
            self.store.expire()
        except (StoreError, SessionError) as e:
            log.info("ended pins were not looked for: %s", e)

    def erase(self, entry: Entry, key: str | None) -> None:
        """Deletes what is stored of `entry`, under `key` or where it was put since; a failure is logged."""
        try:
            for each in {key, entry.stored} - {None}:
                self.store.delete(str(each))
            entry.stored = None
        except (StoreError, SessionError) as e:
            log.warning("a stored session was not deleted: %s", e)

    def pins(self) -> list[Entry]:
        """Live pins without a salt that this engine can use; those with one are found by requests that have it."""
        entries: list[Entry] = []
        try:
            now, plain = time.time(), salt_digest(None)
            usable = (self.fingerprint, plain)
            found = [e for e in self.store.entries() if e.live_pin(now) and (e.fingerprint, e.salt) == usable]
            entries = [self.adopt(each, None) for each in found]
        except (StoreError, SessionError) as e:
            log.warning("the store's pins could not be read: %s", e)
        return entries

    def lost_pin(self, found: StoredEntry, tokens: list[int]) -> PinRecord | None:
        """The pin without a salt that was stored as `found`, if this engine could have used it."""
        return _record_of(found, tokens, None) if found.fingerprint == self.fingerprint else None

    def session(self, name: str, salt: str | None) -> Entry | None:
        """The stored session of that name, None if there is none that this engine can use."""
        try:
            for found in self.store.named("session", name, salt_digest(salt)):
                if found.fingerprint == self.fingerprint:
                    return self.adopt(found, salt)
        except (StoreError, SessionError) as e:
            log.warning("the stored session %r could not be read: %s", name, e)
        return None


def _automatic(found: StoredEntry) -> bool:
    return found.kind == "pin" and found.name.startswith("auto:")


def _record_of(found: StoredEntry, tokens: list[int], salt: str | None) -> PinRecord:
    ttl = found.extra.get("ttl")
    prompt = found.extra.get("prompt")
    return PinRecord(
        found.name,
        tokens,
        salt,
        float(ttl) if isinstance(ttl, int | float) else None,
        automatic=_automatic(found),
        created=found.created,
        expires=found.expires,
        hits=found.hits,
        prompt=prompt if isinstance(prompt, dict) else None,
    )


def _extra_of(record: PinRecord) -> dict[str, Any]:
    extra: dict[str, Any] = {"ttl": record.ttl}
    prompt = record.prompt
    if prompt is not None and len(json.dumps(prompt, default=str)) <= _MOST_EXTRA:
        extra["prompt"] = json.loads(json.dumps(prompt, default=str))
    return extra
