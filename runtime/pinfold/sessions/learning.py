"""A model's calibration, run in small pieces while the engine is idle."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING

from pinfold.engines.base import Engine
from pinfold.errors import PinfoldError
from pinfold.sessions.space import KVSpace

if TYPE_CHECKING:
    from pinfold.kv.recipe import Recipe

__all__ = ["Learning"]

log = logging.getLogger("pinfold.sessions")


class Learning:
    """Learns how to fold the model, on a sequence of its own. Runs on the engine's thread.

    Attributes:
        runs: between `begin` and the end.
        failed: it was tried, and the model cannot be calibrated.
    """

    def __init__(self, engine: Engine, space: KVSpace) -> None:
        self._engine = engine
        self._space = space
        self._calibration: Generator[None, None, Recipe] | None = None
        self._seq: int | None = None
        self.failed = False

    @property
    def runs(self) -> bool:
        return self._calibration is not None

    def begin(self) -> None:
        """Gets ready; each `step` then does one piece."""
        from pinfold.quality.tune import calibrate

        seq = self._seq = self._space.new_seq()

        def room(cells: int) -> int:
            self._space.make_room(cells)
            return seq

        log.info("learning how to fold this model; requests go first")
        self._calibration = calibrate(self._engine, room)

    def step(self) -> Recipe | None:
        """One piece; the recipe once it is done."""
        if self._calibration is None:
            return None
        over = self.failed = True
        try:
            next(self._calibration)
            over = self.failed = False
        except StopIteration as stop:
            self.failed = False
            recipe: Recipe = stop.value
            return recipe
        except PinfoldError as e:
            log.warning("the model could not be calibrated, its sessions are kept without loss: %s", e)
        finally:
            if over:
                self.end()
        return None

    def end(self) -> None:
        """Ends it where it is, and frees what it had."""
        if self._calibration is not None:
            self._calibration.close()
            self._calibration = None
        if self._seq is not None:
            self._space.abandon(self._seq)
            self._seq = None
