"""Reasoning split from the answer: ``<think>...</think>`` at its beginning; and the marks of those who write others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pinfold.output.text import open_mark

__all__ = ["CHANNELS", "THINK", "LeadingReasoning", "ReasoningMarks", "ReasoningSplitter"]


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
