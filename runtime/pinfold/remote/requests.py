"""What is asked of a server, as the body of its request. What it cannot be asked is refused here, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pinfold.errors import InvalidRequestError, ToolSchemaError, UnsupportedModeError
from pinfold.options import GenerationOptions
from pinfold.output.schema import narrowed
from pinfold.prompt.tools import Tool, ToolChoice
from pinfold.remote.facts import ServerFacts
from pinfold.remote.kinds import KINDS, Kind

__all__ = ["call_schema", "common_body", "response_schema", "with_calls", "with_schema"]

_DEFAULTS = GenerationOptions()
_ONLY_SOME = ("top_k", "min_p", "repetition_penalty", "penalty_window")


def common_body(facts: ServerFacts, options: GenerationOptions, salt: str | None, *, stream: bool) -> dict[str, Any]:
    """What chats and raw prompts have in common.

    Raises:
        UnsupportedModeError: the server has no salts, or not that way of sampling.
    """
    kind = KINDS[facts.kind]
    body: dict[str, Any] = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "stream": stream,
    }
    if facts.model:
        body["model"] = facts.model
    if options.stop:
        body["stop"] = list(options.stop)
    if options.seed is not None:
        body["seed"] = options.seed
    if stream and facts.streams:
        body["stream_options"] = {"include_usage": True}
    if salt is not None:
        body[_salt_field(facts, kind)] = salt
    return body | _samplers(facts, kind, options)


def with_schema(body: dict[str, Any], facts: ServerFacts, schema: Mapping[str, Any] | None, *, raw: bool) -> None:
    """Holds the answer to `schema`; None is any JSON object.

    Raises:
        UnsupportedModeError: the server cannot.
    """
    if facts.known("json schema") == "no":
        facts.refuse("response_format", "json schema", "Ask for JSON in words, or use a model in this process.")
    kind = KINDS[facts.kind]
    if raw and kind.schema_field:
        body[kind.schema_field] = schema or {"type": "object"}
    elif facts.kind == "llama-cpp-python":
        body["response_format"] = {"type": "json_object", **({"schema": schema} if schema else {})}
    elif schema is None:
        body["response_format"] = {"type": "json_object"}
    else:
        named = {"name": "answer", "schema": schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}


def with_calls(body: dict[str, Any], facts: ServerFacts, tools: Sequence[Tool], choice: ToolChoice) -> bool:
    """Offers `tools` in a chat; returns whether the answer is then held to a call by its schema.

    Raises:
        UnsupportedModeError: the server cannot call tools, or cannot be made to.
    """
    if not tools or choice.mode == "none":
        return False
    if facts.known("tool calls") == "no":
        facts.refuse("tools", "tool calls", "Open the Runtime with rendering='own', where the server allows it.")
    body["tools"] = [tool.spec for tool in tools]
    if choice.mode == "auto":
        return False
    if facts.known("forced calls") == "no":
        remedy = "Use tool_choice='auto', or a model in this process."
        facts.refuse(f"tool_choice={choice.name or choice.mode!r}", "forced calls", remedy)
    if KINDS[facts.kind].calls_by_schema:
        with_schema(body, facts, call_schema(tools, choice), raw=False)
        return True
    named = {"type": "function", "function": {"name": choice.name}}
    body["tool_choice"] = "required" if choice.name is None else named
    return False


def call_schema(tools: Sequence[Tool], choice: ToolChoice) -> dict[str, Any]:
    """A schema of one call: ``{"name": ..., "arguments": {...}}`` of a tool that `choice` allows.

    Raises:
        ToolSchemaError: a tool's parameters are no schema that an answer can be held to.
    """
    offered = [tool for tool in tools if choice.name in (None, tool.name)]
    definitions: dict[str, Any] = {}
    calls = []
    for number, tool in enumerate(offered):
        place = f"tool_{number}"
        definitions[place] = _moved(_held(f"Tool {tool.name!r}", dict(tool.parameters) or {"type": "object"}), place)
        properties = {"name": {"const": tool.name}, "arguments": {"$ref": f"#/$defs/{place}"}}
        calls.append(
            {
                "type": "object",
                "properties": properties,
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), "$defs": definitions}


def response_schema(response_format: Any) -> Mapping[str, Any] | None:
    """The schema that a response_format holds the answer to; None is any JSON object.

    Raises:
        InvalidRequestError: it is none.
        ToolSchemaError: its schema uses what an answer cannot be held to.
    """
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "json_object":
        return None
    inner = response_format.get("json_schema") if kind == "json_schema" else None
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if isinstance(schema, Mapping):
        return _held("The response schema", schema)
    msg = (
        f"response_format={response_format!r}: give {{'type': 'json_object'}}, or {{'type': 'json_schema', "
        f"'json_schema': {{'schema': {{...}}}}}}."
    )
    raise InvalidRequestError(msg)


def _salt_field(facts: ServerFacts, kind: Kind) -> str:
    if not facts.has("cache_salt"):
        facts.refuse("salt", "cache_salt", "Leave salt out, or run a server for each tenant.")
    return kind.salt or "cache_salt"


def _samplers(facts: ServerFacts, kind: Kind, options: GenerationOptions) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for ours in _ONLY_SOME:
        value = getattr(options, ours)
        theirs = kind.samplers.get(ours) or (ours if facts.fields and ours in facts.fields else None)
        if theirs is not None:
            body[theirs] = kind.no_top_k if ours == "top_k" and value == 0 else value
        elif value != getattr(_DEFAULTS, ours):
            msg = (
                f"{ours}={value!r}: the server at {facts.address} ({facts.kind}) is not known to have it. Leave it out."
            )
            raise UnsupportedModeError(msg)
    return body


def _held(where: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(schema, allow_nan=False)
        return narrowed(schema)
    except (TypeError, ValueError, RecursionError) as e:
        msg = f"{where} is no JSON schema: {e}. Give plain JSON values."
        raise ToolSchemaError(msg) from e


def _moved(value: Any, place: str) -> Any:
    """A schema whose references hold once it stands under ``#/$defs/<place>``."""
    if isinstance(value, Mapping):
        moved = {key: _moved(item, place) for key, item in value.items()}
        target = moved.get("$ref")
        if isinstance(target, str) and target.startswith("#"):
            moved["$ref"] = f"#/$defs/{place}{target[1:]}"
        return moved
    return [_moved(item, place) for item in value] if isinstance(value, list) else value
