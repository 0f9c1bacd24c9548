"""Reasoning split from the answer: ``<think>...</think>`` at its beginning; and the marks of those who write others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pinfold.output.text import open_mark

__all__ = ["CHANNELS", "THINK", "LeadingReasoning", "ReasoningMarks", "ReasoningMeter", "ReasoningSplitter"]


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """What a block of reasoning stands between.

    Attributes:
        resume: what stands between the block and the rest of the answer.
        spaced: line breaks may stand there too.
        again: further blocks may follow later in the answer.
    """

    opening: str
    closing: str
    resume: str = ""
    spaced: bool = False
    again: bool = False


THINK = ReasoningMarks("<think>", "</think>", spaced=True)
CHANNELS = ReasoningMarks("<|channel|>analysis<|message|>", "<|end|>", resume="<|start|>assistant", again=True)


@dataclass(frozen=True, slots=True)
class LeadingReasoning:
    """That an answer may begin with reasoning, or must where the prompt ended inside a block of it."""

    marks: ReasoningMarks
    is_open: bool = False


_OPEN, _CLOSE = THINK.opening, THINK.closing


class ReasoningSplitter:
    """Incremental; the same at every way of cutting the text.

    A block counts only where the answer begins with it, or where `is_open` says that the prompt ended inside of one:
    later in the answer the tags are text about tags. White space around the block and at its inner ends belongs to the
    tags and is dropped. Without a block the text is unchanged.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        self._state: Literal["start", "inside", "after", "text"] = "inside" if is_open else "start"
        self._held = ""
        self._wrote = False

    def feed(self, text: str) -> tuple[str, str]:
        """The text and the reasoning that are settled by `text`."""
        reasoning = ""
        if self._state == "start":
            text = self._start(text)
        if self._state == "inside":
            reasoning, text = self._inside(text)
        if self._state == "after":
            text = text.lstrip()
            self._state = "text" if text else "after"
        return text, reasoning

    def finish(self) -> tuple[str, str]:
        """What is held when the answer ends; reasoning that was never closed stays reasoning."""
        held, self._held = self._held, ""
        if self._state == "inside":
            return "", self._trimmed(held)[0]
        return held, ""

    def _start(self, text: str) -> str:
        text, self._held = self._held + text, ""
        begun = text.lstrip()
        if begun.startswith(_OPEN):
            self._state = "inside"
            return begun[len(_OPEN) :]
        if _OPEN.startswith(begun):
            self._held = text
            return ""
        self._state = "text"
        return text

    def _inside(self, text: str) -> tuple[str, str]:
        text, self._held = self._held + text, ""
        close = text.find(_CLOSE)
        if close >= 0:
            self._state = "after"
            return self._trimmed(text[:close])[0], text[close + len(_CLOSE) :]
        size = open_mark(text, _CLOSE)
        shown, space = self._trimmed(text[: len(text) - size])
        self._held = space + text[len(text) - size :]
        return shown, ""

    def _trimmed(self, text: str) -> tuple[str, str]:
        """`text` without the white space at the block's beginning, and parted from that at its end."""
        if not self._wrote:
            text = text.lstrip()
        shown = text.rstrip()
        self._wrote = self._wrote or bool(shown)
        return shown, text[len(shown) :]


class ReasoningMeter:
    """Counts the tokens of reasoning as an answer is generated: those of a block's marks and what is between them."""

    def __init__(self, reasoning: LeadingReasoning) -> None:
        self._marks = reasoning.marks
        self.is_open = reasoning.is_open
        self.tokens = 0
        self._over = False  # no block can begin any more
        self._seen = ""
        self._opening = 0  # tokens that may be those of an opening mark

    def feed(self, text: str) -> None:
        """One more token; `text` is what it completes."""
        if self._over:
            return
        self._seen += text
        if self.is_open:
            self.tokens += 1
        else:
            self._opening += 1
            self._look_for_opening()
        if self.is_open:
            self._look_for_closing()

    def _look_for_opening(self) -> None:
        opening, again = self._marks.opening, self._marks.again
        begun = self._seen if again else self._seen.lstrip()
        at = begun.find(opening)
        if at == 0 or (at > 0 and again):
            self.is_open, self.tokens = True, self.tokens + self._opening
            self._seen = begun[at + len(opening) :]
        elif again:
            self._seen = begun[len(begun) - open_mark(begun, opening) :]
            self._opening = self._opening if self._seen else 0
        else:
            self._over = not opening.startswith(begun)

    def _look_for_closing(self) -> None:
        closing = self._marks.closing
        at = self._seen.find(closing)
        if at < 0:
            self._seen = self._seen[len(self._seen) - open_mark(self._seen, closing) :]
            return
        self.is_open, self._over = False, not self._marks.again
        self._seen, self._opening = self._seen[at + len(closing) :], 0
