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

__all__ = ["FORMATS", "MARKUP", "detect_format"]

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
    ("hermes", ("<tool_call>",)),  # also on a Llama's or a Mistral's template
    ("mistral", ("[TOOL_CALLS]",)),
    ("pythonic", ("<|tool_call_start|>",)),
    ("pythonic", ("<|python_start|>",)),
    ("gemma", ("<start_function_call>",)),
    ("gemma", ("<|tool_call>",)),
    ("llama3", ("<|python_tag|>",)),
    ("llama3", ("<|start_header_id|>", "parameters")),
    ("llama3", ("<|tool|>", "<|/tool|>")),
)

_BAR = "\uff5c"
MARKUP = frozenset(
    mark.encode()
    for mark in (
        *("<think>", "</think>", "<tool_call>", "</tool_call>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        *("<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        *(f"<{_BAR}tool▁{what}{_BAR}>" for what in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")),
        *("<|tool_call_start|>", "<|tool_call_end|>", "<|python_start|>", "<|python_end|>"),
        *("<start_function_call>", "<end_function_call>", "<escape>", "<|tool_call>", "<tool_call|>", '<|"|>'),
        *("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    )
)
"""Control tokens that parsers read, as bytes. Others that a model writes are never shown."""


def detect_format(template: str | None) -> str:
    """The family of a chat template's source, a key of `FORMATS`."""
    source = template or ""
    return next((family for family, marks in _MARKS if all(mark in source for mark in marks)), "hermes")
