"""Tool-call formats by family, and which one a chat template belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pinfold.output.tool_calls.base import ParserFactory
from pinfold.output.tool_calls.harmony import harmony_parser
from pinfold.output.tool_calls.hermes import hermes_parser
from pinfold.output.tool_calls.literal import gemma_parser, pythonic_parser
from pinfold.output.tool_calls.markup_xml import glm_parser, qwen3_coder_parser
from pinfold.output.tool_calls.tagged_json import deepseek_parser, llama3_parser, mistral_parser

__all__ = ["FORMATS", "detect_format"]

FORMATS: Mapping[str, ParserFactory] = MappingProxyType(
    {
        "hermes": hermes_parser,
        "qwen3-coder": qwen3_coder_parser,
        "glm": glm_parser,
        "llama3": llama3_parser,
        "mistral": mistral_parser,
        "deepseek": deepseek_parser,
        "pythonic": pythonic_parser,
        "gemma": gemma_parser,
        "harmony": harmony_parser,
    }
)
"""A new family is one `ParserFactory`, and one line here and below."""

# What a family's templates write that no other's do. The first that is found decides; the rest is read as Hermes.
_MARKS = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("deepseek", ("tool▁calls▁begin",)),
    ("glm", ("<arg_key>",)),
    ("qwen3-coder", ("<function=", "<parameter=")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("pythonic", ("<|tool_call_start|>",)),
    ("pythonic", ("<|python_start|>",)),
    ("gemma", ("<start_function_call>",)),
    ("gemma", ("<|tool_call>",)),
    ("llama3", ("<|python_tag|>",)),
    ("llama3", ("<|start_header_id|>", "parameters")),
    ("llama3", ("<|tool|>", "<|/tool|>")),
)


def detect_format(template: str | None) -> str:
    """The family of a chat template's source, a key of `FORMATS`."""
    source = template or ""
    return next((family for family, marks in _MARKS if all(mark in source for mark in marks)), "hermes")
