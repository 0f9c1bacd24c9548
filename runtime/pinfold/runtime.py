"""Runtime: the one door. It wires the rooms together and holds no algorithm of its own."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from pinfold.backend import Backend, Call, Messages, Tools
from pinfold.engines.base import Capabilities
from pinfold.engines.script import Script
from pinfold.errors import EngineError, InvalidRequestError
from pinfold.options import PRESETS, ChatKeywords, CompleteKeywords, RuntimeOptions, is_address, parse_ttl
from pinfold.prompt_check import PromptCheck
from pinfold.results import Completion, Delta
from pinfold.session import Session
from pinfold.sessions.manager import SessionInfo
from pinfold.sessions.pins import Pin

if TYPE_CHECKING:
    from pinfold.sessions.rewrite import FoldReport

__all__ = ["Runtime"]

_LONGEST_NAME = 200


class Runtime:
    """A model on this machine or on a server, its KV kept between requests. Safe from any number of threads and tasks.

    Args:
        model: an alias (``smollm2``), a path, a Hugging Face id, or a `Script` for tests; the address of a server such
            as ``http://host:8000/v1``, or with ``base_url`` the id of a model there.
        progress: called as ``progress(done, total)`` tokens while a prompt takes longer than a second.
        options: fields of `options.RuntimeOptions`.

    Raises:
        ModelError, EngineError, InvalidRequestError and the kinds below them; each names its remedy.

    Chat methods take OpenAI-style ``messages`` (dicts; text blocks and tools may carry ``cache_control``), ``tools``,
    ``tool_choice`` ("auto", "none", "required", or a tool's name), ``response_format`` (a JSON schema or object),
    ``salt`` (requests share KV only within one salt), ``session`` (a name to keep the KV under) and the fields of
    `options.GenerationOptions`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Script,
        *,
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> None:
        self.options = RuntimeOptions.parse(options)
        self._backend = _open(model, self.options, progress)
        weakref.finalize(self, self._backend.close)
        self.model: str = self._backend.model
        self.n_ctx: int = self._backend.n_ctx

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do on this machine, or what its server can."""
        return self._backend.capabilities

    # --- answers

    def chat(self, messages: Messages, **options: Unpack[ChatKeywords]) -> Completion:
        """One whole answer."""
        return _whole(self._backend.chat(messages, options))

    def stream(self, messages: Messages, **options: Unpack[ChatKeywords]) -> Generator[Delta, None, None]:
        """An answer piece by piece; closing the iterator stops the engine. The last delta has `done`."""
        return self._backend.chat(messages, options).deltas(streams=True)

    async def achat(self, messages: Messages, **options: Unpack[ChatKeywords]) -> Completion:
        """As `chat`, for asyncio; cancelling the task stops the engine."""
        return await _awhole(lambda: self._backend.chat(messages, options))

    def astream(self, messages: Messages, **options: Unpack[ChatKeywords]) -> AsyncGenerator[Delta, None]:
        """As `stream`, for asyncio."""
        return _astream(lambda: self._backend.chat(messages, options))

    def complete(self, prompt: str, **options: Unpack[CompleteKeywords]) -> Completion:
        """A continuation of raw text, without a chat template."""
        return _whole(self._backend.complete(prompt, options))

    def stream_complete(self, prompt: str, **options: Unpack[CompleteKeywords]) -> Generator[Delta, None, None]:
        """As `complete`, piece by piece."""
        return self._backend.complete(prompt, options).deltas(streams=True)

    async def acomplete(self, prompt: str, **options: Unpack[CompleteKeywords]) -> Completion:
        """As `complete`, for asyncio."""
        return await _awhole(lambda: self._backend.complete(prompt, options))

    def astream_complete(self, prompt: str, **options: Unpack[CompleteKeywords]) -> AsyncGenerator[Delta, None]:
        """As `stream_complete`, for asyncio."""
        return _astream(lambda: self._backend.complete(prompt, options))

    # --- pins and sessions

    def pin(
        self,
        messages: Messages,
        tools: Tools = None,
        *,
        name: str,
        ttl: str | float | None = "1h",
        salt: str | None = None,
    ) -> Pin:
        """Computes the stable prefix of `messages` and `tools` now and keeps it until its TTL ends.

        Any request whose prompt begins with it reuses it, named or not, and starts the TTL anew. A pin of the same
        name is replaced. ``ttl=None`` never ends.
        """
        seconds = parse_ttl(ttl)
        _check_name("pin", name)
        if name.startswith("auto:"):
            msg = f"Pin names that begin with 'auto:' belong to cache_control marks. Choose another than {name!r}."
            raise InvalidRequestError(msg)
        return self._backend.pin(messages, tools, name=name, ttl=seconds, salt=salt)

    def pins(self) -> list[Pin]:
        """All live pins, those made by cache_control marks included."""
        return self._backend.pins()

    def unpin(self, name: str) -> None:
        """Ends a pin. Raises PinNotFoundError or PinExpiredError."""
        self._backend.unpin(name)

    def session(self, name: str, *, pin: str | None = None, salt: str | None = None) -> Session:
        """A named session, new or known; with `pin` it begins with that pin's messages and tools.

        Raises:
            PinNotFoundError, PinExpiredError: there is no such pin now.
        """
        _check_name("session", name)
        messages: Messages = ()
        tools: Tools = None
        if pin is not None:
            prompt, pin_salt = self._backend.pin_prompt(pin)
            messages, tools = prompt["messages"], prompt["tools"]
            salt = pin_salt if salt is None else salt
        self._backend.open_session(name, salt)
        return Session(self, name, salt, messages, tools)

    def sessions(self) -> list[SessionInfo]:
        """All named sessions."""
        return self._backend.sessions()

    def fork_session(self, name: str, new_name: str, *, salt: str | None = None) -> None:
        """Makes session `new_name` begin with all that `name` holds. Raises SessionNotFoundError."""
        _check_name("session", new_name)
        self._backend.fork_session(name, new_name, salt)

    def drop_session(self, name: str, *, salt: str | None = None) -> None:
        """Forgets a session and its KV. Raises SessionNotFoundError."""
        self._backend.drop_session(name, salt)

    def refold(self, name: str, preset: str, *, salt: str | None = None) -> FoldReport:
        """Folds a session or pin anew by `preset` (``balanced``, ``compact``, ``exact``) and moves it to memory.

        What an earlier fold lost does not come back. Before the model is calibrated every preset folds without loss.

        Raises:
            SessionNotFoundError: there is no such session or pin, or its KV is lost.
        """
        if preset not in PRESETS:
            msg = f"preset={preset!r} is none of {', '.join(PRESETS)}."
            raise InvalidRequestError(msg)
        return self._backend.refold(name, preset, salt)

    def requantize(self, name: str, kv_resident: str, *, salt: str | None = None) -> str:
        """Moves a session into resident cells of other types, such as ``q8_0/q4_0``, without loading the model again.

        It stays there, and shares nothing with sessions in cells of the Runtime's own types; "" brings it back to
        those. Rounding is as llama.cpp's own. On disk sessions are in the Runtime's types. Returns the types.

        Raises:
            SessionNotFoundError: there is no such session, or it holds no KV now.
            UnsupportedModeError: the engine, model or device has no such cells.
        """
        return self._backend.requantize(name, kv_resident, salt)

    # --- tokens

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`, special tokens read as such."""
        return self._backend.tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens written out."""
        return self._backend.detokenize(tokens)

    def count_tokens(self, messages: Messages, tools: Tools = None) -> int:
        """Tokens of the prompt that `chat` would evaluate for these messages and tools."""
        return self._backend.count_tokens(messages, tools)

    def check_prompt(
        self, messages: Messages, tools: Tools = None, other: tuple[Messages, Tools] | None = None
    ) -> PromptCheck:
        """What will end the reuse of this prompt, where, and how many tokens that costs; nothing is computed.

        With `other`, the messages and tools of another run of the same agent, also what differs between the two.
        Raises InvalidRequestError or TemplateError as `chat` does, UnsupportedModeError where a server renders.
        """
        return self._backend.check_prompt(messages, tools, other)

    # --- life

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._backend.closed

    def close(self) -> None:
        """Stops what runs and frees the model. Calling it twice is fine."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Runtime({self.model!r}, engine={self.capabilities.engine!r}, n_ctx={self.n_ctx})"


def _open(
    model: str | os.PathLike[str] | Script, options: RuntimeOptions, progress: Callable[[int, int], None] | None
) -> Backend:
    # Both bring in what `import pinfold` does without.
    urls = options.base_url
    named: str | os.PathLike[str] | Script | None = model
    if is_address(model):
        urls, named = (str(model), *urls), None
    if not urls:
        from pinfold.local import LocalBackend

        options.refuse_server_only()
        return LocalBackend(model, options, progress)
    if not isinstance(named, str | None):
        msg = f"model={model!r}: a server's model is named by its id. Leave base_url out for a model in this process."
        raise InvalidRequestError(msg)
    from pinfold.remote.backend import RemoteBackend

    return RemoteBackend(named, urls, options, progress)


def _whole(call: Call) -> Completion:
    with closing(call.deltas(streams=False)) as deltas:
        return _answer_of([*deltas])


async def _awhole(prepare: Callable[[], Call]) -> Completion:
    call = await asyncio.to_thread(prepare)
    async with aclosing(call.adeltas(streams=False)) as deltas:
        return _answer_of([delta async for delta in deltas])


async def _astream(prepare: Callable[[], Call]) -> AsyncGenerator[Delta, None]:
    call = await asyncio.to_thread(prepare)
    async with aclosing(call.adeltas(streams=True)) as deltas:
        async for delta in deltas:
            yield delta


def _answer_of(deltas: Sequence[Delta]) -> Completion:
    if deltas and deltas[-1].done is not None:
        return deltas[-1].done
    msg = "The engine ended without an answer."
    raise EngineError(msg)


def _check_name(kind: str, name: str) -> None:
    if not 0 < len(name) <= _LONGEST_NAME:
        msg = f"A {kind}'s name has 1 to 200 characters; got {name!r}."
        raise InvalidRequestError(msg)
