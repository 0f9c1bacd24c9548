"""The LLM object: its eight endpoints, its settings, its metadata, and what it leaves behind."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import PromptTemplate, Settings
from llama_index.core.base.llms.types import CacheControl, CachePoint, ThinkingBlock, ToolCallBlock
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler, TokenCountingHandler
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatStartEvent,
    LLMCompletionEndEvent,
    LLMCompletionStartEvent,
)
from llama_index.core.llms import ChatMessage, TextBlock

import pinfold
from llama_index.llms.pinfold import Pinfold
from pinfold.errors import ContextOverflowError, InvalidRequestError, UnknownOptionError
from pinfold.options import GenerationOptions, RuntimeOptions
from pinfold.results import ToolCall

HELLO = [ChatMessage(role="user", content="Hello")]


def pickled(llm: Pinfold) -> Pinfold:
    return pickle.loads(pickle.dumps(llm))  # noqa: S301 -- our own bytes


async def every_way(llm: Pinfold, ask: str, *args: Any, **kwargs: Any) -> list[list[Any]]:
    """The responses of the four forms of `ask` ("chat" or "complete"), each as a list."""
    whole = getattr(llm, ask)(*args, **kwargs)
    awhole = await getattr(llm, f"a{ask}")(*args, **kwargs)
    stream = list(getattr(llm, f"stream_{ask}")(*args, **kwargs))
    astream = [response async for response in await getattr(llm, f"astream_{ask}")(*args, **kwargs)]
    return [[whole], [awhole], stream, astream]


async def test_the_four_chats_end_in_the_same_response(llm, runtime, answer) -> None:
    done = answer.text("The answer.", reasoning="hm hm", tool_calls=(ToolCall("c1", "f", {"x": "ä"}),))
    runtime.answers = [done] * 4
    ways = await every_way(llm, "chat", HELLO)
    assert [request.way for request in runtime.requests] == ["chat", "achat", "stream", "astream"]
    assert all(request.prompt == [{"role": "user", "content": "Hello"}] for request in runtime.requests)
    last = [responses[-1] for responses in ways]
    assert all(response.message == last[0].message and response.raw == last[0].raw for response in last)
    assert last[0].message.blocks == [
        ThinkingBlock(content="hm hm", num_tokens=2),
        TextBlock(text="The answer."),
        ToolCallBlock(tool_call_id="c1", tool_name="f", tool_kwargs={"x": "ä"}),
    ]
    assert last[0].message.additional_kwargs["tool_calls"][0]["function"]["arguments"] == '{"x": "ä"}'


async def test_the_four_completions_end_in_the_same_response(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("The answer.")] * 4
    ways = await every_way(llm, "complete", "Hello")
    assert [request.way for request in runtime.requests] == ["chat", "achat", "stream", "astream"]
    assert all(request.prompt == [{"role": "user", "content": "Hello"}] for request in runtime.requests)
    assert {responses[-1].text for responses in ways} == {"The answer."}
    assert all(responses[-1].raw == ways[0][-1].raw for responses in ways)


async def test_a_formatted_completion_goes_in_as_it_is(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("x")] * 4
    await every_way(llm, "complete", "<raw>", formatted=True)
    ways = [request.way for request in runtime.requests]
    assert ways == ["complete", "acomplete", "stream_complete", "astream_complete"]
    assert {request.prompt for request in runtime.requests} == {"<raw>"}


def test_a_stream_is_cumulative_with_new_text_in_delta(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("One two three.", reasoning="hmmmm")] * 2
    chat, text = list(llm.stream_chat(HELLO)), list(llm.stream_complete("Hello"))
    assert "".join(response.delta for response in chat) == "".join(r.delta for r in text) == "One two three."
    assert all(later.message.content.startswith(earlier.message.content) for earlier, later in pairwise(chat))
    assert "".join(response.additional_kwargs.get("thinking_delta", "") for response in chat) == "hmmmm"
    assert [response.raw is not None for response in chat] == [False] * (len(chat) - 1) + [True]
    assert chat[0].message is not chat[1].message
    assert chat[-1].delta == text[-1].delta == ""


def test_usage_is_where_llama_index_and_its_users_look(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("x")]
    response = llm.chat(HELLO)
    assert response.raw["usage"] == {
        "prompt_tokens": 40,
        "completion_tokens": 7,
        "total_tokens": 47,
        "prompt_tokens_details": {"cached_tokens": 30},
        "completion_tokens_details": {"reasoning_tokens": 2},
        "cache_creation_tokens": 5,
    }
    counts = {name: response.additional_kwargs[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert counts == {"prompt_tokens": 40, "completion_tokens": 7, "total_tokens": 47}
    assert response.additional_kwargs["cached_tokens"] == 30
    assert response.additional_kwargs["pinfold"]["cache"]["source"] == "coder"
    assert response.raw["pinfold"] == response.additional_kwargs["pinfold"]
    assert response.raw["finish_reason"] == "stop"


def test_the_token_counting_handler_counts_what_the_engine_counted(runtime, answer) -> None:
    counter = TokenCountingHandler(tokenizer=lambda text: [])
    llm = Pinfold(runtime=runtime, callback_manager=CallbackManager([counter]))
    runtime.answers = [answer.text("x")] * 3
    llm.chat(HELLO)
    llm.complete("x")
    list(llm.stream_chat(HELLO))
    assert (counter.prompt_llm_token_count, counter.completion_llm_token_count) == (120, 21)


async def test_every_endpoint_sends_its_events(llm, runtime, answer, events) -> None:
    runtime.answers = [answer.text("x")] * 8
    await every_way(llm, "chat", HELLO)
    await every_way(llm, "complete", "Hello")
    kinds = [type(event) for event in events]
    for kind in (LLMChatStartEvent, LLMChatEndEvent, LLMCompletionStartEvent, LLMCompletionEndEvent):
        assert kinds.count(kind) == 4, kind


@pytest.mark.parametrize("handlers", [[], [LlamaDebugHandler(print_trace_on_end=False)]], ids=["plain", "debugging"])
async def test_closing_a_stream_stops_the_engine(runtime, answer, handlers) -> None:
    """Even while a debugging handler keeps the exception, and with it LlamaIndex's own generator."""
    llm = Pinfold(runtime=runtime, callback_manager=CallbackManager(handlers))
    for count, ask in enumerate(("stream_chat", "stream_complete"), start=1):
        runtime.answers = [answer.text("One two three.")]
        stream = getattr(llm, ask)(HELLO if ask == "stream_chat" else "Hello")
        next(stream)
        stream.close()
        assert runtime.stopped == count
    for count, ask in enumerate(("astream_chat", "astream_complete"), start=3):
        runtime.answers = [answer.text("One two three.")]
        astream = await getattr(llm, ask)(HELLO if ask == "astream_chat" else "Hello")
        await anext(astream)
        await astream.aclose()
        assert runtime.stopped == count


