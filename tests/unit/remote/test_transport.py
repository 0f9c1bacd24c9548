"""What every request carries beside its body."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from pinfold import Runtime
from tests.support.wire import FakeServer, chat_chunks, sse

Open = Callable[..., Runtime]
HI = [{"role": "user", "content": "Hi"}]


def test_a_balancers_cookie_leads_back_to_its_server(server: FakeServer, opened: Open) -> None:
    rt = opened()
    kind = {"content-type": "text/event-stream"}
    first = httpx.Response(200, headers={**kind, "set-cookie": "replica=7"}, content=sse(chat_chunks("Good day")))
    server.answers(first, sse(chat_chunks("Good day")))
    rt.chat(HI)
    rt.chat(HI)
    assert "cookie" not in server.requests[0].headers
    assert server.requests[1].headers["cookie"] == "replica=7"


def test_what_it_is_and_from_whom(server: FakeServer, opened: Open) -> None:
    rt = opened()
    server.answers(sse(chat_chunks("Good day")))
    rt.chat(HI)
    sent = server.requests[0]
    assert sent.headers["content-type"] == "application/json"
    assert int(sent.headers["content-length"]) == len(sent.content)
    assert sent.headers["host"] == sent.url.netloc.decode()
    assert sent.extensions["timeout"]["connect"] == rt.options.connect_timeout
