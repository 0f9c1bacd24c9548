"""A call between two marks, for the families whose marks mean nothing else."""

from __future__ import annotations

from collections.abc import Callable

from pinfold.output.text import open_mark
from pinfold.output.tool_calls.base import Parsed
from pinfold.output.tool_calls.json_call import invalid_call
from pinfold.output.tool_calls.markup import Verdict

__all__ = ["CUT_OFF", "Delimited", "Reader", "ToTheEnd"]

Reader = Callable[[str], Parsed]
CUT_OFF = "The answer was cut off inside the call; raise max_tokens."


class Delimited:
    """From an opening mark to the closing one, or to where the next call opens or the answer ends.

    `read` makes calls of what stands between; what is none there is an invalid call. A mark within `quotes`, the marks
    that open and close a string, is part of the string. `is_whole` says of what an answer was cut off in whether only
    the closing mark is missing; without it `read` finds out.
    """

    def __init__(
        self,
        opening: str,
        closing: str,
        read: Reader,
        quotes: tuple[str, str] | None = None,
        is_whole: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._opening, self._closing, self._read, self._quotes = opening, closing, read, quotes
        self._is_whole = is_whole
        self._seen = ""
        self._at = len(opening)

    def feed(self, text: str) -> Verdict | None:
        self._seen += text
        while True:
            marks = [self._closing, self._opening, *([self._quotes[0]] if self._quotes else [])]
            hits = [(at, mark) for mark in marks if (at := self._seen.find(mark, self._at)) >= 0]
            if not hits:
                self._at = max(self._at, len(self._seen) - max(map(len, marks)) + 1)
                return None
            at, mark = min(hits)
            if self._quotes is None or mark != self._quotes[0]:
                after = at + len(mark) if mark == self._closing else at
                return Verdict(self._calls(at), rest=self._seen[after:])
            end = self._seen.find(self._quotes[1], at + len(mark))
            if end < 0:
                self._at = at
                return None
            self._at = end + len(self._quotes[1])

    def finish(self, *, cut: bool) -> Verdict:
        end = len(self._seen) - open_mark(self._seen, self._closing)
        body = self._seen[len(self._opening) :]
        calls = self._calls(end)
        if cut and (calls.invalid_tool_calls or not self._is_whole(self._seen[len(self._opening) : end])):
            calls = Parsed(invalid_tool_calls=(invalid_call(body, CUT_OFF),))
        return Verdict(calls)

    def _calls(self, end: int) -> Parsed:
        body = self._seen[len(self._opening) : end]
        found = self._read(body)
        if found.tool_calls or found.invalid_tool_calls:
            return found
        return Parsed(invalid_tool_calls=(invalid_call(body, "The call is empty."),))


class ToTheEnd:
    """From an opening mark to the end of the answer: for families that close their calls by ending the turn."""

    def __init__(self, opening: str, read: Reader) -> None:
        self._opening, self._read = opening, read
        self._pieces: list[str] = []

    def feed(self, text: str) -> Verdict | None:
        self._pieces.append(text)
        return None

    def finish(self, *, cut: bool) -> Verdict:
        body = "".join(self._pieces)[len(self._opening) :]
        calls = self._read(body)
        if cut and calls.invalid_tool_calls:
            last = invalid_call(body, CUT_OFF)
            calls = Parsed(tool_calls=calls.tool_calls, invalid_tool_calls=(*calls.invalid_tool_calls[:-1], last))
        if not calls.tool_calls and not calls.invalid_tool_calls:
            calls = Parsed(invalid_tool_calls=(invalid_call(body, CUT_OFF if cut else "The call is empty."),))
        return Verdict(calls)
