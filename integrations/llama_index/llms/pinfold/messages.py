"""LlamaIndex chat messages as the runtime's message dicts. The messages that come in are never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from pinfold.errors import InvalidRequestError, UnsupportedModeError

__all__ = ["runtime_messages"]

_ROLES = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "tool",
    MessageRole.FUNCTION: "tool",
}


def runtime_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The messages as OpenAI-style dicts; a CachePoint becomes `cache_control` on what stands before it.

    Raises:
        UnsupportedModeError: a block that is not text, thinking, a tool call or a CachePoint.
        InvalidRequestError: a CachePoint that nothing stands before, or that no prefix of the prompt ends at.
    """
    translated: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        reading = _Reading(place=f"messages[{index}] ({message.role.value})", previous=translated[-1:])
        for block in message.blocks:
            reading.take(block)
        translated.append(reading.finish(message))
    return translated


@dataclass
class _Reading:
    """One message while its blocks are read in order."""

    place: str
    previous: list[dict[str, Any]]
    texts: list[dict[str, Any]] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    point: dict[str, str] | None = None  # a CachePoint that no block has followed yet
    last: dict[str, Any] | None = None  # the text block read last, if it was the last block read

    def take(self, block: Any) -> None:
        if isinstance(block, CachePoint):
            self._pin(block)
            return
        self._settle_point()
        self.last = None
        if isinstance(block, TextBlock):
            self.last = {"type": "text", "text": block.text}
            self.texts.append(self.last)
        elif isinstance(block, ThinkingBlock):
            self.reasoning.append(block.content or "")
        elif isinstance(block, ToolCallBlock):
            self.tool_calls.append(_tool_call(block.tool_call_id, block.tool_name, block.tool_kwargs))
        else:
            msg = (
                f"{self.place} holds a block of type {block.block_type!r}, and the model reads text only. "
                f"Turn it into a TextBlock, or leave it out."
            )
            raise UnsupportedModeError(msg)

    def _pin(self, point: CachePoint) -> None:
        control = {"type": point.cache_control.type, "ttl": point.cache_control.ttl}
        if self.texts or self.tool_calls or self.reasoning:
            self.point = control
        elif self.previous:
            self.previous[0]["cache_control"] = control
        else:
            msg = f"The CachePoint in {self.place} has nothing before it to pin. Put it behind the text to be pinned."
            raise InvalidRequestError(msg)

    def _settle_point(self) -> None:
        """Puts a waiting CachePoint on the text before it, now that another block follows in the same message."""
        if self.point is None:
            return
        if self.last is None:
            msg = (
                f"The CachePoint in {self.place} stands between thinking or a tool call and another block; no prefix "
                f"of the prompt ends there. Put it behind the last block of the message."
            )
            raise InvalidRequestError(msg)
        self.last["cache_control"] = self.point
        self.point = None

    def finish(self, message: ChatMessage) -> dict[str, Any]:
        """The whole message; a CachePoint at its end pins it with the tokens that close the turn."""
        out: dict[str, Any] = {"role": _ROLES[message.role], "content": self._content()}
        calls = self.tool_calls or [_given_call(call) for call in message.additional_kwargs.get("tool_calls") or ()]
        if calls:
            out["tool_calls"] = calls
        if any(self.reasoning):
            out["reasoning_content"] = "\n".join(self.reasoning)
        if out["role"] == "tool":
            for key in ("tool_call_id", "name"):
                if message.additional_kwargs.get(key):
                    out[key] = message.additional_kwargs[key]
        if self.point is not None:
            out["cache_control"] = self.point
        return out

    def _content(self) -> str | list[dict[str, Any]]:
        if any("cache_control" in text for text in self.texts):
            return self.texts
        return "\n".join(text["text"] for text in self.texts)


def _tool_call(call_id: str | None, name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
    return {"id": call_id or "", "type": "function", "function": {"name": name, "arguments": arguments}}


def _given_call(call: Any) -> dict[str, Any]:
    """A call kept in additional_kwargs by an older message: an OpenAI-style dict or an object of that shape."""
    if not isinstance(call, dict):
        return _tool_call(call.id, call.function.name, call.function.arguments)
    function = call.get("function") or {}
    return _tool_call(call.get("id"), function.get("name", ""), function.get("arguments") or {})
