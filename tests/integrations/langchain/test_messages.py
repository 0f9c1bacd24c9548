"""Messages and tools on their way to the runtime."""

from __future__ import annotations

import pytest
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import tool
from pydantic import BaseModel

from langchain_pinfold.messages import to_runtime_messages
from langchain_pinfold.tools import to_runtime_choice, to_runtime_tools
from pinfold.errors import InvalidRequestError, ToolSchemaError, UnsupportedModeError

MARK = {"type": "ephemeral", "ttl": "5m"}


def test_each_kind_of_message() -> None:
    messages = [
        SystemMessage("Be brief."),
        HumanMessage("Hi", name="ann"),
        AIMessage("", tool_calls=[{"name": "add", "args": {"a": 1}, "id": "c1"}]),
        ToolMessage("3", tool_call_id="c1", name="add"),
        ChatMessage("noted", role="assistant"),
    ]
    assert to_runtime_messages(messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi", "name": "ann"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "3", "name": "add", "tool_call_id": "c1"},
        {"role": "assistant", "content": "noted"},
    ]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "Hi", "cache_control": MARK},
        {"type": "text", "text": "Hi", "extras": {"cache_control": MARK}},
    ],
)
def test_cache_control_of_a_text_block_is_kept(block: dict[str, object]) -> None:
    (message,) = to_runtime_messages([HumanMessage(["Look:", block])])
    assert message["content"] == [
        {"type": "text", "text": "Look:"},
        {"type": "text", "text": "Hi", "cache_control": MARK},
    ]


def test_cache_control_of_a_call_block_goes_to_the_message() -> None:
    block = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}, "cache_control": MARK}
    (message,) = to_runtime_messages([AIMessage([block])])
    assert message["cache_control"] == MARK
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}


def test_calls_in_content_are_not_listed_twice() -> None:
    block = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
    message = AIMessage([block], tool_calls=[{"name": "add", "args": {"a": 1}, "id": "c1"}])
    assert len(to_runtime_messages([message])[0]["tool_calls"]) == 1


@pytest.mark.parametrize(
    "message",
    [
        AIMessage("4", additional_kwargs={"reasoning_content": "2 + 2"}),
        AIMessage([{"type": "thinking", "thinking": "2 + 2", "signature": "x"}, {"type": "text", "text": "4"}]),
        AIMessage([{"type": "reasoning", "reasoning": "2 + 2"}, {"type": "text", "text": "4"}]),
    ],
)
def test_reasoning_in_each_form(message: AIMessage) -> None:
    assert to_runtime_messages([message])[0]["reasoning_content"] == "2 + 2"


def test_an_image_is_refused_by_name() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(UnsupportedModeError, match=r"Message 1 .*'image_url'"):
        to_runtime_messages([HumanMessage("Hi"), HumanMessage([image])])


def test_a_message_that_is_no_turn_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="RemoveMessage"):
        to_runtime_messages([RemoveMessage(id="1")])


def test_unreadable_arguments_of_an_earlier_call_are_refused() -> None:
    block = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":'}
    with pytest.raises(InvalidRequestError, match="'add'"):
        to_runtime_messages([AIMessage([block])])


@tool(extras={"cache_control": MARK})
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Subtract(BaseModel):
    """Subtracts two numbers."""

    a: int
    b: int


def test_tools_in_each_form() -> None:
    anthropic = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}, "cache_control": MARK}
    first, second, third = to_runtime_tools([add, Subtract, anthropic])
    assert first["cache_control"] == MARK
    assert first["function"]["parameters"]["required"] == ["a", "b"]
    assert "cache_control" not in second
    assert second["function"]["description"] == "Subtracts two numbers."
    assert third == {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object"}, "description": "Looks."},
        "cache_control": MARK,
    }
    assert to_runtime_tools([first, second, third]) == [first, second, third]


def test_no_tool_and_a_provider_tool_are_refused() -> None:
    with pytest.raises(ToolSchemaError, match="no tool"):
        to_runtime_tools([{"properties": {}}])
    with pytest.raises(UnsupportedModeError, match="web_search"):
        to_runtime_tools([{"type": "web_search"}])


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, "auto"),
        (False, "auto"),
        ("auto", "auto"),
        ({"type": "auto"}, "auto"),
        ("none", "none"),
        ({"type": "none"}, "none"),
        (True, "required"),
        ("any", "required"),
        ("required", "required"),
        ({"type": "any"}, "required"),
        ("add", "add"),
        ({"type": "function", "function": {"name": "add"}}, "add"),
        ({"type": "tool", "name": "add"}, "add"),
    ],
)
def test_tool_choices(choice: object, expected: str) -> None:
    assert to_runtime_choice(choice, to_runtime_tools([add])) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", ["subtract", {"type": "tool", "name": "subtract"}, {"type": "some"}, {}])
def test_a_choice_that_names_no_tool_is_refused(choice: object) -> None:
    with pytest.raises(InvalidRequestError, match="add"):
        to_runtime_choice(choice, to_runtime_tools([add]))  # type: ignore[arg-type]


def test_strict_is_what_each_tool_says_unless_it_is_said_for_all() -> None:
    own = {"type": "function", "function": {"name": "own", "parameters": {"type": "object"}, "strict": True}}
    said = [tool["function"].get("strict") for tool in to_runtime_tools([add, own])]
    assert said == [None, True]
    assert [tool["function"]["strict"] for tool in to_runtime_tools([add, own], strict=False)] == [False, False]
