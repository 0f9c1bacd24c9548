"""A model in this process: requests are prepared on the caller's thread and run on the engine's."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from typing import Any

from pinfold.backend import Messages, Tools
from pinfold.channel import AsyncChannel, SyncChannel, is_finished
from pinfold.decoding.job import Finished
from pinfold.engines.base import Capabilities, Engine
from pinfold.engines.script import Script
from pinfold.errors import EngineError
from pinfold.opening import open_engine
from pinfold.options import ChatKeywords, CompleteKeywords, RuntimeOptions
from pinfold.preparation import Preparation, Request
from pinfold.prompt.lint import check_prompt
from pinfold.prompt.renderer import PromptRenderer
from pinfold.prompt.template import ChatTemplate
from pinfold.prompt_check import PromptCheck
from pinfold.results import Delta
from pinfold.sessions.manager import SessionInfo
from pinfold.sessions.pins import Pin, PinRecord
from pinfold.sessions.rewrite import FoldReport, refold, requantize
from pinfold.worker import Worker

__all__ = ["LocalBackend"]


class LocalCall:
    """A prepared request and the worker that it will run on."""

    def __init__(self, worker: Worker, request: Request) -> None:
        self._worker = worker
        self._request = request

    def deltas(self, *, streams: bool) -> Generator[Delta, None, None]:
        channel = SyncChannel(is_finished)
        with self._worker.running(self._request.job(channel, streams=streams)):
            for event in channel.events():
                delta = self._request.answer.feed(event)
                if delta is not None:
                    yield delta

    async def adeltas(self, *, streams: bool) -> AsyncGenerator[Delta, None]:
        channel = AsyncChannel(is_finished)
        with self._worker.running(self._request.job(channel, streams=streams)):
            async for event in channel.events():
                delta = self._request.answer.feed(event)
                if delta is not None:
                    yield delta


class LocalBackend:
    """See `backend.Backend`."""

    def __init__(
        self,
        model: str | os.PathLike[str] | Script,
        options: RuntimeOptions,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        from pinfold.drafts import open_drafting  # brings numpy in, which `import pinfold` does without
        from pinfold.keeping import keep_sessions, open_early

        opening = open_engine(model, options)
        self.model = opening.name
        early = open_early(options, opening.path)
        keep = partial(keep_sessions, options, self.model, early)  # of nothing that would keep the Runtime alive
        draft = partial(open_drafting, options)
        try:
            self.worker = Worker(opening.open, keep, draft, prefill_chunk=options.prefill_chunk)
        except BaseException:
            if early is not None:
                early.give_up()
            raise
        engine: Engine = self.worker.engine
        try:
            self.capabilities: Capabilities = engine.capabilities
            self.n_ctx: int = self.capabilities.n_ctx
            self._tokenizer = engine.tokenizer
            self.renderer = PromptRenderer(_template(options, self.capabilities), engine.tokenizer)
            self._prepare = Preparation(self.model, self.renderer, engine.tokenizer, options, self.n_ctx, progress)
        except BaseException:
            self.worker.close()
            raise

    # --- answers

    def chat(self, messages: Messages, keywords: ChatKeywords) -> LocalCall:
        return LocalCall(self.worker, self._prepare.chat(messages, keywords))

    def complete(self, prompt: str, keywords: CompleteKeywords) -> LocalCall:
        return LocalCall(self.worker, self._prepare.complete(prompt, keywords))

    # --- pins and sessions

    def pin(self, messages: Messages, tools: Tools, *, name: str, ttl: float | None, salt: str | None) -> Pin:
        prompt = {"messages": list(messages), "tools": tools}
        request = self._prepare.pin(
            messages,
            tools,
            lambda tokens, warning: PinRecord(name, tokens, salt, ttl, warning=warning, prompt=prompt),
            salt,
        )
        channel = SyncChannel(is_finished)
        with self.worker.running(request.job(channel, streams=False)):
            for event in channel.events():
                request.answer.feed(event)  # reports progress
                if isinstance(event, Finished) and event.outcome.pin is not None:
                    return event.outcome.pin
        msg = "The engine ended without a pin."
        raise EngineError(msg)

    def pins(self) -> list[Pin]:
        return self.worker.call(lambda manager: manager.pins())

    def pin_prompt(self, name: str) -> tuple[Any, str | None]:
        return self.worker.call(lambda manager: manager.pin_prompt(name))

    def unpin(self, name: str) -> None:
        self.worker.call(lambda manager: manager.unpin(name))

    def open_session(self, name: str, salt: str | None) -> None:
        self.worker.call(lambda manager: manager.open_session(name, salt))

    def sessions(self) -> list[SessionInfo]:
        return self.worker.call(lambda manager: manager.sessions())

    def fork_session(self, name: str, new_name: str, salt: str | None) -> None:
        self.worker.call(lambda manager: manager.fork_session(name, new_name, salt))

    def drop_session(self, name: str, salt: str | None) -> None:
        self.worker.call(lambda manager: manager.drop_session(name, salt))

    def refold(self, name: str, preset: str, salt: str | None) -> FoldReport:
        return self.worker.call(lambda manager: refold(manager, name, salt, preset))

    def requantize(self, name: str, kv_resident: str, salt: str | None) -> str:
        return self.worker.call(lambda manager: requantize(manager, name, salt, kv_resident))

    # --- tokens

    def tokenize(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def detokenize(self, tokens: Any) -> str:
        return self._tokenizer.decode(tokens)

    def count_tokens(self, messages: Messages, tools: Tools) -> int:
        return len(self.renderer.render(messages, tools).tokens)

    def check_prompt(self, messages: Messages, tools: Tools, other: tuple[Messages, Tools] | None) -> PromptCheck:
        return check_prompt(self.renderer, messages, tools, other)

    # --- life

    @property
    def closed(self) -> bool:
        return self.worker.closed

    def close(self) -> None:
        self._prepare.close()
        self.worker.close()


def _template(options: RuntimeOptions, capabilities: Capabilities) -> ChatTemplate:
    model = capabilities.model
    source = options.chat_template or model.chat_template
    return ChatTemplate(source, model.bos_token, model.eos_token, reasoning=options.reasoning)
