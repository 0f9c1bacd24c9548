"""Fake servers for the client's tests: replies as bytes, cut and broken as a test wants them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import httpx
import respx

__all__ = ["URL", "FakeServer", "Pieces", "chat_chunks", "sse"]

URL = "http://server.test:8000/v1"
EVENT_STREAM = {"content-type": "text/event-stream"}

Answer = Callable[[httpx.Request], httpx.Response] | httpx.Response | Exception


def sse(chunks: Iterable[Mapping[str, Any]], *, done: bool = True) -> bytes:
    """The bytes of an event stream."""
    events = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks]
    return "".join([*events, "data: [DONE]\n\n" if done else ""]).encode()


def chat_chunks(
    *texts: str, finish: str | None = "stop", usage: Mapping[str, Any] | None = None, **last: Any
) -> list[dict[str, Any]]:
    """The chunks of a chat's answer."""
    made = [{"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}], "model": "m"}]
    made += [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in texts]
    made.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if usage is not None:
        made.append({"choices": [], "usage": dict(usage), **last})
    return made


class Pieces(httpx.AsyncByteStream):
    """A body in pieces; an exception among them is raised there, and None waits until the body is closed."""

    def __init__(self, *pieces: bytes | Exception | None) -> None:
        self._pieces = pieces
        self.closed = asyncio.Event()
        self.read_out = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if piece is None:
                await self.closed.wait()
                return
            if isinstance(piece, Exception):
                raise piece
            yield piece
        self.read_out = True

    async def aclose(self) -> None:
        self.closed.set()


class FakeServer:
    """Routes of one server. `answers` are what its completion paths give, one after another, the last one for good."""

    def __init__(self, router: respx.Router, url: str = URL, *, owner: str = "someone", **entry: Any) -> None:
        self.url = url
        self.root = url.removesuffix("/v1")
        self.requests: list[httpx.Request] = []
        self._answers: list[Answer] = []
        self._router = router
        models = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner, **entry}]}
        self.get("/v1/models", models)
        router.post(f"{url}/chat/completions").mock(side_effect=self._answer)
        router.post(f"{url}/completions").mock(side_effect=self._answer)

    def get(self, path: str, value: Any) -> None:
        """What a GET of `path` gives."""
        self._router.get(f"{self.root}{path}").mock(return_value=httpx.Response(200, json=value))

    def post(self, path: str, answer: Callable[[Any], Any]) -> None:
        """What a POST of JSON to `path` gives."""

        def reply(request: httpx.Request) -> httpx.Response:
            self.requests.append(request)
            value = answer(json.loads(request.content))
            return value if isinstance(value, httpx.Response) else httpx.Response(200, json=value)

        self._router.post(url__startswith=f"{self.root}{path}").mock(side_effect=reply)

    def answers(self, *answers: Answer | bytes) -> None:
        """What requests get from now on; bytes are an event stream."""
        self._answers = [
            httpx.Response(200, headers=EVENT_STREAM, content=a) if isinstance(a, bytes) else a for a in answers
        ]

    def streams(self, *pieces: bytes | Exception | None) -> Pieces:
        """Requests get a body in these pieces; returns that of the next request."""
        body = Pieces(*pieces)
        self._answers = [httpx.Response(200, headers=EVENT_STREAM, stream=body)]
        return body

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What was asked so far."""
        return [json.loads(request.content) for request in self.requests]

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer
