"""Tools on the way in, calls on the way out, and the settings that force or forbid them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import ChatMessage, ChatResponse
from llama_index.core.tools import FunctionTool

from llama_index.llms.pinfold import NoToolCallError, Pinfold
from pinfold.errors import InvalidRequestError, UnknownOptionError
from pinfold.results import InvalidToolCall, ToolCall


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


ADD = FunctionTool.from_defaults(add)


def two_calls(answer: SimpleNamespace) -> Any:
    calls = (ToolCall("c1", "add", {"a": 1, "b": 2}), ToolCall("c2", "add", {"a": 3, "b": 4}))
    return answer.text(tool_calls=calls, finish_reason="tool_calls")


def test_a_tool_goes_in_with_its_schema_and_its_name_to_the_letter(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("no")]
    llm.chat_with_tools([FunctionTool.from_defaults(add, name="files.add")], user_msg="?")
    (tool,) = runtime.requests[0].arguments["tools"]
    assert tool["function"]["name"] == "files.add"
    assert tool["function"]["parameters"]["required"] == ["a", "b"]
    assert "Adds two numbers" in tool["function"]["description"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "auto"),
        ({"tool_required": True}, "required"),
        ({"tool_choice": "any"}, "required"),
        ({"tool_choice": "required"}, "required"),
        ({"tool_choice": "none"}, "none"),
        ({"tool_choice": "add"}, "add"),
        ({"tool_choice": "add", "tool_required": True}, "add"),
        ({"tool_choice": "auto", "tool_required": True}, "required"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "add"}}},
            {"type": "function", "function": {"name": "add"}},
        ),
    ],
)
def test_the_two_settings_make_one_choice(llm, runtime, answer, settings, expected) -> None:
    runtime.answers = [answer.text("no")]
    llm.chat_with_tools([ADD], user_msg="?", **settings)
    assert runtime.requests[0].arguments["tool_choice"] == expected


def test_settings_that_contradict_each_other_are_refused(llm) -> None:
    with pytest.raises(InvalidRequestError, match="contradict"):
        llm.chat_with_tools([ADD], user_msg="?", tool_choice="none", tool_required=True)
    with pytest.raises(InvalidRequestError, match="no tools were given"):
        llm.chat_with_tools([], user_msg="?", tool_required=True)
    with pytest.raises(InvalidRequestError, match="no tools were given"):
        llm.chat([ChatMessage(content="?")], tool_choice="add")


def test_no_tools_is_a_plain_chat(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("hi")]
    llm.chat_with_tools([], user_msg="?")
    assert not {"tools", "tool_choice"} & set(runtime.requests[0].arguments)


def test_an_unknown_option_is_refused_by_name(llm) -> None:
    with pytest.raises(UnknownOptionError, match="'strict'"):
        llm.chat_with_tools([ADD], user_msg="?", strict=True)
    with pytest.raises(UnknownOptionError, match="'strict'"):
        llm.get_tool_calls_from_response(ChatResponse(message=ChatMessage()), strict=True)


def test_the_history_is_not_changed(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("x")]
    history = [ChatMessage(content="a")]
    llm.chat_with_tools([ADD], user_msg="b", chat_history=history)
    assert [message.content for message in history] == ["a"]
    assert [message["content"] for message in runtime.requests[0].prompt] == ["a", "b"]


def test_one_call_unless_several_are_allowed(llm, runtime, answer) -> None:
    runtime.answers = [two_calls(answer), two_calls(answer)]
    one = llm.chat_with_tools([ADD], user_msg="?")
    two = llm.chat_with_tools([ADD], user_msg="?", allow_parallel_tool_calls=True)
    assert [call.tool_id for call in llm.get_tool_calls_from_response(one)] == ["c1"]
    assert [call.tool_id for call in llm.get_tool_calls_from_response(two)] == ["c1", "c2"]


def test_a_stream_holds_the_same_limit(llm, runtime, answer) -> None:
    runtime.answers = [two_calls(answer)]
    responses = list(llm.stream_chat_with_tools([ADD], user_msg="?"))
    seen = [len(llm.get_tool_calls_from_response(r, error_on_no_tool_call=False)) for r in responses]
    assert max(seen) == seen[-1] == 1


def test_calls_are_readable_on_every_streamed_response(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("I add.", tool_calls=(ToolCall("c1", "add", {"a": 1, "b": 2}),))]
    counts = [
        len(llm.get_tool_calls_from_response(response, error_on_no_tool_call=False))
        for response in llm.stream_chat_with_tools([ADD], user_msg="?")
    ]
    assert counts == [0, 0, 1, 1]


def test_no_call_is_an_error_only_where_one_was_asked_for(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("just text")]
    response = llm.chat_with_tools([ADD], user_msg="?")
    assert llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
    with pytest.raises(NoToolCallError, match=r"just text.*tool_required=True"):
        llm.get_tool_calls_from_response(response)


def test_a_malformed_call_is_reported_and_never_run(llm, runtime, answer) -> None:
    broken = InvalidToolCall("c9", "add", '{"a": 1,', "cut off")
    runtime.answers = [answer.text(invalid_tool_calls=(broken,))]
    response = llm.chat_with_tools([ADD], user_msg="?")
    assert response.message.additional_kwargs["invalid_tool_calls"][0]["error"] == "cut off"
    assert llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
    with pytest.raises(NoToolCallError, match="malformed"):
        llm.get_tool_calls_from_response(response)


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", "null"])
def test_arguments_that_are_no_object_are_never_run(llm, arguments) -> None:
    block = ToolCallBlock(tool_call_id="c1", tool_name="add", tool_kwargs=arguments)
    response = ChatResponse(message=ChatMessage(role="assistant", blocks=[block]))
    with pytest.raises(NoToolCallError, match="malformed"):
        llm.get_tool_calls_from_response(response)


def test_arguments_as_json_text_are_read(llm) -> None:
    block = ToolCallBlock(tool_call_id="c1", tool_name="add", tool_kwargs='{"a": 1, "b": 2}')
    response = ChatResponse(message=ChatMessage(role="assistant", blocks=[block]))
    assert llm.get_tool_calls_from_response(response)[0].tool_kwargs == {"a": 1, "b": 2}


def test_predict_and_call_runs_the_tool(llm, runtime, answer) -> None:
    runtime.answers = [answer.call("add", a=2, b=3)]
    assert llm.predict_and_call([ADD], user_msg="2 + 3?").response == "5"


async def test_apredict_and_call_runs_the_tools(llm, runtime, answer) -> None:
    runtime.answers = [two_calls(answer)]
    output = await llm.apredict_and_call([ADD], user_msg="?", allow_parallel_tool_calls=True)
    assert output.response == "3\n\n7"


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")  # LlamaIndex's workflows
@pytest.mark.parametrize("streaming", [True, False])
async def test_an_agent_calls_a_tool_and_answers(llm: Pinfold, runtime, answer, streaming: bool) -> None:
    runtime.answers = [answer.call("add", a=2, b=3), answer.text("It is 5.")]
    agent = FunctionAgent(tools=[ADD], llm=llm, system_prompt="You add.", streaming=streaming)
    output = await agent.run("2 + 3?")
    assert output.response.content == "It is 5."
    first, second = runtime.requests
    assert first.arguments["tools"] == second.arguments["tools"]
    assert second.prompt[: len(first.prompt)] == first.prompt
    call, result = second.prompt[len(first.prompt) :]
    assert call["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 2, "b": 3}}
    assert result == {"role": "tool", "content": "5", "tool_call_id": "call_1"}
