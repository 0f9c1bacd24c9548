"""Messages and tools to tokens, and the prefix of them that whatever comes next leaves as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from pinfold.engines.base import Tokenizer
from pinfold.errors import InvalidRequestError, TemplateError
from pinfold.prompt.adapt import adapt
from pinfold.prompt.continuations import common_length, continuations, marked_prefixes
from pinfold.prompt.messages import Conversation, normalize
from pinfold.prompt.segments import Breakpoint, Place, Places, byte_offset
from pinfold.prompt.template import ChatTemplate
from pinfold.prompt.tools import Tool, ToolChoice, parse_tool_choice

__all__ = ["PinnedPrefix", "Prompt", "PromptRenderer"]

_PLAIN_NOTE = "The model has no chat template: a plain one stands in, and answers may be poor."
_CLOCK_NOTE = "The chat template writes the date: once that changes, the prompt is computed again from there on."
_RAW_PLACE = Place("message", "the prompt's text")

_TURN_ENDING = 16  # tokens that may well belong to what follows


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt.

    Attributes:
        tokens: what the engine evaluates.
        text: what they were made from; a first token that the tokenizer adds is not in it.
        notes: adaptations to the template that the user should know of.
        breakpoints: the request's cache marks, shortest prefix first.
        tools: the tools offered, canonical.
        tool_choice: whether one must be called; it never changes the tokens.
    """

    tokens: tuple[int, ...] = field(repr=False)
    text: str
    notes: tuple[str, ...] = ()
    breakpoints: tuple[Breakpoint, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    _locate: Callable[[int], Place] = field(default=lambda _: _RAW_PLACE, repr=False, compare=False)

    def place(self, token_index: int) -> Place:
        """Which message, tool or part of the template the token at `token_index` belongs to.

        It costs one or two renderings and is computed only when asked for.
        """
        return self._locate(token_index)


@dataclass(frozen=True)
class PinnedPrefix:
    """The tokens that stay the same whatever follows the messages.

    `prompt` is the same prefix with its places; `warning` says where and why the prefix ends early, if it does.
    """

    tokens: tuple[int, ...] = field(repr=False)
    prompt: Prompt
    warning: str | None = None


class PromptRenderer:
    """Renders for one model. Safe to use from any thread; what it remembers is bounded."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self._shared = lru_cache(maxsize=16)(self._shared_tokens)  # the same cache marks come with every turn
        self._switched: dict[str, PromptRenderer] = {}

    def with_reasoning(self, mode: str) -> PromptRenderer:
        """One whose template has its switch for reasoning at `mode`. Raises UnsupportedModeError."""
        if mode not in self._switched:
            self._switched[mode] = PromptRenderer(self.template.with_reasoning(mode), self.tokenizer)
        return self._switched[mode]

    @property
    def generation_prefix(self) -> str:
        """What opens the assistant's turn; an output parser sees here whether reasoning is open already."""
        return self.template.generation_prefix

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end an answer besides the model's end tokens; none where the model has a template."""
        return self.template.stop

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tool_choice: Any = "auto",
        generation: bool = True,
    ) -> Prompt:
        """The prompt of a request. `tool_choice` is checked and passed on; tools are rendered the same under any.

        With `generation` the assistant's turn is opened at the end.

        Raises:
            InvalidRequestError: messages, tools or tool_choice are none; names the place and the remedy.
            TemplateError: the model's template refuses or fails.
        """
        conversation = normalize(messages, tools)
        choice = parse_tool_choice(tool_choice, conversation.tools)
        prompt = self._prompt(conversation, generation)
        return replace(prompt, tool_choice=choice, breakpoints=self._breakpoints(conversation, prompt.tokens))

    def raw(self, text: str) -> Prompt:
        """A prompt without a template.

        Raises:
            InvalidRequestError: `text` is no Unicode text.
        """
        try:
            text.encode()
        except (AttributeError, UnicodeEncodeError) as e:
            msg = f"The prompt is no valid text ({e}). Give a string, decoded with errors='replace' where need be."
            raise InvalidRequestError(msg) from e
        return Prompt(self._encode(text), text)

    def prefix(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> PinnedPrefix:
        """The part of the prompt that every continuation of `messages` shares, found by rendering two of them.

        Raises:
            InvalidRequestError, TemplateError: as for `render`.
        """
        conversation = normalize(messages, tools)
        first, second = continuations(conversation)
        longer = self._prompt(first, generation=False)
        tokens = self._shared(longer.text, self.text(second))
        if conversation.messages[-1].role in ("user", "tool"):  # the next request may be its answer
            answered = self._encode(self.text(conversation, generation=True))
            tokens = tokens[: common_length(tokens, answered)]
        pinned = replace(longer, tokens=tokens, text=self.tokenizer.decode(tokens))
        return PinnedPrefix(tokens, pinned, self._warning(conversation, len(tokens)))

    def text(self, conversation: Conversation, *, generation: bool = False) -> str:
        """The rendering of a normalised conversation, adapted to the template.

        Raises:
            TemplateError: the template refuses or fails.
        """
        adapted = adapt(conversation, self.template.traits)
        return self.template.render(adapted.turns, adapted.tools, generation=generation)

    def _prompt(self, conversation: Conversation, generation: bool) -> Prompt:
        adapted = adapt(conversation, self.template.traits)
        text = self.template.render(adapted.turns, adapted.tools, generation=generation)
        notes = (_PLAIN_NOTE, *adapted.notes) if self.template.plain else adapted.notes
        notes += (_CLOCK_NOTE,) if self.template.wrote_date else ()
        tokens = self._encode(text)
        locate = _Locator(self, conversation, text, tokens, generation)
        return Prompt(tokens, text, notes, tools=conversation.tools, _locate=locate)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, special=True, bos=True))

    def _shared_tokens(self, first: str, second: str) -> tuple[int, ...]:
        tokens = self._encode(first)
        return tokens[: common_length(tokens, self._encode(second))]

    def _breakpoints(self, conversation: Conversation, tokens: tuple[int, ...]) -> tuple[Breakpoint, ...]:
        """The cache marks as lengths of `tokens`; of several at one length the one that lasts longest."""
        found: dict[int, Breakpoint] = {}
        for mark in marked_prefixes(conversation):
            try:
                shared = self._shared(self.text(mark.first), self.text(mark.second))
            except TemplateError:
                continue  # cut there, the conversation is none that the template takes: nothing to keep
            count = common_length(shared, tokens)
            known = found.get(count)
            if count and (known is None or (known.ttl or 0.0) < mark.ttl):
                found[count] = Breakpoint(count, mark.ttl, mark.where)
        return tuple(found[count] for count in sorted(found))

    def _warning(self, conversation: Conversation, count: int) -> str | None:
        """Why the pinned prefix is shorter than what was to be pinned, if it is by more than a turn's ending."""
        try:
            own = self._prompt(conversation, generation=False)
        except TemplateError:
            return None  # the messages alone are no conversation to this template: nothing to compare with
        whole = len(own.tokens)
        if whole - count > max(_TURN_ENDING, whole // 20):
            return (
                f"Only {count} of the {whole} tokens stay the same as the conversation goes on: the chat template "
                f"changes the prompt from {own.place(count).where} on. What follows is computed again by each request."
            )
        return _CLOCK_NOTE if _CLOCK_NOTE in own.notes else None


class _Locator:
    """Answers `Prompt.place`, working the places out once and only when asked."""

    def __init__(
        self,
        renderer: PromptRenderer,
        conversation: Conversation,
        text: str,
        tokens: Sequence[int],
        generation: bool,
    ) -> None:
        self._renderer = renderer
        self._conversation = conversation
        self._text = text
        self._tokens = tokens
        self._generation = generation

    def __call__(self, token_index: int) -> Place:
        data = self._text.encode()
        offset = byte_offset(self._renderer.tokenizer, self._tokens, token_index, data)
        return self._places.at(len(data[:offset].decode(errors="ignore")))

    @cached_property
    def _places(self) -> Places:
        return Places(self._conversation, self._text, self._render, generation=self._generation)

    def _render(self, conversation: Conversation, generation: bool) -> str | None:
        try:
            return self._renderer.text(conversation, generation=generation)
        except TemplateError:
            return None
