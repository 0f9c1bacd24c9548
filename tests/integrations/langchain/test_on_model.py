"""The adapter on the embedded model: reuse, pins, sharing, cancelling, counting."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from langchain_pinfold import ChatPinfold, PinfoldLLM
from langchain_pinfold.errors import ContextOverflowError
from pinfold import Runtime, Script
from pinfold.errors import UnknownOptionError

SETTINGS: dict[str, Any] = {"model": "smollm2", "n_ctx": 2048, "max_tokens": 6}


def harbour(name: str) -> str:
    """A system prompt of some 60 tokens that no other test uses."""
    return f"You keep the log of the harbour of {name}. " + "Ships come in on the tide and are written down. " * 4


def cached(message: AIMessage) -> int:
    assert message.usage_metadata
    return message.usage_metadata["input_token_details"]["cache_read"]


def test_the_second_turn_reuses_the_first() -> None:
    model = ChatPinfold(**SETTINGS)
    history: list[Any] = [SystemMessage(harbour("Ayr")), HumanMessage("Which ship came in?")]
    first = model.invoke(history)
    second = model.invoke([*history, first, HumanMessage("And then?")])
    assert first.usage_metadata
    assert second.usage_metadata
    assert cached(second) >= first.usage_metadata["input_tokens"] - 8
    assert cached(second) < second.usage_metadata["input_tokens"]
    report = second.response_metadata["pinfold"]
    assert report["cache"]["hit_kind"] == "resident"
    assert report["cache"]["cached_tokens"] == cached(second)


def test_instances_share_one_runtime_and_what_it_has_computed(embedded: Runtime) -> None:
    one, other = ChatPinfold(**SETTINGS), ChatPinfold(**SETTINGS, temperature=0.7, seed=1)
    assert one.get_runtime() is other.get_runtime() is embedded
    messages = [SystemMessage(harbour("Bude")), HumanMessage("Hello")]
    asked = one.invoke(messages).usage_metadata
    assert asked
    assert cached(other.invoke(messages)) == asked["input_tokens"] - 1


def test_a_pickled_model_finds_the_same_runtime(embedded: Runtime) -> None:
    model = ChatPinfold(**SETTINGS)
    model.invoke("Hello")
    assert pickle.loads(pickle.dumps(model)).get_runtime() is embedded  # noqa: S301 - made here


def test_another_salt_shares_nothing() -> None:
    messages = [SystemMessage(harbour("Cork")), HumanMessage("Hello")]
    ChatPinfold(**SETTINGS, salt="a").invoke(messages)
    assert cached(ChatPinfold(**SETTINGS, salt="b").invoke(messages)) == 0
    assert cached(ChatPinfold(**SETTINGS, salt="a").invoke(messages)) > 0


def test_cache_control_pins(embedded: Runtime) -> None:
    before = {pin.name for pin in embedded.pins()}
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = SystemMessage([{"type": "text", "text": harbour("Deal"), **mark}])
    model = ChatPinfold(**SETTINGS)
    first = model.invoke([system, HumanMessage("Hello")])
    assert first.usage_metadata
    (new,) = [pin for pin in embedded.pins() if pin.name not in before]
    assert first.usage_metadata["input_token_details"]["cache_creation"] > 0
    assert cached(model.invoke([system, HumanMessage("Quite another question")])) >= new.tokens


def test_pin_takes_langchains_messages(embedded: Runtime) -> None:
    model = ChatPinfold(**SETTINGS)
    pin = model.pin([SystemMessage(harbour("Eyre"))], name="eyre")
    try:
        message = model.invoke([SystemMessage(harbour("Eyre")), HumanMessage("Hello")])
        assert cached(message) >= pin.tokens
    finally:
        embedded.unpin("eyre")


def test_a_session_is_kept_under_its_name(embedded: Runtime) -> None:
    ChatPinfold(**SETTINGS, session="langchain-log").invoke("Hello")
    assert "langchain-log" in {session.name for session in embedded.sessions()}
    embedded.drop_session("langchain-log")


def test_stop_of_the_call_and_of_the_model_both_end_it() -> None:
    model = ChatPinfold(**{**SETTINGS, "max_tokens": 24})
    whole = model.invoke("Count from one to ten in words.").text
    word = whole.split()[2]
    cut = model.invoke("Count from one to ten in words.", stop=[word])
    assert cut.text == whole[: whole.index(word)]
    assert cut.response_metadata["finish_reason"] == "stop"


def test_an_unknown_option_of_a_call_is_refused_by_name() -> None:
    with pytest.raises(UnknownOptionError, match=r"'temprature'.*'temperature'"):
        ChatPinfold(**SETTINGS).invoke("Hello", temprature=1)


def test_a_prompt_past_the_context_is_an_overflow_and_the_next_is_served() -> None:
    model = ChatPinfold(**SETTINGS)
    with pytest.raises(ContextOverflowError) as caught:
        model.invoke("sea " * 3000)
    assert caught.value.n_ctx == 2048
    assert caught.value.prompt_tokens > 2048
    assert model.invoke("Hello").text


def test_leaving_a_stream_stops_the_engine() -> None:
    model = ChatPinfold(**{**SETTINGS, "max_tokens": 1500})
    for index, _ in enumerate(model.stream("Tell me a very long story about the sea.")):
        if index == 2:
            break
    # 1,500 tokens would take many seconds, which this request would spend in the queue or beside it.
    answer = model.invoke("Hello", max_tokens=2, timeout=5.0)
    assert answer.response_metadata["pinfold"]["timings"]["queue_s"] < 2.0


async def test_cancelling_a_task_stops_the_engine() -> None:
    model = ChatPinfold(**{**SETTINGS, "max_tokens": 1500})
    started = asyncio.Event()

    async def read() -> None:
        async for _ in model.astream("Tell me a very long story about the harbour."):
            started.set()

    task = asyncio.create_task(read())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    answer = await model.ainvoke("Hello", max_tokens=2, timeout=5.0)
    assert answer.response_metadata["pinfold"]["timings"]["queue_s"] < 2.0


async def test_the_event_loop_goes_on_during_an_answer() -> None:
    model = ChatPinfold(**{**SETTINGS, "max_tokens": 24})
    await model.ainvoke("Hello", max_tokens=1)
    answer = asyncio.create_task(model.ainvoke("Name five fish."))
    turns = 0
    while not answer.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await answer).text
    assert turns > 100


def test_tokens_are_counted_by_the_models_own_tokenizer() -> None:
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    model = ChatPinfold(**SETTINGS)
    messages: list[Any] = [HumanMessage("How deep is the sea?")]
    asked = model.invoke(messages).usage_metadata
    assert asked
    assert model.get_num_tokens_from_messages(messages) == asked["input_tokens"]
    asked = model.bind_tools([add]).invoke(messages).usage_metadata
    assert asked
    assert model.get_num_tokens_from_messages(messages, [add]) == asked["input_tokens"]
    assert model.get_num_tokens("sea") == len(model.get_token_ids("sea")) == 1


def test_json_mode_gives_an_object() -> None:
    # Free JSON has no end that a grammar could force, so a small model may ramble on: the answer is written beforehand.
    with Runtime(Script(['{"name": "Ann"}'])) as runtime:
        model = ChatPinfold(model="scripted", runtime=runtime)
        answer = model.with_structured_output(None, method="json_mode").invoke("Describe a ship as JSON.")
    assert answer == {"name": "Ann"}


def test_the_llm_goes_on_with_a_text_and_reuses_it() -> None:
    model = PinfoldLLM(**SETTINGS)
    prompt = harbour("Fowey")
    assert model.invoke(prompt)
    assert "".join(model.stream(prompt))
    (generation,) = model.generate([prompt]).generations[0]
    assert generation.text
    assert generation.generation_info
    usage = generation.generation_info["usage_metadata"]
    assert usage["input_token_details"]["cache_read"] == usage["input_tokens"] - 1
