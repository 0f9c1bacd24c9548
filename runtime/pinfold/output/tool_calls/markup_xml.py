"""Calls in tags: Qwen3-Coder and Qwen3.5 (``<function=n><parameter=k>v``), GLM-4.x (``<arg_key>``, ``<arg_value>``)."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from pinfold.output.tool_calls.base import Parsed, Schemas, ToolCallParser
from pinfold.output.tool_calls.delimited import Delimited
from pinfold.output.tool_calls.json_call import invalid_call, is_json, read_calls
from pinfold.output.tool_calls.markup import MarkupParser
from pinfold.output.tool_calls.values import call_of, typed

__all__ = ["glm_parser", "qwen3_coder_parser"]

_TOOL_OPEN, _TOOL_CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION_OPEN, _FUNCTION_CLOSE = "<function=", "</function>"
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_PAIR = re.compile(r"<arg_key>\s*(.*?)\s*</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def qwen3_coder_parser(schemas: Schemas, *, forced: bool = False) -> ToolCallParser:  # noqa: ARG001
    """A parser for the family (`base.ParserFactory`). Small models leave out the outer tags; that is read too."""
    return MarkupParser(
        {
            _TOOL_OPEN: partial(Delimited, _TOOL_OPEN, _TOOL_CLOSE, partial(_functions, schemas), is_whole=_closed),
            _FUNCTION_OPEN: partial(
                Delimited, _FUNCTION_OPEN, _FUNCTION_CLOSE, partial(_bare_function, schemas), is_whole=_never
            ),
        }
    )


def glm_parser(schemas: Schemas, *, forced: bool = False) -> ToolCallParser:  # noqa: ARG001
    """A parser for the family (`base.ParserFactory`)."""
    read = partial(_pairs, schemas)
    return MarkupParser({_TOOL_OPEN: partial(Delimited, _TOOL_OPEN, _TOOL_CLOSE, read, is_whole=_never)})


def _closed(body: str) -> bool:
    return body.rstrip().endswith(_FUNCTION_CLOSE) or is_json(body)


def _never(_body: str) -> bool:
    """Nothing but the closing mark says that no argument is to follow."""
    return False


def _functions(schemas: Schemas, body: str) -> Parsed:
    found = Parsed()
    for function in _FUNCTION.finditer(body):
        found += _function(schemas, function[1].strip(), function[2])
    if found == Parsed() and body.lstrip().startswith("{"):  # some write the older form of their family
        return read_calls(body, frozenset(schemas), lenient=True) or found
    if found == Parsed():
        return Parsed(invalid_tool_calls=(invalid_call(body, "The call names no function."),))
    return found


def _bare_function(schemas: Schemas, body: str) -> Parsed:
    return _functions(schemas, _FUNCTION_OPEN + body)


def _function(schemas: Schemas, name: str, body: str) -> Parsed:
    properties = _properties(schemas, name)
    arguments = {p[1].strip(): typed(p[2], properties.get(p[1].strip())) for p in _PARAMETER.finditer(body)}
    return call_of(name, arguments, schemas, _FUNCTION_OPEN + name + ">" + body)


def _pairs(schemas: Schemas, body: str) -> Parsed:
    head, _, _ = body.partition("<arg_key>")
    name = head.strip()
    properties = _properties(schemas, name)
    arguments = {pair[1]: typed(pair[2], properties.get(pair[1])) for pair in _PAIR.finditer(body)}
    if body.count("<arg_key>") != len(arguments):
        return Parsed(invalid_tool_calls=(invalid_call(body, "An argument of the call has no value."),))
    return call_of(name, arguments, schemas, body)


def _properties(schemas: Schemas, name: str) -> Any:
    properties = schemas.get(name, {}).get("properties")
    return properties if isinstance(properties, dict) else {}
