"""The rules of arguments that are written one by one between marks, and which schemas they can be held to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pinfold.output.schema import narrowed
from pinfold.output.tool_calls.forms import ArgumentMarks
from pinfold.output.tool_calls.values import kinds_of

__all__ = ["Argument", "arguments_of"]

_NAME = re.compile(r"[^<>\s\"\\]+")
_REFERENCE = re.compile(r'"\$ref": "(?!#/(?:\$defs|definitions)/)')
_DEFINITIONS = ("$defs", "definitions", "x-guidance")
# What a text without quotes cannot be held to here.
_UNFIT = ("allOf", "format", "pattern")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: `schema` is the text of its JSON schema, `words` the texts that it may be, or `lengths` how long.

    Of these one is set.
    """

    name: str
    required: bool
    schema: str = ""
    words: tuple[str, ...] = ()
    lengths: tuple[int, int | None] | None = None


def arguments_of(parameters: Mapping[str, Any], marks: ArgumentMarks) -> list[Argument] | None:
    """The arguments in the schema's order; None where they cannot be written so, or not held to it."""
    schema = narrowed(parameters)
    closed = schema.get("additionalProperties") is False and not any(
        key in schema for key in ("patternProperties", "$ref")
    )
    if not closed or any(key in schema for key in ("allOf", "anyOf", "oneOf")) or _REFERENCE.search(json.dumps(schema)):
        return None
    shared = {key: schema[key] for key in _DEFINITIONS if key in schema}
    required = schema.get("required", [])
    found = []
    for name, part in schema.get("properties", {}).items():
        argument = _argument(name, part, name in required, marks, shared) if isinstance(part, Mapping) else None
        if argument is None:
            return None
        found.append(argument)
    return found


def _argument(
    name: str, schema: Mapping[str, Any], required: bool, marks: ArgumentMarks, shared: Mapping[str, Any]
) -> Argument | None:
    if not _NAME.fullmatch(name):
        return None
    if "string" not in kinds_of(schema):
        return Argument(name, required, schema=json.dumps({**schema, **shared}))
    text = next(_texts(schema), None)
    if text is None:
        return None
    if isinstance(text, tuple):
        fit = all(not any(mark in word for mark in marks.marks) and word.strip("\n") == word for word in text)
        return Argument(name, required, words=text) if fit else None
    return Argument(name, required, lengths=(text.get("minLength", 0), text.get("maxLength")))


def _texts(schema: Mapping[str, Any]) -> Iterator[tuple[str, ...] | Mapping[str, Any]]:
    """The ways in which a value may be text: words to choose from, or a schema of which the lengths count."""
    for key in ("anyOf", "oneOf"):
        for part in schema.get(key, ()):
            if isinstance(part, Mapping) and "string" in kinds_of(part):
                yield from _texts(part)
    if any(key in schema for key in ("anyOf", "oneOf", *_UNFIT)):
        return
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    if values is None:
        yield schema
    elif words := tuple(value for value in values if isinstance(value, str)):
        yield words
