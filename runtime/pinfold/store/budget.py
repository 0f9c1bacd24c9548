"""Which stored sessions make room for a new one."""

from __future__ import annotations

from collections.abc import Iterable

from pinfold.errors import StoreFullError
from pinfold.store.records import Row

__all__ = ["rows_to_give_up"]


def rows_to_give_up(rows: Iterable[Row], key: str, needed: int, budget: int, now: float) -> list[Row]:
    """The least recently used rows without which `needed` bytes under `key` fit `budget`; live pins stay.

    Raises:
        StoreFullError: they do not fit even without every other row that may go.
    """
    others = [row for row in rows if row.entry.key != key]
    excess = sum(row.entry.stored_bytes for row in others) + needed - budget
    given_up: list[Row] = []
    if excess <= 0:
        return given_up
    for row in sorted((r for r in others if not r.entry.live_pin(now)), key=lambda r: r.entry.used):
        given_up.append(row)
        excess -= row.entry.stored_bytes
        if excess <= 0:
            return given_up
    pinned = sum(row.entry.stored_bytes for row in others if row.entry.live_pin(now))
    msg = (
        f"A session of {needed:,} bytes does not fit: the store may hold {max(budget, 0):,} bytes now, and live pins "
        f"take {pinned:,}. Raise the store's budget, free disk space, or unpin what is no longer needed."
    )
    raise StoreFullError(msg)
