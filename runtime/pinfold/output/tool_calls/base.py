"""The contract of a tool-call format: one incremental parser for each family of models.

A parser gets the answer's text in pieces and gives back text and calls. It is used for one answer, and what it gives
in all is the same at every way of cutting the text, but for the calls' ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pinfold.results import InvalidToolCall, ToolCall

__all__ = ["Parsed", "ParserFactory", "Schemas", "ToolCallParser", "new_call_id", "tool_schemas"]

Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the arguments, by the name of the tool; empty where they are not known."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a piece of output turned out to hold; empty where more must be seen first."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    invalid_tool_calls: tuple[InvalidToolCall, ...] = ()

    def __add__(self, other: Parsed) -> Parsed:
        return Parsed(
            self.text + other.text,
            self.reasoning + other.reasoning,
            self.tool_calls + other.tool_calls,
            self.invalid_tool_calls + other.invalid_tool_calls,
        )


class ToolCallParser(Protocol):
    """Splits the text of one answer into text and calls."""

    def feed(self, text: str) -> Parsed:
        """What `text` settles. A call comes whole, once its end was seen."""

    def finish(self, *, cut: bool) -> Parsed:
        """What is still open. `cut`: the answer ended by its length, not by itself.

        A call whose end never came is an InvalidToolCall, unless only its closing markup is missing.
        """


class ParserFactory(Protocol):
    """Makes the parser of one answer."""

    def __call__(self, schemas: Schemas, *, forced: bool = False) -> ToolCallParser:
        """A parser for calls of the tools in `schemas`.

        `forced`: a grammar holds the answer to well-formed calls and nothing else.
        """


def new_call_id() -> str:
    """An id that no other call has: ``call_`` and 24 hexadecimal digits."""
    return "call_" + uuid.uuid4().hex[:24]


def tool_schemas(tools: Iterable[str | Mapping[str, Any]]) -> Schemas:
    """By name, of tools given as names, or as ``{"type": "function", "function": {"name", "parameters"}}``."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = {"name": tool} if isinstance(tool, str) else tool.get("function", tool)
        parameters = function.get("parameters")
        found[function["name"]] = parameters if isinstance(parameters, Mapping) else {}
    return found
