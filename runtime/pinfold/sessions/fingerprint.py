"""The digest of a whole model file, computed once for each version of it."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

from pinfold.errors import StoreError
from pinfold.store.recipes import RecipeFiles

__all__ = ["digest_at_hand", "file_digest"]

log = logging.getLogger("pinfold.sessions")

_BLOCK = 1 << 20


def digest_at_hand(path: Path, notes: RecipeFiles) -> str | None:
    """The SHA-256 that was noted for this file as it is now (size and time of change), if one was."""
    noted = notes.read(_name(path))
    try:
        facts = json.loads(noted) if noted is not None else None
    except ValueError:
        return None
    if not isinstance(facts, dict) or facts.get("file") != _stamp(path):
        return None
    digest = facts.get("sha256")
    return digest if isinstance(digest, str) and len(digest) == 64 else None


def file_digest(path: Path, notes: RecipeFiles) -> str:
    """The SHA-256 of the file's bytes, in hex; about a second for each gigabyte where it was not noted before."""
    known = digest_at_hand(path, notes)
    if known is not None:
        return known
    stamp = _stamp(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    try:
        notes.write(_name(path), json.dumps({"file": stamp, "sha256": digest.hexdigest()}).encode())
    except StoreError as e:
        log.info("the digest of %s was not noted: %s", path.name, e)
    return digest.hexdigest()


def _name(path: Path) -> str:
    return f"weights {path.resolve()}"


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]
