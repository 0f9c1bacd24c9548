"""The client on real servers with a real model."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from pinfold import Runtime
from pinfold.errors import ContextOverflowError
from tests.servers.conftest import Served
from tests.support.servers import llama_server

SYSTEM = {"role": "system", "content": "You are the harbour's clerk and answer in a few words. " * 9}
HI = {"role": "user", "content": "Which barrel is the heaviest?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weigh_barrel",
        "description": "Weigh one barrel.",
        "parameters": {
            "type": "object",
            "properties": {"barrel": {"type": "integer", "minimum": 0, "maximum": 999}},
            "required": ["barrel"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"barrel": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["barrel"],
    "additionalProperties": False,
}


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come to pass")


def test_the_kind_is_found(served: Served) -> None:
    assert served.rt.capabilities.engine == served.kind


def test_a_connection_serves_one_stream_after_another(llama_cpp_python: Served) -> None:
    """Where the server keeps it open: llama-server and mlx_lm.server close it behind each stream."""
    rt = llama_cpp_python.rt
    list(rt.stream([HI], max_tokens=2))
    pool = rt._backend._transport._client._transport._pool
    before = list(pool.connections)
    for _ in range(2):
        list(rt.stream([HI], max_tokens=2))
    assert before
    assert pool.connections == before


def test_a_chat_and_the_same_streamed(served: Served) -> None:
    served.rt.chat([SYSTEM, HI], max_tokens=1)  # both below then begin on the same prefix, and round alike
    whole = served.rt.chat([SYSTEM, HI], max_tokens=12)
    deltas = list(served.rt.stream([SYSTEM, HI], max_tokens=12))
    assert whole.text.strip()
    assert "".join(delta.text for delta in deltas) == whole.text
    assert len(deltas) > 4
    assert whole.finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    assert whole.usage.prompt_tokens is not None
    assert whole.usage.prompt_tokens > 90


async def test_a_chat_by_tasks(served: Served) -> None:
    found = await asyncio.gather(*(served.rt.achat([SYSTEM, HI], max_tokens=6) for _ in range(4)))
    assert len({done.usage.prompt_tokens for done in found}) == 1  # their texts may part: a server's batches round
    assert all(done.text and done.usage.completion_tokens == 6 for done in found)


def test_a_pin_is_cached_by_the_servers_own_count(served: Served) -> None:
    name = f"clerk on {served.kind}"
    system = {"role": "system", "content": SYSTEM["content"] + name}
    pin = served.rt.pin([system], name=name)
    assert pin.tokens is not None
    assert pin.tokens > 90
    done = served.rt.chat([system, HI], max_tokens=4)
    if served.kind == "llama-cpp-python":
        assert (done.cache.hit_kind, done.cache.cached_tokens) == ("unknown", None)
        return
    assert (done.cache.hit_kind, done.cache.source, done.cache.miss) == ("server", name, None)
    assert done.cache.cached_tokens is not None
    assert done.cache.cached_tokens >= pin.tokens - 20


def test_a_stream_that_is_left_stops_the_server(served: Served) -> None:
    deltas = served.rt.stream([SYSTEM, {"role": "user", "content": "Tell me all about the sea."}], max_tokens=1500)
    next(deltas)
    deltas.close()
    done = served.rt.chat([SYSTEM, HI], max_tokens=2)  # 1500 tokens of this model take 15 s and more
    assert done.timings.ttft_s < 8


async def test_a_task_that_is_cancelled_stops_the_server(llama: Served) -> None:
    async with aclosing(llama.rt.astream([SYSTEM, HI], max_tokens=1500)) as deltas:
        await anext(deltas)
    await asyncio.to_thread(wait_for, lambda: not any(slot["is_processing"] for slot in slots(llama)))


def slots(llama: Served) -> list[dict[str, Any]]:
    url = llama.address.removesuffix("/v1") + "/slots"
    with urllib.request.urlopen(url, timeout=10) as reply:  # noqa: S310 - loopback
        found: list[dict[str, Any]] = json.load(reply)
        return found


@pytest.mark.parametrize("choice", ["required", "weigh_barrel"])
@pytest.mark.parametrize("kind", ["llama", "llama_cpp_python"])
def test_a_forced_call(request: pytest.FixtureRequest, kind: str, choice: str) -> None:
    rt = request.getfixturevalue(kind).rt
    done = rt.chat(
        [SYSTEM, {"role": "user", "content": "Weigh barrel 7."}], tools=[TOOL], tool_choice=choice, max_tokens=64
    )
    ((name, barrel),) = [(call.name, call.arguments["barrel"]) for call in done.tool_calls]
    assert name == "weigh_barrel"
    assert 0 <= barrel <= 999
    assert (done.finish_reason, done.text) == ("tool_calls", "")


def test_a_call_and_its_result_in_the_history(served: Served) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weigh_barrel", "arguments": '{"barrel": 7}'}}
    history = [
        SYSTEM,
        {"role": "user", "content": "Weigh barrel 7."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "88 kg"},
    ]
    tools = [] if served.rt.capabilities.mode("own rendering").usable is False else [TOOL]
    assert served.rt.chat(history, tools=tools or None, max_tokens=8).usage.completion_tokens


@pytest.mark.parametrize("kind", ["llama", "llama_messages", "llama_cpp_python"])
def test_an_answer_by_a_schema(request: pytest.FixtureRequest, kind: str) -> None:
    rt = request.getfixturevalue(kind).rt
    response_format = {"type": "json_schema", "json_schema": {"name": "barrel", "schema": SCHEMA}}
    done = rt.chat([SYSTEM, HI], response_format=response_format, max_tokens=60)
    assert set(json.loads(done.text)) == {"barrel"}


@pytest.mark.parametrize("kind", ["llama", "llama_messages", "llama_cpp_python"])
def test_a_prompt_that_does_not_fit(request: pytest.FixtureRequest, kind: str) -> None:
    rt = request.getfixturevalue(kind).rt
    with pytest.raises(ContextOverflowError) as caught:
        rt.chat([{"role": "user", "content": "barrel " * 4000}], max_tokens=4)
    assert caught.value.prompt_tokens > caught.value.n_ctx == 2048


def test_our_rendering_is_the_servers_own(llama: Served, llama_messages: Served) -> None:
    llama.rt.chat([SYSTEM, HI], max_tokens=1)
    ours, theirs = (s.rt.chat([SYSTEM, HI], max_tokens=12) for s in (llama, llama_messages))
    assert (ours.text, ours.usage.prompt_tokens) == (theirs.text, theirs.usage.prompt_tokens)
    assert ours.usage.prompt_tokens == llama.rt.count_tokens([SYSTEM, HI])


def test_where_a_prompt_parted_from_its_pin(llama: Served) -> None:
    llama.rt.pin([SYSTEM, HI], name="asked", ttl="5m")
    other = {"role": "user", "content": "Which ship is the oldest?"}
    miss = llama.rt.chat([SYSTEM, other], max_tokens=2).cache.miss
    llama.rt.unpin("asked")
    assert miss is not None
    assert (miss.pin, miss.kind, miss.where) == ("asked", "message", "message 1 (user)")


def test_the_tokens_are_those_of_the_model_here(llama: Served, smollm2: str) -> None:
    text = "Barrel no. 7, naïve Ω \U0001f30a <|im_start|>"
    with Runtime(smollm2, n_ctx=512) as here:
        assert llama.rt.tokenize(text) == here.tokenize(text)
        assert llama.rt.detokenize(here.tokenize(text)) == here.detokenize(here.tokenize(text))


def test_a_pin_outlives_the_server_in_its_file(gguf: str, tmp_path: Path) -> None:
    files = tmp_path / "slots"
    files.mkdir()
    with llama_server(gguf, files=files) as address, Runtime(address, store="off") as rt:
        pin = rt.pin([SYSTEM], name="clerk")
        (file,) = files.iterdir()
        assert file.name == f"pinfold-{pin.digest[:32]}.bin"
        for n in range(3):  # other prompts take the slots, and the server's own memory of this one is put aside
            rt.chat([{"role": "user", "content": f"{n} barrels " * 100}], max_tokens=2)
        rt._backend._pins.get("clerk").restore = True
        done = rt.chat([SYSTEM, HI], max_tokens=4)
    assert (done.cache.hit_kind, done.cache.source) == ("server", "clerk")
    assert done.cache.cached_tokens is not None
    assert pin.tokens is not None
    assert done.cache.cached_tokens >= pin.tokens - 1
