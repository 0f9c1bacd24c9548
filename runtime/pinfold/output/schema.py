"""JSON schemas made ready for a grammar. Every answer that the result allows satisfies the schema as it was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["KNOWN_FORMATS", "narrowed", "unheld"]

KNOWN_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"}
)
"""The values of ``format`` that a grammar can hold an answer to."""

_ONE = ("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_COMBINE = ("$ref", "allOf", "anyOf", "oneOf")
_OPENS = ("additionalProperties", "minProperties", "patternProperties", "propertyNames", "unevaluatedProperties")
_BOUNDS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum"),
    *_COMBINE,
)
_EXACT = 2**53 - 1
# What asks about a value as a whole, or about what it is not: a grammar sees one token after the other.
_UNHELD = frozenset(
    (
        *("not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas"),
        *("contains", "minContains", "maxContains", "uniqueItems", "unevaluatedItems"),
        *("propertyNames", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
    )
)


def unheld(schema: Mapping[str, Any]) -> str | None:
    """The first keyword that no grammar can hold an answer to, and its place, in words; None where there is none."""
    for place, part in _parts(schema):
        for key, value in part.items():
            counts = key == "minProperties" and isinstance(value, int) and value > max(1, len(part.get("required", ())))
            if counts or (key in _UNHELD and not (key == "uniqueItems" and value is False)):
                return f"{key!r} at {place or 'its top'}"
    return None


def narrowed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which

    - an object that lists its properties and says nothing of others has no others: a small model would go on for ever
      inventing them. A schema that puts one object together from several parts is left as it is in this;
    - an integer without bounds stays within those that every JSON reader keeps exact, for the same reason;
    - a ``format`` that no grammar knows is left out, as JSON Schema has those who do not know one do; so is a
      ``uniqueItems`` that asks for nothing.
    """
    close = not any(_puts_together(part) for _, part in _parts(schema))
    return _narrowed(schema, close)


def _narrowed(schema: Mapping[str, Any], close: bool) -> dict[str, Any]:
    out = dict(schema)
    if isinstance(out.get("format"), str) and out["format"] not in KNOWN_FORMATS:
        del out["format"]
    if out.get("uniqueItems") is False:
        del out["uniqueItems"]
    if out.get("type") == "integer" and not any(key in out for key in _BOUNDS):
        out |= {"minimum": -_EXACT, "maximum": _EXACT}
    for key in out:
        out[key] = _narrowed_value(key, out[key], close)
    if close and _lists_all(out):
        out["additionalProperties"] = False
    return out


def _narrowed_value(key: str, value: Any, close: bool) -> Any:
    if isinstance(value, Mapping) and key in _ONE:
        return _narrowed(value, close)
    if isinstance(value, Mapping) and key in _MAPS:
        return {name: _narrowed(part, close) if isinstance(part, Mapping) else part for name, part in value.items()}
    if isinstance(value, list) and key in _LISTS:
        return [_narrowed(part, close) if isinstance(part, Mapping) else part for part in value]
    return value


def _parts(schema: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """`schema` and every schema within it, each after its place as a JSON pointer."""
    yield place, schema
    for key, value in schema.items():
        within: Any = ()
        if isinstance(value, Mapping) and key in _ONE:
            within = ((f"{place}/{key}", value),)
        elif isinstance(value, Mapping) and key in _MAPS:
            within = ((f"{place}/{key}/{name}", part) for name, part in value.items())
        elif isinstance(value, list) and key in _LISTS:
            within = ((f"{place}/{key}/{index}", part) for index, part in enumerate(value))
        for where, part in within:
            if isinstance(part, Mapping):
                yield from _parts(part, where)


def _puts_together(schema: Mapping[str, Any]) -> bool:
    """Whether several schemas apply to one object here, so that closing one would shut out another's properties."""
    combining = [key for key in _COMBINE if key in schema]
    several = isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1
    return several or len(combining) > 1 or bool(combining and "properties" in schema)


def _lists_all(schema: Mapping[str, Any]) -> bool:
    listed, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(listed, Mapping) or not isinstance(required, list) or any(key in schema for key in _OPENS):
        return False
    return all(isinstance(name, str) and name in listed for name in required)
