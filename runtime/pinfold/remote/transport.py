"""All connections of one Runtime: one httpx pool on one event loop, on a thread of its own.

Callers' threads and tasks hand coroutines over and read what those leave in a channel, so that a sync and an async
caller share the pool, and closing a request's connection is the same for both.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import httpx
from httpx_sse import EventSource

from pinfold.errors import (
    RequestTimeoutError,
    RuntimeClosedError,
    ServerBusyError,
    ServerReplyError,
    ServerUnreachableError,
)
from pinfold.options import RuntimeOptions
from pinfold.remote.faults import (
    broken_off,
    certificate_fault,
    connection_error,
    excerpt,
    may_retry,
    redacted,
    reply_error,
    retry_after,
)
from pinfold.remote.progress import PassingFault, Progress

__all__ = ["Answered", "Transport"]

T = TypeVar("T")

_LONGEST_WAIT = 60.0  # what a server may ask us to wait before a retry
_FIRST_WAIT, _MOST_WAIT = 0.5, 8.0
_MOST_BYTES = 64 << 20  # of one reply that is not a stream
_ASK_TIMEOUT = 30.0
_READ_OUT = 0.05
_END = "[DONE]"


@dataclass(frozen=True, slots=True)
class Answered:
    """One whole reply. `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    text: str

    def json(self) -> Any:
        """What it holds as JSON; None where it is none, or the status is not 200."""
        if self.status != 200:
            return None
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


class Transport:
    """Safe from any thread; its coroutines run on its own loop."""

    def __init__(self, options: RuntimeOptions, key: str | None, *, secure: bool) -> None:
        self._options = options
        self._key = key
        self._secure = secure
        self._client: httpx.AsyncClient | None = None
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pinfold-remote", daemon=True)
        self._thread.start()

    # --- from other threads

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts `work` on the loop; cancelling the future cancels it there.

        Raises:
            RuntimeClosedError: `close` was called.
        """
        if self._closed:
            work.close()
            msg = "This Runtime is closed. Open a new one."
            raise RuntimeClosedError(msg)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives, waited for on the calling thread, which must not be the loop's."""
        return self.submit(work).result()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Cancels what runs, closes the connections and ends the thread. Calling it twice is fine."""
        if self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _shut_down(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()
        await self._loop.shutdown_default_executor()

    # --- on the loop

    async def ask(self, method: str, url: str, body: Any = None, *, within: float = _ASK_TIMEOUT) -> Answered:
        """One whole reply, of whatever status. It must not matter whether the server hears the question twice.

        Raises:
            ServerError: no connection, none that holds, or no answer within that many seconds.
        """
        try:
            async with asyncio.timeout(within):
                try:
                    return await self._ask_once(method, url, body)
                except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                    # A server may close an idle connection just as it is used again. Once more, on another.
                    return await self._ask_once(method, url, body)
        except TimeoutError as e:
            msg = f"{url} did not answer within {within:g} s. See that the server is well."
            raise ServerUnreachableError(msg) from e
        except httpx.HTTPError as e:
            raise connection_error(url, e) from e

    async def _ask_once(self, method: str, url: str, body: Any) -> Answered:
        async with self._open(method, url, body) as response:
            return Answered(response.status_code, dict(response.headers), await _read(response, url))

    async def exchange(
        self, url: str, body: Mapping[str, Any], take: Callable[[Mapping[str, Any]], bool], *, address: str
    ) -> None:
        """Sends a request and gives each piece of its answer to `take`, which says whether any answer was in it.

        It is sent again where the server was busy or failed before that.

        Raises:
            PinfoldError: as the reply says; the connection failed; the answer broke off or cannot be read.
            RequestTimeoutError: nothing came within the time that options allow for it.
        """
        progress = Progress(take)
        for attempt in range(self._options.retries + 1):
            try:
                await self._exchange_once(url, body, progress, address)
            except PassingFault as e:
                if progress.begun or attempt == self._options.retries:
                    raise e.error from e.__cause__
                await asyncio.sleep(_backoff(attempt) if e.wait is None else e.wait)
            else:
                return

    async def _exchange_once(self, url: str, body: Mapping[str, Any], progress: Progress, address: str) -> None:
        try:
            async with (
                asyncio.timeout(self._options.first_token_timeout) as limit,
                self._open("POST", url, body) as got,
            ):
                if got.status_code != 200:
                    await self._refused(got, address)
                await self._receive(got, progress, limit, address)
        except TimeoutError as e:
            raise RequestTimeoutError(self._late(progress, address)) from e
        except httpx.HTTPError as e:
            error = connection_error(address, e)
            # A server may close an idle connection just as it is used again: a new one is made without a wait.
            wait = 0.0 if isinstance(e, httpx.RemoteProtocolError) else None
            raise error if certificate_fault(e) else PassingFault(error, wait) from e

    async def _receive(self, got: httpx.Response, progress: Progress, limit: asyncio.Timeout, address: str) -> None:
        kind = got.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            self._take(await _read(got, address), progress, address)
            return
        if kind != "text/event-stream":
            text = await _read(got, address)
            msg = f"{address} answered with {kind or 'no content type'}, not with an answer: {excerpt(text)}"
            raise ServerReplyError(redacted(msg, self._key))
        clock, between = self._loop.time, self._options.token_timeout
        events = EventSource(got).aiter_sse()
        async for event in events:
            if event.data == _END:
                await _read_out(events)
                return
            if event.data:
                self._take(event.data, progress, address)
            if progress.begun:
                limit.reschedule(clock() + between)
        if not progress.ended:
            raise PassingFault(broken_off(address, "the stream ended before the answer did"))

    def _take(self, data: str, progress: Progress, address: str) -> None:
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError) as e:
            msg = f"{address} sent what is no JSON: {excerpt(redacted(data, self._key))}"
            raise ServerReplyError(msg) from e
        if not isinstance(chunk, Mapping):
            msg = f"{address} sent {excerpt(redacted(data, self._key))} where a piece of an answer is due."
            raise ServerReplyError(msg)
        if chunk.get("error") or chunk.get("object") == "error":
            error = chunk.get("error")
            code = error.get("code") if isinstance(error, Mapping) else chunk.get("code")
            raise reply_error(address, code if isinstance(code, int) else 500, data, self._key)
        progress.take(chunk)

    async def _refused(self, got: httpx.Response, address: str) -> None:
        error = reply_error(address, got.status_code, await _read(got, address), self._key)
        wait = retry_after(got.headers)
        if not may_retry(got.status_code):
            raise error
        if wait is not None and wait > _LONGEST_WAIT:
            msg = f"{error} It asks to wait {wait:.0f} s."
            raise ServerBusyError(msg)
        raise PassingFault(error, wait)

    def _late(self, progress: Progress, address: str) -> str:
        if progress.begun:
            seconds, what = self._options.token_timeout, "nothing in the middle of an answer"
            remedy = "Raise token_timeout if that is normal"
        else:
            seconds, what = self._options.first_token_timeout, "no token of an answer"
            remedy = "Raise first_token_timeout if it needs longer"
        return f"{address} sent {what} for {seconds:g} s. {remedy}."

    @asynccontextmanager
    async def _open(self, method: str, url: str, body: Any) -> AsyncIterator[httpx.Response]:
        client = self._pool()
        # Made here: the client's own way merges URLs, headers and cookies anew for each, for a tenth of a first token.
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        waits = {"timeout": client.timeout.as_dict()}
        request = httpx.Request(method, _parsed(url), headers=client.headers, content=content, extensions=waits)
        if client.cookies:  # by which a balancer leads a client back to the same server
            client.cookies.set_cookie_header(request)
        response = await client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    def _pool(self) -> httpx.AsyncClient:
        if self._client is None:
            key = {"authorization": f"Bearer {self._key}"} if self._key else {}
            self._client = httpx.AsyncClient(
                headers={"content-type": "application/json", **key},
                timeout=httpx.Timeout(None, connect=self._options.connect_timeout),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=4.0),
                verify=self._secure,  # reading the authorities takes tens of milliseconds, for nothing on plain http
            )
        return self._client


@lru_cache(maxsize=64)
def _parsed(url: str) -> httpx.URL:
    return httpx.URL(url)


async def _read_out(events: AsyncIterator[Any]) -> None:
    """Reads to the end of the body, which makes the connection free for the next request; not for long."""
    with suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(_READ_OUT):
            async for _ in events:
                pass


async def _read(response: httpx.Response, address: str) -> str:
    """A whole body, of a size that a reply can have."""
    data = bytearray()
    async for part in response.aiter_bytes():
        data += part
        if len(data) > _MOST_BYTES:
            msg = f"{address} answered with more than {_MOST_BYTES >> 20} MiB, which no answer has."
            raise ServerReplyError(msg)
    return data.decode(errors="replace")


def _backoff(attempt: int) -> float:
    return min(_MOST_WAIT, _FIRST_WAIT * 2.0**attempt) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
