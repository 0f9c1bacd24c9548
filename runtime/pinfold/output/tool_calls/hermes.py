"""The Hermes family (Hermes, Qwen2.5, Qwen3, SmolLM3): ``<tool_call>{"name", "arguments"}</tool_call>``.

Models of this family, the small ones above all, also write the call in a code fence or as bare JSON; both are read.
"""

from __future__ import annotations

from functools import partial

from pinfold.output.text import open_mark
from pinfold.output.tool_calls.base import Parsed, Schemas, ToolCallParser
from pinfold.output.tool_calls.code_fence import FENCE, BareCall, FencedCall
from pinfold.output.tool_calls.json_call import EndFinder, invalid_call, is_json, read_calls
from pinfold.output.tool_calls.markup import MarkupParser, Verdict

__all__ = ["CLOSE", "OPEN", "TaggedCall", "hermes_parser"]

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


def hermes_parser(schemas: Schemas, *, forced: bool = False) -> ToolCallParser:
    """A parser for the family (`base.ParserFactory`)."""
    names = frozenset(schemas)
    if forced:
        return MarkupParser({OPEN: partial(TaggedCall, names, forced=True)})
    return MarkupParser(
        {OPEN: partial(TaggedCall, names), FENCE: partial(FencedCall, names)}, at_start=partial(BareCall, names)
    )


class TaggedCall:
    """Calls between tags. The tags mean nothing else, so what is no call there is an invalid one."""

    def __init__(self, names: frozenset[str], *, forced: bool = False) -> None:
        self._names = names
        self._forced = forced
        self._seen = ""
        self._end = EndFinder(CLOSE, OPEN, start=len(OPEN))  # a new opening ends a call that lacks its closing tag

    def feed(self, text: str) -> Verdict | None:
        self._seen += text
        found = self._end.find(self._seen)
        if found is None:
            return None
        start, end = found
        return self._until_first_close(start) or self._read(start, end if self._seen[start:end] == CLOSE else start)

    def finish(self, *, cut: bool) -> Verdict:
        seen = len(self._seen)
        body_end = seen - open_mark(self._seen, CLOSE)
        if is_json(self._seen[len(OPEN) : body_end]):
            return self._read(body_end, seen)
        closed = self._until_first_close(seen)
        if closed or not cut:
            return closed or self._read(seen, seen)
        call = invalid_call(self._seen[len(OPEN) :], "The answer was cut off inside the call; raise max_tokens.")
        return Verdict(Parsed(invalid_tool_calls=(call,)))

    def _until_first_close(self, end: int) -> Verdict | None:
        """The call up to its first closing tag, if text up to `end` hides one in a string that was never closed.

        No grammar lets a string break, so in a forced call the tag is part of the string.
        """
        if self._forced:
            return None
        close = self._seen.find(CLOSE, 0, end)
        if close < 0 or is_json(self._seen[len(OPEN) : end]):
            return None
        return self._read(close, close + len(CLOSE))

    def _read(self, body_end: int, rest_start: int) -> Verdict:
        calls = read_calls(self._seen[len(OPEN) : body_end], self._names, lenient=True)
        return Verdict(calls, rest=self._seen[rest_start:])
