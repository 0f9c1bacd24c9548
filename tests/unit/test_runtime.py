"""The public surface over the scripted engine: answers, streams, asyncio, pins, sessions, errors, life."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import pinfold
from pinfold import Completion, Delta, Runtime, Script
from pinfold.errors import (
    ContextOverflowError,
    InvalidRequestError,
    PinExpiredError,
    PinNotFoundError,
    RequestTimeoutError,
    RuntimeClosedError,
    ToolSchemaError,
    UnknownOptionError,
    UnsupportedModeError,
)

SYSTEM = {"role": "system", "content": "You are a careful assistant. " * 10}
HELLO = {"role": "user", "content": "Hello"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Finds text.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        },
    }
]


@pytest.fixture
def rt() -> Iterator[Runtime]:
    with Runtime(Script()) as runtime:
        yield runtime


def test_import_needs_no_engine_framework_or_numpy() -> None:
    heavy = "numpy, llama_cpp, llguidance, langchain_core, llama_index, huggingface_hub"
    code = f"import pinfold, sys; print([m for m in {heavy.split(', ')!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_exported_names_exist() -> None:
    assert sorted(pinfold.__all__) == pinfold.__all__
    assert all(hasattr(pinfold, name) for name in pinfold.__all__)


def test_a_stream_adds_up_to_the_whole_answer() -> None:
    reply = 'Let me look.\n<tool_call>\n{"name": "search", "arguments": {"text": "x"}}\n</tool_call>'
    with Runtime(Script([reply])) as rt:
        whole = rt.chat([HELLO], tools=TOOLS)
        deltas = list(rt.stream([HELLO], tools=TOOLS))
    assert whole.text == "Let me look."
    assert [(c.name, c.arguments) for c in whole.tool_calls] == [("search", {"text": "x"})]
    assert whole.finish_reason == "tool_calls"
    done = deltas[-1].done
    assert isinstance(done, Completion)
    assert all(delta.done is None for delta in deltas[:-1])
    assert "".join(delta.text for delta in deltas) == done.text == whole.text
    assert [c for delta in deltas for c in delta.tool_calls] == list(done.tool_calls)
    assert len(deltas) > 5


async def test_asyncio_gives_the_same(rt: Runtime) -> None:
    answers = await asyncio.gather(*(rt.achat([HELLO]) for _ in range(5)))
    streamed: list[Delta] = [delta async for delta in rt.astream([HELLO])]
    raw = await rt.acomplete("Once")
    raw_streamed = [delta async for delta in rt.astream_complete("Once")]
    texts = {a.text for a in answers} | {"".join(d.text for d in streamed)}
    assert texts | {raw.text, "".join(d.text for d in raw_streamed)} == {"This is a scripted answer."}


def test_raw_completions_keep_everything_that_looks_like_markup() -> None:
    with Runtime(Script(["<think>no</think> <tool_call>"])) as rt:
        assert rt.complete("Once").text == "<think>no</think> <tool_call>"
        assert "".join(d.text for d in rt.stream_complete("Once")) == "<think>no</think> <tool_call>"
        assert rt.chat([HELLO]).reasoning == "no"


def test_a_pin_is_reused_by_whoever_begins_with_it(rt: Runtime) -> None:
    pin = rt.pin([SYSTEM], name="coder")
    done = rt.chat([SYSTEM, HELLO])
    assert (done.cache.hit_kind, done.cache.source) == ("resident", "pin 'coder'")
    assert done.usage.cached_tokens == done.cache.cached_tokens >= pin.tokens
    assert done.cache.miss is None
    (listed,) = rt.pins()
    assert (listed.name, listed.hits, listed.resident) == ("coder", 1, True)
    rt.unpin("coder")
    assert rt.pins() == []


def test_a_miss_names_the_message_that_differs(rt: Runtime) -> None:
    pin = rt.pin([SYSTEM, HELLO, {"role": "assistant", "content": "Hi."}], name="coder")
    miss = rt.chat([SYSTEM, {"role": "user", "content": "Help"}]).cache.miss
    assert miss is not None
    assert (miss.pin, miss.kind, miss.where) == ("coder", "message", "message 1 (user)")
    assert miss.lost_tokens == pin.tokens - miss.token


def test_a_miss_names_the_tool_that_differs(rt: Runtime) -> None:
    function = dict(TOOLS[0]["function"], description="Finds words.")  # type: ignore[arg-type]
    rt.pin([SYSTEM], TOOLS, name="coder")
    miss = rt.chat([SYSTEM, HELLO], tools=[{"type": "function", "function": function}]).cache.miss
    assert miss is not None
    assert (miss.kind, miss.where) == ("tool", 'tool "search"')


def test_a_session_on_a_pin_brings_its_messages_and_tools(rt: Runtime) -> None:
    rt.pin([SYSTEM], TOOLS, name="coder", salt="mine")
    with rt.session("task", pin="coder") as session:
        done = session.chat([HELLO])
        assert done.cache.source == "pin 'coder'"
        assert session.chat([SYSTEM, HELLO]).usage.prompt_tokens == done.usage.prompt_tokens
        other = session.fork("task-2")
        assert other.chat([HELLO, {"role": "assistant", "content": done.text}, HELLO]).usage.cached_tokens > 0
    assert [(s.name, s.salt) for s in rt.sessions()] == [("task", "mine"), ("task-2", "mine")]
    session.drop()
    assert [s.name for s in rt.sessions()] == ["task-2"]


def test_cache_control_pins_and_is_counted() -> None:
    marked = {"role": "system", "content": [{"type": "text", "text": SYSTEM["content"]}]}
    marked["content"][0]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}  # type: ignore[index]
    with Runtime(Script()) as rt:
        first = rt.chat([marked, HELLO])
        assert first.usage.cache_creation_tokens > len(SYSTEM["content"])
        second = rt.chat([marked, {"role": "user", "content": "Again"}])
        assert second.usage.cached_tokens >= first.usage.cache_creation_tokens
        assert second.usage.cache_creation_tokens == 0
        (pin,) = rt.pins()
        assert pin.name.startswith("auto:")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"max_token": 5}, UnknownOptionError, "Did you mean 'max_tokens'"),
        ({"temperature": -1}, InvalidRequestError, "temperature"),
        ({"stop": [""]}, InvalidRequestError, "stop"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": "no"}}]}, ToolSchemaError, '"x"'),
        ({"tools": TOOLS, "tool_choice": "serch"}, InvalidRequestError, "search"),
        ({"tool_choice": "required"}, InvalidRequestError, "tool"),
        ({"response_format": {"type": "xml"}}, InvalidRequestError, "json_schema"),
        ({"response_format": {"type": "json_schema"}}, InvalidRequestError, "schema"),
        ({"tools": TOOLS, "parallel_tool_calls": 3}, InvalidRequestError, "parallel_tool_calls"),
    ],
)
def test_a_bad_request_is_refused_by_name_and_the_next_is_served(
    rt: Runtime, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        rt.chat([HELLO], **options)
    with pytest.raises(error, match=says):
        rt.stream([HELLO], **options)
    assert rt.chat([HELLO]).text


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"n_cxt": 512}, UnknownOptionError, "Did you mean 'n_ctx'"),
        ({"n_ctx": 512, "kv_cells": 256}, InvalidRequestError, "cannot hold one request"),
        ({"draft": "eagle"}, InvalidRequestError, "eagle"),
        ({"draft": "model"}, InvalidRequestError, "model:PATH"),
        ({"draft": "dflash:x"}, UnsupportedModeError, "dflash"),
    ],
)
def test_a_bad_option_of_the_runtime_is_refused_by_name(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Runtime(Script(), **options)


def test_an_overflow_has_both_numbers_before_any_work() -> None:
    with Runtime(Script(), n_ctx=256) as rt:
        with pytest.raises(ContextOverflowError) as caught:
            rt.chat([{"role": "user", "content": "x" * 300}])
        assert caught.value.n_ctx == 256
        assert caught.value.prompt_tokens == rt.count_tokens([{"role": "user", "content": "x" * 300}]) > 300
        with pytest.raises(ContextOverflowError):
            rt.pin([{"role": "user", "content": "x" * 300}], name="p")
        assert rt.chat([HELLO]).text


def test_unknown_expired_and_ill_named_pins(rt: Runtime) -> None:
    with pytest.raises(PinNotFoundError, match="nothing"):
        rt.session("s", pin="nothing")
    rt.pin([SYSTEM], name="brief", ttl=0.001)
    threading.Event().wait(0.01)
    with pytest.raises(PinExpiredError, match="brief"):
        rt.session("s", pin="brief")
    with pytest.raises(InvalidRequestError, match="auto:"):
        rt.pin([SYSTEM], name="auto:x")
    with pytest.raises(InvalidRequestError, match="1 to 200"):
        rt.pin([SYSTEM], name="")
    with pytest.raises(InvalidRequestError, match="ttl"):
        rt.pin([SYSTEM], name="p", ttl="soon")


def test_breaking_a_stream_stops_the_engine() -> None:
    with Runtime(Script(["x" * 100_000]), n_ctx=120_000) as rt:
        for delta in rt.stream([HELLO]):
            assert delta.text
            break
        gc.collect()
        with closing(rt.stream([HELLO])) as deltas:
            next(deltas)
        rt._backend.worker.call(lambda manager: None)
        assert not rt._backend.worker._loop.busy


def _wait_until_busy(rt: Runtime) -> None:
    pause = threading.Event()
    while not rt._backend.worker._loop.busy:
        pause.wait(0.001)


async def test_cancelling_a_task_stops_the_engine() -> None:
    with Runtime(Script(["x" * 100_000]), n_ctx=120_000) as rt:
        task = asyncio.create_task(rt.achat([HELLO]))
        await asyncio.to_thread(_wait_until_busy, rt)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(rt._backend.worker.call, lambda manager: None)
        await asyncio.to_thread(rt._backend.worker.call, lambda manager: None)
        assert not rt._backend.worker._loop.busy


def test_a_timeout_ends_a_request_by_name() -> None:
    with Runtime(Script(["x" * 1_000_000]), n_ctx=1_100_000, timeout=0.05) as rt:
        with pytest.raises(RequestTimeoutError, match="longer timeout"):
            rt.chat([HELLO])
        assert rt.chat([HELLO], max_tokens=1, timeout=60).text == "x"


def test_a_closed_runtime_says_so_and_ends_what_runs() -> None:
    rt = Runtime(Script(["x" * 1_000_000]), n_ctx=1_100_000)
    deltas = rt.stream([HELLO])
    next(deltas)
    rt.close()
    with pytest.raises(RuntimeClosedError):
        list(deltas)
    for call in (lambda: rt.chat([HELLO]), rt.pins, lambda: rt.pin([SYSTEM], name="p")):
        with pytest.raises(RuntimeClosedError, match="Open a new one"):
            call()
    rt.close()


def test_a_fault_of_the_engine_itself_fails_the_request_and_not_the_runtime(rt: Runtime) -> None:
    forward = rt._backend.worker.engine.forward

    def broken(spans: Any) -> Any:
        rt._backend.worker.engine.forward = forward  # type: ignore[method-assign]
        msg = "a bug"
        raise ZeroDivisionError(msg)

    rt._backend.worker.engine.forward = broken  # type: ignore[method-assign]
    with pytest.raises(pinfold.errors.EngineError, match="ZeroDivisionError: a bug"):
        rt.chat([HELLO])
    assert rt.chat([HELLO]).text


def test_shared_runtimes_are_one_for_equal_settings() -> None:
    first = pinfold.shared_runtime("scripted", n_ctx=512)
    assert pinfold.shared_runtime("scripted", n_ctx=512) is first
    assert pinfold.shared_runtime("scripted", n_ctx=1024) is not first
    first.close()
    second = pinfold.shared_runtime("scripted", n_ctx=512)
    assert second is not first
    second.close()


def test_a_scripted_call_and_a_script_that_reads_the_prompt() -> None:
    with Runtime(Script([{"name": "search", "arguments": {"text": "é"}}, "done"])) as rt:
        assert rt.chat([HELLO], tools=TOOLS).tool_calls[0].arguments == {"text": "é"}
        assert rt.chat([HELLO], tools=TOOLS, tool_choice="none").text == "done"
    with Runtime(Script(lambda prompt: f"{prompt.count('user')} user")) as rt:
        assert rt.chat([HELLO, {"role": "assistant", "content": "a"}, HELLO]).text == "2 user"


def test_a_forced_call_holds_the_answer_to_the_grammar() -> None:
    with Runtime(Script([{"name": "search", "arguments": {"text": "x"}}])) as rt:
        done = rt.chat([HELLO], tools=TOOLS, tool_choice="search")
        assert done.tool_calls[0].arguments == {"text": "x"}
        assert done.finish_reason == "tool_calls"


def test_markup_that_a_model_writes_is_no_text() -> None:
    with Runtime(Script(["Well<|im_start|>assistant\nthen <b>[1]</b>"])) as rt:
        assert rt.chat([{"role": "user", "content": "Hi"}]).text == "Wellassistant\nthen <b>[1]</b>"
        assert "".join(delta.text for delta in rt.stream([{"role": "user", "content": "Hi"}])) == (
            "Wellassistant\nthen <b>[1]</b>"
        )
