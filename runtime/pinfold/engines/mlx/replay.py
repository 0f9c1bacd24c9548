"""Taking back tokens of the last forward where the state cannot be cut: what stays is computed again, from the state
before it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any

from pinfold.engines.base import Span
from pinfold.engines.mlx.sequences import Mark, Sequence

__all__ = ["Replays"]

log = logging.getLogger("pinfold.mlx")


class Replays:
    """Where the sequences of the last forward were before it. `run` computes tokens of a sequence.

    Attributes:
        running: whether something is computed again, which is short and must not be interrupted.
    """

    def __init__(self, run: Callable[[Sequence, Items[int]], Any]) -> None:
        self._run = run
        self._before: dict[int, tuple[Mark, Items[int]]] = {}
        self.running = False

    def keep(self, spans: Items[Span], marks: Items[Mark]) -> None:
        """A forward of `spans` began at `marks`; what was before it is forgotten."""
        self._before = {span.seq: (mark, span.tokens) for span, mark in zip(spans, marks, strict=True)}

    def forget(self, seq: int) -> None:
        """`seq` is no more what the last forward left."""
        self._before.pop(seq, None)

    def cut(self, seq: int, sequence: Sequence, length: int) -> bool:
        """Takes `sequence`, which has the id `seq`, back to `length`; False if that is before the last forward."""
        mark, tokens = self._before.get(seq, (None, ()))
        if mark is None or length < mark.length:
            return False
        sequence.rewind(mark)
        self.running = True
        try:
            if length > mark.length:
                self._run(sequence, tokens[: length - mark.length])
        except (RuntimeError, ValueError):
            log.exception("a draft could not be taken back")
            return False
        finally:
            self.running = False
        return True
