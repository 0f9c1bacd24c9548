"""Tool-call formats by family. A new family is one file with a ParserFactory, and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pinfold.output.tool_calls.base import Parsed, ParserFactory, ToolCallParser, new_call_id, tool_names
from pinfold.output.tool_calls.hermes import hermes_parser

__all__ = ["FORMATS", "Parsed", "ParserFactory", "ToolCallParser", "new_call_id", "tool_names"]

FORMATS: Mapping[str, ParserFactory] = MappingProxyType({"hermes": hermes_parser})
