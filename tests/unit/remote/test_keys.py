"""A key is sent to the server and is seen nowhere else."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable

import httpx
import pytest

from pinfold import Runtime
from pinfold.errors import InvalidRequestError, ServerRefusedError
from pinfold.options import RuntimeOptions
from tests.support.wire import URL, FakeServer, chat_chunks, sse

Open = Callable[..., Runtime]
HI = [{"role": "user", "content": "Hi"}]
KEY = "sk-very-secret-4711"


def test_it_is_sent_with_every_request(server: FakeServer, opened: Open) -> None:
    rt = opened(api_key=KEY)
    server.answers(sse(chat_chunks("Good day")))
    rt.chat(HI)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_the_environment_has_one(server: FakeServer, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINFOLD_API_KEY", KEY)
    rt = opened()
    server.answers(sse(chat_chunks("Good day")))
    rt.chat(HI)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_it_is_in_no_error_no_log_and_no_repr(
    server: FakeServer, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    rt = opened(api_key=KEY)
    server.answers(httpx.Response(401, json={"error": {"message": f"Incorrect API key provided: {KEY}"}}))
    with pytest.raises(ServerRefusedError) as caught:
        rt.chat(HI)
    server.answers(httpx.Response(200, headers={"content-type": "text/html"}, text=f"<p>{KEY}"))
    with pytest.raises(Exception, match="text/html") as html:
        rt.chat(HI)
    shown = [str(caught.value), repr(caught.value), str(html.value), repr(rt), repr(rt.options), str(rt.options)]
    assert not [text for text in [*shown, caplog.text, repr(rt.capabilities)] if KEY in text]


def test_it_is_in_no_pickle() -> None:
    options = RuntimeOptions(base_url=URL, api_key=KEY, store_key=b"another secret")
    data = pickle.dumps(options)
    assert KEY.encode() not in data
    assert b"another secret" not in data
    assert pickle.loads(data) == RuntimeOptions(base_url=URL)  # noqa: S301 - it was written above


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://user:sk-very-secret-4711@host/v1", "api_key"),
        ("http://host/v1?key=sk-very-secret-4711", "query"),
        ("http://", "no address"),
        ("http://host:port/v1", "no address"),
        ("ftp://user:sk-very-secret-4711@host/v1", "no address"),
    ],
)
def test_an_address_has_none_in_it(opened: Open, url: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        opened("m", base_url=url)
    assert KEY not in str(caught.value)


def test_a_key_without_a_server_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="api_key goes with a server"):
        Runtime("smollm2", api_key=KEY)
