"""Calls in a notation of their own: Python calls (LFM2, Llama 4), FunctionGemma's and Gemma 4's objects."""

from __future__ import annotations

import ast
import math
import re
from functools import partial
from typing import Any

from pinfold.output.tool_calls.base import Parsed, Schemas, ToolCallParser
from pinfold.output.tool_calls.delimited import Delimited
from pinfold.output.tool_calls.json_call import invalid_call
from pinfold.output.tool_calls.markup import MarkupParser
from pinfold.output.tool_calls.values import call_of

__all__ = ["gemma_parser", "pythonic_parser"]

_MOST = 1 << 16
_LFM_OPEN, _LFM_CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_PY_OPEN, _PY_CLOSE = "<|python_start|>", "<|python_end|>"
# Opening, closing, and the mark on both sides of a string.
_GEMMA = (
    ("<start_function_call>", "<end_function_call>", "<escape>"),
    ("<|tool_call>", "<tool_call|>", '<|"|>'),
)
_HEAD = re.compile(r"\s*call:([A-Za-z0-9_.-]+)\s*(?=\{)")
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_BARE = re.compile(r"[^,\[\]{}]*")
_KEY = re.compile(r"\s*([^:{}\[\],]+?)\s*:")


def pythonic_parser(schemas: Schemas, *, forced: bool = False) -> ToolCallParser:  # noqa: ARG001
    """A parser for the family (`base.ParserFactory`): ``[f(a=1), g(b="x")]`` between marks."""
    read = partial(_python_calls, schemas)
    return MarkupParser(
        {
            _LFM_OPEN: partial(Delimited, _LFM_OPEN, _LFM_CLOSE, read),
            _PY_OPEN: partial(Delimited, _PY_OPEN, _PY_CLOSE, read),
        }
    )


def gemma_parser(schemas: Schemas, *, forced: bool = False) -> ToolCallParser:  # noqa: ARG001
    """A parser for the family (`base.ParserFactory`): ``call:name{key:<escape>text<escape>}`` between marks."""
    return MarkupParser(
        {
            opening: partial(Delimited, opening, closing, partial(_gemma_call, schemas, quote), (quote, quote))
            for opening, closing, quote in _GEMMA
        }
    )


def _python_calls(schemas: Schemas, body: str) -> Parsed:
    source = body.strip()
    try:
        calls = _python_nodes(source)
        return sum((_python_call(call, schemas, source) for call in calls), Parsed())
    except (ValueError, SyntaxError, RecursionError, MemoryError) as e:
        return Parsed(invalid_tool_calls=(invalid_call(body, f"The call is no valid Python call: {e}."),))


def _python_nodes(source: str) -> list[ast.Call]:
    if len(source) > _MOST:
        msg = f"it is longer than {_MOST} characters"
        raise ValueError(msg)
    tree = ast.parse(source, mode="eval").body
    nodes = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if len(calls) < len(nodes) or not calls:
        msg = "it is something else"
        raise ValueError(msg)
    return calls


def _python_call(call: ast.Call, schemas: Schemas, source: str) -> Parsed:
    name = ast.unparse(call.func)
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        msg = "its arguments have no names"
        raise ValueError(msg)
    arguments = {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
    return call_of(name, arguments, schemas, source)


def _value(node: ast.expr) -> Any:
    """A literal's value as JSON has it; `true`, `false` and `null` are read as well."""
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        return {str(_value(key)): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    value = ast.literal_eval(node)
    if isinstance(value, bool | int | str) or value is None or (isinstance(value, float) and math.isfinite(value)):
        return value
    msg = f"{value!r} is no JSON value"
    raise ValueError(msg)


def _gemma_call(schemas: Schemas, quote: str, body: str) -> Parsed:
    head = _HEAD.match(body)
    if head is None:
        return Parsed(invalid_tool_calls=(invalid_call(body, "The call does not begin with call:name{."),))
    reader = _Objects(body, head.end(), quote)
    try:
        arguments = reader.value()
        reader.expect_end()
    except (ValueError, RecursionError) as e:
        return Parsed(invalid_tool_calls=(invalid_call(body, f"The arguments cannot be read: {e}."),))
    return call_of(head[1], arguments, schemas, body)


class _Objects:
    """Reads ``{key:value,...}`` with strings between `quote` marks and bare words for all else."""

    def __init__(self, text: str, at: int, quote: str) -> None:
        self._text, self._at, self._quote = text, at, quote

    def value(self) -> Any:
        self._skip_space()
        if self._take(self._quote):
            return self._string()
        if self._take("{"):
            return self._object()
        if self._take("["):
            return self._array()
        return self._bare()

    def expect_end(self) -> None:
        if self._text[self._at :].strip():
            msg = f"more follows at {self._at}"
            raise ValueError(msg)

    def _string(self) -> str:
        end = self._text.find(self._quote, self._at)
        if end < 0:
            msg = "a string is not closed"
            raise ValueError(msg)
        text, self._at = self._text[self._at : end], end + len(self._quote)
        return text

    def _object(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._skip_space()
        while not self._take("}"):
            self._skip_space()
            if self._take(self._quote):
                key = self._string()
                self._skip_space()
                self._need(":")
            else:
                named = _KEY.match(self._text, self._at)
                if named is None:
                    msg = f"no key at {self._at}"
                    raise ValueError(msg)
                key, self._at = named[1], named.end()
            found[key] = self.value()
            self._separator("}")
        return found

    def _array(self) -> list[Any]:
        found: list[Any] = []
        self._skip_space()
        while not self._take("]"):
            found.append(self.value())
            self._separator("]")
        return found

    def _separator(self, closing: str) -> None:
        self._skip_space()
        if not self._text.startswith(closing, self._at):
            self._need(",")
        self._skip_space()

    def _bare(self) -> Any:
        word = _BARE.match(self._text, self._at)
        text = word[0].strip() if word else ""
        self._at += len(word[0]) if word else 0
        if not text:
            msg = f"no value at {self._at}"
            raise ValueError(msg)
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        for kind in (int, float):
            try:
                number = kind(text)
            except ValueError:
                continue
            if math.isfinite(number):
                return number
        return text

    def _take(self, mark: str) -> bool:
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _need(self, mark: str) -> None:
        if not self._take(mark):
            msg = f"{mark!r} is missing at {self._at}"
            raise ValueError(msg)

    def _skip_space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
