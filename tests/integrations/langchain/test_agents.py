"""LangChain's agents on the embedded model: the prompt that all turns share is pinned by the middleware."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelCallLimitMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

from langchain_pinfold import ChatPinfold, PinfoldPromptCachingMiddleware
from pinfold import Runtime
from pinfold.errors import InvalidRequestError, UnsupportedModeError
from pinfold.results import Completion, ToolCall

SYSTEM = "You answer questions about the tides of the harbour. " + "Call a tool when you need a figure. " * 4


@tool
def tide(hour: int) -> str:
    """The height of the tide at an hour."""
    return f"{hour % 6} m"


@tool(return_direct=True)
def answer(text: str) -> str:
    """Gives the final answer."""
    return text


class ForcedCalls(AgentMiddleware[Any, Any, Any]):
    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(tool_choice="any"))


def run(model: ChatPinfold, question: str, *middleware: AgentMiddleware[Any, Any, Any]) -> list[Any]:
    agent = create_agent(model, [tide, answer], system_prompt=SYSTEM, middleware=middleware)
    return agent.invoke({"messages": [HumanMessage(question)]})["messages"]  # type: ignore[no-any-return]


def call(name: str, **arguments: Any) -> Completion:
    return Completion(text="", tool_calls=(ToolCall("c1", name, arguments),), finish_reason="tool_calls", model="fake")


def test_an_agent_calls_a_tool_and_answers(fake: Any) -> None:
    runtime = fake(call("tide", hour=3), Completion(text="It is 3 m.", model="fake"))
    messages = run(ChatPinfold(runtime=runtime), "How high is the tide?")
    assert [type(message) for message in messages] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert messages[-1].text == "It is 3 m."
    assert runtime.requests[1]["messages"][-1] == {
        "role": "tool",
        "content": "3 m",
        "name": "tide",
        "tool_call_id": "c1",
    }


def test_the_middleware_marks_the_last_block_and_the_last_tool(fake: Any) -> None:
    runtime = fake(Completion(text="ok", model="fake"))
    run(ChatPinfold(runtime=runtime), "Hi", PinfoldPromptCachingMiddleware(ttl="1h"))
    mark = {"type": "ephemeral", "ttl": "1h"}
    request = runtime.requests[0]
    assert request["messages"][0]["content"] == [{"type": "text", "text": SYSTEM, "cache_control": mark}]
    assert [each.get("cache_control") for each in request["tools"]] == [None, mark]
    assert answer.extras is None


async def test_the_middleware_marks_in_async_runs_too(fake: Any) -> None:
    runtime = fake(Completion(text="ok", model="fake"))
    agent = create_agent(
        ChatPinfold(runtime=runtime),
        [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
        system_prompt=SystemMessage(["Be brief.", {"type": "text", "text": SYSTEM}]),
        middleware=[PinfoldPromptCachingMiddleware()],
    )
    await agent.ainvoke({"messages": [HumanMessage("Hi")]})
    request = runtime.requests[0]
    assert [block.get("cache_control") for block in request["messages"][0]["content"]] == [
        None,
        {"type": "ephemeral", "ttl": "5m"},
    ]
    assert request["tools"][0]["cache_control"] == {"type": "ephemeral", "ttl": "5m"}


def test_the_middleware_waits_for_enough_messages(fake: Any) -> None:
    runtime = fake(call("tide", hour=3), Completion(text="ok", model="fake"))
    run(ChatPinfold(runtime=runtime), "Hi", PinfoldPromptCachingMiddleware(min_messages_to_cache=3))
    first, second = (json.dumps(request["tools"]) for request in runtime.requests)
    assert "cache_control" not in first
    assert "cache_control" in second


def test_the_middleware_on_another_model() -> None:
    def ask(behaviour: Any) -> Any:
        model = GenericFakeChatModel(messages=iter([AIMessage("ok")]))
        middleware = [PinfoldPromptCachingMiddleware(unsupported_model_behavior=behaviour)]
        return create_agent(model, middleware=middleware).invoke({"messages": [HumanMessage("Hi")]})

    with pytest.raises(UnsupportedModeError, match="GenericFakeChatModel"):
        ask("raise")
    with pytest.warns(UserWarning, match="GenericFakeChatModel"):
        assert ask("warn")["messages"][-1].text == "ok"
    assert ask("ignore")["messages"][-1].text == "ok"


def test_the_middleware_refuses_what_it_does_not_have() -> None:
    with pytest.raises(UnsupportedModeError, match="'permanent'"):
        PinfoldPromptCachingMiddleware(type="permanent")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="'soon'"):
        PinfoldPromptCachingMiddleware(ttl="soon")


def test_two_agents_share_one_pin_on_the_embedded_model(embedded: Runtime) -> None:
    model = ChatPinfold(model="smollm2", n_ctx=2048, max_tokens=24)
    before = {pin.name for pin in embedded.pins()}
    middleware = [PinfoldPromptCachingMiddleware(), ForcedCalls(), ModelCallLimitMiddleware(run_limit=2)]
    answers = [
        message
        for question in ("How high is the tide at 3?", "When can the ship leave?")
        for message in run(model, question, *middleware)
        if isinstance(message, AIMessage) and message.usage_metadata
    ]
    pins = [pin for pin in embedded.pins() if pin.name not in before]
    assert pins
    longest = max(pin.tokens for pin in pins)
    assert all(message.tool_calls or message.invalid_tool_calls for message in answers)
    for message in answers[1:]:
        assert message.usage_metadata
        assert message.usage_metadata["input_token_details"]["cache_read"] >= longest