def test_leaving_a_loop_stops_the_engine(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("One two three.")]
    for _ in llm.stream_chat(HELLO):
        break
    assert runtime.stopped == 1


async def test_an_error_of_the_runtime_comes_through_every_endpoint(llm, runtime) -> None:
    async def drain(stream: Awaitable[Any]) -> None:
        async for _ in await stream:
            pass

    ways: list[Callable[[], Any]] = [
        lambda: llm.chat(HELLO),
        lambda: llm.complete("Hello"),
        lambda: list(llm.stream_chat(HELLO)),
        lambda: list(llm.stream_complete("Hello")),
    ]
    aways = [llm.achat(HELLO), llm.acomplete("x"), drain(llm.astream_chat(HELLO)), drain(llm.astream_complete("x"))]
    runtime.answers = [ContextOverflowError(900, 512) for _ in range(8)]
    for way in ways:
        with pytest.raises(ContextOverflowError, match="900"):
            way()
    for away in aways:
        with pytest.raises(ContextOverflowError, match="900"):
            await away


def test_settings_reach_the_runtime_and_a_call_overrides_them(runtime, answer) -> None:
    runtime.answers = [answer.text("x")]
    llm = Pinfold(runtime=runtime, temperature=0.5, stop="END", seed=3, salt="tenant")
    llm.chat(HELLO, temperature=0.9, max_tokens=5)
    sent = runtime.requests[0].arguments
    assert (sent.pop("salt"), sent.pop("session")) == ("tenant", None)
    expected = GenerationOptions(temperature=0.9, stop=("END",), seed=3, max_tokens=5)
    assert GenerationOptions.parse(sent) == expected


