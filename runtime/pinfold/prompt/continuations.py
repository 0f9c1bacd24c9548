"""How a conversation may go on: the two ways that are rendered to see which tokens stay.

They begin with different characters and differ in length, so that no token of theirs passes for the prefix. One
begins with line breaks, which tokenizers merge with the template's own; and it goes on for another turn, because some
templates move tools or drop reasoning once a later turn follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pinfold.prompt.messages import BLOCK_SEPARATOR, Conversation, Message
from pinfold.prompt.tools import canonical_tools

__all__ = ["MarkedPrefix", "common_length", "continuations", "marked_prefixes"]

_SHORT, _LONG = "Hi", "\n\n1. Then go on with this."
_TOOL_NAMES = ("a", "Zz_9")


@dataclass(frozen=True, slots=True)
class MarkedPrefix:
    """A cache mark: `first` and `second` share just the prefix that it covers."""

    first: Conversation
    second: Conversation
    ttl: float
    where: str


def continuations(conversation: Conversation) -> tuple[Conversation, Conversation]:
    """The conversation with one turn more, and with another one and those after it."""
    messages = conversation.messages
    answer, question = Message("assistant", _SHORT), Message("user", _SHORT)
    return (
        replace(conversation, messages=(*messages, _next(messages[-1], _SHORT))),
        replace(conversation, messages=(*messages, *_turns_after(_next(messages[-1], _LONG), answer, question))),
    )


def marked_prefixes(conversation: Conversation) -> Iterator[MarkedPrefix]:
    """The cache marks on tools and messages, in the order given."""
    leading = tuple(_leading_system(conversation.messages))
    for index, tool in enumerate(conversation.tools):
        if tool.cache_ttl is not None:
            first, second = _tools_upto(Conversation(leading, conversation.tools), index)
            yield MarkedPrefix(first, second, tool.cache_ttl, f'tool "{tool.name}"')
    for index, message in enumerate(conversation.messages):
        where = f"message {index} ({message.role})"
        for mark in message.marks:
            if mark.end is None:
                first, second = continuations(conversation.upto(index + 1))
                yield MarkedPrefix(first, second, mark.ttl, where)
            else:
                first, second = _blocks_upto(conversation, index, mark.end)
                yield MarkedPrefix(first, second, mark.ttl, f"{where}, block {mark.block}")


def common_length(first: Sequence[object], second: Sequence[object]) -> int:
    """How many items, tokens or characters, both begin with."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def _next(last: Message, text: str) -> Message:
    """A turn that may follow `last`."""
    if last.tool_calls:
        call = last.tool_calls[0]
        return Message("tool", text, tool_call_id=call.id, name=call.name)
    return Message("assistant" if last.role in ("user", "tool") else "user", text)


def _turns_after(first: Message, answer: Message, question: Message) -> tuple[Message, ...]:
    return (first, question) if first.role == "assistant" else (first, answer, question)


def _leading_system(messages: Sequence[Message]) -> Iterator[Message]:
    for message in messages:
        if message.role != "system":
            return
        yield message


def _tools_upto(conversation: Conversation, index: int) -> tuple[Conversation, Conversation]:
    """Two conversations that share the system messages and the tools up to `index`."""
    tools = conversation.tools
    question = Message("user", _SHORT)
    if index + 1 < len(tools):
        others = [canonical_tools([{"name": name}])[0] for name in _TOOL_NAMES]
        first, second = (
            Conversation((*conversation.messages, question), (*tools[: index + 1], other)) for other in others
        )
        return first, second
    longer = _turns_after(Message("user", _LONG), Message("assistant", _SHORT), question)
    return (
        replace(conversation, messages=(*conversation.messages, question)),
        replace(conversation, messages=(*conversation.messages, *longer)),
    )


def _blocks_upto(conversation: Conversation, index: int, end: int) -> tuple[Conversation, Conversation]:
    """Two conversations that share message `index` up to character `end` of its content."""
    cut = replace(conversation.messages[index], content=conversation.messages[index].content[:end], tool_calls=())
    more = replace(cut, content=cut.content + BLOCK_SEPARATOR + _SHORT)
    return continuations(conversation.upto(index, cut))[0], continuations(conversation.upto(index, more))[0]
