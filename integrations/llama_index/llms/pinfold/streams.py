"""Streaming endpoints whose closing reaches the engine.

LlamaIndex's callback decorators wrap a stream in a generator of their own, and closing that one leaves the wrapped
one to the garbage collector: later at best, and never while a debugging handler keeps the exception. These decorators
keep hold of both and close both.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any

__all__ = ["observed_astream", "observed_stream"]

Callback = Callable[[], Callable[[Callable[..., Any]], Callable[..., Any]]]
AsyncStart = Coroutine[Any, Any, AsyncGenerator[Any, None]]


def observed_stream(callback: Callback) -> Callable[..., Callable[..., Generator[Any, None, None]]]:
    """Turns a generator method into a streaming endpoint with `callback`'s events."""

    def decorate(method: Callable[..., Generator[Any, None, None]]) -> Callable[..., Generator[Any, None, None]]:
        @functools.wraps(method)
        def endpoint(self: Any, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
            source = method(self, *args, **kwargs)
            observed = callback()(lambda *_args, **_kwargs: source)(self, *args, **kwargs)
            return _relay(observed, source)

        return endpoint

    return decorate


def observed_astream(callback: Callback) -> Callable[..., Callable[..., AsyncStart]]:
    """The same for an async generator method; the endpoint is awaited and gives the stream."""

    def decorate(
        method: Callable[..., AsyncGenerator[Any, None]],
    ) -> Callable[..., AsyncStart]:
        @functools.wraps(method)
        async def endpoint(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            source = method(self, *args, **kwargs)

            async def start(*_args: Any, **_kwargs: Any) -> AsyncGenerator[Any, None]:
                return source

            observed = await callback()(start)(self, *args, **kwargs)
            return _arelay(observed, source)

        return endpoint

    return decorate


def _relay(observed: Generator[Any, None, None], source: Generator[Any, None, None]) -> Generator[Any, None, None]:
    try:
        yield from observed
    finally:
        source.close()


async def _arelay(observed: AsyncGenerator[Any, None], source: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    try:
        async for response in observed:
            yield response
    finally:
        await observed.aclose()
        await source.aclose()
