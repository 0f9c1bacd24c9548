"""From the engine's thread to the caller's: events of one job, for a thread or for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterator, Iterator

from pinfold.decoding.job import Event, Failed, Finished

__all__ = ["AsyncChannel", "SyncChannel"]


class SyncChannel:
    """A sink whose events one thread iterates over. Failed events are raised."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        self._queue.put(event)

    def events(self) -> Iterator[Event]:
        """The events up to and including Finished."""
        while True:
            event = self._queue.get()
            if isinstance(event, Failed):
                raise event.error
            yield event
            if isinstance(event, Finished):
                return


class AsyncChannel:
    """A sink whose events one task of the running loop iterates over. Failed events are raised."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def put(self, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to read
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def events(self) -> AsyncIterator[Event]:
        """The events up to and including Finished."""
        while True:
            event = await self._queue.get()
            if isinstance(event, Failed):
                raise event.error
            yield event
            if isinstance(event, Finished):
                return
