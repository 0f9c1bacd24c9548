"""The runtime's answers as LlamaIndex responses, whole or growing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    ContentBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from pinfold.results import Completion, Delta, InvalidToolCall, ToolCall, Usage

__all__ = ["GrowingAnswer", "chat_response", "completion_response"]


def chat_response(done: Completion, *, one_tool_call: bool = False) -> ChatResponse:
    """The whole answer; `one_tool_call` keeps the first tool call only."""
    answer = GrowingAnswer(one_tool_call=one_tool_call)
    answer.add(Delta(done=done))
    return answer.chat_response()


def completion_response(done: Completion) -> CompletionResponse:
    """The whole answer as text."""
    answer = GrowingAnswer()
    answer.add(Delta(done=done))
    return answer.completion_response()


@dataclass
class GrowingAnswer:
    """An answer as far as it has come. Each response is made of fresh objects, so that a consumer may keep them all."""

    one_tool_call: bool = False
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    invalid_tool_calls: tuple[InvalidToolCall, ...] = ()
    delta: Delta = field(default_factory=Delta)

    def add(self, delta: Delta) -> bool:
        """Takes in the next delta; True if it brought anything to report."""
        self.delta = delta
        if delta.done is not None:
            self.text, self.reasoning = delta.done.text, delta.done.reasoning
            self.tool_calls, self.invalid_tool_calls = delta.done.tool_calls, delta.done.invalid_tool_calls
        else:
            self.text += delta.text
            self.reasoning += delta.reasoning
            self.tool_calls += delta.tool_calls
            self.invalid_tool_calls += delta.invalid_tool_calls
        if self.one_tool_call:
            self.tool_calls = self.tool_calls[:1]
        return bool(delta.text or delta.reasoning or delta.tool_calls or delta.invalid_tool_calls or delta.done)

    def chat_response(self) -> ChatResponse:
        """Cumulative blocks, new text in `delta`; the last one also has usage and reports."""
        extra = _additional(self.delta.done)
        if self.delta.reasoning:
            extra["thinking_delta"] = self.delta.reasoning
        return ChatResponse(
            message=self._message(), delta=self.delta.text, raw=_raw(self.delta.done), additional_kwargs=extra
        )

    def completion_response(self) -> CompletionResponse:
        """Cumulative text, new text in `delta`; the last one also has usage and reports."""
        extra = _additional(self.delta.done)
        if self.reasoning:
            extra["reasoning_content"] = self.reasoning
        return CompletionResponse(
            text=self.text, delta=self.delta.text, raw=_raw(self.delta.done), additional_kwargs=extra
        )

    def _message(self) -> ChatMessage:
        blocks: list[ContentBlock] = []
        if self.reasoning:
            blocks.append(ThinkingBlock(content=self.reasoning, num_tokens=self._reasoning_tokens()))
        blocks.append(TextBlock(text=self.text))
        blocks += [
            ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=dict(call.arguments))
            for call in self.tool_calls
        ]
        extra: dict[str, Any] = {}
        if self.tool_calls:
            extra["tool_calls"] = _openai_calls(self.tool_calls)
        if self.invalid_tool_calls:
            extra["invalid_tool_calls"] = [asdict(call) for call in self.invalid_tool_calls]
        return ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks, additional_kwargs=extra)

    def _reasoning_tokens(self) -> int | None:
        return self.delta.done.usage.reasoning_tokens if self.delta.done else None


def _openai_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """The form that LlamaIndex's streaming helpers look for in additional_kwargs."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
        }
        for call in calls
    ]


def _raw(done: Completion | None) -> dict[str, Any] | None:
    if done is None:
        return None
    usage = done.usage
    return {
        "model": done.model,
        "finish_reason": done.finish_reason,
        "usage": {
            **_totals(usage),
            "prompt_tokens_details": _known(cached_tokens=usage.cached_tokens),
            "completion_tokens_details": _known(reasoning_tokens=usage.reasoning_tokens),
            **_known(cache_creation_tokens=usage.cache_creation_tokens),
        },
        "pinfold": done.report(),
    }


def _additional(done: Completion | None) -> dict[str, Any]:
    if done is None:
        return {}
    usage = done.usage
    return {
        **_totals(usage),
        **_known(cached_tokens=usage.cached_tokens, cache_creation_tokens=usage.cache_creation_tokens),
        "pinfold": done.report(),
    }


def _totals(usage: Usage) -> dict[str, int]:
    return _known(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
    )


def _known(**counts: int | None) -> dict[str, int]:
    """Without what a server did not report: LlamaIndex's counters take a number or nothing."""
    return {name: count for name, count in counts.items() if count is not None}
