"""Calls whose arguments are not JSON: values typed by the tool's schema, and what becomes of unknown names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinfold.output.tool_calls.base import Parsed, Schemas, new_call_id
from pinfold.output.tool_calls.json_call import load_json
from pinfold.results import InvalidToolCall, ToolCall

__all__ = ["call_of", "kinds_of", "typed"]

_SCALARS = ("integer", "number", "boolean", "null", "object", "array")


def call_of(name: str, arguments: Any, schemas: Schemas, source: str) -> Parsed:
    """The call, or an invalid one where no such tool was offered or the arguments are no object."""
    if name not in schemas:
        error = f"No tool {name!r} was offered; there are: {', '.join(sorted(schemas))}."
    elif not isinstance(arguments, dict):
        error = "The arguments are no JSON object."
    else:
        return Parsed(tool_calls=(ToolCall(id=new_call_id(), name=name, arguments=arguments),))
    call = InvalidToolCall(id=new_call_id(), name=name or None, text=source.strip(), error=error)
    return Parsed(invalid_tool_calls=(call,))


def typed(text: str, schema: Any) -> Any:
    """`text`, which says a value without quotes, as the schema's type: text where that allows it, else JSON.

    What fits neither stays text: whoever validates the call will say so.
    """
    kinds = kinds_of(schema)
    if "string" in kinds:
        return text
    value = _json_or_none(text)
    if value is None and text.strip() not in ("null", "None"):
        return {"True": True, "False": False}.get(text.strip(), text)
    return value


def kinds_of(schema: Any) -> frozenset[str]:
    """The types that a schema names, looking into its alternatives and enums."""
    if not isinstance(schema, Mapping):
        return frozenset()
    named = schema.get("type")
    kinds = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
    values = [*schema["enum"]] if isinstance(schema.get("enum"), list) else []
    values += [schema["const"]] if "const" in schema else []
    if not kinds and values:
        kinds |= {"string" if isinstance(value, str) else "number" for value in values}
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list):
            for each in schema[key]:
                kinds |= kinds_of(each)
    return frozenset(kind for kind in kinds if isinstance(kind, str))


def _json_or_none(text: str) -> Any:
    try:
        return load_json(text)
    except (ValueError, RecursionError):
        return None
