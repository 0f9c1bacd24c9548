"""The text of an answer to text, reasoning and tool calls, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from pinfold.output.reasoning import ReasoningSplitter
from pinfold.output.tool_calls import FORMATS, Parsed, ToolCallParser, tool_schemas
from pinfold.output.tool_calls.forms import HERMES, CallForm
from pinfold.output.tool_calls.json_call import invalid_call

__all__ = ["Expect", "OutputParser", "Parsed"]

Expect = Literal["auto", "none", "required", "either"]

_CUT_BEFORE_CALL = "The answer was cut off before a call was whole; raise max_tokens."
# Families whose answers are in channels, with tools or without.
_CHANNELS = ("harmony",)


class OutputParser:
    """Reads one answer. The pieces it gives, added up, are the same at every way of cutting the text.

    Where no tools are offered or `expect` is "none", text is unchanged but for its reasoning.

    Args:
        tools: the tools that were offered, by name or as OpenAI-style dicts.
        expect: "auto": text, calls or both. "none": text. "required": calls and nothing else, as a grammar makes sure;
            text that the answer was cut in before a call began is then an InvalidToolCall. "either": calls and nothing
            else, or text and nothing else, as a grammar makes sure.
        reasoning_open: the prompt ended inside a reasoning block.
        family: the model's tool-call format, a key of `tool_calls.FORMATS`.
        form: how calls are written where a grammar holds them to it; None where none does. "required" and "either"
            are read in the Hermes form then.
    """

    def __init__(
        self,
        *,
        tools: Iterable[str | Mapping[str, Any]] = (),
        expect: Expect = "auto",
        reasoning_open: bool = False,
        family: str = "hermes",
        form: CallForm | None = None,
    ) -> None:
        schemas = tool_schemas(tools) if expect != "none" else {}
        if expect in ("required", "either") and form is None:
            form = HERMES
        written = form.family if form is not None else family
        self._reasoning = ReasoningSplitter(is_open=reasoning_open)
        self._calls: ToolCallParser | None = None
        if schemas or written in _CHANNELS:
            self._calls = FORMATS[written](schemas, forced=form is not None)
        if self._calls is not None and expect == "either" and written not in _CHANNELS:
            self._calls = _CallsOrText(self._calls, (form or HERMES).mark)
        self._required = self._calls is not None and expect == "required"
        self._called = False
        self._aside = ""

    def feed(self, text: str) -> Parsed:
        """What `text` settles; empty while more must be seen."""
        plain, reasoning = self._reasoning.feed(text)
        return Parsed(reasoning=reasoning) + self._read(plain)

    def finish(self, *, cut: bool = False) -> Parsed:
        """The last piece. `cut`: the answer ended by its length, not by itself."""
        plain, reasoning = self._reasoning.finish()
        last = Parsed(reasoning=reasoning) + self._read(plain)
        if self._calls is None:
            return last
        last += self._set_aside(self._calls.finish(cut=cut))
        return last + self._instead_of_calls(cut) if self._required else last

    def _read(self, plain: str) -> Parsed:
        if self._calls is None or not plain:
            return Parsed(text=plain)
        return self._set_aside(self._calls.feed(plain))

    def _set_aside(self, parsed: Parsed) -> Parsed:
        if not self._required:
            return parsed
        self._called = self._called or bool(parsed.tool_calls or parsed.invalid_tool_calls)
        self._aside += parsed.text
        return replace(parsed, text="")

    def _instead_of_calls(self, cut: bool) -> Parsed:
        """Text where calls were due: kept as text beside calls, or else reported in place of one."""
        if self._called or not self._aside.strip():
            return Parsed(text=self._aside)
        error = _CUT_BEFORE_CALL if cut else "The answer holds no call."
        return Parsed(invalid_tool_calls=(invalid_call(self._aside, error),))


class _CallsOrText:
    """A ToolCallParser for answers whose beginning says what they are: calls where it is `mark`, else text."""

    def __init__(self, calls: ToolCallParser, mark: str) -> None:
        self._calls = calls
        self._mark = mark
        self._held = ""
        self._is: Literal["open", "calls", "text"] = "open"

    def feed(self, text: str) -> Parsed:
        if self._is == "open":
            text, self._held = self._held + text, ""
            begun = text.lstrip()
            if len(begun) < len(self._mark) and self._mark.startswith(begun):
                self._held = text
                return Parsed()
            self._is = "calls" if begun.startswith(self._mark) else "text"
        return self._calls.feed(text) if self._is == "calls" else Parsed(text=text)

    def finish(self, *, cut: bool) -> Parsed:
        if self._is == "calls":
            return self._calls.finish(cut=cut)
        held, self._held = self._held, ""
        if not cut or not held.strip():
            return Parsed(text=held)
        return Parsed(invalid_tool_calls=(invalid_call(held, _CUT_BEFORE_CALL),))
