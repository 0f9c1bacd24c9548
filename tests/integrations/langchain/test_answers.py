"""The runtime's answers on their way back: whole and streamed answers are the same message."""

from __future__ import annotations

import json
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, message_chunk_to_message

from langchain_pinfold import ChatPinfold
from pinfold.results import CacheReport, Completion, InvalidToolCall, ToolCall, Usage

USAGE = Usage(prompt_tokens=40, cached_tokens=30, cache_creation_tokens=5, completion_tokens=9, reasoning_tokens=2)
FULL = Completion(
    text="Let me add.",
    reasoning="Hm.",
    tool_calls=(ToolCall("c1", "add", {"a": 1, "b": "ü"}), ToolCall("c2", "add", {"a": 3})),
    finish_reason="tool_calls",
    model="fake",
    usage=USAGE,
    cache=CacheReport(hit_kind="resident", cached_tokens=30, source="coder"),
)
CUT_OFF = InvalidToolCall("c9", "add", '{"a": 1', "cut off at max_tokens")
NO_SUCH_TOOL = InvalidToolCall("c8", None, '{"name": "mul", "arguments": {}}', "no tool of that name")


def streamed(fake: Any, done: Completion, **settings: Any) -> list[AIMessageChunk]:
    return list(ChatPinfold(runtime=fake(done), **settings).stream("Hi"))


def whole(fake: Any, done: Completion, **settings: Any) -> AIMessage:
    return ChatPinfold(runtime=fake(done), **settings).invoke("Hi")


def test_fields_of_a_whole_answer(fake: Any) -> None:
    message = whole(fake, FULL)
    assert message.content == "Let me add."
    assert message.additional_kwargs == {"reasoning_content": "Hm."}
    assert [(call["id"], call["args"]) for call in message.tool_calls] == [("c1", {"a": 1, "b": "ü"}), ("c2", {"a": 3})]
    assert message.usage_metadata == {
        "input_tokens": 40,
        "output_tokens": 9,
        "total_tokens": 49,
        "input_token_details": {"cache_read": 30, "cache_creation": 5},
        "output_token_details": {"reasoning": 2},
    }
    metadata = message.response_metadata
    assert (metadata["model_name"], metadata["model_provider"]) == ("fake", "pinfold")
    assert metadata["finish_reason"] == "tool_calls"
    assert metadata["pinfold"]["cache"]["source"] == "coder"
    json.dumps(metadata)


def test_chunks_add_up_to_the_whole_answer(fake: Any) -> None:
    chunks = streamed(fake, FULL)
    total = message_chunk_to_message(reduce(add, chunks))
    expected = whole(fake, FULL)
    for field in ("content", "additional_kwargs", "tool_calls", "usage_metadata", "response_metadata"):
        assert getattr(total, field) == getattr(expected, field), field


def test_counts_and_reports_are_on_the_last_chunk_only(fake: Any) -> None:
    *others, last = streamed(fake, FULL)
    assert last.chunk_position == "last"
    assert last.usage_metadata
    assert last.response_metadata["pinfold"]["cache"]["hit_kind"] == "resident"
    assert not any(chunk.usage_metadata or chunk.response_metadata or chunk.chunk_position for chunk in others)


def test_each_call_has_an_index_of_its_own(fake: Any) -> None:
    calls = [call for chunk in streamed(fake, FULL) for call in chunk.tool_call_chunks]
    assert [(call["index"], call["id"], call["name"]) for call in calls] == [(0, "c1", "add"), (1, "c2", "add")]


def test_v1_blocks_of_a_stream_are_those_of_the_whole_answer(fake: Any) -> None:
    total = reduce(add, streamed(fake, FULL, output_version="v1"))
    expected = whole(fake, FULL, output_version="v1").content_blocks
    assert [block["type"] for block in total.content_blocks] == ["reasoning", "text", "tool_call", "tool_call"]
    assert [{k: v for k, v in block.items() if k != "index"} for block in total.content_blocks] == expected


@pytest.mark.parametrize("bad", [CUT_OFF, NO_SUCH_TOOL], ids=["cut off", "no such tool"])
def test_an_invalid_call_never_becomes_a_valid_one(fake: Any, bad: InvalidToolCall) -> None:
    done = Completion(text="", invalid_tool_calls=(bad,), finish_reason="length", model="fake")
    total, expected = reduce(add, streamed(fake, done)), whole(fake, done)
    assert total.tool_calls == expected.tool_calls == []
    assert expected.invalid_tool_calls[0]["error"] == bad.error
    assert total.invalid_tool_calls[0]["args"] == expected.invalid_tool_calls[0]["args"]
    assert total.response_metadata["pinfold"]["invalid_tool_calls"][0]["error"] == bad.error


async def test_async_answers_are_the_same(fake: Any) -> None:
    message = await ChatPinfold(runtime=fake(FULL)).ainvoke("Hi")
    chunks = [chunk async for chunk in ChatPinfold(runtime=fake(FULL)).astream("Hi")]
    total = message_chunk_to_message(reduce(add, chunks))
    expected = whole(fake, FULL)
    for field in ("content", "additional_kwargs", "tool_calls", "usage_metadata", "response_metadata"):
        assert getattr(message, field) == getattr(total, field) == getattr(expected, field), field


def test_callbacks_see_each_token(fake: Any) -> None:
    from langchain_core.callbacks import BaseCallbackHandler

    seen: list[str] = []

    class Handler(BaseCallbackHandler):
        def on_llm_new_token(self, token: str, **_: Any) -> None:
            seen.append(token)

    done = Completion(text="abc", model="fake")
    ChatPinfold(runtime=fake(done), streaming=True).invoke("Hi", config={"callbacks": [Handler()]})
    assert "".join(seen) == "abc"
    assert len([token for token in seen if token]) == 3
