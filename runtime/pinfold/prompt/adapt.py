"""Fits a conversation to its template: what the template cannot take is said in a way that it can.

Every step is stable under growth where that is possible: it depends on what comes before, never on what comes after.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pinfold.prompt.messages import Conversation, FunctionCall, Message
from pinfold.prompt.tools import Tool, canonical_json
from pinfold.prompt.traits import TemplateTraits

__all__ = ["Adapted", "adapt"]

_PARAGRAPH = "\n\n"

_SECTION = """\
# Tools

You can call the tools below. Each line describes one: its name, what it does, and its parameters as a JSON schema.
<tools>
{tools}
</tools>

To call a tool, answer with a block of exactly this form, one for each call, and nothing after the last one:
<tool_call>
{{"name": "name of the tool", "arguments": {{"parameter": "value"}}}}
</tool_call>
Its result comes back inside <tool_response>. When no tool is needed, answer in plain words."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """What the template is given, and the adaptations that the user should know of."""

    turns: list[dict[str, Any]]
    tools: list[Mapping[str, Any]] | None
    notes: tuple[str, ...]


def adapt(conversation: Conversation, traits: TemplateTraits) -> Adapted:
    """The conversation as the template takes it."""
    messages, tools = list(conversation.messages), conversation.tools
    notes: list[str] = []
    if tools and not traits.tools:
        messages = _with_section(messages, tools)
        notes.append("The chat template has no place for tools: they are described in the system message.")
    if not (traits.tools and traits.tool_calls and traits.tool_role):
        messages = _calls_as_text(messages)
    if not traits.late_system:
        messages, moved = _late_system_as_user(messages)
        notes += ["The chat template takes one system message: later ones are sent as user turns."] * moved
    if not traits.system and messages[0].role == "system":
        messages = _folded_system(messages)
        notes.append("The chat template has no system role: the system message opens the first user turn.")
    if traits.alternation:
        messages, merged = _alternating(messages)
        notes += ["The chat template wants roles to alternate: turns of one role in a row are merged."] * merged
    if traits.reasoning and not traits.keeps_reasoning and any(message.reasoning for message in messages):
        notes.append("The chat template drops the reasoning of earlier turns: reuse ends at the first that had some.")
    native = [tool.spec for tool in tools] if tools and traits.tools else None
    return Adapted([_turn(message, traits) for message in messages], native, tuple(notes))


def _with_section(messages: list[Message], tools: Sequence[Tool]) -> list[Message]:
    """The tools described at the end of the system message, which is made where there is none."""
    section = _SECTION.format(tools="\n".join(tool.json for tool in tools))
    if messages[0].role != "system":
        return [Message("system", section), *messages]
    return [replace(messages[0], content=_joined(messages[0].content, section)), *messages[1:]]


def _calls_as_text(messages: list[Message]) -> list[Message]:
    """Calls and results in the form that the tools section teaches; results in a row share one user turn."""
    done: list[Message] = []
    after_result = False
    for message in messages:
        if message.role == "tool":
            text = f"<tool_response>\n{message.content}\n</tool_response>"
            if after_result:
                done[-1] = replace(done[-1], content=f"{done[-1].content}\n{text}")
            else:
                done.append(Message("user", text))
        elif message.tool_calls:
            calls = "\n".join(map(_call_text, message.tool_calls))
            content = f"{message.content}\n{calls}" if message.content else calls
            done.append(replace(message, content=content, tool_calls=()))
        else:
            done.append(message)
        after_result = message.role == "tool"
    return done


def _call_text(call: FunctionCall) -> str:
    return f"<tool_call>\n{canonical_json({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"


def _late_system_as_user(messages: list[Message]) -> tuple[list[Message], bool]:
    """Leading system messages as one, later ones as user turns; and whether there were later ones."""
    done: list[Message] = []
    late = False
    for message in messages:
        leading = message.role == "system" and len(done) == 1 and done[0].role == "system"
        if leading:
            done[0] = replace(done[0], content=_joined(done[0].content, message.content))
        elif message.role == "system" and done:
            late = True
            done.append(replace(message, role="user"))
        else:
            done.append(message)
    return done, late


def _folded_system(messages: list[Message]) -> list[Message]:
    system, rest = messages[0], messages[1:]
    if rest and rest[0].role == "user":
        return [replace(rest[0], content=_joined(system.content, rest[0].content)), *rest[1:]]
    return [replace(system, role="user"), *rest]


def _alternating(messages: list[Message]) -> tuple[list[Message], bool]:
    """User and assistant turns of one role in a row as one; and whether there were any."""
    done: list[Message] = []
    for message in messages:
        last = done[-1] if done else None
        if last is not None and last.role == message.role and message.role in ("user", "assistant"):
            done[-1] = replace(
                last,
                content=_joined(last.content, message.content),
                reasoning=_joined(last.reasoning, message.reasoning),
                tool_calls=last.tool_calls + message.tool_calls,
            )
        else:
            done.append(message)
    return done, len(done) < len(messages)


def _joined(first: str, second: str) -> str:
    return first + _PARAGRAPH + second if first and second else first + second


def _turn(message: Message, traits: TemplateTraits) -> dict[str, Any]:
    content = message.content
    turn: dict[str, Any] = {
        "role": message.role,
        "content": [{"type": "text", "text": content}] if traits.content_blocks else content,
    }
    if message.name:
        turn["name"] = message.name
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    if message.tool_calls:
        turn["tool_calls"] = [_call(call, traits) for call in message.tool_calls]
    if message.tool_call_id:
        turn["tool_call_id"] = _call_id(message.tool_call_id, traits)
    return turn


def _call(call: FunctionCall, traits: TemplateTraits) -> dict[str, Any]:
    arguments = canonical_json(call.arguments) if traits.text_arguments else call.arguments
    function = {"name": call.name, "arguments": arguments}
    return {"id": _call_id(call.id, traits), "type": "function", "function": function}


def _call_id(call_id: str, traits: TemplateTraits) -> str:
    if traits.short_ids and not (len(call_id) == 9 and call_id.isascii() and call_id.isalnum()):
        return hashlib.sha256(call_id.encode()).hexdigest()[:9]
    return call_id
