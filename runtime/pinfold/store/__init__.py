"""Bytes -> disk, and back.

What enters: a record, token ids and a payload. What leaves: the same, verified whole, or a typed error. The room knows
nothing of engines, models or how a KV is laid out; it may import errors and options only. diskcache is the index, the
payloads are files of our own: `envelope` says how they look, `layout` where they lie, `upkeep` how the two are kept in
agreement.
"""

from __future__ import annotations

from pinfold.store.check import StoreReport
from pinfold.store.records import (
    StoredEntry,
    StoredMatch,
    StoredRecord,
    StoredSession,
    explain_mismatch,
    fingerprint_of,
    salt_digest,
)
from pinfold.store.store import SessionStore

__all__ = [
    "SessionStore",
    "StoreReport",
    "StoredEntry",
    "StoredMatch",
    "StoredRecord",
    "StoredSession",
    "explain_mismatch",
    "fingerprint_of",
    "salt_digest",
]
