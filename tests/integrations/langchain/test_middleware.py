"""`create_agent` with what LangChain's own middleware, checkpoints and structured answers ask of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    LLMToolSelectorMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    SummarizationMiddleware,
    ToolCallLimitMiddleware,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel

from langchain_pinfold import ChatPinfold, PinfoldPromptCachingMiddleware
from pinfold import Runtime
from pinfold.errors import ContextOverflowError, DecodeError
from pinfold.results import Completion, ToolCall

SYSTEM = "You answer questions about the tides of the harbour. " + "Call a tool when you need a figure. " * 12


@tool
def tide(hour: int) -> str:
    """The height of the tide at an hour."""
    return f"{hour % 6} m"


@tool
def wind(hour: int) -> str:
    """The strength of the wind at an hour."""
    return f"{hour} knots"


class Height(BaseModel):
    """The height found."""

    metres: int


def says(text: str = "", *calls: ToolCall) -> Completion:
    return Completion(text=text, tool_calls=calls, finish_reason="tool_calls" if calls else "stop", model="fake")


def ask(agent: Any, text: str = "How high is the tide?", **config: Any) -> Any:
    return agent.invoke({"messages": [HumanMessage(text)]}, **config)


def test_parallel_calls_are_all_answered(fake: Any) -> None:
    runtime = fake(says("", ToolCall("c1", "tide", {"hour": 3}), ToolCall("c2", "wind", {"hour": 4})), says("Done."))
    messages = ask(create_agent(ChatPinfold(runtime=runtime), [tide, wind]))["messages"]
    assert [message.text for message in messages[2:4]] == ["3 m", "4 knots"]
    assert [message["tool_call_id"] for message in runtime.requests[1]["messages"][-2:]] == ["c1", "c2"]


@pytest.mark.parametrize("form", [Height, ProviderStrategy(Height)])
def test_a_structured_answer_beside_tools(fake: Any, form: Any) -> None:
    runtime = fake(says("", ToolCall("c1", "tide", {"hour": 3})), says('{"metres": 3}'))
    result = ask(create_agent(ChatPinfold(runtime=runtime), [tide], response_format=form))
    assert result["structured_response"] == Height(metres=3)
    request = runtime.requests[0]
    assert [each["function"]["name"] for each in request["tools"]] == ["tide"]
    assert request["response_format"]["json_schema"]["schema"]["properties"].keys() == {"metres"}
    assert request["tool_choice"] == "auto"


def test_a_structured_answer_by_a_tool(fake: Any) -> None:
    runtime = fake(says("", ToolCall("c1", "Height", {"metres": 3})))
    result = ask(create_agent(ChatPinfold(runtime=runtime), [tide], response_format=ToolStrategy(Height)))
    assert result["structured_response"] == Height(metres=3)
    assert runtime.requests[0]["tool_choice"] == "required"


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize("form", [ProviderStrategy(Height), ToolStrategy(Height)])
def test_a_structured_answer_of_the_embedded_model(form: Any) -> None:
    model = ChatPinfold(model="smollm2", n_ctx=2048, max_tokens=64)
    result = ask(create_agent(model, [], response_format=form), "The tide is 4 metres high. How high is it?")
    assert isinstance(result["structured_response"], Height)


def test_the_history_is_summarised(fake: Any) -> None:
    runtime = fake(says("A summary."), says("The answer."))
    model = ChatPinfold(runtime=runtime)
    shorten = SummarizationMiddleware(model, trigger=("messages", 4), keep=("messages", 1))
    history = [HumanMessage("One"), AIMessage("Two"), HumanMessage("Three"), AIMessage("Four"), HumanMessage("Five")]
    messages = create_agent(model, middleware=[shorten]).invoke({"messages": history})["messages"]
    assert "A summary." in messages[0].text
    assert [message.text for message in messages[1:]] == ["Five", "The answer."]


@pytest.mark.usefixtures("embedded")
def test_a_share_of_the_models_window_is_known() -> None:
    model = ChatPinfold(model="smollm2", n_ctx=2048, max_tokens=8)
    shorten = SummarizationMiddleware(model, trigger=("fraction", 0.02), keep=("messages", 1))
    history = [HumanMessage("The wind is strong today. " * 12), AIMessage("Yes."), HumanMessage("Why?")]
    messages = create_agent(model, middleware=[shorten]).invoke({"messages": history})["messages"]
    assert "summary" in messages[0].text.lower()
    assert messages[1].text == "Why?"


def test_failures_are_retried_and_then_fall_back(fake: Any) -> None:
    broken, well = fake(DecodeError("no"), DecodeError("no")), fake(says("Well."))
    model = ChatPinfold(runtime=broken, max_retries=0)
    retry = ModelRetryMiddleware(max_retries=1, retry_on=(DecodeError,), on_failure="error", initial_delay=0.0)
    agent = create_agent(model, middleware=[ModelFallbackMiddleware(ChatPinfold(runtime=well)), retry])
    assert ask(agent)["messages"][-1].text == "Well."
    assert len(broken.requests) == 2


def test_an_overflow_is_the_error_that_agents_know(fake: Any) -> None:
    from langchain_core.exceptions import ContextOverflowError as Overflow

    agent = create_agent(ChatPinfold(runtime=fake(ContextOverflowError(900, 512))))
    with pytest.raises(Overflow, match="900"):
        ask(agent)


def test_a_person_decides_about_a_call(fake: Any) -> None:
    runtime = fake(says("", ToolCall("c1", "tide", {"hour": 3})), says("3 m."))
    agent = create_agent(
        ChatPinfold(runtime=runtime),
        [tide],
        middleware=[HumanInTheLoopMiddleware({"tide": True})],
        checkpointer=InMemorySaver(),
    )
    config = {"configurable": {"thread_id": "1"}}
    assert "__interrupt__" in ask(agent, config=config)
    result = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config=config)
    assert result["messages"][-1].text == "3 m."
    assert runtime.requests[1]["messages"][-1]["content"] == "3 m"


def test_old_results_are_cleared_and_calls_are_limited(fake: Any) -> None:
    calls = [says("", ToolCall(f"c{n}", "tide", {"hour": n})) for n in range(3)]
    runtime = fake(*calls, says("Done."))
    clear = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=1, placeholder="[gone]")])
    agent = create_agent(ChatPinfold(runtime=runtime), [tide], middleware=[clear, ToolCallLimitMiddleware(run_limit=2)])
    ask(agent)
    contents = [each["content"] for each in runtime.requests[-1]["messages"] if each["role"] == "tool"]
    assert contents[0] == "[gone]"
    assert "limit" in contents[-1].lower()


def test_a_model_chooses_the_tools(fake: Any) -> None:
    runtime = fake(says("", ToolCall("s", "ToolSelectionResponse", {"tools": ["wind"]})), says("Strong."))
    select = LLMToolSelectorMiddleware(max_tools=1)
    ask(create_agent(ChatPinfold(runtime=runtime), [tide, wind], middleware=[select]))
    assert [each["function"]["name"] for each in runtime.requests[1]["tools"]] == ["wind"]


def test_a_thread_goes_on_from_its_checkpoint_with_what_was_computed(embedded: Runtime) -> None:
    model = ChatPinfold(model="smollm2", n_ctx=2048, max_tokens=12)
    agent = create_agent(model, system_prompt=SYSTEM, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "harbour"}}
    first = ask(agent, config=config)["messages"][-1].usage_metadata
    second = ask(agent, "And at five?", config=config)["messages"][-1].usage_metadata
    assert second["input_token_details"]["cache_read"] >= first["input_tokens"]
    assert embedded.model == "smollm2"


def test_a_thread_goes_on_after_a_restart(smollm2: str, tmp_path: Path) -> None:
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "harbour"}}
    usages = []
    for question in ("How high is the tide?", "And at five?"):
        with Runtime(smollm2, n_ctx=1024, store=tmp_path / "store", draft="off") as rt:
            model = ChatPinfold(runtime=rt, session="harbour", max_tokens=8)
            agent = create_agent(model, system_prompt=SYSTEM, checkpointer=saver)
            answer = ask(agent, question, config=config)["messages"][-1]
        usages.append((answer.usage_metadata, answer.response_metadata["pinfold"]["cache"]["hit_kind"]))
    (first, _), (second, hit) = usages
    assert hit == "disk"
    assert second["input_token_details"]["cache_read"] >= first["input_tokens"]


def test_each_step_of_a_loop_reuses_the_one_before(smollm2: str) -> None:
    """Twenty steps: each computes what is new in it, and no more."""
    with Runtime(smollm2, n_ctx=4096, store="off", draft="off") as rt:
        model = ChatPinfold(runtime=rt, max_tokens=12).bind_tools([tide, wind], tool_choice="any")
        messages: list[Any] = [SystemMessage(SYSTEM), HumanMessage("Look up every hour.")]
        for step in range(20):
            known = rt.count_tokens(*_as_asked(messages))
            answer = model.invoke(messages)
            assert answer.usage_metadata is not None
            read = answer.usage_metadata["input_token_details"]["cache_read"]
            if step:
                assert read >= before - 4  # noqa: F821 - of the turn's end marks, which the next turn writes otherwise
            before = known  # noqa: F841
            call = {"name": "tide", "args": {"hour": step}, "id": f"c{step}", "type": "tool_call"}
            messages += [AIMessage("", tool_calls=[call]), ToolMessage(f"{step % 6} m", tool_call_id=f"c{step}")]


def _as_asked(messages: list[Any]) -> tuple[Any, Any]:
    from langchain_pinfold.messages import to_runtime_messages
    from langchain_pinfold.tools import to_runtime_tools

    return to_runtime_messages(messages), to_runtime_tools([tide, wind])


def test_the_long_prompt_of_a_deep_agent_is_computed_once(smollm2: str) -> None:
    deepagents = pytest.importorskip("deepagents", reason="deepagents is not installed")
    with Runtime(smollm2, n_ctx=8192, store="off", draft="off") as rt:
        model = ChatPinfold(runtime=rt, max_tokens=8)
        agent = deepagents.create_deep_agent(model=model, tools=[tide], middleware=[PinfoldPromptCachingMiddleware()])
        usages = [ask(agent, question)["messages"][-1].usage_metadata for question in ("How high?", "How low?")]
    assert usages[0]["input_tokens"] > 2000
    assert usages[1]["input_token_details"]["cache_read"] > 0.95 * usages[1]["input_tokens"]
