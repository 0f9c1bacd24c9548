"""Tool definitions in one canonical form, and the choice among them.

The same tools must give the same bytes in every prompt, or no prefix is ever reused: keys stay in the order given,
separators are fixed, text is not escaped to ASCII, and what is meant for the API (``cache_control``, ``strict``) is
taken out before the model reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pinfold.errors import InvalidRequestError, ToolSchemaError
from pinfold.options import parse_ttl

__all__ = ["Tool", "ToolChoice", "cache_ttl", "canonical_json", "canonical_tools", "parse_tool_choice"]

DEFAULT_CACHE_TTL = 300.0  # seconds; what hosted APIs give a cache_control without a ttl

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NOT_FOR_THE_MODEL = frozenset({"cache_control", "strict"})
_FORMS = (
    'Give {"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}, the inner dict '
    'alone, or {"name": ..., "description": ..., "input_schema": {...}}.'
)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool.

    Attributes:
        name: what the model calls it by.
        spec: ``{"type": "function", "function": {...}}`` with only JSON values; a copy, nobody else holds it.
        json: `spec` as canonical JSON.
        cache_ttl: seconds to keep the prefix that ends with this tool; None where it carries no cache mark.
        strict: calls of it must fit its parameters, also where the model decides whether to call it.
    """

    name: str
    spec: Mapping[str, Any] = field(repr=False)
    json: str = field(repr=False)
    cache_ttl: float | None = None
    strict: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of its arguments, an object schema."""
        parameters: Mapping[str, Any] = self.spec["function"]["parameters"]
        return parameters


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether a tool must be called. `name` is set where `mode` is ``named``."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None


def canonical_json(value: Any) -> str:
    """JSON in the one form that prompts use.

    Raises:
        TypeError, ValueError, RecursionError: `value` is no JSON.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def cache_ttl(control: Any, where: str) -> float | None:
    """Seconds of a ``cache_control`` value, None where there is none; without a ttl it is five minutes.

    Raises:
        InvalidRequestError: `control` is no ``{"type": "ephemeral"}``, or its ttl is no time; `where` names the place.
    """
    if control is None:
        return None
    if not isinstance(control, Mapping) or control.get("type", "ephemeral") != "ephemeral":
        msg = f'{where}: cache_control is {control!r}. Give {{"type": "ephemeral"}}, with "ttl": "5m" or the like.'
        raise InvalidRequestError(msg)
    ttl = control.get("ttl")
    try:
        return DEFAULT_CACHE_TTL if ttl is None else parse_ttl(ttl)
    except InvalidRequestError as e:
        msg = f"{where}: cache_control: {e}"
        raise InvalidRequestError(msg) from e


def canonical_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """The tools in canonical form, in the order given; the input is left as it was.

    Raises:
        ToolSchemaError: one is no tool definition, or two share a name; the message names the tool.
    """
    if tools is None:
        return ()
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        msg = f"tools is a {type(tools).__name__}; give a list of tool definitions. {_FORMS}"
        raise ToolSchemaError(msg)
    canonical = tuple(_canonical(tool, index) for index, tool in enumerate(tools))
    seen: set[str] = set()
    for tool in canonical:
        if tool.name in seen:
            msg = f'Tool "{tool.name}" is defined twice. Give every tool its own name.'
            raise ToolSchemaError(msg)
        seen.add(tool.name)
    return canonical


def parse_tool_choice(choice: Any, tools: Sequence[Tool]) -> ToolChoice:
    """The choice in canonical form: ``auto``, ``none``, ``required``, a tool's name or an OpenAI-style dict.

    Raises:
        InvalidRequestError: it is none of these, or names no tool; the message lists the known ones.
    """
    names = [tool.name for tool in tools]
    known = f"Known tools: {', '.join(names)}." if names else "The request has no tools."
    if choice is None or choice in ("auto", "none"):
        return ToolChoice("none" if choice == "none" else "auto")
    if choice == "required":
        if not names:
            msg = 'tool_choice="required" needs at least one tool. Pass tools, or use tool_choice="auto".'
            raise InvalidRequestError(msg)
        return ToolChoice("required")
    name = choice
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    if isinstance(name, str) and name in names:
        return ToolChoice("named", name)
    msg = f'tool_choice={choice!r} is neither "auto", "none" nor "required", and names no tool. {known}'
    raise InvalidRequestError(msg)


def _canonical(tool: Any, index: int) -> Tool:
    function, outer = _function_of(tool, index)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        msg = f"tools[{index}]: the name {name!r} is not 1 to 128 letters, digits, '_', '.' or '-'. Rename the tool."
        raise ToolSchemaError(msg)
    description = function.get("description")
    if not isinstance(description, str | None):
        msg = f'Tool "{name}": description is a {type(description).__name__}; give a string.'
        raise ToolSchemaError(msg)
    parameters = function.get("parameters", function.get("input_schema"))
    _check_parameters(name, parameters)
    rest = {k: v for k, v in function.items() if k not in {"name", "description", "parameters", "input_schema", "type"}}
    body = {
        "name": name,
        "description": description or "",  # templates read it without asking whether it is there
        "parameters": {"type": "object", "properties": {}} if parameters is None else parameters,
        **{key: value for key, value in rest.items() if key not in _NOT_FOR_THE_MODEL},
    }
    try:
        text = canonical_json({"type": "function", "function": body})
        text.encode()
    except (TypeError, ValueError, RecursionError) as e:
        msg = f'Tool "{name}" cannot be written as JSON: {e}. Use only JSON values in its schema.'
        raise ToolSchemaError(msg) from e
    control = outer.get("cache_control") or function.get("cache_control")
    return Tool(name, json.loads(text), text, cache_ttl(control, f'tool "{name}"'), _strict(name, function, outer))


def _strict(name: str, *places: Mapping[str, Any]) -> bool:
    for place in places:
        if not isinstance(place.get("strict"), bool | None):
            msg = f'Tool "{name}": strict is {place["strict"]!r}; give true or false.'
            raise ToolSchemaError(msg)
    return any(place.get("strict") for place in places)


def _function_of(tool: Any, index: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if not isinstance(tool, Mapping):
        msg = f"tools[{index}] is a {type(tool).__name__}. {_FORMS}"
        raise ToolSchemaError(msg)
    kind = tool.get("type", "function")
    if kind not in ("function", "custom"):
        msg = f"tools[{index}] has type {kind!r}: only functions can be called on a local model. {_FORMS}"
        raise ToolSchemaError(msg)
    function = tool.get("function", tool)
    if not isinstance(function, Mapping):
        msg = f'tools[{index}]: "function" is a {type(function).__name__}. {_FORMS}'
        raise ToolSchemaError(msg)
    return function, tool


def _check_parameters(name: str, parameters: Any) -> None:
    """Refuses what is no object schema; None stands for a tool without arguments."""
    if parameters is None:
        return
    fault = None
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        fault = 'parameters must be a JSON schema with "type": "object"'
    elif not isinstance(parameters.get("properties", {}), Mapping):
        fault = "parameters.properties must be an object that maps argument names to schemas"
    elif bad := [k for k, v in parameters.get("properties", {}).items() if not isinstance(v, Mapping | bool)]:
        fault = f"parameters.properties.{bad[0]} must be a schema (an object)"
    else:
        required = parameters.get("required", [])
        if not isinstance(required, list | tuple) or not all(isinstance(item, str) for item in required):
            fault = "parameters.required must be a list of argument names"
    if fault:
        msg = f'Tool "{name}": {fault}. Correct the tool\'s schema.'
        raise ToolSchemaError(msg)
