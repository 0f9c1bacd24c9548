"""Where things stand in a rendered prompt: which message or tool a token belongs to.

The conversation is rendered once more with an invisible mark at the ends of every content and at every tool's name.
Without its marks that rendering is the prompt again, so the marks give exact places whatever the template does. Where
a template looks at the content and renders it otherwise because of a mark, the contents are searched for in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pinfold.engines.base import Tokenizer
from pinfold.prompt.continuations import common_length
from pinfold.prompt.messages import Conversation, Message
from pinfold.prompt.tools import Tool

__all__ = ["Breakpoint", "Place", "Places", "byte_offset"]

_FIRST_MARK = 0x100000  # private-use plane 16: one character for each message and tool
_MAX_MARKS = 0xFFFD
_BEFORE_NAME = '{"type": "function", "function": {"name": "'  # how every canonical tool begins

RenderText = Callable[[Conversation, bool], str | None]


@dataclass(frozen=True, slots=True)
class Place:
    """What stands at a token, in kind and in words such as ``message 3 (user)``; messages count from 0."""

    kind: Literal["message", "tool", "template"]
    where: str


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A cache mark: the first `tokens` tokens of the prompt are to be kept for `ttl` seconds; `where` it was set."""

    tokens: int
    ttl: float | None
    where: str


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    end: int


class Places:
    """Answers what stands at a character of one rendering.

    `render` gives the text of a conversation, with the assistant's turn opened or not, or None where the template
    refuses; `generation` says which of the two `text` is.
    """

    def __init__(self, conversation: Conversation, text: str, render: RenderText, *, generation: bool) -> None:
        self._conversation = conversation
        self._text = text
        self._render = render
        self._generation = generation
        count = len(conversation.messages)
        spans = self._marked_spans() or self._searched_spans()
        self._messages, self._tools = spans[:count], self._whole_tools(spans[count:])

    def at(self, offset: int) -> Place:
        """The place of the character at `offset`."""
        for tool, span in zip(self._conversation.tools, self._tools, strict=True):
            if span and span.start <= offset < span.end:
                return Place("tool", f'tool "{tool.name}"')
        before = None
        for index, span in enumerate(self._messages):
            if span is None:
                continue
            if offset < span.start:
                return self._between(before, index, offset)
            if offset < span.end:
                return self._message(index)
            before = index
        return self._between(before, None, offset)

    def _between(self, before: int | None, after: int | None, offset: int) -> Place:
        """A character of the template's own between two messages, or outside all of them."""
        if before is None:
            return Place("template", "template (before the first message)")
        start = self._end_of(before)
        heads = [span.start for span in self._tools if span and span.start >= start]
        if heads and offset < min(heads) and (after is None or min(heads) < self._start_of(after)):
            return Place("template", "template (start of the tools section)")
        if offset < self._close_of(before):
            if any(span and start < span.end <= offset for span in self._tools):
                return Place("template", "template (end of the tools section)")
            return self._message(before)
        if after is None:
            return Place("template", "template (start of the answer)")
        return self._message(after)

    def _close_of(self, index: int) -> int:
        """Where what the template writes to close message `index` ends."""
        upto = self._conversation.upto(index + 1)
        return common_length(self._text, self._render(upto, False) or "")

    def _message(self, index: int) -> Place:
        return Place("message", f"message {index} ({self._conversation.messages[index].role})")

    def _start_of(self, index: int) -> int:
        span = self._messages[index]
        return span.start if span else 0

    def _end_of(self, index: int) -> int:
        span = self._messages[index]
        return span.end if span else 0

    def _marked_spans(self) -> list[_Span | None] | None:
        """Spans of messages and then tools by their marks; None where the marks changed the rendering."""
        conversation = self._conversation
        count = len(conversation.messages)
        if count + len(conversation.tools) > _MAX_MARKS:
            return None
        marks = [chr(_FIRST_MARK + index) for index in range(count + len(conversation.tools))]
        marked = Conversation(
            tuple(map(_marked_message, conversation.messages, marks[:count])),
            tuple(map(_marked_tool, conversation.tools, marks[count:])),
        )
        text = self._render(marked, self._generation)
        if text is None or text.translate({ord(mark): None for mark in marks}) != self._text:
            return None
        starts, ends = [-1] * len(marks), [-1] * len(marks)
        seen = 0
        for offset, char in enumerate(text):
            if marks[0] <= char <= marks[-1]:
                index = ord(char) - _FIRST_MARK
                ends[index] = offset - seen
                starts[index] = ends[index] if starts[index] < 0 else starts[index]
                seen += 1
        return [_Span(start, end) if start >= 0 else None for start, end in zip(starts, ends, strict=True)]

    def _searched_spans(self) -> list[_Span | None]:
        """Spans of messages and then tools by looking for their text, one after the other."""
        spans: list[_Span | None] = []
        for texts in ([m.content.strip() for m in self._conversation.messages], self._tool_names()):
            cursor = 0
            for text in texts:
                found = self._text.find(text, cursor) if text else -1
                cursor = found + len(text) if found >= 0 else cursor
                spans.append(_Span(found, cursor) if found >= 0 else None)
        return spans

    def _tool_names(self) -> list[str]:
        return [tool.name for tool in self._conversation.tools]

    def _whole_tools(self, names: Sequence[_Span | None]) -> list[_Span | None]:
        """From the place of each tool's name to that of its definition; a gap goes to the tool that follows it."""
        spans: list[_Span | None] = []
        end = -1
        for tool, name in zip(self._conversation.tools, names, strict=True):
            if name is None:
                spans.append(None)
                continue
            start = name.start - len(_BEFORE_NAME)
            if start >= 0 and self._text.startswith(tool.json, start):
                whole = _Span(start, start + len(tool.json))
            else:
                whole = _Span(name.start, name.start + len(tool.name))
            spans.append(_Span(end, whole.end) if 0 <= end < whole.start else whole)
            end = whole.end
        return spans


def byte_offset(tokenizer: Tokenizer, tokens: Sequence[int], index: int, text: bytes) -> int:
    """Where in `text` the token at `index` begins, allowing for what a tokenizer adds: a first token, a space."""
    offset = 0
    for token in tokens[:index]:
        piece = tokenizer.piece(token)
        if text.startswith(piece, offset):
            offset += len(piece)
        elif piece.startswith(b" ") and text.startswith(piece[1:], offset):
            offset += len(piece) - 1
        elif offset:
            offset += len(piece)  # the tokenizer normalised the text; lengths still agree closely
    return min(offset, len(text))


def _marked_message(message: Message, mark: str) -> Message:
    """The message with `mark` around what it says, inside any white space that a template may strip."""
    calls = list(message.tool_calls)
    for index in {0, len(calls) - 1} if calls else ():
        calls[index] = replace(calls[index], name=mark + calls[index].name)
    return replace(
        message,
        content=_marked_text(message.content, mark),
        reasoning=_marked_text(message.reasoning, mark),
        tool_calls=tuple(calls),
    )


def _marked_text(text: str, mark: str) -> str:
    core = text.strip()
    if not core:
        return text
    start = text.index(core)
    return f"{text[:start]}{mark}{core}{mark}{text[start + len(core) :]}"


def _marked_tool(tool: Tool, mark: str) -> Tool:
    function = {**tool.spec["function"], "name": mark + tool.name}
    head = len(_BEFORE_NAME)
    return replace(tool, spec={**tool.spec, "function": function}, json=tool.json[:head] + mark + tool.json[head:])
