"""ChatMessages become the runtime's messages, block by block."""

from __future__ import annotations

import pytest
from llama_index.core.base.llms.types import CacheControl, CachePoint, ThinkingBlock, ToolCallBlock
from llama_index.core.llms import ChatMessage, ImageBlock, MessageRole, TextBlock

from llama_index.llms.pinfold.messages import runtime_messages
from pinfold.errors import InvalidRequestError, UnsupportedModeError

PINNED = {"type": "ephemeral", "ttl": "1h"}


def cache_point(ttl: str = "1h") -> CachePoint:
    return CachePoint(cache_control=CacheControl(type="ephemeral", ttl=ttl))


def assistant(*blocks: object, **extra: object) -> ChatMessage:
    return ChatMessage(role="assistant", blocks=list(blocks), additional_kwargs=extra)


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("system", "system"),
        ("developer", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("chatbot", "assistant"),
        ("model", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
    ],
)
def test_every_role_has_a_place(role: str, expected: str) -> None:
    assert runtime_messages([ChatMessage(role=MessageRole(role), content="x")])[0]["role"] == expected


def test_no_role_is_forgotten() -> None:
    assert len(runtime_messages([ChatMessage(role=role, content="x") for role in MessageRole])) == len(MessageRole)


def test_plain_text_stays_a_string_with_blocks_joined_as_llama_index_joins_them() -> None:
    message = ChatMessage(role="user", blocks=[TextBlock(text="a"), TextBlock(text="b")])
    assert runtime_messages([message]) == [{"role": "user", "content": message.content}]


def test_a_message_without_blocks_is_empty_text() -> None:
    assert runtime_messages([ChatMessage(role="user", blocks=[])]) == [{"role": "user", "content": ""}]


def test_a_cache_point_at_the_end_pins_the_whole_message() -> None:
    message = ChatMessage(role="system", blocks=[TextBlock(text="rules"), cache_point()])
    assert runtime_messages([message]) == [{"role": "system", "content": "rules", "cache_control": PINNED}]


def test_a_cache_point_inside_pins_up_to_the_text_before_it() -> None:
    message = ChatMessage(role="user", blocks=[TextBlock(text="book"), cache_point("5m"), TextBlock(text="question")])
    first, second = runtime_messages([message])[0]["content"]
    assert first["text"] == "book"
    assert first["cache_control"] == {"type": "ephemeral", "ttl": "5m"}
    assert second["text"].endswith("question")
    assert "cache_control" not in second


def test_two_cache_points_in_one_message_both_pin() -> None:
    blocks = [TextBlock(text="a"), cache_point("1h"), TextBlock(text="b"), cache_point("5m")]
    (message,) = runtime_messages([ChatMessage(role="user", blocks=blocks)])
    assert message["content"][0]["cache_control"]["ttl"] == "1h"
    assert message["cache_control"]["ttl"] == "5m"


def test_a_cache_point_that_begins_a_message_pins_the_one_before() -> None:
    messages = [
        ChatMessage(role="system", content="rules"),
        ChatMessage(role="user", blocks=[cache_point(), TextBlock(text="hi")]),
    ]
    first, second = runtime_messages(messages)
    assert first["cache_control"] == PINNED
    assert second == {"role": "user", "content": "hi"}


def test_a_cache_point_with_nothing_before_it_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[0\] \(user\).*nothing before it"):
        runtime_messages([ChatMessage(role="user", blocks=[cache_point(), TextBlock(text="hi")])])


def test_a_cache_point_where_no_prefix_ends_is_refused() -> None:
    call = ToolCallBlock(tool_call_id="1", tool_name="f", tool_kwargs={})
    with pytest.raises(InvalidRequestError, match="between thinking or a tool call"):
        runtime_messages([assistant(call, cache_point(), TextBlock(text="x"))])


def test_a_cache_point_after_a_tool_call_pins_the_message() -> None:
    call = ToolCallBlock(tool_call_id="1", tool_name="f", tool_kwargs={})
    assert runtime_messages([assistant(call, cache_point())])[0]["cache_control"] == PINNED


def test_thinking_becomes_reasoning() -> None:
    message = assistant(ThinkingBlock(content="hm"), TextBlock(text="yes"))
    assert runtime_messages([message]) == [{"role": "assistant", "content": "yes", "reasoning_content": "hm"}]


def test_a_tool_call_keeps_its_arguments_as_they_are() -> None:
    blocks = [ToolCallBlock(tool_call_id="c1", tool_name="add", tool_kwargs={"a": 1})]
    legacy = [{"id": "other", "type": "function", "function": {"name": "x", "arguments": "{}"}}]
    (message,) = runtime_messages([assistant(*blocks, tool_calls=legacy)])
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    ]


def test_calls_in_additional_kwargs_are_read_where_there_is_no_block() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    assert runtime_messages([assistant(TextBlock(text=""), tool_calls=calls)])[0]["tool_calls"] == calls


def test_a_tool_result_names_its_call() -> None:
    message = ChatMessage(role="tool", content="3", additional_kwargs={"tool_call_id": "c1", "name": "add"})
    assert runtime_messages([message]) == [{"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"}]


def test_a_block_that_the_model_cannot_read_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModeError, match=r"messages\[0\] \(user\).*'image'"):
        runtime_messages([ChatMessage(role="user", blocks=[ImageBlock(image=b"\x89PNG\r\n\x1a\n0000")])])


def test_the_history_is_not_changed() -> None:
    messages = [
        ChatMessage(role="system", blocks=[TextBlock(text="rules"), cache_point()]),
        ChatMessage(role="user", blocks=[cache_point("5m"), TextBlock(text="hi"), cache_point(), TextBlock(text="!")]),
        assistant(ToolCallBlock(tool_call_id="1", tool_name="f", tool_kwargs={"a": [1]})),
    ]
    before = [message.model_copy(deep=True) for message in messages]
    runtime_messages(messages)
    assert messages == before
