"""A model's chat template: compiled once, rendered under limits, every fault a TemplateError with a remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import meta
from jinja2.exceptions import SecurityError

from pinfold.errors import TemplateError
from pinfold.prompt.sandbox import MAX_OUTPUT, MAX_SOURCE, RefusalError, TemplateEnvironment
from pinfold.prompt.switch import reasoning_variables
from pinfold.prompt.traits import TemplateTraits, probe

__all__ = ["ChatTemplate"]

_REMEDY = "Give a corrected template as chat_template when opening the Runtime."

# What a template's own expressions may raise besides Jinja's errors, depending on what it is given.
_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,  # RecursionError with it
    TypeError,
    ValueError,
)

_PLAIN = """\
{%- for message in messages %}
{{- message.role | capitalize ~ ': ' ~ message.content ~ '\n\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""


class ChatTemplate:
    """A Jinja chat template. Safe to use from any thread.

    Attributes:
        plain: the model has no template, and a plain one of ours stands in.
        stop: strings that end an answer under the plain template, whose turns no special token ends.

    Args:
        reasoning: what its switch for reasoning is set to, ``auto`` to leave it alone.

    Raises:
        TemplateError: the source is too long or no valid template.
        UnsupportedModeError: the template has no such switch.
    """

    def __init__(
        self, source: str | None, bos_token: str = "", eos_token: str = "", *, reasoning: str = "auto"
    ) -> None:
        self.plain = source is None
        self.stop: tuple[str, ...] = ("\n\nUser:", "\n\nSystem:") if self.plain else ()
        self.source = _PLAIN if source is None else source
        self._tokens = (bos_token, eos_token)
        if len(self.source) > MAX_SOURCE:
            msg = f"The chat template has {len(self.source):,} characters, more than {MAX_SOURCE:,}. {_REMEDY}"
            raise TemplateError(msg)
        self._environment = TemplateEnvironment()
        try:
            self._template = self._environment.from_string(self._environment.counted(self.source))
        except jinja2.TemplateSyntaxError as e:
            msg = f"The chat template is no valid Jinja: line {e.lineno}: {e.message}. {_REMEDY}"
            raise TemplateError(msg) from e
        except (RecursionError, SyntaxError, ValueError, MemoryError) as e:
            msg = f"The chat template cannot be compiled: {type(e).__name__}: {e}. {_REMEDY}"
            raise TemplateError(msg) from e
        self._variables: dict[str, Any] = {"bos_token": bos_token, "eos_token": eos_token}
        if reasoning != "auto":
            self._variables |= reasoning_variables(reasoning, self._read())

    def with_reasoning(self, mode: str) -> ChatTemplate:
        """The same template with its switch for reasoning at `mode`.

        Raises:
            UnsupportedModeError: it has none, or not that one.
        """
        return ChatTemplate(None if self.plain else self.source, *self._tokens, reasoning=mode)

    def render(
        self,
        turns: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation: bool = True,
    ) -> str:
        """The text of `turns` as they are, nothing adapted; with `generation` the assistant's turn is opened.

        Raises:
            TemplateError: the template refused, failed or went past its limits; the message has its own words.
        """
        run = self._environment.run
        run.start()
        variables = {"messages": turns, "tools": tools or None, "documents": None, **self._variables}
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(variables, add_generation_prompt=generation):
                length += len(piece)
                if length > MAX_OUTPUT:
                    msg = f"more than {MAX_OUTPUT:,} characters of output"
                    raise SecurityError(msg)
                pieces.append(piece)
        except RefusalError as e:
            msg = f"The model's chat template refuses these messages: {e.message}. Change the messages accordingly."
            raise TemplateError(msg) from e
        except SecurityError as e:
            msg = f"The chat template does what templates may not: {e.message}. {_REMEDY}"
            raise TemplateError(msg) from e
        except _FAULTS as e:
            msg = f"The chat template failed on these messages: {type(e).__name__}: {e}. {_REMEDY}"
            raise TemplateError(msg) from e
        text = "".join(pieces)
        run.dates = tuple(date for date in run.dates if date and date in text)
        return text

    @property
    def dates(self) -> tuple[str, ...]:
        """The dates and times that the template wrote into the newest rendering on this thread."""
        return self._environment.run.dates

    @property
    def wrote_date(self) -> bool:
        """Whether the newest rendering on this thread has the date or time in it."""
        return bool(self.dates)

    @cached_property
    def traits(self) -> TemplateTraits:
        """What it takes as it is; found on first use by some twenty small renderings."""
        return probe(self._try, lambda: self.wrote_date)

    @cached_property
    def generation_prefix(self) -> str:
        """What opens the assistant's turn, such as ``<|im_start|>assistant\\n``; may open a ``<think>`` as well."""
        turn = {"role": "user", "content": [{"type": "text", "text": "Hi"}] if self.traits.content_blocks else "Hi"}
        closed, opened = self._try([turn], generation=False), self._try([turn])
        if closed is None or opened is None or not opened.startswith(closed):
            return ""
        return opened[len(closed) :]

    def _read(self) -> set[str]:
        """Names of the variables that the template reads."""
        return meta.find_undeclared_variables(self._environment.parse(self.source))

    def _try(
        self,
        turns: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation: bool = True,
    ) -> str | None:
        try:
            return self.render(turns, tools, generation=generation)
        except TemplateError:
            return None
