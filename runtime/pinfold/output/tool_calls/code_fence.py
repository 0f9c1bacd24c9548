"""Calls that a model writes as plain JSON: in a code fence, or as its whole answer.

Neither is markup for calls, so JSON that is no well-formed call of an offered tool stays text, unchanged.
"""

from __future__ import annotations

import re

from pinfold.output.tool_calls.json_call import EndFinder, begins_like_call, read_calls
from pinfold.output.tool_calls.markup import Verdict

__all__ = ["FENCE", "BareCall", "FencedCall"]

FENCE = "```"
_LANGUAGES = ("json", "tool_call")
_LANGUAGE = re.compile(r"```[ \t]*(\w*)")


class FencedCall:
    """A fence marked ``json``, ``tool_call`` or not at all."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._seen = ""
        self._body = 0  # where it begins
        self._end: EndFinder | None = None  # there once the body begins like a call

    def feed(self, text: str) -> Verdict | None:
        self._seen += text
        if self._end is None:
            begins = self._begins_like_call()
            if not begins:
                return self._no_call() if begins is False else None
            self._end = EndFinder(FENCE, start=self._body)
        found = self._end.find(self._seen)
        if found is None:
            return None
        start, end = found
        calls = read_calls(self._seen[self._body : start], self._names, lenient=False)
        return Verdict(calls, text="" if calls else self._seen[:end], rest=self._seen[end:])

    def finish(self, *, cut: bool) -> Verdict:  # noqa: ARG002 - cut or not, what is incomplete is text
        body = self._seen[self._body :].rstrip("`")
        calls = read_calls(body, self._names, lenient=False) if self._end else None
        return Verdict(calls) if calls else self._no_call()

    def _begins_like_call(self) -> bool | None:
        language = _LANGUAGE.match(self._seen)
        if language is None:
            return False
        self._body = language.end()
        if self._body == len(self._seen):
            return None if any(known.startswith(language[1]) for known in _LANGUAGES) else False
        if language[1] not in ("", *_LANGUAGES):
            return False
        return begins_like_call(self._seen[self._body :], self._names)

    def _no_call(self) -> Verdict:
        """The fence is text; what stands behind it may hold calls yet."""
        return Verdict(text=FENCE, rest=self._seen[len(FENCE) :])


class BareCall:
    """An answer that begins with JSON. Only the end of the answer tells whether it is nothing but calls."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._seen = ""
        self._begins = False

    def feed(self, text: str) -> Verdict | None:
        self._seen += text
        if not self._begins:
            begins = begins_like_call(self._seen, self._names)
            if begins is False:
                return self._no_call()
            self._begins = bool(begins)
        return None

    def finish(self, *, cut: bool) -> Verdict:  # noqa: ARG002 - cut or not, what is incomplete is text
        calls = read_calls(self._seen, self._names, lenient=False)
        return Verdict(calls) if calls else self._no_call()

    def _no_call(self) -> Verdict:
        return Verdict(text=self._seen[0], rest=self._seen[1:])
