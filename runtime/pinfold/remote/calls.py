"""One request to a server: sent, read, failed over once, reported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import partial
from typing import Any

from pinfold.answer import miss_of
from pinfold.channel import AsyncChannel, SyncChannel
from pinfold.decoding.job import Failed, MissFacts
from pinfold.errors import (
    EngineError,
    PinfoldError,
    RequestTimeoutError,
    RuntimeClosedError,
    ServerBusyError,
    ServerError,
    ServerRefusedError,
)
from pinfold.options import RuntimeOptions
from pinfold.remote.asking import Asked, Prepared, prepare
from pinfold.remote.keeper import PinKeeper
from pinfold.remote.pins import RemotePin, RemotePins, cache_report
from pinfold.remote.replicas import Server
from pinfold.remote.replies import Reply, Reported
from pinfold.remote.transport import Transport
from pinfold.results import CacheReport, Completion, Delta, DraftReport, Timings, Usage
from pinfold.sessions.prefix_tree import common_prefix

__all__ = ["RemoteCall"]

Channel = SyncChannel[Delta] | AsyncChannel[Delta]


class RemoteCall:
    """See `backend.Call`. `servers` are those to try, the first one first."""

    def __init__(
        self,
        transport: Transport,
        servers: Sequence[Server],
        asked: Asked,
        options: RuntimeOptions,
        pins: RemotePins,
        keeper: PinKeeper,
        progress: Callable[[int, int], None] | None,
        finished: Callable[[Server, Completion], None],
    ) -> None:
        self._created = time.perf_counter()
        self._transport = transport
        self._servers = servers
        self._asked = asked
        self._options = options
        self._pins = pins
        self._keeper = keeper
        self._progress = progress
        self._finished = finished
        self._first = self._prepare(servers[0])  # whatever can be refused is refused before anything is sent

    def deltas(self, *, streams: bool) -> Generator[Delta, None, None]:
        channel = SyncChannel(_is_last)
        running = self._start(channel, streams)
        try:
            yield from channel.events()
        finally:
            running.cancel()

    async def adeltas(self, *, streams: bool) -> AsyncGenerator[Delta, None]:
        channel = AsyncChannel(_is_last)
        running = self._start(channel, streams)
        try:
            async for delta in channel.events():
                yield delta
        finally:
            running.cancel()

    def _start(self, channel: Channel, streams: bool) -> Future[None]:
        running = self._transport.submit(self._run(channel, streams))
        running.add_done_callback(partial(_tell, channel))
        return running

    def _prepare(self, server: Server) -> Prepared:
        return prepare(server, self._asked, self._options, stream=server.facts.streams, progress=self._progress)

    async def _run(self, channel: Channel, streams: bool) -> None:
        limit = self._asked.options.timeout
        try:
            async with asyncio.timeout(limit):
                await self._answer(channel, streams)
        except TimeoutError as e:
            if isinstance(e, PinfoldError):
                raise
            msg = f"The request took longer than its timeout of {limit:g} s and was stopped. Raise timeout."
            raise RequestTimeoutError(msg) from e

    async def _answer(self, channel: Channel, streams: bool) -> None:
        """Asks the first server, and if that fails before it answers, the second."""
        notes: list[str] = []
        for server in self._servers[:2]:
            prepared = self._first
            if server is not self._servers[0]:
                prepared = await asyncio.to_thread(self._prepare, server)
            prepared.body["stream"] = streams or prepared.body["stream"]
            reply = prepared.reply()
            try:
                await self._exchange(server, prepared, reply, channel, streams)
            except ServerError as e:
                server.failed()
                self._keeper.lost_sight(server)
                last = server is self._servers[:2][-1]
                if reply.begun or last or isinstance(e, ServerRefusedError):
                    raise
                why = "was too busy" if isinstance(e, ServerBusyError) else "failed"
                notes.append(f"{server.address} {why}; {self._servers[1].address} answered instead.")
                continue
            channel.put(await self._last(server, prepared, reply, notes, streams))
            return

    async def _exchange(
        self, server: Server, prepared: Prepared, reply: Reply, channel: Channel, streams: bool
    ) -> None:
        pin = self._pins.covering(self._asked)
        if pin is not None and await self._keeper.bring_back(server, pin):
            prepared.body["id_slot"] = pin.slot

        def take(chunk: Mapping[str, Any]) -> bool:
            delta = reply.take(chunk)
            if delta is not None and streams:
                channel.put(delta)
            return reply.begun

        url = f"{server.address.api}{prepared.path}"
        await self._transport.exchange(url, prepared.body, take, address=server.address.api)

    async def _last(
        self, server: Server, prepared: Prepared, reply: Reply, notes: Sequence[str], streams: bool
    ) -> Delta:
        parsed, ended = reply.end(), time.perf_counter()
        reported = reply.reported()
        if reported.cached_tokens is not None and not server.facts.has("cached tokens"):
            server.facts = server.facts.with_feature("cached tokens", "yes", "its replies have them")
        cache = await self._cache(server, prepared, reported, (*prepared.notes, *reply.notes, *notes))
        done = _completion(reply, reported, cache, self._asked, ended - self._created, ended, server)
        self._finished(server, done)
        if not streams:
            parsed = reply.whole
        return Delta(parsed.text, parsed.reasoning, parsed.tool_calls, parsed.invalid_tool_calls, done)

    async def _cache(self, server: Server, prepared: Prepared, reported: Reported, notes: Sequence[str]) -> CacheReport:
        pin = self._pins.covering(self._asked)
        report = cache_report(pin, reported.cached_tokens, notes)
        if pin is not None or not prepared.text or server.rendering is None or self._asked.text is not None:
            return report
        near = self._pins.nearest(self._asked.salt)
        if not near:
            return report
        try:
            miss = await asyncio.to_thread(self._miss, server, near)
        except PinfoldError as e:  # the answer stands without it
            return replace(report, notes=(*report.notes, f"Where the prompt parted from the pins is not known: {e}"))
        return replace(report, miss=miss)

    def _miss(self, server: Server, near: Sequence[RemotePin]) -> Any:
        """Where the prompt parted from the pin that shares most with it; None where it shares nothing to speak of."""
        if server.rendering is None:
            return None
        prompt = server.rendering.renderer.render(self._asked.messages, [t.spec for t in self._asked.tools] or None)
        pin = max(near, key=lambda p: common_prefix(p.ids, prompt.tokens))
        shared = common_prefix(pin.ids, prompt.tokens)
        if shared >= len(pin.ids):
            return None
        return miss_of(prompt, MissFacts(pin.name, shared, len(pin.ids), evicted=False))


def _completion(
    reply: Reply, reported: Reported, cache: CacheReport, asked: Asked, took: float, ended: float, server: Server
) -> Completion:
    whole = reply.whole
    called = bool(whole.tool_calls or whole.invalid_tool_calls)
    reason = reply.finish_reason or "stop"
    if called and reason == "stop":
        reason = "tool_calls"
    elif not called and reason == "tool_calls":
        reason = "stop"
    decode_s = ended - reply.first_at if reply.first_at is not None else 0.0
    thought = reported.reasoning_tokens if reported.reasoning_tokens is not None or whole.reasoning else 0
    return Completion(
        text=whole.text,
        reasoning=whole.reasoning,
        tool_calls=whole.tool_calls,
        invalid_tool_calls=whole.invalid_tool_calls,
        finish_reason=reason,
        model=reply.model or server.facts.model,
        usage=Usage(
            prompt_tokens=reported.prompt_tokens,
            cached_tokens=reported.cached_tokens,
            cache_creation_tokens=0,
            completion_tokens=reported.completion_tokens,
            reasoning_tokens=thought,
        ),
        cache=cache,
        draft=_draft(asked, reported),
        timings=_timings(reported, took - decode_s, decode_s),
    )


def _draft(asked: Asked, reported: Reported) -> DraftReport:
    requested = asked.options.draft or "auto"
    if not reported.drafted:
        return DraftReport(requested, "off", "the server decodes and reports no drafts", rounds=None, cost=None)
    accepted = reported.accepted or 0
    sources = {"server": {"drafted": reported.drafted, "accepted": accepted}}
    return DraftReport(requested, "server", "", None, reported.drafted, accepted, None, sources)


def _timings(reported: Reported, ttft_s: float, decode_s: float) -> Timings:
    computed = None
    if reported.prompt_tokens is not None and reported.cached_tokens is not None:
        computed = reported.prompt_tokens - reported.cached_tokens
    steps = None if reported.completion_tokens is None else reported.completion_tokens - 1
    return Timings(
        queue_s=None,
        ttft_s=ttft_s,
        restore_s=None,
        prefill_s=reported.prefill_s,
        decode_s=decode_s,
        prompt_tps=computed / reported.prefill_s if computed is not None and reported.prefill_s else None,
        decode_tps=None if steps is None else steps / decode_s if steps > 0 and decode_s > 0 else 0.0,
    )


def _is_last(delta: Delta) -> bool:
    return delta.done is not None


def _tell(channel: Channel, running: Future[None]) -> None:
    """Passes on why a request ended, if it did not by itself."""
    try:
        error = running.exception()
    except CancelledError:
        msg = "The Runtime was closed, or the request was cancelled."
        channel.put(Failed(RuntimeClosedError(msg)))
        return
    if isinstance(error, PinfoldError):
        channel.put(Failed(error))
    elif error is not None:
        fault = EngineError(f"The answer could not be read: {type(error).__name__}: {error}")
        fault.__cause__ = error
        channel.put(Failed(fault))
