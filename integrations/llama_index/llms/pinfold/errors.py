"""What can go wrong on the way back from the model, beyond the errors of the runtime itself."""

from __future__ import annotations

from pinfold.errors import PinfoldError

__all__ = ["NoToolCallError", "StructuredOutputError"]


class NoToolCallError(PinfoldError, ValueError):
    """The answer was to hold a tool call and holds none that can be run."""


class StructuredOutputError(PinfoldError, ValueError):
    """The answer is no object of the class asked for: cut off by max_tokens, or refused by one of its validators."""
