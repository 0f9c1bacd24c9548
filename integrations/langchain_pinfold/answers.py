"""The runtime's answers as LangChain's messages and chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.utils.json import parse_partial_json

from pinfold.results import Completion, Delta, InvalidToolCall, ToolCall, Usage

__all__ = ["PROVIDER", "ChunkWriter", "to_message", "to_usage"]

PROVIDER = "pinfold"
# With output_version "v1" langchain-core merges blocks by index and counts text and reasoning up from 0: stay clear.
_FIRST_CALL_INDEX_V1 = 1000


def to_usage(usage: Usage) -> UsageMetadata | None:
    """Token counts; `cache_read` and `cache_creation` are parts of `input_tokens`. What a server did not report is
    left out; without its counts of prompt and answer there are none at all."""
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    counts = UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
    read = InputTokenDetails()
    if usage.cached_tokens is not None:
        read["cache_read"] = usage.cached_tokens
    if usage.cache_creation_tokens is not None:
        read["cache_creation"] = usage.cache_creation_tokens
    if read:
        counts["input_token_details"] = read
    if usage.reasoning_tokens is not None:
        counts["output_token_details"] = OutputTokenDetails(reasoning=usage.reasoning_tokens)
    return counts


def to_message(done: Completion) -> AIMessage:
    """One whole answer."""
    return AIMessage(
        content=done.text,
        additional_kwargs=_reasoning(done.reasoning),
        tool_calls=[tool_call(name=call.name, args=dict(call.arguments), id=call.id) for call in done.tool_calls],
        invalid_tool_calls=[
            invalid_tool_call(name=bad.name, args=_unparsable(bad.text), id=bad.id, error=bad.error)
            for bad in done.invalid_tool_calls
        ],
        usage_metadata=to_usage(done.usage),
        response_metadata=_metadata(done),
    )


class ChunkWriter:
    """Turns the deltas of one answer into chunks that add up to what `to_message` gives.

    Text, reasoning and calls come in chunks of their own: langchain-core drops calls that share a chunk with text.
    """

    def __init__(self, *, v1: bool = False) -> None:
        self._next_index = _FIRST_CALL_INDEX_V1 if v1 else 0

    def chunks(self, delta: Delta) -> Iterator[AIMessageChunk]:
        """The chunks of one delta. Counts and reports are on the last chunk of the answer only."""
        if delta.reasoning:
            yield AIMessageChunk(content="", additional_kwargs=_reasoning(delta.reasoning))
        if delta.text:
            yield AIMessageChunk(content=delta.text)
        for call in delta.tool_calls:
            yield self._call_chunk(call.id, call.name, _json(call))
        for bad in delta.invalid_tool_calls:
            yield self._call_chunk(bad.id, bad.name, _unparsable(bad.text))
        if delta.done is not None:
            yield AIMessageChunk(
                content="",
                usage_metadata=to_usage(delta.done.usage),
                response_metadata=_metadata(delta.done),
                chunk_position="last",
            )

    def _call_chunk(self, call_id: str, name: str | None, arguments: str) -> AIMessageChunk:
        index = self._next_index
        self._next_index += 1
        chunk = tool_call_chunk(name=name, args=arguments, id=call_id, index=index)
        return AIMessageChunk(content="", tool_call_chunks=[chunk])


def _reasoning(text: str) -> dict[str, Any]:
    return {"reasoning_content": text} if text else {}


def _json(call: ToolCall) -> str:
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def _unparsable(text: str) -> str:
    """`text`, quoted where langchain-core would repair it into a valid call while it adds up the chunks."""
    try:
        repaired = parse_partial_json(text) if text else {}
    except json.JSONDecodeError:
        return text
    return json.dumps(text, ensure_ascii=False) if isinstance(repaired, Mapping) else text


def _metadata(done: Completion) -> dict[str, Any]:
    report = done.report()
    if done.invalid_tool_calls:
        # Chunks that are added up lose the reason that an invalid call was given.
        report["invalid_tool_calls"] = [_complaint(bad) for bad in done.invalid_tool_calls]
    return {
        "model_name": done.model,
        "model_provider": PROVIDER,
        "finish_reason": done.finish_reason,
        "pinfold": report,
    }


def _complaint(bad: InvalidToolCall) -> dict[str, Any]:
    return {"id": bad.id, "name": bad.name, "error": bad.error}