def test_the_defaults_are_those_of_the_runtime() -> None:
    fields = Pinfold.model_fields
    for name, option in GenerationOptions.model_fields.items():
        assert name == "draft" or fields[name].default == option.default, name
    for name in ("engine", "n_ctx", "kv_cells", "draft", "n_threads", "chat_template"):
        assert fields[name].default == RuntimeOptions.model_fields[name].default, name


def test_salt_and_session_of_a_call_override_those_of_the_object(runtime, answer) -> None:
    runtime.answers = [answer.text("x")] * 3
    llm = Pinfold(runtime=runtime, session="task-1", salt="s")
    llm.chat(HELLO)
    llm.chat(HELLO, session="task-2", salt="t")
    llm.chat(HELLO, session=None)
    sent = [(request.arguments["session"], request.arguments["salt"]) for request in runtime.requests]
    assert sent == [("task-1", "s"), ("task-2", "t"), (None, "s")]


def test_how_to_reason_is_asked_of_the_runtime(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("x")] * 2
    llm.chat(HELLO, reasoning="off", reasoning_budget=5)
    llm.complete("x", reasoning="on")
    first, second = (request.arguments for request in runtime.requests)
    assert (first["reasoning"], first["reasoning_budget"]) == ("off", 5)
    assert second["reasoning"] == "on"


def test_response_format_and_raw_text_do_not_go_together(llm) -> None:
    with pytest.raises(InvalidRequestError, match="'response_format' needs a chat"):
        llm.complete("x", formatted=True, response_format={"type": "json_object"})
    with pytest.raises(InvalidRequestError, match="'session' needs a chat"):
        llm.complete("x", formatted=True, session="a")


def test_unknown_options_are_refused_by_name(llm, runtime) -> None:
    with pytest.raises(UnknownOptionError, match=r"'temprature'.*'temperature'"):
        Pinfold("smollm2", temprature=1)
    with pytest.raises(UnknownOptionError, match=r"'temprature'.*'temperature'"):
        llm.chat(HELLO, temprature=1)
    with pytest.raises(UnknownOptionError, match="runtime_options"):
        Pinfold("smollm2", n_gpu_layers=1)
    with pytest.raises(UnknownOptionError, match=r"'n_ctx'.*when Pinfold is made"):
        llm.chat(HELLO, n_ctx=1)
    with pytest.raises(UnknownOptionError, match="'gpu'"):
        Pinfold("smollm2", runtime_options={"gpu": 1})
    assert runtime.requests == []


def test_bad_values_are_refused_before_anything_loads() -> None:
    with pytest.raises(InvalidRequestError, match="temperature"):
        Pinfold("smollm2", temperature=-1)
    with pytest.raises(InvalidRequestError, match="n_ctx"):
        Pinfold("smollm2", n_ctx=1)
    with pytest.raises(InvalidRequestError, match="argument of Pinfold itself"):
        Pinfold("smollm2", runtime_options={"n_ctx": 512})
    with pytest.raises(InvalidRequestError, match="No model was named"):
        Pinfold()


def test_engine_settings_beside_a_runtime_are_refused(runtime) -> None:
    with pytest.raises(InvalidRequestError, match="'n_ctx' was settled"):
        Pinfold(runtime=runtime, n_ctx=4096)


