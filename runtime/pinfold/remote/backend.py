"""A model behind one or several servers. See `pinfold.backend.Backend`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from pinfold.backend import Messages, Tools
from pinfold.engines.base import Capabilities
from pinfold.errors import InvalidRequestError, ServerError, SessionNotFoundError, UnsupportedModeError
from pinfold.keeping import store_root
from pinfold.options import ChatKeywords, CompleteKeywords, RuntimeOptions
from pinfold.prompt.lint import check_prompt
from pinfold.prompt.renderer import PromptRenderer
from pinfold.prompt_check import PromptCheck
from pinfold.remote.address import Address, parse_address
from pinfold.remote.asking import Asked, asked_chat, asked_text
from pinfold.remote.calls import RemoteCall
from pinfold.remote.facts import ServerFacts, capabilities_of
from pinfold.remote.keeper import PinKeeper
from pinfold.remote.own import own_rendering
from pinfold.remote.pins import RemotePins
from pinfold.remote.probe import probe
from pinfold.remote.replicas import Server, ranked
from pinfold.remote.tokenizer import ServerTokenizer
from pinfold.remote.transport import Transport
from pinfold.results import Completion
from pinfold.sessions.manager import SessionInfo
from pinfold.sessions.pins import Pin
from pinfold.sessions.rewrite import FoldReport
from pinfold.store.remote_pins import RemotePinFiles, remote_pins_folder

__all__ = ["RemoteBackend"]

_HERE_ONLY = (
    *("kv_cells", "kv_memory", "kv_resident", "kv", "idle_resident", "idle_memory", "n_threads", "n_gpu_layers"),
    *("prefill_chunk", "max_sequences", "draft_history", "reasoning"),
)
_ANY_SERVER = frozenset({"auto", "server"})


@dataclass(frozen=True, slots=True)
class _Session:
    """What this client knows of a named session: the server keeps its KV like any other prefix."""

    salt: str | None
    tokens: int | None = None


class RemoteBackend:
    """Opens by asking every server what it is; those that do not answer then are taken to be like the others.

    Raises:
        InvalidRequestError: an address is none, or an option is for models in this process.
        ServerError: no server answers.
        ModelNotFoundError: the servers have no such model.
    """

    def __init__(
        self,
        model: str | None,
        urls: Sequence[str],
        options: RuntimeOptions,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        _refuse_local(options)
        addresses = list(dict.fromkeys(parse_address(url) for url in urls))
        key = options.api_key.get_secret_value() if options.api_key else os.environ.get("PINFOLD_API_KEY") or None
        self._options = options
        self._progress = progress
        secure = any(address.root.startswith("https") for address in addresses)
        self._transport = Transport(options, key, secure=secure)
        try:
            self._servers = self._open(addresses, model, key)
            facts = self._servers[0].facts
            self.model = facts.model or str(self._servers[0].address)
            self.n_ctx = self._servers[0].n_ctx(options)
            self._pins = RemotePins()
            self._sessions: dict[tuple[str | None, str], _Session] = {}
            self._lock = Lock()
            root = store_root(options, facts.kind)
            files = None if root is None else RemotePinFiles(remote_pins_folder(root))
            self._keeper = PinKeeper(self._transport, self._servers, options, self._pins, files)
            self._keeper.recall()
        except BaseException:
            self._transport.close()
            raise

    @property
    def capabilities(self) -> Capabilities:
        """What the first server can do, with what its replies taught since."""
        return capabilities_of(self._servers[0].facts, self.n_ctx)

    # --- answers

    def chat(self, messages: Messages, keywords: ChatKeywords) -> RemoteCall:
        return self._call(asked_chat(messages, keywords, self._options))

    def complete(self, prompt: str, keywords: CompleteKeywords) -> RemoteCall:
        return self._call(asked_text(prompt, keywords, self._options))

    # --- pins and sessions

    def pin(self, messages: Messages, tools: Tools, *, name: str, ttl: float | None, salt: str | None) -> Pin:
        asked = asked_chat(messages, {"tools": tools, "salt": salt, "max_tokens": 1}, self._options)
        prompt = {"messages": list(asked.messages), "tools": [tool.spec for tool in asked.tools] or None}
        server = self._ranked(asked)[0]
        return self._keeper.hold(server, asked, name, ttl, prompt).view()

    def pins(self) -> list[Pin]:
        return [pin.view() for pin in self._pins.live()]

    def pin_prompt(self, name: str) -> tuple[Mapping[str, Any], str | None]:
        pin = self._pins.get(name)
        return pin.prompt, pin.salt

    def unpin(self, name: str) -> None:
        self._keeper.forget(self._pins.remove(name))

    def open_session(self, name: str, salt: str | None) -> None:
        with self._lock:
            self._sessions.setdefault((salt, name), _Session(salt))

    def sessions(self) -> list[SessionInfo]:
        with self._lock:
            known = list(self._sessions.items())
        return [SessionInfo(name, held.tokens, held.salt, "server") for (_, name), held in known]

    def fork_session(self, name: str, new_name: str, salt: str | None) -> None:
        with self._lock:
            held = self._held(name, salt)
            if (salt, new_name) in self._sessions:
                msg = f"There is a session {new_name!r} already. Choose another name, or drop it first."
                raise InvalidRequestError(msg)
            self._sessions[salt, new_name] = held

    def drop_session(self, name: str, salt: str | None) -> None:
        with self._lock:
            self._held(name, salt)
            del self._sessions[salt, name]

    def refold(self, name: str, preset: str, salt: str | None) -> FoldReport:  # noqa: ARG002 - the contract's
        msg = f"refold: the KV is the server's, at {self._servers[0].address}. Only models in this process are folded."
        raise UnsupportedModeError(msg)

    def requantize(self, name: str, kv_resident: str, salt: str | None) -> str:  # noqa: ARG002 - the contract's
        msg = f"requantize: the KV is the server's, at {self._servers[0].address}. Start it with other KV types."
        raise UnsupportedModeError(msg)

    # --- tokens

    def tokenize(self, text: str) -> list[int]:
        return self._tokenizer().encode(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        return self._tokenizer().decode(tokens)

    def count_tokens(self, messages: Messages, tools: Tools) -> int:
        return len(self._renderer("count_tokens").render(messages, tools).tokens)

    def check_prompt(self, messages: Messages, tools: Tools, other: tuple[Messages, Tools] | None) -> PromptCheck:
        return check_prompt(self._renderer("check_prompt"), messages, tools, other)

    # --- life

    @property
    def closed(self) -> bool:
        return self._transport.closed

    def close(self) -> None:
        self._transport.close()

    def _open(self, addresses: Sequence[Address], model: str | None, key: str | None) -> list[Server]:
        found = self._transport.run(_probe_all(self._transport, addresses, model, key))
        known = next((facts for facts in found if isinstance(facts, ServerFacts)), None)
        if known is None:
            raise next(error for error in found if isinstance(error, BaseException))
        servers = []
        for address, answer in zip(addresses, found, strict=True):
            facts = answer if isinstance(answer, ServerFacts) else replace(known, address=address.api)
            rendering, facts = own_rendering(self._transport, address, facts, self._options)
            servers.append(Server(address, facts, rendering))
            if not isinstance(answer, ServerFacts):
                servers[-1].failed()
        return sorted(servers, key=lambda server: server.rests)

    def _call(self, asked: Asked) -> RemoteCall:
        if asked.session is not None:
            self.open_session(asked.session, asked.salt)

        def finished(server: Server, done: Completion) -> None:  # noqa: ARG001 - which server it was is in the notes
            if asked.session is not None and done.usage.total_tokens is not None:
                with self._lock:
                    self._sessions[asked.salt, asked.session] = _Session(asked.salt, done.usage.total_tokens)

        return RemoteCall(
            self._transport,
            self._ranked(asked),
            asked,
            self._options,
            self._pins,
            self._keeper,
            self._progress,
            finished,
        )

    def _ranked(self, asked: Asked) -> list[Server]:
        """The servers for `asked`: all that begins with one pin, is of one session or has one first message stays
        together."""
        if len(self._servers) == 1:
            return self._servers
        pin = self._pins.covering(asked)
        beginning = asked.units[0] if asked.units else (asked.text or "")[:1000]
        key = pin.digest if pin is not None else asked.session or f"{asked.tools_unit}\0{beginning}"
        order = ranked(self._servers, key)
        if pin is not None:
            order.sort(key=lambda server: (server.rests, server.address.api != pin.server))
        return order

    def _held(self, name: str, salt: str | None) -> _Session:
        held = self._sessions.get((salt, name))
        if held is None:
            known = ", ".join(repr(each) for _, each in self._sessions) or "none"
            msg = f"There is no session {name!r} (sessions: {known})."
            raise SessionNotFoundError(msg)
        return held

    def _renderer(self, method: str) -> PromptRenderer:
        rendering = self._servers[0].rendering
        if rendering is None:
            remedy = "Give the model's template as chat_template."
            self._servers[0].facts.refuse(method, "own rendering", remedy)
        return rendering.renderer

    def _tokenizer(self) -> ServerTokenizer:
        server = self._servers[0]
        if server.tokenizer is None:
            if not server.facts.has("tokenizer"):
                server.facts.refuse("tokenize", "tokenizer", "Count with the model's tokenizer on this machine.")
            server.tokenizer = ServerTokenizer(self._transport, server.address, server.facts)
        return server.tokenizer


async def _probe_all(
    transport: Transport, addresses: Sequence[Address], model: str | None, key: str | None
) -> list[ServerFacts | BaseException]:
    """What is at each address, or why that is not known. Only that a server cannot be reached is forgiven."""
    found = await asyncio.gather(*(probe(transport, a, model, key) for a in addresses), return_exceptions=True)
    for answer in found:
        if isinstance(answer, BaseException) and not isinstance(answer, ServerError):
            raise answer
    return found


def _refuse_local(options: RuntimeOptions) -> None:
    fields = RuntimeOptions.model_fields
    for name in _HERE_ONLY:
        if getattr(options, name) != fields[name].default:
            msg = f"{name}={getattr(options, name)!r} is for a model in this process; a server is started with its own."
            raise UnsupportedModeError(msg)
    if options.draft not in ("auto", "off"):
        msg = f"draft={options.draft!r}: the server decodes, and drafts as it was started. Leave draft out."
        raise UnsupportedModeError(msg)
    if options.engine not in _ANY_SERVER:
        msg = f"engine={options.engine!r}: a server has its own engine. Leave engine out."
        raise UnsupportedModeError(msg)
