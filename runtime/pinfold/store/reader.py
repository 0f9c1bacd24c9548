"""Reads payload files, and believes nothing in them before it is verified."""

from __future__ import annotations

from array import array
from collections import OrderedDict

from pinfold.store.envelope import DamagedError, FileHeader, Head, Seal, check_payload, read_head, read_payload
from pinfold.store.files import open_regular
from pinfold.store.layout import Layout
from pinfold.store.records import Row, StoredRecord, StoredSession

__all__ = ["Reader"]

CACHED_TOKENS = 4 << 20
_MUTABLE = {"kind", "name", "expires"}


class Reader:
    """Opens, verifies and reads payload files; keeps the tokens of those that were compared lately.

    Its methods raise DamagedError for a file that is not what the index says, and FileNotFoundError for none.
    """

    def __init__(self, layout: Layout, seal: Seal, budget: int) -> None:
        self._layout = layout
        self._seal = seal
        self._budget = budget
        self._tokens: OrderedDict[str, array[int]] = OrderedDict()
        self._cached = 0

    def tokens(self, row: Row) -> array[int]:
        """The tokens of a session, verified; from memory where they were read before."""
        known = self._tokens.get(row.file)
        if known is None:
            file, size = open_regular(self._layout.payload(row.file))
            with file:
                known = self._head(row, read_head(file, size, self._seal), size).tokens
            self._keep(row.file, known)
        self._tokens.move_to_end(row.file)
        return known

    def session(self, row: Row) -> StoredSession:
        """All of a session, verified whole."""
        file, size = open_regular(self._layout.payload(row.file))
        with file:
            if size != row.entry.stored_bytes or size > self._budget:
                msg = f"it has {size:,} bytes where the index says {row.entry.stored_bytes:,}"
                raise DamagedError(msg)
            head = self._head(row, read_head(file, size, self._seal), size)
            return StoredSession(row.entry, head.tokens, read_payload(file, head, self._seal))

    def verify(self, row: Row, *, deep: bool) -> None:
        """Checks the head of a session's file and, if `deep`, its payload, holding neither in memory."""
        file, size = open_regular(self._layout.payload(row.file))
        with file:
            head = self._head(row, read_head(file, size, self._seal), size)
            if deep:
                check_payload(file, head, self._seal)

    def forget(self) -> None:
        """Gives back the memory that tokens take."""
        self._tokens.clear()
        self._cached = 0

    def _head(self, row: Row, head: Head, size: int) -> Head:
        header = head.parse()
        if size != row.entry.stored_bytes or header.key != row.origin or not _same_facts(header, row):
            msg = "it is not the session that the index says"
            raise DamagedError(msg)
        return head

    def _keep(self, file: str, tokens: array[int]) -> None:
        self._tokens[file] = tokens
        self._cached += len(tokens)
        while self._cached > CACHED_TOKENS and len(self._tokens) > 1:
            self._cached -= len(self._tokens.popitem(last=False)[1])


def _same_facts(header: FileHeader, row: Row) -> bool:
    """Whether what never changes of a session is the same in its file and in the index."""
    return all(
        getattr(header.record, name) == getattr(row.entry, name)
        for name in StoredRecord.model_fields
        if name not in _MUTABLE
    )
