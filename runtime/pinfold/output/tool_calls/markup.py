"""Text with calls in it: the machine that all families share, which finds what may be a call and asks what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pinfold.output.text import open_mark
from pinfold.output.tool_calls.base import Parsed

__all__ = ["Candidate", "MarkupParser", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a candidate was: `calls`, or else plain `text`. `rest` was not looked at and is read afresh."""

    calls: Parsed | None = None
    text: str = ""
    rest: str = ""


class Candidate(Protocol):
    """One stretch of output that may be a call, from its opening mark on."""

    def feed(self, text: str) -> Verdict | None:
        """The verdict, or None while more must be seen."""

    def finish(self, *, cut: bool) -> Verdict:
        """The verdict when nothing more comes."""


class MarkupParser:
    """A ToolCallParser for formats whose calls begin with a mark.

    White space between text and a call belongs to the call and is dropped; where text goes on after a call, it is
    parted from the text before by the white space that stood there, or by a newline. All other text is unchanged.

    Args:
        openings: for each opening mark, what reads on from it; the mark is fed to it too.
        at_start: reads an answer that begins with ``{`` or ``[``.
    """

    def __init__(
        self, openings: Mapping[str, Callable[[], Candidate]], at_start: Callable[[], Candidate] | None = None
    ) -> None:
        self._openings = openings
        self._at_start = at_start
        self._candidate: Candidate | None = None
        self._held = ""
        self._gap = ""
        self._wrote = False
        self._after_call = False

    def feed(self, text: str) -> Parsed:
        out = Parsed()
        while text:
            if self._candidate is None:
                shown, text = self._text(text)
                out += Parsed(text=shown)
                continue
            verdict = self._candidate.feed(text)
            if verdict is None:
                break
            judged, text = self._judge(verdict)
            out += judged
        return out

    def finish(self, *, cut: bool) -> Parsed:
        out = Parsed()
        while self._candidate is not None:  # each verdict settles one mark at least
            judged, rest = self._judge(self._candidate.finish(cut=cut))
            out += judged + self.feed(rest)
        shown = self._show(self._held)
        if not self._after_call:
            shown += self._gap
        self._held = self._gap = ""
        return out + Parsed(text=shown)

    def _judge(self, verdict: Verdict) -> tuple[Parsed, str]:
        self._candidate = None
        if verdict.calls is None:
            return Parsed(text=self._show(verdict.text)), verdict.rest
        self._after_call = True
        return verdict.calls, verdict.rest

    def _text(self, text: str) -> tuple[str, str]:
        """Reads text up to an opening mark: what to show, and what is left to read."""
        text, self._held = self._held + text, ""
        if self._at_start is not None:
            begun = text.lstrip()
            if not begun:
                self._held = text
                return "", ""
            at_start, self._at_start = self._at_start, None
            if begun[0] in "{[":
                self._gap = text[: len(text) - len(begun)]
                self._candidate = at_start()
                return "", begun
        marks = [(at, mark) for mark in self._openings if (at := text.find(mark)) >= 0]
        if marks:
            at, mark = min(marks)
            self._candidate = self._openings[mark]()
            return self._show(text[:at]), text[at:]
        safe = len(text) - max(open_mark(text, mark) for mark in self._openings)
        self._held = text[safe:]
        return self._show(text[:safe]), ""

    def _show(self, text: str) -> str:
        """`text`, with the white space before it that is now known to be text's; its own last is held."""
        if self._after_call:
            text = text.lstrip()
            if not text:
                return ""
            self._gap = (self._gap or "\n") if self._wrote else ""
            self._after_call = False
        shown = (self._gap + text).rstrip()
        self._gap = (self._gap + text)[len(shown) :]
        self._wrote = self._wrote or bool(shown)
        return shown
