"""Pins as a request meets them: those that it reuses, misses, makes, and brings back."""

from __future__ import annotations

from collections.abc import Sequence

from pinfold.decoding.generation import Generation
from pinfold.decoding.job import Mark, MissFacts
from pinfold.errors import PinfoldError
from pinfold.sessions.manager import SessionManager
from pinfold.sessions.pins import PinRecord, digest_of

__all__ = ["Pinning"]


class Pinning:
    """Runs on the engine's thread."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager

    def use(self, g: Generation, found: int) -> MissFacts | None:
        """Counts the pins that the request reuses, plans to bring back those it covers, and names the one it missed.

        `found`: its tokens that were found computed.
        """
        book = self._manager.pin_book
        tokens, salt = g.job.tokens, g.job.salt
        covering = book.covering(tokens, salt)
        for record in covering:
            self._manager.touch_pin(record, hit=found >= _reusable(record, tokens))
        g.lost_pins = [r for r in covering if not self._manager.holds(r)]
        nearest = book.nearest(tokens, salt)
        if nearest is None or g.job.pin is not None:
            return None
        record, shared = nearest
        evicted = shared >= _reusable(record, tokens)
        if found >= _reusable(record, tokens) or (evicted and self._manager.holds(record)):
            return None
        return MissFacts(record.name, found if evicted else shared, len(record.tokens), evicted)

    def keep_due(self, g: Generation) -> None:
        """Keeps the request's marks and lost pins whose tokens are all computed now."""
        if g.seq is None:
            return
        try:
            while g.marks and g.marks[0].length <= g.evaluated:
                self._keep_mark(g, g.seq, g.marks.pop(0))
            for record in [r for r in g.lost_pins if len(r.tokens) <= g.evaluated]:
                g.lost_pins.remove(record)
                self._manager.recover_pin(g.seq, record)
        except PinfoldError as e:  # a cache fault is never an answer fault
            g.note(f"not pinned: {e}")

    def _keep_mark(self, g: Generation, seq: int, mark: Mark) -> None:
        tokens = g.job.tokens[: mark.length]
        known = self._manager.pin_book.exact(tokens, g.job.salt)
        if known is not None and self._manager.holds(known):
            return
        name = "auto:" + digest_of(tokens, g.job.salt)[:12]
        self._manager.pin(seq, PinRecord(name, tokens, g.job.salt, mark.ttl, automatic=True))
        g.created_pin(mark.length)


def _reusable(record: PinRecord, tokens: Sequence[int]) -> int:
    """Tokens of the pin that a prompt can reuse: one of the prompt is always left to compute."""
    return min(len(record.tokens), len(tokens) - 1)
