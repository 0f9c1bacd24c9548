"""LangChain messages to the runtime's, and the runtime's answers back to LangChain's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from pinfold.errors import InvalidRequestError, UnsupportedModeError

__all__ = ["cache_control_of", "to_runtime_messages"]

_CALL_BLOCKS = frozenset({"tool_use", "tool_call", "function_call"})
_REASONING_BLOCKS = {"reasoning": "reasoning", "thinking": "thinking"}
# Records of calls already listed in message.tool_calls or never made, and reasoning that only its provider can read.
_IGNORED_BLOCKS = frozenset({"invalid_tool_call", "tool_call_chunk", "redacted_thinking"})


def cache_control_of(carrier: dict[str, Any]) -> dict[str, Any] | None:
    """The ``cache_control`` of a block or tool, whether set directly or among its ``extras``."""
    extras = carrier.get("extras") or {}
    return carrier.get("cache_control") or extras.get("cache_control")


def to_runtime_messages(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Messages as the runtime takes them; the ones passed in are left as they are.

    Raises:
        UnsupportedModeError: a content block that is no text (an image, a file), by its type.
        InvalidRequestError: a message of a kind that no model can be given.
    """
    return [_to_runtime(message, position) for position, message in enumerate(messages)]


def _to_runtime(message: BaseMessage, position: int) -> dict[str, Any]:
    converted: dict[str, Any] = {"role": _role(message, position), **_content(message, position)}
    if message.name:
        converted["name"] = message.name
    if isinstance(message, AIMessage):
        converted.update(_assistant_fields(message))
    if isinstance(message, ToolMessage):
        converted["tool_call_id"] = message.tool_call_id
    return converted


def _role(message: BaseMessage, position: int) -> str:
    if isinstance(message, SystemMessage):
        return "system"
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, AIMessage):
        return "assistant"
    if isinstance(message, ToolMessage | FunctionMessage):
        return "tool"
    if isinstance(message, ChatMessage):
        return message.role
    msg = (
        f"Message {position} is a {type(message).__name__}, which cannot be shown to a model. "
        f"Use SystemMessage, HumanMessage, AIMessage, ToolMessage or ChatMessage."
    )
    raise InvalidRequestError(msg)


def _content(message: BaseMessage, position: int) -> dict[str, Any]:
    """`content`, and `cache_control` where a block that is no text carries it."""
    if isinstance(message.content, str):
        return {"content": message.content}
    texts: list[dict[str, Any]] = []
    fields: dict[str, Any] = {"content": texts}
    for block in message.content:
        if isinstance(block, str):
            texts.append({"type": "text", "text": block})
            continue
        mark = cache_control_of(block)
        text = _text_of(block, position)
        if text is None and mark:
            fields["cache_control"] = mark
        elif text is not None:
            texts.append({"type": "text", "text": text} | ({"cache_control": mark} if mark else {}))
    return fields if texts else {**fields, "content": ""}


def _text_of(block: dict[str, Any], position: int) -> str | None:
    """The block's text; None for one whose meaning is carried elsewhere in the message."""
    kind = block.get("type")
    if kind == "text" or (kind is None and "text" in block):
        return str(block["text"])
    if kind in _CALL_BLOCKS or kind in _REASONING_BLOCKS or kind in _IGNORED_BLOCKS:
        return None
    msg = (
        f"Message {position} holds a content block of type {kind!r}. Pinfold's models read text only: "
        f"leave the block out, or replace it by a text that describes it."
    )
    raise UnsupportedModeError(msg)


def _assistant_fields(message: AIMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    blocks = [block for block in message.content if isinstance(block, dict)]
    reasoning = message.additional_kwargs.get("reasoning_content") or _reasoning_in(blocks)
    if reasoning:
        fields["reasoning_content"] = reasoning
    calls = [(call["id"], call["name"], call["args"]) for call in message.tool_calls]
    calls = calls or list(_calls_in(blocks))
    if calls:
        fields["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
    return fields


def _reasoning_in(blocks: Iterable[dict[str, Any]]) -> str:
    parts = (block.get(_REASONING_BLOCKS[block["type"]]) for block in blocks if block.get("type") in _REASONING_BLOCKS)
    return "".join(part for part in parts if isinstance(part, str))


def _calls_in(blocks: Iterable[dict[str, Any]]) -> Iterator[tuple[str | None, str, Any]]:
    """Calls that only the content holds, as another provider's stored message may have them."""
    for block in blocks:
        if block.get("type") in _CALL_BLOCKS and "name" in block:
            arguments = block.get("input", block.get("args", block.get("arguments", {})))
            yield (block.get("call_id") or block.get("id"), block["name"], _decoded(arguments, block["name"]))


def _decoded(arguments: Any, name: str) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}")
    except json.JSONDecodeError as e:
        msg = f"An earlier call of tool {name!r} has arguments that are no JSON ({e}). Remove or repair that message."
        raise InvalidRequestError(msg) from e
