"""Runtime: the one door. It wires the rooms together and holds no algorithm of its own."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from pinfold.channel import AsyncChannel, SyncChannel
from pinfold.decoding.job import Finished
from pinfold.engines.base import Capabilities, Engine
from pinfold.engines.script import Script
from pinfold.errors import EngineError, InvalidRequestError
from pinfold.opening import open_engine
from pinfold.options import PRESETS, ChatKeywords, CompleteKeywords, RuntimeOptions, parse_ttl
from pinfold.preparation import Preparation, Request
from pinfold.prompt.renderer import PromptRenderer
from pinfold.prompt.template import ChatTemplate
from pinfold.results import Completion, Delta
from pinfold.session import Session
from pinfold.sessions.manager import SessionInfo
from pinfold.sessions.pins import Pin, PinRecord
from pinfold.sessions.rewrite import FoldReport, refold, requantize

__all__ = ["Runtime"]

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None
_LONGEST_NAME = 200


class Runtime:
    """A model on this machine, its KV kept between requests. Safe from any number of threads and tasks.

    Args:
        model: an alias (``smollm2``), the path of a GGUF file, a Hugging Face id, or a `Script` for tests.
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
        from pinfold.drafts import open_drafting  # brings numpy in, which `import pinfold` does without
        from pinfold.keeping import keep_sessions
        from pinfold.worker import Worker

        opener, self.model = open_engine(model, self.options)
        keep = partial(keep_sessions, self.options, self.model)  # of nothing that would keep this Runtime alive
        draft = partial(open_drafting, self.options)
        self._worker = Worker(opener, keep, draft, prefill_chunk=self.options.prefill_chunk)
        weakref.finalize(self, self._worker.close)
        engine: Engine = self._worker.engine
        try:
            self.capabilities: Capabilities = engine.capabilities
            self.n_ctx: int = self.capabilities.n_ctx
            self._tokenizer = engine.tokenizer
            self._renderer = PromptRenderer(_template(self.options, self.capabilities), engine.tokenizer)
            self._prepare = Preparation(
                self.model, self._renderer, engine.tokenizer, self.options, self.n_ctx, progress
            )
        except BaseException:
            self._worker.close()
            raise

    # --- answers

    def chat(self, messages: Messages, **options: Unpack[ChatKeywords]) -> Completion:
        """One whole answer."""
        return self._run(self._prepare.chat(messages, options))

    def stream(self, messages: Messages, **options: Unpack[ChatKeywords]) -> Generator[Delta, None, None]:
        """An answer piece by piece; closing the iterator stops the engine. The last delta has `done`."""
        return self._iterate(self._prepare.chat(messages, options), streams=True)

    async def achat(self, messages: Messages, **options: Unpack[ChatKeywords]) -> Completion:
        """As `chat`, for asyncio; cancelling the task stops the engine."""
        return await self._arun(lambda: self._prepare.chat(messages, options))

    def astream(self, messages: Messages, **options: Unpack[ChatKeywords]) -> AsyncGenerator[Delta, None]:
        """As `stream`, for asyncio."""
        return self._astream(lambda: self._prepare.chat(messages, options))

    def complete(self, prompt: str, **options: Unpack[CompleteKeywords]) -> Completion:
        """A continuation of raw text, without a chat template."""
        return self._run(self._prepare.complete(prompt, options))

    def stream_complete(self, prompt: str, **options: Unpack[CompleteKeywords]) -> Generator[Delta, None, None]:
        """As `complete`, piece by piece."""
        return self._iterate(self._prepare.complete(prompt, options), streams=True)

    async def acomplete(self, prompt: str, **options: Unpack[CompleteKeywords]) -> Completion:
        """As `complete`, for asyncio."""
        return await self._arun(lambda: self._prepare.complete(prompt, options))

    def astream_complete(self, prompt: str, **options: Unpack[CompleteKeywords]) -> AsyncGenerator[Delta, None]:
        """As `stream_complete`, for asyncio."""
        return self._astream(lambda: self._prepare.complete(prompt, options))

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
        prompt = {"messages": list(messages), "tools": tools}
        request = self._prepare.pin(
            messages,
            tools,
            lambda tokens, warning: PinRecord(name, tokens, salt, seconds, warning=warning, prompt=prompt),
            salt,
        )
        return self._run_pin(request)

    def pins(self) -> list[Pin]:
        """All live pins, those made by cache_control marks included."""
        return self._worker.call(lambda manager: manager.pins())

    def unpin(self, name: str) -> None:
        """Ends a pin. Raises PinNotFoundError or PinExpiredError."""
        self._worker.call(lambda manager: manager.unpin(name))

    def session(self, name: str, *, pin: str | None = None, salt: str | None = None) -> Session:
        """A named session, new or known; with `pin` it begins with that pin's messages and tools.

        Raises:
            PinNotFoundError, PinExpiredError: there is no such pin now.
        """
        _check_name("session", name)
        messages: Messages = ()
        tools: Tools = None
        if pin is not None:
            prompt, pin_salt = self._worker.call(lambda manager: manager.pin_prompt(pin))
            messages, tools = prompt["messages"], prompt["tools"]
            salt = pin_salt if salt is None else salt
        self._worker.call(lambda manager: manager.open_session(name, salt))
        return Session(self, name, salt, messages, tools)

    def sessions(self) -> list[SessionInfo]:
        """All named sessions."""
        return self._worker.call(lambda manager: manager.sessions())

    def fork_session(self, name: str, new_name: str, *, salt: str | None = None) -> None:
        """Makes session `new_name` begin with all that `name` holds. Raises SessionNotFoundError."""
        _check_name("session", new_name)
        self._worker.call(lambda manager: manager.fork_session(name, new_name, salt))

    def drop_session(self, name: str, *, salt: str | None = None) -> None:
        """Forgets a session and its KV. Raises SessionNotFoundError."""
        self._worker.call(lambda manager: manager.drop_session(name, salt))

    def refold(self, name: str, preset: str, *, salt: str | None = None) -> FoldReport:
        """Folds a session or pin anew by `preset` (``balanced``, ``compact``, ``exact``) and moves it to memory.

        What an earlier fold lost does not come back. Before the model is calibrated every preset folds without loss.

        Raises:
            SessionNotFoundError: there is no such session or pin, or its KV is lost.
        """
        if preset not in PRESETS:
            msg = f"preset={preset!r} is none of {', '.join(PRESETS)}."
            raise InvalidRequestError(msg)
        return self._worker.call(lambda manager: refold(manager, name, salt, preset))

    def requantize(self, name: str, kv_resident: str, *, salt: str | None = None) -> str:
        """Moves a session into resident cells of other types, such as ``q8_0/q4_0``, without loading the model again.

        It stays there, and shares nothing with sessions in cells of the Runtime's own types; "" brings it back to
        those. Rounding is as llama.cpp's own. On disk sessions are in the Runtime's types. Returns the types.

        Raises:
            SessionNotFoundError: there is no such session, or it holds no KV now.
            UnsupportedModeError: the engine, model or device has no such cells.
        """
        return self._worker.call(lambda manager: requantize(manager, name, salt, kv_resident))

    # --- tokens

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`, special tokens read as such."""
        return self._tokenizer.encode(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens written out."""
        return self._tokenizer.decode(tokens)

    def count_tokens(self, messages: Messages, tools: Tools = None) -> int:
        """Tokens of the prompt that `chat` would evaluate for these messages and tools."""
        return len(self._renderer.render(messages, tools).tokens)

    # --- life

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._worker.closed

    def close(self) -> None:
        """Stops what runs and frees the model. Calling it twice is fine."""
        self._prepare.close()
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Runtime({self.model!r}, engine={self.capabilities.engine!r}, n_ctx={self.n_ctx})"

    # --- inside

    def _run(self, request: Request) -> Completion:
        with closing(self._iterate(request, streams=False)) as deltas:
            return _answer_of([*deltas])

    async def _arun(self, prepare: Callable[[], Request]) -> Completion:
        request = await asyncio.to_thread(prepare)
        async with aclosing(self._aiterate(request, streams=False)) as deltas:
            return _answer_of([delta async for delta in deltas])

    async def _astream(self, prepare: Callable[[], Request]) -> AsyncGenerator[Delta, None]:
        request = await asyncio.to_thread(prepare)
        async with aclosing(self._aiterate(request, streams=True)) as deltas:
            async for delta in deltas:
                yield delta

    def _iterate(self, request: Request, *, streams: bool) -> Generator[Delta, None, None]:
        channel = SyncChannel()
        with self._worker.running(request.job(channel, streams=streams)):
            for event in channel.events():
                delta = request.answer.feed(event)
                if delta is not None:
                    yield delta

    async def _aiterate(self, request: Request, *, streams: bool) -> AsyncGenerator[Delta, None]:
        channel = AsyncChannel()
        with self._worker.running(request.job(channel, streams=streams)):
            async for event in channel.events():
                delta = request.answer.feed(event)
                if delta is not None:
                    yield delta

    def _run_pin(self, request: Request) -> Pin:
        channel = SyncChannel()
        with self._worker.running(request.job(channel, streams=False)):
            for event in channel.events():
                request.answer.feed(event)  # reports progress
                if isinstance(event, Finished) and event.outcome.pin is not None:
                    return event.outcome.pin
        msg = "The engine ended without a pin."
        raise EngineError(msg)


def _answer_of(deltas: Sequence[Delta]) -> Completion:
    if deltas and deltas[-1].done is not None:
        return deltas[-1].done
    msg = "The engine ended without an answer."
    raise EngineError(msg)


def _template(options: RuntimeOptions, capabilities: Capabilities) -> ChatTemplate:
    model = capabilities.model
    return ChatTemplate(options.chat_template or model.chat_template, model.bos_token, model.eos_token)


def _check_name(kind: str, name: str) -> None:
    if not 0 < len(name) <= _LONGEST_NAME:
        msg = f"A {kind}'s name has 1 to 200 characters; got {name!r}."
        raise InvalidRequestError(msg)
