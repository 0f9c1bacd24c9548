"""The text of an answer to text, reasoning and tool calls, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pinfold.output.reasoning import ReasoningSplitter
from pinfold.output.tool_calls import FORMATS, Parsed, ToolCallParser, tool_schemas
from pinfold.output.tool_calls.json_call import invalid_call

__all__ = ["OutputParser", "Parsed"]


# Families whose answers are in channels, with tools or without.
_CHANNELS = ("harmony",)


class OutputParser:
    """Reads one answer. The pieces it gives, added up, are the same at every way of cutting the text.

    Where no tools are offered or `expect` is "none", text is unchanged but for its reasoning.

    Args:
        tools: the tools that were offered, by name or as OpenAI-style dicts.
        expect: "auto": text, calls or both. "none": text. "required": calls and nothing else, as a grammar makes sure;
            text that the answer was cut in before a call began is then an InvalidToolCall.
        reasoning_open: the prompt ended inside a reasoning block.
        family: the model's tool-call format, a key of `tool_calls.FORMATS`.
    """

    def __init__(
        self,
        *,
        tools: Iterable[str | Mapping[str, Any]] = (),
        expect: Literal["auto", "none", "required"] = "auto",
        reasoning_open: bool = False,
        family: str = "hermes",
    ) -> None:
        schemas = tool_schemas(tools)
        forced = expect == "required"  # by a grammar, which has one form for all families
        self._reasoning = ReasoningSplitter(is_open=reasoning_open)
        self._calls: ToolCallParser | None = None
        if family in _CHANNELS and not forced:
            self._calls = FORMATS[family](schemas if expect != "none" else {})
        elif schemas and expect != "none":
            self._calls = FORMATS["hermes" if forced else family](schemas, forced=forced)
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
        return Parsed(tool_calls=parsed.tool_calls, invalid_tool_calls=parsed.invalid_tool_calls)

    def _instead_of_calls(self, cut: bool) -> Parsed:
        """Text where calls were due: kept as text beside calls, or else reported in place of one."""
        if self._called or not self._aside.strip():
            return Parsed(text=self._aside)
        error = "The answer was cut off before a call began; raise max_tokens." if cut else "The answer holds no call."
        return Parsed(invalid_tool_calls=(invalid_call(self._aside, error),))
