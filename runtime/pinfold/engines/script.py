"""What a scripted model answers; see `scripted.py` for the engine that reads it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Reply", "Script"]

Reply = str | Mapping[str, Any]


@dataclass(frozen=True)
class Script:
    """What a scripted model answers.

    Attributes:
        replies: taken one after the other, one per request, the last one again when they run out; a mapping
            ``{"name": ..., "arguments": {...}}`` is a tool call. Or a function from the prompt's text to a reply.
    """

    replies: Sequence[Reply] | Callable[[str], Reply] = ("This is a scripted answer.",)
