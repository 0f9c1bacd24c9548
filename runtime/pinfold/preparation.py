"""A caller's request -> a job for the worker and the answer that its events become. Runs on the caller's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pinfold.answer import Answer, PlainText
from pinfold.chat_options import ChatOptions
from pinfold.decoding.job import Job, Mark, Sink
from pinfold.demands import Demands
from pinfold.draft_modes import parse_draft
from pinfold.engines.base import Tokenizer
from pinfold.errors import ContextOverflowError, InvalidRequestError, UnsupportedModeError
from pinfold.options import ChatKeywords, CompleteKeywords, GenerationOptions, RuntimeOptions
from pinfold.output.parser import OutputParser
from pinfold.output.tool_calls import FORMATS, detect_format
from pinfold.prompt.renderer import Prompt, PromptRenderer
from pinfold.sessions.pins import PinRecord

__all__ = ["Preparation", "Request"]

# What an ephemeral mark lasts for where it names no ttl, as with the hosted APIs that have such marks.
_MARK_TTL = 300.0


class Request:
    """A prepared request: everything that can be refused has been, and nothing has been computed."""

    def __init__(self, prompt: Prompt, options: GenerationOptions, answer: Answer, *, began: float, **job: Any) -> None:
        self.answer = answer
        self._fields = {"tokens": list(prompt.tokens), "options": options, **job}
        self._prepared_in = time.perf_counter() - began

    def job(self, sink: Sink, *, streams: bool) -> Job:
        """The job; its clock starts now, with the time that preparing took on it already."""
        job = Job(sink=sink, streams=streams, created=time.perf_counter() - self._prepared_in, **self._fields)
        if job.options.timeout is not None:
            job.deadline = job.created + job.options.timeout
        return job


class Preparation:
    """Prepares the requests of one runtime."""

    def __init__(
        self,
        model: str,
        renderer: PromptRenderer,
        tokenizer: Tokenizer,
        options: RuntimeOptions,
        n_ctx: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._model = model
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._timeout = options.timeout
        self._n_ctx = n_ctx
        self._progress = progress
        self._draft = options.draft
        self._draft_kind = parse_draft(options.draft).kind
        self._tool_format = _tool_format(options.tool_format, renderer)
        self._made_grammars = False

    def chat(self, messages: Sequence[Mapping[str, Any]], keywords: ChatKeywords) -> Request:
        """A chat request. Raises InvalidRequestError and the kinds below it."""
        began = time.perf_counter()
        generation: dict[str, Any] = dict(keywords)
        tools, response_format = generation.pop("tools", None), generation.pop("response_format", None)
        salt, session = generation.pop("salt", None), generation.pop("session", None)
        tool_choice, asked = generation.pop("tool_choice", "auto"), ChatOptions.take(generation)
        options = self._options(generation)
        renderer = self._renderer if asked.reasoning is None else self._renderer.with_reasoning(asked.reasoning)
        prompt = renderer.render(messages, tools, tool_choice=tool_choice)
        self._check_length(prompt)
        demands = Demands.of(prompt, renderer, self._tool_format, response_format, asked)
        constraint = demands.constraint(self._tokenizer)
        self._made_grammars = self._made_grammars or constraint is not None
        marks = tuple(Mark(b.tokens, b.ttl if b.ttl is not None else _MARK_TTL) for b in prompt.breakpoints)
        return Request(
            prompt,
            options.model_copy(update={"stop": (*options.stop, *renderer.stop)}),
            self._answer(prompt, demands.parser, options.draft or self._draft),
            draft=self._drafters(options),
            salt=salt,
            session=session,
            constraint=constraint,
            reasoning=demands.reasoning_limit(self._tokenizer),
            marks=marks,
            reports_progress=self._progress is not None,
            began=began,
        )

    def complete(self, text: str, keywords: CompleteKeywords) -> Request:
        """A request for raw text, without a template."""
        began = time.perf_counter()
        generation: dict[str, Any] = dict(keywords)
        salt = generation.pop("salt", None)
        options = self._options(generation)
        prompt = self._renderer.raw(text)
        self._check_length(prompt)
        if not prompt.tokens:
            msg = "The prompt is empty. Give at least one character."
            raise InvalidRequestError(msg)
        return Request(
            prompt,
            options,
            self._answer(prompt, PlainText(), options.draft or self._draft),
            began=began,
            salt=salt,
            draft=self._drafters(options),
            reports_progress=self._progress is not None,
        )

    def pin(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        make_record: Callable[[list[int], str | None], PinRecord],
        salt: str | None,
    ) -> Request:
        """A request that computes the stable prefix of `messages` and `tools` and keeps it as a pin."""
        began = time.perf_counter()
        prefix = self._renderer.prefix(messages, tools)
        self._check_length(prefix.prompt)
        if not prefix.tokens:
            msg = f"Nothing of this prompt can be pinned. {prefix.warning or ''}".rstrip()
            raise InvalidRequestError(msg)
        return Request(
            prefix.prompt,
            self._options({}),
            self._answer(prefix.prompt, PlainText()),
            began=began,
            salt=salt,
            pin=make_record(list(prefix.tokens), prefix.warning),
            reports_progress=self._progress is not None,
        )

    def close(self) -> None:
        """Forgets the compiled grammars, which keep the vocabulary alive."""
        if self._made_grammars:
            from pinfold.output import constrain

            constrain.forget_grammars()

    def _options(self, generation: Mapping[str, Any]) -> GenerationOptions:
        options = GenerationOptions.parse(generation)
        return options if options.timeout else options.model_copy(update={"timeout": self._timeout})

    def _drafters(self, options: GenerationOptions) -> str:
        """Which drafters may help this answer."""
        kind, here = options.draft or self._draft_kind, self._draft_kind
        if kind in ("off", here) or (kind in ("auto", "lookup", "grammar") and here != "off"):
            return kind
        msg = f"draft={kind!r}: this Runtime was opened with draft={self._draft!r}. Open it with another."
        raise UnsupportedModeError(msg)

    def _check_length(self, prompt: Prompt) -> None:
        if len(prompt.tokens) >= self._n_ctx:
            raise ContextOverflowError(len(prompt.tokens), self._n_ctx)

    def _answer(self, prompt: Prompt, parser: OutputParser | PlainText, draft: str = "off") -> Answer:
        return Answer(
            prompt,
            parser,
            model=self._model,
            draft=draft,
            progress=self._progress,
        )


def _tool_format(asked: str, renderer: PromptRenderer) -> str:
    """The family that calls are read by: the template's, Hermes where the tools section is ours, or the one asked for.

    Raises:
        InvalidRequestError: there is no such family.
    """
    if asked == "auto":
        return detect_format(renderer.template.source) if renderer.template.traits.tools else "hermes"
    if asked not in FORMATS:
        msg = f"tool_format={asked!r} is none of 'auto', {', '.join(map(repr, FORMATS))}."
        raise InvalidRequestError(msg)
    return asked
