"""What is made of a server's chunks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from pinfold import Runtime
from tests.support.wire import FakeServer, Pieces, chat_chunks, sse

Open = Callable[..., Runtime]
HI = [{"role": "user", "content": "Hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weigh",
            "description": "Weigh a barrel.",
            "parameters": {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]},
        },
    }
]
ARGUMENTS = {"note": 'naïve "quoted" {brace} \u2028 line'}


def call_chunks(cut: Callable[[str], list[str]]) -> list[dict[str, Any]]:
    text = json.dumps(ARGUMENTS, ensure_ascii=False)
    first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weigh", "arguments": ""}}
    made: list[dict[str, Any]] = [{"choices": [{"delta": {"content": "Well. "}, "finish_reason": None}]}]
    made.append({"choices": [{"delta": {"tool_calls": [first]}, "finish_reason": None}]})
    made += [
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}}]}
        for piece in cut(text)
    ]
    return [*made, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}]


def test_a_call_whose_arguments_come_letter_by_letter(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(sse(call_chunks(list)))
    deltas = list(rt.stream(HI, tools=TOOLS))
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert [(call.id, call.name, call.arguments) for call in calls] == [("call_1", "weigh", ARGUMENTS)]
    assert "".join(delta.text for delta in deltas) == "Well. "
    assert deltas[-1].done is not None
    assert deltas[-1].done.finish_reason == "tool_calls"


def test_a_stream_that_is_cut_at_every_byte(server: FakeServer, opened: Open) -> None:
    rt = opened()
    whole = sse(call_chunks(lambda text: [text[:9], text[9:]]))
    for at in range(1, len(whole)):
        server.streams(whole[:at], whole[at:])
        done = rt.chat(HI, tools=TOOLS)
        assert (done.text, [call.arguments for call in done.tool_calls]) == ("Well. ", [ARGUMENTS])


def test_one_byte_at_a_time(server: FakeServer, opened: Open) -> None:
    rt = opened()
    whole = sse(chat_chunks("naïve", " ", "Ω\u2028Ω", usage={"prompt_tokens": 3, "completion_tokens": 3}))
    server.streams(*(whole[i : i + 1] for i in range(len(whole))))
    done = rt.chat(HI)
    assert (done.text, done.usage.prompt_tokens) == ("naïve Ω\u2028Ω", 3)


def test_ten_thousand_tiny_chunks(server: FakeServer, opened: Open) -> None:
    rt = opened()
    words = [f"{n} " for n in range(10_000)]
    server.answers(sse(chat_chunks(*words)))
    deltas = [delta.text for delta in rt.stream(HI)]
    assert "".join(deltas) == "".join(words)
    assert len(deltas) == len(words) + 1


def test_several_calls_some_of_them_malformed(server: FakeServer, opened: Open) -> None:
    rt = opened()
    calls = [
        {"index": 0, "id": "a", "function": {"name": "weigh", "arguments": '{"note": "x"}'}},
        {"index": 1, "id": "b", "function": {"name": "weigh", "arguments": '{"note": '}},
        {"index": 2, "function": {"name": "fly", "arguments": "{}"}},
        {"index": 3, "id": "d", "function": {"name": "weigh", "arguments": {"note": "whole"}}},
        {"index": 4, "id": "e", "function": {"name": "weigh", "arguments": "[1]"}},
    ]
    server.answers(
        sse([{"choices": [{"delta": {"tool_calls": [c]}}]} for c in calls] + [{"choices": [{"finish_reason": "stop"}]}])
    )
    done = rt.chat(HI, tools=TOOLS)
    assert [(call.id, call.arguments) for call in done.tool_calls] == [("a", {"note": "x"}), ("d", {"note": "whole"})]
    assert [call.id for call in done.invalid_tool_calls][::2] == ["b", "e"]
    assert [call.name for call in done.invalid_tool_calls] == ["weigh", "fly", "weigh"]
    assert done.finish_reason == "tool_calls"


def test_calls_that_a_server_leaves_in_the_text_are_read_here(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(
        sse(chat_chunks("Yes. ", '<tool_call>\n{"name": "weigh", "argu', 'ments": {"note": "x"}}</tool_call>'))
    )
    done = rt.chat(HI, tools=TOOLS)
    assert (done.text.strip(), [call.arguments for call in done.tool_calls]) == ("Yes.", [{"note": "x"}])


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_in_its_own_field(server: FakeServer, opened: Open, field: str) -> None:
    rt = opened()
    thought = [{"choices": [{"delta": {field: part}}]} for part in ("Let me ", "think.")]
    details = {"completion_tokens_details": {"reasoning_tokens": 4}}
    server.answers(sse([*thought, *chat_chunks("Yes.", usage={"prompt_tokens": 1, "completion_tokens": 6, **details})]))
    done = rt.chat(HI)
    assert (done.reasoning, done.text, done.usage.reasoning_tokens) == ("Let me think.", "Yes.", 4)


def test_reasoning_in_the_text(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(sse(chat_chunks("<thi", "nk>Hm.</think>Yes.")))
    done = rt.chat(HI)
    assert (done.reasoning, done.text, done.usage.reasoning_tokens) == ("Hm.", "Yes.", None)


def test_a_reply_without_usage_leaves_counts_unknown(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(sse(chat_chunks("Good day")))
    done = rt.chat(HI)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (None, None, None)
    assert (done.cache.hit_kind, done.cache.cached_tokens) == ("unknown", None)
    assert (done.timings.prefill_s, done.timings.decode_tps, done.draft.rounds) == (None, None, None)
    json.dumps(done.report())


@pytest.mark.parametrize(
    ("usage", "last", "cached", "kind"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 7}}, {}, 7, "server"),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, {}, 0, "miss"),
        ({"prompt_tokens_details": None}, {}, None, "unknown"),
        ({"prompt_tokens_details": {"cached_tokens": "7"}}, {}, None, "unknown"),
        ({"prompt_tokens_details": {"cached_tokens": 9000}}, {}, None, "unknown"),
        ({}, {"timings": {"cache_n": 5, "prompt_ms": 20.0}}, 5, "server"),
        ({"skippy.kv.matched_prefix_tokens": 6}, {}, 6, "server"),
    ],
)
def test_cached_tokens_are_the_servers_own(
    server: FakeServer, opened: Open, usage: Any, last: Any, cached: int | None, kind: str
) -> None:
    rt = opened()
    server.answers(sse(chat_chunks("Hm", usage={"prompt_tokens": 9, "completion_tokens": 1, **usage}, **last)))
    done = rt.chat(HI)
    assert (done.usage.cached_tokens, done.cache.cached_tokens, done.cache.hit_kind) == (cached, cached, kind)


def test_drafts_of_the_server_are_reported(server: FakeServer, opened: Open) -> None:
    rt = opened()
    timings = {"draft_n": 12, "draft_n_accepted": 8}
    server.answers(sse(chat_chunks("Hm", usage={"prompt_tokens": 9, "completion_tokens": 9}, timings=timings)))
    draft = rt.chat(HI).draft
    assert (draft.effective, draft.drafted, draft.accepted, draft.rounds) == ("server", 12, 8, None)


def test_leaving_a_stream_closes_its_connection(server: FakeServer, opened: Open) -> None:
    rt = opened()
    body = server.streams(sse(chat_chunks("Good", finish=None), done=False), None)
    deltas = rt.stream(HI)
    assert next(deltas).text == "Good"
    deltas.close()
    rt._backend._transport.run(asyncio.wait_for(body.closed.wait(), 5))


async def test_cancelling_a_task_closes_its_connection(server: FakeServer, opened: Open) -> None:
    rt = await asyncio.to_thread(opened)
    body = server.streams(sse(chat_chunks("Good", finish=None), done=False), None)
    stream = rt.astream(HI)
    assert (await anext(stream)).text == "Good"
    task = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(rt._backend._transport.run, asyncio.wait_for(body.closed.wait(), 5))


def crowd(server: FakeServer) -> None:
    """Each request gets back its own number, in many pieces."""

    def answer(request: httpx.Request) -> httpx.Response:
        number = json.loads(request.content)["messages"][0]["content"]
        whole = sse(chat_chunks(*([f"{number},"] * 50)))
        pieces = [whole[i : i + 97] for i in range(0, len(whole), 97)]
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces(*pieces))

    server.answers(answer)


def test_64_threads_get_their_own_chunks_and_all_of_them(server: FakeServer, opened: Open) -> None:
    rt = opened()
    crowd(server)

    def ask(number: int) -> str:
        return "".join(delta.text for delta in rt.stream([{"role": "user", "content": str(number)}]))

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(ask, range(64))) == [f"{n}," * 50 for n in range(64)]


async def test_64_tasks_get_their_own_chunks_and_all_of_them(server: FakeServer, opened: Open) -> None:
    rt = await asyncio.to_thread(opened)
    crowd(server)

    async def ask(number: int) -> str:
        return "".join([d.text async for d in rt.astream([{"role": "user", "content": str(number)}])])

    assert await asyncio.gather(*map(ask, range(64))) == [f"{n}," * 50 for n in range(64)]


def test_closing_the_runtime_ends_what_runs(server: FakeServer, opened: Open) -> None:
    from pinfold.errors import RuntimeClosedError

    rt = opened()
    server.streams(sse(chat_chunks("Good", finish=None), done=False), None)
    deltas = rt.stream(HI)
    next(deltas)
    rt.close()
    rt.close()
    with pytest.raises(RuntimeClosedError):
        list(deltas)
    with pytest.raises(RuntimeClosedError):
        rt.chat(HI)
    assert rt.closed
