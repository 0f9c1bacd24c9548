"""Constrained output: a grammar that the answer cannot leave, as a mask on the logits of each step.

The grammars are llguidance's. JSON has one form here, that in which prompts show calls: ``", "`` and ``": "`` and no
other white space, properties in the schema's order. So most of a call is forced, and it reads back to the same tokens
when the next turn's prompt repeats it.

Strings, fractions and lists may grow as long as their schema lets them: a model that does not end one goes on until
max_tokens, and the call is then reported as cut off. To bound them, say so in the schema (``maxLength``, ``maxItems``).
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pinfold.errors import InvalidRequestError, ToolSchemaError
from pinfold.output.constraint import Constraint, first_line
from pinfold.output.grammar import Offered, calls_rules, document_rules, grammar_of, text_rules
from pinfold.output.reasoning import LeadingReasoning
from pinfold.output.schema import narrowed, unheld
from pinfold.output.tool_calls.forms import HERMES, CallForm

__all__ = ["forget_grammars", "held_text_constraint", "schema_constraint", "tool_call_constraint"]

_MAX_GRAMMARS = 64
_JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_DECLARES = (
    *("properties", "additionalProperties", "patternProperties"),
    *("$ref", "allOf", "anyOf", "oneOf", "const", "enum"),
)


def tool_call_constraint(
    grammar_tokenizer: LLTokenizer,
    tools: Sequence[Mapping[str, Any]],
    choice: str | Mapping[str, Any] = "required",
    *,
    form: CallForm = HERMES,
    parallel: bool = False,
    document: Mapping[str, Any] | None = None,
    reasoning: LeadingReasoning | None = None,
) -> Constraint:
    """An answer that is one call of one of `tools`, or with `parallel` one or more.

    Arguments satisfy the tool's schema and are only those that it lists (see `schema.narrowed`).

    Args:
        tools: ``{"type": "function", "function": {"name", "parameters"}}``.
        choice: "required", or the one tool to call: its name or ``{"type": "function", "function": {"name": ...}}``.
        form: how calls are written; what is one token in the model's prompts is that token here.
        document: a JSON schema; the answer may then be JSON that satisfies it instead. `form` must have a mark then.
        reasoning: what may come before either.

    Raises:
        InvalidRequestError: there is no tool, or none of the name in `choice`.
        ToolSchemaError: a tool's parameters or `document` are no schema, or use a keyword that no grammar can hold to.
    """
    offered = _chosen([dict(tool["function"]) for tool in tools], choice)
    schemas = [(tool["name"], _parameters(tool)) for tool in offered]
    calls = calls_rules(grammar_tokenizer, form, schemas, parallel=parallel)
    if document is None:
        return _tools_constraint(grammar_tokenizer, schemas, "calls", calls, reasoning=reasoning)
    written = _document_text(grammar_tokenizer, document)
    rules = document_rules(grammar_tokenizer, written, form.document)
    return _tools_constraint(grammar_tokenizer, schemas, "calls | document", calls, rules, reasoning=reasoning)


def held_text_constraint(
    grammar_tokenizer: LLTokenizer,
    tools: Sequence[Mapping[str, Any]],
    strict: Container[str],
    *,
    form: CallForm,
    parallel: bool = True,
    reasoning: LeadingReasoning | None = None,
) -> Constraint:
    """An answer of text in which the model may call tools, and where it does, in `form` and held to it.

    Args:
        strict: names of the tools whose arguments satisfy their schema; those of others are any JSON object.
        form: one that has a mark.
        parallel: False lets a call end the answer.

    Raises:
        ToolSchemaError: the parameters of a strict tool are no schema, or use a keyword that no grammar can hold to.
    """
    functions = [dict(tool["function"]) for tool in tools]
    any_object = _schema_text("Tools", {"type": "object"})
    schemas = [(tool["name"], _parameters(tool) if tool["name"] in strict else any_object) for tool in functions]
    rules = text_rules(grammar_tokenizer, form, schemas, parallel=parallel)
    return _tools_constraint(grammar_tokenizer, schemas, "text", rules, reasoning=reasoning)


def schema_constraint(
    grammar_tokenizer: LLTokenizer, schema: Any, *, form: CallForm = HERMES, reasoning: LeadingReasoning | None = None
) -> Constraint:
    """An answer that is JSON satisfying `schema`, a dict (see `schema.narrowed`).

    Args:
        form: that of the model's family, which may put a mark before a document.
        reasoning: what may come before it.

    Raises:
        ToolSchemaError: it is no schema, or uses a keyword that a grammar cannot hold to.
    """
    text = _document_text(grammar_tokenizer, schema)
    rules = document_rules(grammar_tokenizer, text, form.document)
    matcher, error = _compiled(grammar_tokenizer, grammar_of(grammar_tokenizer, "document", rules, reasoning=reasoning))
    if error:
        msg = f"No grammar for the response schema: {first_line(error)}. Make it simpler."
        raise ToolSchemaError(msg)
    return Constraint(matcher.deep_copy(), grammar_tokenizer)


def forget_grammars() -> None:
    """Empties the cache of compiled grammars, which keeps its tokenizers alive."""
    _compiled.cache_clear()


def _chosen(tools: list[dict[str, Any]], choice: str | Mapping[str, Any]) -> list[dict[str, Any]]:
    if not tools:
        msg = "A tool call was required and no tool was offered; pass tools, or tool_choice='none'."
        raise InvalidRequestError(msg)
    if choice == "required":
        return tools
    name = choice if isinstance(choice, str) else choice["function"]["name"]
    chosen = [tool for tool in tools if tool["name"] == name]
    if not chosen:
        names = ", ".join(tool["name"] for tool in tools)
        msg = f"tool_choice names {name!r}, which was not offered. Offered: {names}."
        raise InvalidRequestError(msg)
    return chosen


def _parameters(tool: Mapping[str, Any]) -> str:
    """The schema of a tool's arguments, always an object's; a tool that declares none takes none."""
    where = f"Tool {tool['name']!r}"
    schema = tool.get("parameters") or {"type": "object"}
    kind = schema.get("type", "object") if isinstance(schema, Mapping) else None
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        msg = f"{where}: its parameters are no schema of an object. Give {{'type': 'object', 'properties': ...}}."
        raise ToolSchemaError(msg)
    declares_none = not any(key in schema for key in _DECLARES)
    return _schema_text(where, {**schema, "type": "object", **({"properties": {}} if declares_none else {})})


def _schema_text(where: str, schema: Mapping[str, Any]) -> str:
    try:
        text = json.dumps({**narrowed(schema), "x-guidance": _JSON_FORM}, allow_nan=False)
        keyword = unheld(schema)
    except (TypeError, ValueError, RecursionError) as e:
        msg = f"{where} is no JSON schema: {e}. Give plain JSON values."
        raise ToolSchemaError(msg) from e
    if keyword:
        msg = f"{where}: no grammar can hold an answer to {keyword}. Take it out, and check it in the answer."
        raise ToolSchemaError(msg)
    return text


def _document_text(grammar_tokenizer: LLTokenizer, schema: Any) -> str:
    """The schema of an answer as text, once it is known that a grammar can hold to it."""
    if not isinstance(schema, Mapping):
        msg = f"The response schema is no JSON schema but {type(schema).__name__}; give a dict."
        raise ToolSchemaError(msg)
    text = _schema_text("The response schema", schema)
    _, error = _compiled(grammar_tokenizer, f"start: %json {text}")
    if error:
        msg = f"The response schema: an answer cannot be held to it: {first_line(error)}. Change that part of it."
        raise ToolSchemaError(msg)
    return text


def _tools_constraint(
    grammar_tokenizer: LLTokenizer,
    tools: Offered,
    answer: str,
    *rules: Sequence[str],
    reasoning: LeadingReasoning | None,
) -> Constraint:
    grammar = grammar_of(grammar_tokenizer, answer, *rules, reasoning=reasoning)
    matcher, error = _compiled(grammar_tokenizer, grammar)
    if not error:
        return Constraint(matcher.deep_copy(), grammar_tokenizer)
    for name, schema in tools:
        _, alone = _compiled(grammar_tokenizer, f"start: %json {schema}")
        if alone:
            msg = (
                f"Tool {name!r}: a call cannot be held to its parameters: {first_line(alone)}. "
                f"Change that part of the schema, or use tool_choice='auto' without strict."
            )
            raise ToolSchemaError(msg)
    msg = f"No grammar for these tools: {first_line(error)}. Offer fewer tools, or use tool_choice='auto'."
    raise ToolSchemaError(msg)


@lru_cache(maxsize=_MAX_GRAMMARS)
def _compiled(grammar_tokenizer: LLTokenizer, grammar: str) -> tuple[LLMatcher, str]:
    """A matcher at the beginning of `grammar`, to be copied, and the error if there is one."""
    limits = LLParserLimits(verbose_errors=False)  # an error would quote the answer so far
    matcher = LLMatcher(grammar_tokenizer, grammar, log_level=0, limits=limits)
    return matcher, matcher.get_error() if matcher.is_error() else ""
