"""From the thread that answers to the caller's: events of one request, for a thread or for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from pinfold.decoding.job import Event, Failed, Finished

__all__ = ["AsyncChannel", "SyncChannel", "is_finished"]

E = TypeVar("E")


def is_finished(event: Event) -> bool:
    """Whether `event` is the last of a job's."""
    return isinstance(event, Finished)


class SyncChannel(Generic[E]):
    """A sink whose events one thread iterates over. Failed events are raised.

    Args:
        is_last: says of an event whether none follows it.
    """

    def __init__(self, is_last: Callable[[E], bool]) -> None:
        self._queue: queue.SimpleQueue[E | Failed] = queue.SimpleQueue()
        self._is_last = is_last

    def put(self, event: E | Failed) -> None:
        self._queue.put(event)

    def events(self) -> Iterator[E]:
        """The events up to and including the last."""
        while True:
            event = self._queue.get()
            if isinstance(event, Failed):
                raise event.error
            yield event
            if self._is_last(event):
                return


class AsyncChannel(Generic[E]):
    """A sink whose events one task of the running loop iterates over. Failed events are raised."""

    def __init__(self, is_last: Callable[[E], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[E | Failed] = asyncio.Queue()
        self._is_last = is_last

    def put(self, event: E | Failed) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to read
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def events(self) -> AsyncIterator[E]:
        """The events up to and including the last."""
        while True:
            event = await self._queue.get()
            if isinstance(event, Failed):
                raise event.error
            yield event
            if self._is_last(event):
                return
