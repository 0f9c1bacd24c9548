"""Tool-call formats by family. A new family is one ParserFactory, and one line in `formats`."""

from __future__ import annotations

from pinfold.output.tool_calls.base import Parsed, ParserFactory, Schemas, ToolCallParser, new_call_id, tool_schemas
from pinfold.output.tool_calls.formats import FORMATS, MARKUP, detect_format

__all__ = [
    "FORMATS",
    "MARKUP",
    "Parsed",
    "ParserFactory",
    "Schemas",
    "ToolCallParser",
    "detect_format",
    "new_call_id",
    "tool_schemas",
]
