"""Every way in which a server or the way to it fails."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import httpx
import pytest

from pinfold import Runtime
from pinfold.errors import (
    ContextOverflowError,
    InvalidRequestError,
    ModelNotFoundError,
    PinfoldError,
    RequestTimeoutError,
    ServerBusyError,
    ServerError,
    ServerRefusedError,
    ServerReplyError,
    ServerUnreachableError,
)
from tests.support.wire import FakeServer, chat_chunks, sse

Open = Callable[..., Runtime]
HI = [{"role": "user", "content": "Hi"}]
WHOLE = sse(chat_chunks("Good", " day", usage={"prompt_tokens": 9, "completion_tokens": 2}))


def busy(status: int = 429, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers=headers, json={"error": {"message": "slow down"}})


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(busy(**{"Retry-After": "0"}), id="429"),
        pytest.param(busy(**{"Retry-After": formatdate(0, usegmt=True)}), id="429 until a time that is over"),
        pytest.param(busy(500), id="500"),
        pytest.param(busy(503), id="503"),
        pytest.param(httpx.ConnectError("refused"), id="no connection"),
        pytest.param(httpx.ReadError("reset"), id="reset"),
        pytest.param(httpx.RemoteProtocolError("gone"), id="closed"),
        pytest.param(httpx.Response(200, headers={"content-type": "text/event-stream"}, content=b""), id="empty"),
    ],
)
def test_what_passes_is_asked_again(server: FakeServer, opened: Open, first: Any) -> None:
    rt = opened()
    server.answers(first, WHOLE)
    assert rt.chat(HI).text == "Good day"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (busy(), ServerBusyError, "slow down"),
        (busy(500), ServerError, "answered 500: slow down"),
        (httpx.ConnectError("refused"), ServerUnreachableError, "See that the server runs"),
        (httpx.ReadError("reset"), ServerReplyError, "broke off"),
    ],
)
def test_what_does_not_pass_is_an_error_after_the_last_try(
    server: FakeServer, opened: Open, answer: Any, kind: type[PinfoldError], words: str
) -> None:
    rt = opened(retries=1)
    server.answers(answer)
    with pytest.raises(kind, match=words):
        rt.chat(HI)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (busy(400), InvalidRequestError, "slow down"),
        (busy(401), ServerRefusedError, "api_key"),
        (busy(**{"Retry-After": "3600"}), ServerBusyError, "wait 3600 s"),
        (httpx.Response(404, json={"error": {"message": "no such model"}}), ModelNotFoundError, "no such model"),
        (httpx.Response(200, headers={"content-type": "text/html"}, text="<p>Hello"), ServerReplyError, "text/html"),
        (httpx.Response(200, headers={"content-type": ""}, text="Hello"), ServerReplyError, "Hello"),
        (b"data: {no json}\n\n", ServerReplyError, "no JSON"),
        (b"data: [1]\n\n", ServerReplyError, "where a piece of an answer is due"),
        (b'data: {"choices": [{"delta": {"content": 7}}]}\n\n', ServerReplyError, "content"),
        (b'data: {"choices": [{"delta": {"tool_calls": "x"}}]}\n\n', ServerReplyError, "tool_calls"),
        (b'data: {"error": {"message": "out of memory", "code": 500}}\n\n', ServerError, "out of memory"),
        (b'data: {"object": "error", "message": "bad", "code": 400}\n\n', InvalidRequestError, "bad"),
    ],
)
def test_what_asking_again_would_not_help_is_not_asked_again(
    server: FakeServer, opened: Open, answer: Any, kind: type[PinfoldError], words: str
) -> None:
    rt = opened()
    server.answers(answer)
    with pytest.raises(kind, match=words):
        rt.chat(HI)
    assert len(server.requests) == 1


def test_a_certificate_that_cannot_be_verified(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed"))
    with pytest.raises(ServerUnreachableError, match="SSL_CERT_FILE"):
        rt.chat(HI)
    assert len(server.requests) == 1


@pytest.mark.parametrize("broken", [httpx.ReadError("reset"), b'data: {"choi'])
def test_nothing_is_asked_again_once_an_answer_has_begun(server: FakeServer, opened: Open, broken: Any) -> None:
    rt = opened()
    begun = sse(chat_chunks("Good", finish=None), done=False)
    server.streams(begun, broken)
    deltas = rt.stream(HI)
    assert next(deltas).text == "Good"
    with pytest.raises(ServerReplyError, match="broke off"):
        next(deltas)
    assert len(server.requests) == 1


def test_half_an_event_at_the_end_is_no_answer(server: FakeServer, opened: Open) -> None:
    rt = opened(retries=0)
    server.answers(WHOLE[: WHOLE.index(b"finish_reason", WHOLE.index(b" day") + 40)])
    with pytest.raises(ServerReplyError, match="broke off"):
        rt.chat(HI)


def test_a_stream_without_its_end_mark_is_whole_once_it_gave_a_reason(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(sse(chat_chunks("Good day"), done=False))
    assert rt.chat(HI).text == "Good day"


@pytest.mark.parametrize(
    ("pieces", "words"),
    [((None,), "first_token_timeout"), ((sse(chat_chunks("Good", finish=None), done=False), None), "token_timeout")],
)
def test_a_stream_that_stalls(server: FakeServer, opened: Open, pieces: Any, words: str) -> None:
    rt = opened(first_token_timeout=0.05, token_timeout=0.05)
    body = server.streams(*pieces)
    with pytest.raises(RequestTimeoutError, match=words):
        rt.chat(HI)
    assert body.closed.is_set()  # the connection is gone, so that the server stops
    assert len(server.requests) == 1


def test_a_server_that_holds_the_stream_open_after_its_end(server: FakeServer, opened: Open) -> None:
    rt = opened(token_timeout=30.0)
    body = server.streams(WHOLE, None)
    assert rt.chat(HI, timeout=5.0).text == "Good day"
    assert body.closed.is_set()


def test_a_stream_is_read_out_so_that_its_connection_serves_again(server: FakeServer, opened: Open) -> None:
    rt = opened()
    body = server.streams(WHOLE, b": bye\n\n")
    assert rt.chat(HI).text == "Good day"
    assert body.read_out


def test_a_request_that_takes_longer_than_its_timeout(server: FakeServer, opened: Open) -> None:
    rt = opened()
    body = server.streams(sse(chat_chunks("Good", finish=None), done=False), None)
    with pytest.raises(RequestTimeoutError, match=r"timeout of 0\.05 s"):
        rt.chat(HI, timeout=0.05)
    assert body.closed.is_set()


def test_a_server_that_does_not_stream_after_all(server: FakeServer, opened: Open) -> None:
    rt = opened()
    message = {"role": "assistant", "content": "Good day"}
    server.answers(httpx.Response(200, json={"choices": [{"message": message, "finish_reason": "length"}]}))
    done = rt.chat(HI)
    assert (done.text, done.finish_reason) == ("Good day", "length")


OVERFLOWS = [
    {"error": {"message": "too long", "type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096}},
    {
        "error": {
            "message": "This model's maximum context length is 4096 tokens. However, you requested 5100 tokens "
            "(5000 in the messages, 100 in the completion). Please reduce the length of the messages or completion.",
            "code": "context_length_exceeded",
        }
    },
    {
        "object": "error",
        "message": "This model's maximum context length is 4096 tokens and your request has 5000 input tokens.",
    },
    {"message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096."},
    {"error": {"message": "The input (5000 tokens) is longer than the model's context length (4096 tokens)."}},
]


@pytest.mark.parametrize("words", OVERFLOWS)
def test_a_prompt_that_is_too_long_has_both_numbers(server: FakeServer, opened: Open, words: Any) -> None:
    rt = opened()
    server.answers(httpx.Response(400, json=words))
    with pytest.raises(ContextOverflowError, match="start the server") as caught:
        rt.chat(HI)
    assert (caught.value.prompt_tokens, caught.value.n_ctx) == (5000, 4096)


def test_an_answer_that_does_not_fit_beside_its_prompt_is_no_overflow(server: FakeServer, opened: Open) -> None:
    rt = opened()
    words = (
        "This model's maximum context length is 4096 tokens and your request has 100 input tokens; lower max_tokens."
    )
    server.answers(httpx.Response(400, json={"message": words}))
    with pytest.raises(InvalidRequestError, match="lower max_tokens"):
        rt.chat(HI, max_tokens=4000)


def test_no_server_at_all(opened: Open, router: Any) -> None:
    router.get("http://server.test:8000/v1/models").mock(side_effect=httpx.ConnectError("refused"))
    with pytest.raises(ServerUnreachableError, match=r"server\.test"):
        opened()


def test_an_address_without_such_an_api(opened: Open) -> None:
    with pytest.raises(ServerError, match="ends in /v1"):
        opened("http://server.test:8000")


def test_a_model_that_the_server_does_not_have(server: FakeServer, opened: Open) -> None:
    with pytest.raises(ModelNotFoundError, match="It has: m"):
        opened("another", base_url=server.url)


def test_replies_are_waited_for_no_longer_than_they_ask(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(busy(**{"Retry-After": "0.05"}), WHOLE)
    began = time.perf_counter()
    rt.chat(HI)
    assert time.perf_counter() - began >= 0.05


def test_a_whole_reply_that_is_no_json(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(httpx.Response(200, headers={"content-type": "application/json"}, text=json.dumps({})[:-1]))
    with pytest.raises(ServerReplyError, match="no JSON"):
        rt.chat(HI)
