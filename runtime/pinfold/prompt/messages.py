"""Messages in one checked, frozen form, whatever mixture of OpenAI's shapes they come in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from pinfold.errors import InvalidRequestError
from pinfold.prompt.tools import Tool, cache_ttl, canonical_json, canonical_tools

__all__ = ["BLOCK_SEPARATOR", "INVALID_ARGUMENTS", "CacheMark", "Conversation", "FunctionCall", "Message", "normalize"]

Role = Literal["system", "user", "assistant", "tool"]

BLOCK_SEPARATOR = "\n"
"""Stands between the text blocks of one message: blocks are separate pieces (documents, notes) to whoever sends them,
and the usual servers join them so. Empty blocks leave no trace."""

INVALID_ARGUMENTS = "invalid_arguments"
"""Key under which tool-call arguments that are no JSON object reach the template, as the text that they were."""

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_MEDIA = ("image", "audio", "video", "file", "document")


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A tool call in the history. `arguments` is a JSON object of our own, shared with nobody."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CacheMark:
    """A ``cache_control``: keep the prefix up to here for `ttl` seconds.

    `end` is the length of the content that it covers, in characters; None means the whole message.
    """

    ttl: float
    end: int | None
    block: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `content` is flat text, empty where there was none; `name` is a speaker's or a tool's."""

    role: Role
    content: str = ""
    tool_calls: tuple[FunctionCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str = ""
    marks: tuple[CacheMark, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and the tools offered with them."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()

    def upto(self, count: int, *more: Message) -> Conversation:
        """The first `count` messages, then `more`."""
        return replace(self, messages=(*self.messages[:count], *more))


def normalize(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> Conversation:
    """The request in checked, frozen form. The input is never changed, and no part of it is kept.

    Raises:
        InvalidRequestError: a message is none; the message of the error names its index and the remedy.
        ToolSchemaError: a tool is none.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        msg = f'messages is a {type(messages).__name__}; give a list such as [{{"role": "user", "content": "Hi"}}].'
        raise InvalidRequestError(msg)
    if not messages:
        msg = 'messages is empty; give at least one, such as {"role": "user", "content": "Hi"}.'
        raise InvalidRequestError(msg)
    done: list[Message] = []
    names: dict[str, str] = {}  # call id -> tool, for results that do not name their tool
    for index, raw in enumerate(messages):
        message = _message(raw, f"messages[{index}]", names)
        names.update((call.id, call.name) for call in message.tool_calls)
        done.append(message)
    return Conversation(tuple(done), canonical_tools(tools))


def _message(raw: Any, where: str, names: Mapping[str, str]) -> Message:
    if not isinstance(raw, Mapping):
        _refuse(where, f"is a {type(raw).__name__}", 'Give a dict such as {"role": "user", "content": "Hi"}.')
    role = _ROLES.get(str(raw.get("role")))
    if role is None:
        _refuse(where, f"has the role {raw.get('role')!r}", f"Use one of {', '.join(_ROLES)}.")
    for key in ("audio", "images", "function_call"):
        if raw.get(key):
            _refuse(where, f"carries {key!r}", "Only text and tool_calls are read: take it out or put it into words.")
    calls = _tool_calls(raw.get("tool_calls"), role, where)
    reasoning = _text(raw.get("reasoning_content") or "", f"{where}.reasoning_content") if role == "assistant" else ""
    content, marks = _content(raw.get("content"), where, optional=bool(calls or reasoning))
    whole = cache_ttl(raw.get("cache_control"), where)
    if whole is not None:
        marks = (*marks, CacheMark(whole, None))
    call_id, name = raw.get("tool_call_id"), raw.get("name")
    if role == "tool" and not (isinstance(call_id, str) and call_id):
        _refuse(where, "is a tool result without a tool_call_id", "Repeat the id of the call that it answers.")
    if not isinstance(name, str | None):
        _refuse(where, f"has a {type(name).__name__} as its name", "Give a string.")
    if role != "tool":
        return Message(role, content, calls, None, name, reasoning, marks)
    return Message(role, content, calls, call_id, name or names.get(str(call_id)), reasoning, marks)


def _content(content: Any, where: str, *, optional: bool) -> tuple[str, tuple[CacheMark, ...]]:
    """Flat text of a string, a list of blocks or nothing, and the cache marks that its blocks carry."""
    if isinstance(content, str):
        return _text(content, f"{where}.content"), ()
    if content is None:
        if not optional:
            _refuse(where, "has no content", "Give a string or a list of text blocks; it may be empty.")
        return "", ()
    if isinstance(content, bytes | Mapping) or not isinstance(content, Sequence):
        _refuse(where, f"has a {type(content).__name__} as content", "Give a string or a list of text blocks.")
    text = ""
    marks: list[CacheMark] = []
    for index, block in enumerate(content):
        place = f"{where}.content[{index}]"
        piece = _block_text(block, place)
        text += BLOCK_SEPARATOR + piece if text and piece else piece
        ttl = cache_ttl(block.get("cache_control"), place) if isinstance(block, Mapping) else None
        if ttl is not None:
            marks.append(CacheMark(ttl, len(text), index))
    # A mark on the last block covers the message's own end as well.
    return text, tuple(replace(mark, end=None) if mark.end == len(text) else mark for mark in marks)


def _block_text(block: Any, where: str) -> str:
    if isinstance(block, str):
        return _text(block, where)
    if not isinstance(block, Mapping):
        _refuse(where, f"is a {type(block).__name__}", 'Give {"type": "text", "text": ...}.')
    kind = str(block.get("type", "text"))
    if kind != "text":
        medium = next((medium for medium in _MEDIA if medium in kind), None)
        problem = f"is {medium} input ({kind!r}), which is not read" if medium else f"is a block of type {kind!r}"
        _refuse(where, problem, "Only text is read: take the block out or put it into words.")
    return _text(block.get("text"), where)


def _text(text: Any, where: str) -> str:
    if not isinstance(text, str):
        _refuse(where, f"has a {type(text).__name__} as text", "Give a string.")
    try:
        text.encode()
    except UnicodeEncodeError as e:
        msg = f"{where} is no valid Unicode text ({e.reason}). Decode its source with errors='replace'."
        raise InvalidRequestError(msg) from e
    return text


def _tool_calls(calls: Any, role: str, where: str) -> tuple[FunctionCall, ...]:
    if not calls:
        return ()
    if role != "assistant":
        _refuse(where, f"has tool_calls in the role {role!r}", "Only assistant messages make calls.")
    if not isinstance(calls, list | tuple):
        _refuse(where, f"has a {type(calls).__name__} as tool_calls", "Give a list.")
    return tuple(_tool_call(call, f"{where}.tool_calls[{index}]", index) for index, call in enumerate(calls))


def _tool_call(call: Any, where: str, index: int) -> FunctionCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        form = '{"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}'
        _refuse(where, "is no tool call", f"Give {form}.")
    call_id = call.get("id") or f"call_{index}"
    return FunctionCall(_text(call_id, f"{where}.id"), _text(name, where), _arguments(function.get("arguments"), where))


def _arguments(arguments: Any, where: str) -> Mapping[str, Any]:
    """A JSON object of our own, from a dict or JSON text; text that is none is kept whole under INVALID_ARGUMENTS."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        text = _text(arguments, where)
    else:
        try:
            text = _text(canonical_json(arguments), where)
        except (TypeError, ValueError, RecursionError) as e:
            msg = f"{where}: the arguments are no JSON ({e}). Give a dict of JSON values or a JSON string."
            raise InvalidRequestError(msg) from e
    try:
        decoded = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return {INVALID_ARGUMENTS: text}
    return decoded if isinstance(decoded, dict) else {INVALID_ARGUMENTS: text}


def _no_json(constant: str) -> NoReturn:
    msg = f"{constant} is no JSON"
    raise ValueError(msg)


def _refuse(where: str, problem: str, remedy: str) -> NoReturn:
    msg = f"{where} {problem}. {remedy}"
    raise InvalidRequestError(msg)
