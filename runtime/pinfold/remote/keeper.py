"""Computes pins on servers and keeps them warm until their TTL ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pinfold.errors import InvalidRequestError, PinfoldError, StoreError
from pinfold.options import RuntimeOptions
from pinfold.remote.asking import Asked, Prepared, asked_chat, prepare
from pinfold.remote.holding import choose_slot, restore_slot, save_slot, tell_lmcache
from pinfold.remote.pins import RemotePin, RemotePins
from pinfold.remote.replicas import Server
from pinfold.remote.transport import Transport
from pinfold.store.remote_pins import RemotePinFiles

__all__ = ["PinKeeper"]

_log = logging.getLogger("pinfold.remote")
_LOOK_S = 15.0  # between two looks at what is due
_FILLER: Mapping[str, Any] = {"role": "user", "content": "."}  # chat APIs want a last message to answer


class PinKeeper:
    """`hold` runs on a caller's thread, all else on the transport's loop."""

    def __init__(
        self,
        transport: Transport,
        servers: Sequence[Server],
        options: RuntimeOptions,
        pins: RemotePins,
        files: RemotePinFiles | None,
    ) -> None:
        self._transport = transport
        self._servers = servers
        self._options = options
        self._pins = pins
        self._files = files
        self._keeping: concurrent.futures.Future[None] | None = None

    def recall(self) -> None:
        """Takes up the pins that an earlier process made on these servers."""
        for record in self._files.records() if self._files is not None else ():
            pin = self._recalled(record)
            if pin is not None:
                self._pins.add(pin)
                self._keep()

    def hold(self, server: Server, asked: Asked, name: str, ttl: float | None, prompt: Mapping[str, Any]) -> RemotePin:
        """Computes the prefix of `asked` on `server` and keeps it.

        Raises:
            PinfoldError: the server cannot, or fails; nothing is kept.
        """
        pin = RemotePin(name, asked.salt, ttl, prompt, asked.units, asked.tools_unit, server.address.api)
        pin.slot = choose_slot(server, self._pins.live())
        prepared = self._prepared(server, asked, pin)
        self._transport.run(self._compute(server, pin, prepared))
        pin.created = time.time()
        pin.touch()
        self._pins.add(pin)
        self._write(pin)
        self._keep()
        return pin

    def forget(self, pin: RemotePin) -> None:
        """Forgets what was written of `pin`."""
        if self._files is not None:
            self._files.remove(pin.server, pin.name)

    def lost_sight(self, server: Server) -> None:
        """`server` could not be reached: what it held may be gone."""
        for pin in self._pins.live():
            if pin.server == server.address.api and pin.file is not None:
                pin.restore = True

    async def bring_back(self, server: Server, pin: RemotePin) -> bool:
        """Restores `pin` from its file, if that is due; returns whether its slot then is the place to ask."""
        return pin.restore and pin.server == server.address.api and await restore_slot(self._transport, server, pin)

    def _prepared(self, server: Server, asked: Asked, pin: RemotePin) -> Prepared:
        """The request that computes `pin`, which is told its tokens where it is rendered here."""
        if server.rendering is not None:
            prefix = server.rendering.renderer.prefix(pin.prompt["messages"], pin.prompt["tools"])
            if not prefix.tokens:
                msg = f"Nothing of this prompt can be pinned. {prefix.warning or ''}".rstrip()
                raise InvalidRequestError(msg)
            pin.ids, pin.tokens, pin.warning = prefix.tokens, len(prefix.tokens), prefix.warning
        elif asked.messages[-1]["role"] != "user":
            filled = [*pin.prompt["messages"], _FILLER]
            keywords = {"tools": pin.prompt["tools"], "salt": asked.salt, "max_tokens": 1}
            asked = asked_chat(filled, keywords, self._options)
        prepared = prepare(server, asked, self._options, stream=server.facts.streams)
        if pin.ids:
            takes_ids = server.facts.has("token prompts")
            text = server.rendering.tokenizer.decode(pin.ids) if server.rendering is not None else ""
            prepared.body["prompt"] = list(pin.ids) if takes_ids else text
        if pin.slot is not None:
            prepared.body["id_slot"] = pin.slot
        prepared.body["max_tokens"] = 1
        return prepared

    async def _compute(self, server: Server, pin: RemotePin, prepared: Prepared) -> None:
        reply = prepared.reply()

        def take(chunk: Mapping[str, Any]) -> bool:
            reply.take(chunk)
            return reply.begun

        await self._transport.exchange(
            f"{server.address.api}{prepared.path}", prepared.body, take, address=server.address.api
        )
        if pin.tokens is None:
            pin.tokens = reply.reported().prompt_tokens
        pin.warmed, pin.restore = time.time(), False
        await save_slot(self._transport, server, pin)
        if self._options.lmcache is not None and pin.ids:
            warnings: list[str] = []
            await tell_lmcache(self._transport, self._options.lmcache, pin.ids, warnings)
            pin.warning = " ".join([*([pin.warning] if pin.warning else []), *warnings]) or None

    def _keep(self) -> None:
        if self._keeping is None:
            self._keeping = self._transport.submit(self._keep_warm())

    async def _keep_warm(self) -> None:
        pause = min(_LOOK_S, self._options.pin_refresh)
        while True:
            await asyncio.sleep(pause)
            due = time.time() - self._options.pin_refresh
            for pin in self._pins.live():
                server = self._server_of(pin)
                if pin.warmed <= due and server is not None:
                    await self._refresh(server, pin)

    async def _refresh(self, server: Server, pin: RemotePin) -> None:
        try:
            await self.bring_back(server, pin)
            asked = self._asked(pin.prompt, pin.salt)
            prepared = await asyncio.to_thread(self._prepared, server, asked, pin)
            await self._compute(server, pin, prepared)
        except PinfoldError as e:
            pin.warmed = time.time()  # not at once again
            self.lost_sight(server)
            _log.info("The pin %r could not be kept warm: %s", pin.name, e)

    def _server_of(self, pin: RemotePin) -> Server | None:
        return next((server for server in self._servers if server.address.api == pin.server), None)

    def _asked(self, prompt: Mapping[str, Any], salt: str | None) -> Asked:
        keywords = {"tools": prompt["tools"], "salt": salt, "max_tokens": 1}
        return asked_chat(prompt["messages"], keywords, self._options)

    def _recalled(self, record: Mapping[str, Any]) -> RemotePin | None:
        """The pin of a record that another process wrote, None if it is none of ours or over."""
        server = next((s for s in self._servers if s.address.api == record.get("server")), None)
        expires = record.get("expires")
        if server is None or not (expires is None or (isinstance(expires, int | float) and expires > time.time())):
            return None
        try:
            prompt = record["prompt"]
            asked = self._asked({"messages": prompt["messages"], "tools": prompt["tools"]}, record["salt"])
            return RemotePin(
                name=record["name"],
                salt=record["salt"],
                ttl=record["ttl"],
                prompt=prompt,
                units=asked.units,
                tools_unit=asked.tools_unit,
                server=server.address.api,
                ids=tuple(map(int, record["ids"])),
                tokens=record["tokens"],
                created=float(record["created"]),
                expires=expires,
                warmed=time.time(),
                slot=record["slot"],
                file=record["file"],
                restore=record["file"] is not None,
            )
        except (KeyError, TypeError, ValueError, PinfoldError) as e:
            _log.warning("A record of a pin on %s cannot be read and is passed over: %s", server.address.api, e)
            return None

    def _write(self, pin: RemotePin) -> None:
        if self._files is None:
            return
        try:
            self._files.put(pin.record())
        except StoreError as e:
            _log.warning("The pin %r is not remembered after this process: %s", pin.name, e)
