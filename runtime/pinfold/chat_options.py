"""What a chat may ask of its answer besides how it is generated."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field

from pinfold.options import Options

__all__ = ["ChatOptions"]


class ChatOptions(Options):
    """Keyword arguments of a chat that shape what its answer may be.

    Attributes:
        parallel_tool_calls: False allows one call at most, True several. None is several where the model decides
            whether to call, and one where it must. A tool that is named is called once.
        reasoning: as the Runtime's, for this chat alone; None uses the Runtime's.
        reasoning_budget: most tokens of a block of reasoning, after which it is ended; None lets the model end it.
    """

    parallel_tool_calls: bool | None = None
    reasoning: Literal["auto", "on", "off", "low", "medium", "high"] | None = None
    reasoning_budget: int | None = Field(default=None, ge=0)

    @classmethod
    def take(cls, keywords: dict[str, Any]) -> Self:
        """As `parse`, of those of `keywords` that are its fields, which are taken out."""
        return cls.parse({name: keywords.pop(name) for name in cls.model_fields if name in keywords})
