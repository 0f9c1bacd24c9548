"""LlamaIndex's engines and agents on Pinfold: indexes, chats, function and ReAct agents, a workflow with a handoff."""

from __future__ import annotations

from typing import Any

import llama_index.core
import pytest
from llama_index.core import Document, Settings, SummaryIndex
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index.llms.pinfold import Pinfold
from pinfold import Runtime

# Words that other models' tokenizers count as far fewer tokens than this one's.
FOREIGN = " ".join(f"Größenmaß №{n}: 七つの海を{n * 37}回 θάλασσα." for n in range(48))
RULES = "You keep the harbour's book and answer in a few words. " * 12


def weigh(barrel: int) -> str:
    """Weighs one barrel."""
    return f"{barrel} kg"


class Fixed:
    """A retriever of one passage."""

    def retrieve(self, _: Any) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="Barrel 7 weighs 90 kg."), score=1.0)]

    async def aretrieve(self, query: Any) -> list[NodeWithScore]:
        return self.retrieve(query)


@pytest.fixture(scope="module")
def real(smollm2: str) -> Any:
    with Runtime(smollm2, n_ctx=1024, store="off", draft="off") as rt:
        yield rt


class TestTokens:
    def test_the_models_own_are_counted_unless_others_were_chosen(self, runtime: Any, monkeypatch: Any) -> None:
        llm = Pinfold(runtime=runtime)
        assert Settings.tokenizer("abc") == [97, 98, 99]
        chosen = str.split
        monkeypatch.setattr(llama_index.core, "global_tokenizer", chosen)
        Pinfold(runtime=runtime)
        assert llama_index.core.global_tokenizer is chosen
        assert llm.tokenizer("a") == [97]

    def test_a_servers_tokens_are_not_asked_for(self) -> None:
        Pinfold(base_url="http://127.0.0.1:9/v1")
        assert llama_index.core.global_tokenizer is None

    @pytest.mark.parametrize("mode", ["compact", "tree_summarize", "simple_summarize"])
    def test_no_query_engine_fills_more_than_the_window(self, real: Runtime, monkeypatch: Any, mode: str) -> None:
        llm = Pinfold(runtime=real, max_tokens=2)
        monkeypatch.setattr(Settings, "_llm", llm)
        index = SummaryIndex.from_documents([Document(text=FOREIGN)])
        answer = index.as_query_engine(llm=llm, response_mode=mode, use_async=False).query("What is told here?")
        assert str(answer)


class TestChatEngines:
    @pytest.mark.parametrize("kind", [ContextChatEngine, CondensePlusContextChatEngine])
    def test_a_chat_goes_on_and_streams(self, real: Runtime, kind: Any) -> None:
        llm = Pinfold(runtime=real, max_tokens=8)
        memory = ChatMemoryBuffer.from_defaults(llm=llm)
        engine = kind.from_defaults(retriever=Fixed(), llm=llm, memory=memory, system_prompt=RULES)
        assert engine.chat("How heavy is barrel 7?").response
        streamed = engine.stream_chat("And how heavy are two of them?")
        assert "".join(streamed.response_gen)
        assert len(memory.get_all()) == 4


@pytest.mark.filterwarnings(  # of LlamaIndex's workflows about themselves
    "ignore::pydantic.warnings.PydanticDeprecationWarning",
    "ignore:is_running called from within a step:DeprecationWarning",
)
class TestAgents:
    async def test_a_react_agent_reads_its_tools_from_the_text(self, runtime: Any, answer: Any) -> None:
        first = 'Thought: I need a tool to help me answer the question.\nAction: weigh\nAction Input: {"barrel": 7}'
        last = "Thought: I can answer without using any more tools.\nAnswer: 7 kg"
        runtime.answers = [answer.text(first), answer.text(last)]
        agent = ReActAgent(tools=[weigh], llm=Pinfold(runtime=runtime), streaming=False)
        result = await agent.run("How heavy is barrel 7?")
        assert result.response.content == "7 kg"
        assert "7 kg" in runtime.requests[1].prompt[-1]["content"]

    async def test_several_calls_of_one_answer_are_run(self, runtime: Any, answer: Any) -> None:
        two = answer.call("weigh", barrel=1).tool_calls + answer.call("weigh", "call_2", barrel=2).tool_calls
        runtime.answers = [answer.text(tool_calls=two, finish_reason="tool_calls"), answer.text("Done.")]
        agent = FunctionAgent(tools=[weigh], llm=Pinfold(runtime=runtime), allow_parallel_tool_calls=True)
        assert (await agent.run("Weigh both.")).response.content == "Done."
        assert [message["content"] for message in runtime.requests[1].prompt[-2:]] == ["1 kg", "2 kg"]

    async def test_one_agent_hands_over_to_another(self, runtime: Any, answer: Any) -> None:
        llm = Pinfold(runtime=runtime)
        runtime.answers = [
            answer.call("handoff", to_agent="weigher", reason="it can weigh"),
            answer.call("weigh", barrel=3),
            answer.text("3 kg."),
        ]
        clerk = FunctionAgent(name="clerk", description="Answers.", llm=llm, can_handoff_to=["weigher"], tools=[])
        weigher = FunctionAgent(name="weigher", description="Weighs.", llm=llm, tools=[weigh], system_prompt=RULES)
        workflow = AgentWorkflow(agents=[clerk, weigher], root_agent="clerk")
        result = await workflow.run("How heavy is barrel 3?")
        assert result.response.content == "3 kg."
        assert runtime.requests[2].prompt[0] == {"role": "system", "content": RULES}

    async def test_a_conversation_in_one_memory_reuses_its_turns(self, real: Runtime) -> None:
        llm = Pinfold(runtime=real, max_tokens=8)
        agent = FunctionAgent(tools=[], llm=llm, system_prompt=RULES)
        memory = ChatMemoryBuffer.from_defaults(llm=llm)
        first = await agent.run("How heavy is barrel 7?", memory=memory)
        second = await agent.run("And barrel 8?", memory=memory)
        cached = second.raw["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= first.raw["usage"]["prompt_tokens"]


def test_each_step_of_a_loop_reuses_the_one_before(smollm2: str) -> None:
    """Twenty steps with tool results: each computes what is new in it, and no more."""
    from llama_index.core.tools import FunctionTool

    tools = [FunctionTool.from_defaults(weigh)]
    with Runtime(smollm2, n_ctx=4096, store="off", draft="off") as rt:
        llm = Pinfold(runtime=rt, max_tokens=12)
        messages = [ChatMessage(role="system", content=RULES), ChatMessage(role="user", content="Weigh every barrel.")]
        before = 0
        for step in range(20):
            response = llm.chat_with_tools(tools, chat_history=messages, tool_required=True)
            usage = response.additional_kwargs
            assert usage["cached_tokens"] >= before - 8  # the marks of the turn's end may be written otherwise
            before = usage["prompt_tokens"]
            call = {
                "id": f"c{step}",
                "type": "function",
                "function": {"name": "weigh", "arguments": f'{{"barrel": {step}}}'},
            }
            messages += [
                ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": [call]}),
                ChatMessage(role="tool", content=f"{step} kg", additional_kwargs={"tool_call_id": f"c{step}"}),
            ]