def test_metadata_and_dicts_load_nothing(monkeypatch) -> None:
    monkeypatch.setattr(pinfold, "shared_runtime", lambda *a, **k: pytest.fail("loaded"), raising=False)
    llm = Pinfold(Path("/models/coder.gguf"), n_ctx=2048, max_tokens=100)
    metadata = llm.metadata
    assert (metadata.context_window, metadata.num_output, metadata.model_name) == (2048, 196, "/models/coder.gguf")
    assert metadata.is_chat_model
    assert metadata.is_function_calling_model
    assert Pinfold.from_dict(llm.to_dict()).to_dict() == llm.to_dict()
    assert pickled(llm).to_dict() == llm.to_dict()
    assert "runtime" not in llm.to_dict()


def test_objects_of_equal_settings_ask_for_the_same_shared_runtime(monkeypatch, runtime, answer) -> None:
    asked = []
    shared = lambda model, **options: asked.append((model, options)) or runtime  # noqa: E731
    monkeypatch.setattr(pinfold, "shared_runtime", shared, raising=False)
    runtime.answers = [answer.text("x")] * 2
    Pinfold("smollm2", temperature=1, runtime_options={"n_gpu_layers": 0}).chat(HELLO)
    Pinfold("smollm2", salt="a", runtime_options={"n_gpu_layers": 0}).chat(HELLO)
    assert asked[0] == asked[1]
    assert asked[0][1]["n_gpu_layers"] == 0


def test_the_context_window_is_the_true_one_once_it_is_known(monkeypatch, runtime, answer) -> None:
    monkeypatch.setattr(pinfold, "shared_runtime", lambda *a, **k: runtime, raising=False)
    runtime.answers = [answer.text("x")]
    llm = Pinfold("smollm2", n_ctx=8192)
    assert llm.metadata.context_window == 8192
    llm.chat(HELLO)
    assert llm.metadata.context_window == runtime.n_ctx


def test_copies_share_the_runtime_and_pickles_leave_it_behind(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("x")] * 2
    copy.deepcopy(llm).chat(HELLO)
    llm.model_copy(update={"temperature": 1.0}).chat(HELLO)
    assert len(runtime.requests) == 2
    assert pickled(llm)._runtime.n_ctx is None


def test_predict_goes_through_the_chat_with_the_system_prompt(runtime, answer) -> None:
    runtime.answers = [answer.text("x")] * 2
    Pinfold(runtime=runtime, system_prompt="Be brief.").predict(PromptTemplate("About {x}?"), x="cats")
    assert [message["content"] for message in runtime.requests[0].prompt] == ["Be brief.", "About cats?"]
    Pinfold(runtime=runtime, is_chat_model=False).predict(PromptTemplate("About {x}?"), x="cats")
    assert (runtime.requests[1].way, runtime.requests[1].prompt) == ("complete", "About cats?")


def test_a_base_model_wraps_a_prompt_in_its_own_way(runtime, answer) -> None:
    runtime.answers = [answer.text("x")]
    llm = Pinfold(runtime=runtime, is_chat_model=False, completion_to_prompt=lambda prompt: f"Q: {prompt}\nA:")
    llm.complete("why?")
    assert runtime.requests[0].prompt == "Q: why?\nA:"


def test_pin_translates_messages_and_adds_the_salt(runtime) -> None:
    point = CachePoint(cache_control=CacheControl(type="ephemeral"))
    messages = [ChatMessage(role="system", blocks=[TextBlock(text="rules"), point])]
    Pinfold(runtime=runtime, salt="s").pin(messages, name="coder", ttl="5m")
    (request,) = runtime.requests
    assert request.prompt[0]["content"] == "rules"
    assert request.arguments == {"tools": None, "name": "coder", "ttl": "5m", "salt": "s"}


def test_the_tokenizer_fits_the_settings(llm, monkeypatch) -> None:
    monkeypatch.setattr("llama_index.core.global_tokenizer", None)
    Settings.tokenizer = llm.tokenizer
    assert Settings.tokenizer("ab") == [97, 98]
    Settings.tokenizer = None


async def test_a_cancelled_task_stops_the_stream(llm, runtime, answer) -> None:
    runtime.answers = [answer.text("One two three.")]
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in await llm.astream_chat(HELLO):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(read())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert runtime.stopped == 1
