"""How far one exchange with a server came, and the faults after which it may be tried again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pinfold.errors import PinfoldError

__all__ = ["PassingFault", "Progress"]


class Progress:
    """How far one exchange is: whether any answer came, and whether its end did."""

    def __init__(self, take: Callable[[Mapping[str, Any]], bool]) -> None:
        self._take = take
        self.begun = False
        self.ended = False

    def take(self, chunk: Mapping[str, Any]) -> None:
        self.begun = self._take(chunk) or self.begun
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
            self.ended = self.ended or choices[0].get("finish_reason") is not None


class PassingFault(Exception):  # noqa: N818 - a signal within this folder, never seen by users
    """The server may answer otherwise next time; `wait` is how many seconds it asks for."""

    def __init__(self, error: PinfoldError, wait: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait
