"""Calls in JSON behind marks of their own: Llama 3 and Phi-4-mini, Mistral, DeepSeek V3."""

from __future__ import annotations

import re
from functools import partial

from pinfold.output.tool_calls.base import Parsed, Schemas, ToolCallParser
from pinfold.output.tool_calls.code_fence import FENCE, BareCall, FencedCall
from pinfold.output.tool_calls.delimited import Delimited, ToTheEnd
from pinfold.output.tool_calls.json_call import invalid_call, load_json, read_calls, split_json
from pinfold.output.tool_calls.markup import MarkupParser
from pinfold.output.tool_calls.values import call_of

__all__ = ["deepseek_parser", "llama3_parser", "mistral_parser"]

_PYTHON_TAG = "<|python_tag|>"
_FUNCTOOLS = "functools["
_TOOL_CALLS = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*(?:\[CALL_ID\]\s*[A-Za-z0-9_-]*\s*)?(?:\[ARGS\])?\s*(?=\{)")
_BAR = "\uff5c"  # DeepSeek's marks are written with a wide bar
_CALLS_BEGIN, _CALLS_END = f"<{_BAR}tool▁calls▁begin{_BAR}>", f"<{_BAR}tool▁calls▁end{_BAR}>"
_CALL_BEGIN, _CALL_END, _SEP = (f"<{_BAR}tool▁{what}{_BAR}>" for what in ("call▁begin", "call▁end", "sep"))
_CALL = re.compile(rf"{_CALL_BEGIN}(.*?){_SEP}(.*?)(?:{_CALL_END}|\Z)", re.DOTALL)
_FENCED = re.compile(r"(.*?)```(?:json)?\s*(.*?)\s*(?:```|\Z)", re.DOTALL)


def llama3_parser(schemas: Schemas, *, forced: bool = False) -> ToolCallParser:  # noqa: ARG001
    """A parser for the family (`base.ParserFactory`): JSON as the whole answer, behind its tag, or in a fence."""
    names = frozenset(schemas)
    return MarkupParser(
        {
            _PYTHON_TAG: partial(ToTheEnd, _PYTHON_TAG, partial(_tagged, names)),
            _FUNCTOOLS: partial(ToTheEnd, _FUNCTOOLS, partial(_functools, names)),
            FENCE: partial(FencedCall, names),
        },
        at_start=partial(BareCall, names),
    )


def mistral_parser(schemas: Schemas, *, forced: bool = False) -> ToolCallParser:  # noqa: ARG001
    """A parser for the family (`base.ParserFactory`): an array of calls, or names with their arguments behind."""
    return MarkupParser({_TOOL_CALLS: partial(ToTheEnd, _TOOL_CALLS, partial(_mistral, schemas))})


def deepseek_parser(schemas: Schemas, *, forced: bool = False) -> ToolCallParser:  # noqa: ARG001
    """A parser for the family (`base.ParserFactory`), with the arguments in a fence (V3) or bare (V3.1)."""
    return MarkupParser({_CALLS_BEGIN: partial(Delimited, _CALLS_BEGIN, _CALLS_END, partial(_deepseek, schemas))})


def _tagged(names: frozenset[str], body: str) -> Parsed:
    found = Parsed()
    for part in split_json(body, ";,"):
        found += read_calls(part, names, lenient=True) or Parsed()
    return found


def _functools(names: frozenset[str], body: str) -> Parsed:
    return read_calls("[" + body, names, lenient=True) or Parsed()


def _mistral(schemas: Schemas, body: str) -> Parsed:
    found = Parsed()
    for part in body.split(_TOOL_CALLS):
        found += _mistral_part(schemas, part)
    return found


def _mistral_part(schemas: Schemas, body: str) -> Parsed:
    if body.lstrip()[:1] in ("[", "{"):
        return read_calls(body, frozenset(schemas), lenient=True) or Parsed()
    found, at = Parsed(), 0
    while (named := _NAMED.match(body, at)) is not None:
        parts = split_json(body[named.end() :], "", first=True)
        if not parts:
            break
        found += _named(named[1], parts[0], schemas)
        at = named.end() + len(parts[0])
    if body[at:].strip():
        found += Parsed(invalid_tool_calls=(invalid_call(body[at:], "The call is no name with arguments."),))
    return found


def _deepseek(schemas: Schemas, body: str) -> Parsed:
    found = Parsed()
    for call in _CALL.finditer(body):
        head, rest = call[1].strip(), call[2]
        fenced = _FENCED.match(rest) if head == "function" else None
        found += _named(fenced[1].strip(), fenced[2], schemas) if fenced else _named(head, rest.strip(), schemas)
    return found


def _named(name: str, arguments: str, schemas: Schemas) -> Parsed:
    try:
        value = load_json(arguments)
    except (ValueError, RecursionError) as e:
        call = invalid_call(f'{{"name": "{name}", "arguments": {arguments}', f"The arguments are no valid JSON: {e}.")
        return Parsed(invalid_tool_calls=(call,))
    return call_of(name, value, schemas, f"{name}{arguments}")
