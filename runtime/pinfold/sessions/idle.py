"""How long kept KV rests before it moves on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IdleTimes"]


@dataclass(frozen=True, slots=True)
class IdleTimes:
    """Seconds without a use after which kept KV moves on.

    Attributes:
        fold: a copy in memory is folded; `pressed` where memory is short.
        save: a pin or named session is put on disk as well.
        resident: it leaves the engine's cells for memory.
        memory: what is on disk leaves memory, pins excepted.
        calibrate: the engine without a request: it then learns how to fold the model, once.
    """

    fold: float = 300.0
    pressed: float = 10.0
    save: float = 3.0
    resident: float = 300.0
    memory: float = 1800.0
    calibrate: float = 5.0
