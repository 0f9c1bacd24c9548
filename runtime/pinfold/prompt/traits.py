"""What a chat template does with messages, found by rendering small conversations and looking at what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["TemplateTraits", "probe"]

Turn = dict[str, Any]
Render = Callable[[Sequence[Turn], Sequence[Mapping[str, Any]] | None], str | None]

_SYSTEM, _LATE, _USER, _MORE, _ANSWER = "zqsystemzq", "zqlatezq", "zquserzq", "zqmorezq", "zqanswerzq"
_TOOL, _KEY, _VALUE, _RESULT, _THOUGHT = "zqtoolzq", "zqkeyzq", "zqvaluezq", "zqresultzq", "zqthoughtzq"
_PARAMETERS = {"type": "object", "properties": {_KEY: {"type": "string", "description": _KEY}}, "required": [_KEY]}
_TOOLS = [{"type": "function", "function": {"name": _TOOL, "description": _TOOL, "parameters": _PARAMETERS}}]
_IDS = (("z", "call_zq-0123456789"), ("zq1234567",))  # as anyone may choose them, and short ones


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What the template takes as it is; the rest is adapted before it is rendered.

    Attributes:
        system: it renders a system message at the start.
        late_system: and system messages further on.
        alternation: it refuses or drops the second of two user turns in a row.
        tools: it renders tool definitions.
        tool_calls: it renders an assistant's calls.
        tool_role: it renders tool results.
        text_arguments: it wants a call's arguments as JSON text, where a dict would come out wrong.
        short_ids: it wants call ids of nine letters and digits.
        content_blocks: it renders content only as a list of blocks.
        reasoning: it renders the reasoning of the newest assistant message.
        keeps_reasoning: and that of earlier turns; without it a growing conversation changes at each user turn.
        clock: it writes the date or time, at least where there is no system message.
    """

    system: bool = True
    late_system: bool = True
    alternation: bool = False
    tools: bool = True
    tool_calls: bool = True
    tool_role: bool = True
    text_arguments: bool = False
    short_ids: bool = False
    content_blocks: bool = False
    reasoning: bool = False
    keeps_reasoning: bool = False
    clock: bool = False


def probe(render: Render, wrote_date: Callable[[], bool]) -> TemplateTraits:
    """The traits of a template. `render` gives None where the template refuses; `wrote_date` says whether the last
    rendering has the date in it."""
    blocks = not _shows(render, _USER, [_user(_USER)]) and _shows(render, _USER, _blocks([_user(_USER)]))

    def shows(marker: str, turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]] | None = None) -> bool:
        return _shows(render, marker, _blocks(turns) if blocks else turns, tools)

    user, answer = _user(_USER), {"role": "assistant", "content": _ANSWER}
    thought = {**answer, "reasoning_content": _THOUGHT}
    system = shows(_SYSTEM, [_system(_SYSTEM), user])
    clock = wrote_date()
    tools = shows(_TOOL, [user], _TOOLS)
    clock = clock or wrote_date()
    text_arguments, short_ids, calls = _call_form(shows, render) if tools else (False, False, False)
    return TemplateTraits(
        system=system,
        late_system=system and shows(_LATE, [_system(_SYSTEM), user, answer, _system(_LATE), _user(_MORE)]),
        alternation=not shows(_MORE, [user, _user(_MORE)]),
        tools=tools,
        tool_calls=calls,
        tool_role=calls and shows(_RESULT, _call_turns(text_arguments, _IDS[short_ids][0]), _TOOLS),
        text_arguments=text_arguments,
        short_ids=short_ids,
        content_blocks=blocks,
        reasoning=shows(_THOUGHT, [user, thought]),
        keeps_reasoning=shows(_THOUGHT, [user, thought, _user(_MORE)]),
        clock=clock,
    )


def _call_form(shows: Callable[..., bool], render: Render) -> tuple[bool, bool, bool]:
    """(arguments as text, short ids, whether calls are rendered at all): the first form that comes out as JSON."""
    for short_ids in (False, True):
        for text_arguments in (False, True):
            forms = [_call_turns(text_arguments, call_id)[:2] for call_id in _IDS[short_ids]]
            if not all(shows(_VALUE, turns, _TOOLS) and shows(_TOOL, turns) for turns in forms):
                continue
            text = render(forms[0], None) or ""
            twice_encoded, python_form = f'\\"{_KEY}' in text, f"'{_KEY}'" in text
            if not (twice_encoded or python_form):
                return text_arguments, short_ids, True
    return False, False, False


def _call_turns(text_arguments: bool, call_id: str) -> list[Turn]:
    arguments: Any = f'{{"{_KEY}": "{_VALUE}"}}' if text_arguments else {_KEY: _VALUE}
    call = {"id": call_id, "type": "function", "function": {"name": _TOOL, "arguments": arguments}}
    return [
        _user(_USER),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": _RESULT, "tool_call_id": call_id, "name": _TOOL},
    ]


def _shows(
    render: Render, marker: str, turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]] | None = None
) -> bool:
    return marker in (render(turns, tools) or "")


def _blocks(turns: Sequence[Turn]) -> list[Turn]:
    return [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]


def _system(content: str) -> Turn:
    return {"role": "system", "content": content}


def _user(content: str) -> Turn:
    return {"role": "user", "content": content}
