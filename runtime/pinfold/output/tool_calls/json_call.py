"""Calls written as JSON: ``{"name": ..., "arguments": {...}}``, one, an array, or one after another."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from pinfold.output.tool_calls.base import Parsed, new_call_id
from pinfold.results import InvalidToolCall, ToolCall

__all__ = ["EndFinder", "begins_like_call", "invalid_call", "is_json", "load_json", "read_calls", "split_json"]

_ARGUMENT_KEYS = ("arguments", "parameters")
_FIRST_KEYS = ("name", *_ARGUMENT_KEYS)
_BEGINNING = re.compile(
    r"""\s*(?:\[\s*)?(?:\{\s*(?:"(?P<key>[^"\\]*)(?P<key_end>"\s*(?::\s*(?:"(?P<name>[^"\\]*)(?P<name_end>")?)?)?)?)?)?"""
)
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')
_SPACE = re.compile(r"\s*")
_IN_STRING = re.compile(r'\\.|"', re.DOTALL)


def _refuse_constant(constant: str) -> None:
    msg = f"{constant} is no JSON"
    raise ValueError(msg)


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        msg = f"{number} is too large a number"
        raise ValueError(msg)
    return value


# strict=False: models write raw newlines in strings, and what they mean is plain
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant, parse_float=_finite)


def begins_like_call(text: str, names: frozenset[str]) -> bool | None:
    """Whether `text` begins a call of one of `names`: yes, no, or None while it is too short to say."""
    seen = _BEGINNING.match(text)
    if seen is None:
        return False
    key, key_end, name, name_end = seen.group("key", "key_end", "name", "name_end")
    at_end = seen.end() == len(text)
    if key_end is None:
        open_key = key or ""
        return None if at_end and any(first.startswith(open_key) for first in _FIRST_KEYS) else False
    if key != "name":
        return key in _FIRST_KEYS
    if name_end is not None:
        return name in names
    open_name = name or ""
    return None if at_end and any(offered.startswith(open_name) for offered in names) else False


def read_calls(body: str, names: frozenset[str], *, lenient: bool) -> Parsed | None:
    """The calls that `body`, a call's whole markup, holds; None if it is not meant as calls.

    `lenient` is for markup that can mean nothing but a call: what is none there is an InvalidToolCall, and a call may
    leave out its arguments. Otherwise `body` must be nothing but well-formed calls of `names`, or it is none.
    """
    try:
        values = list(_values(body))
    except (ValueError, RecursionError) as e:
        return Parsed(invalid_tool_calls=(invalid_call(body, f"The call is no valid JSON: {e}."),)) if lenient else None
    if not values:
        return Parsed(invalid_tool_calls=(invalid_call(body, "The call is empty."),)) if lenient else None
    read = [_read(value, body, names, lenient) for value in values]
    calls = tuple(call for call in read if isinstance(call, ToolCall))
    if not lenient and len(calls) < len(read):
        return None
    return Parsed(tool_calls=calls, invalid_tool_calls=tuple(c for c in read if isinstance(c, InvalidToolCall)))


def is_json(body: str) -> bool:
    """Whether `body` is one JSON value or several."""
    try:
        return bool(list(_values(body)))
    except (ValueError, RecursionError):
        return False


def load_json(text: str) -> Any:
    """The one JSON value in `text`, raw newlines in strings allowed. Raises ValueError or RecursionError."""
    value = _DECODER.decode(text.strip())
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()  # ValueError for half a surrogate pair
    return value


def split_json(text: str, separators: str, *, first: bool = False) -> list[str]:
    """The sources of the JSON values that stand in `text`, one after another or between `separators`.

    What is no JSON is the last item; with `first` only the first value is looked for, and nothing else given.
    """
    found: list[str] = []
    at = _skip_space(text, 0)
    while at < len(text):
        try:
            _, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return found if first else [*found, text[at:]]
        if first:
            return [text[:end]]
        found.append(text[at:end])
        at = _skip_space(text, end)
        while at < len(text) and text[at] in separators:
            at = _skip_space(text, at + 1)
    return found


def invalid_call(body: str, error: str) -> InvalidToolCall:
    """`body` as an InvalidToolCall, with the tool's name where one can be made out."""
    name = _NAME.search(body)
    return InvalidToolCall(id=new_call_id(), name=name[1] if name else None, text=body.strip(), error=error)


def _values(body: str) -> Iterator[Any]:
    """The JSON values that stand in `body` one after another; those of an array one by one."""
    at = _skip_space(body, 0)
    while at < len(body):
        value, end = _DECODER.raw_decode(body, at)
        if "\\u" in body[at:end]:
            json.dumps(value, ensure_ascii=False).encode()  # ValueError for half a surrogate pair
        yield from value if isinstance(value, list) else [value]
        at = _skip_space(body, end)


def _skip_space(body: str, at: int) -> int:
    space = _SPACE.match(body, at)
    return space.end() if space else at


def _read(value: Any, body: str, names: frozenset[str], lenient: bool) -> ToolCall | InvalidToolCall:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return invalid_call(body, 'The call is no object with a "name".')
    if name not in names:
        return _invalid(name, value, f"No tool {name!r} was offered; there are: {', '.join(sorted(names))}.")
    key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    arguments = value[key] if key else None
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except (ValueError, RecursionError) as e:
            return _invalid(name, value, f"The arguments are no valid JSON: {e}.")
    if arguments is None and lenient:
        arguments = {}
    if not isinstance(arguments, dict):
        return _invalid(name, value, "The arguments are no JSON object.")
    return ToolCall(id=new_call_id(), name=name, arguments=arguments)


def _invalid(name: str, value: Any, error: str) -> InvalidToolCall:
    return InvalidToolCall(id=new_call_id(), name=name, text=json.dumps(value, ensure_ascii=False), error=error)


class EndFinder:
    """Finds where growing text ends, passing over end marks within the strings of its JSON, from `start` on."""

    __slots__ = ("_at", "_in_string", "_longest", "_outside")

    def __init__(self, *marks: str, start: int) -> None:
        self._outside = re.compile("|".join(['"', *map(re.escape, marks)]))
        self._longest = max(map(len, marks))
        self._at = start
        self._in_string = False

    def find(self, text: str) -> tuple[int, int] | None:
        """Start and end of the first end mark; None until it is there. `text` is each time the last one, or longer."""
        while True:
            hit = (_IN_STRING if self._in_string else self._outside).search(text, self._at)
            if hit is None:
                self._at = self._resume(text)
                return None
            if hit[0] == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                return hit.span()
            self._at = hit.end()

    def _resume(self, text: str) -> int:
        """Where the next search begins: before what may be the first part of a mark or of an escape."""
        if self._in_string:
            return max(self._at, len(text) - 1)
        return max(self._at, len(text) - self._longest + 1)
