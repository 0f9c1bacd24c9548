"""Finds what will end the reuse of a prompt, before it is ever run: where, why, and how many tokens it costs.

Everything is measured in one way: the prompt is rendered again with the thing in question changed, and the tokens of
the stable prefix that come after the first changed one are counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pinfold.errors import InvalidRequestError, TemplateError
from pinfold.prompt.differences import Difference, Request, differences
from pinfold.prompt.measure import Measure, Parting, question_index
from pinfold.prompt.messages import Conversation, normalize
from pinfold.prompt.renderer import PromptRenderer
from pinfold.prompt.stability import GrowthBreak, explain_growth
from pinfold.prompt.volatile import Volatile, VolatileKind, find_volatile
from pinfold.prompt_check import FindingKind, PromptCheck, PromptFinding
from pinfold.repairs import MoveLast, Repair, Site, put_text, repaired, sites, text_at

__all__ = ["check_prompt"]

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None

_LONGEST_EXCERPT = 60
_ANOTHER = str.maketrans(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "1234567890bcdefghijklmnopqrstuvwxyzaBCDEFGHIJKLMNOPQRSTUVWXYZA",
)
_SENTENCE_END = re.compile(r"(?<=[.!?])[ \t]+(?=[^a-z\s])")

_NAMES: dict[VolatileKind, str] = {
    "date": "a date",
    "time": "a time",
    "id": "an id",
    "address": "a memory address",
    "path": "a temporary path",
    "process": "a process's own number",
}
_MOVE_IT = "Move it to the end of the last user message, or leave it out."
_LEAVE_IT_OUT = "Leave it out, or send it with the question."
_REASONS: dict[FindingKind, tuple[str, str]] = {
    "tool_order": (
        "The other run offers the same tools in another order.",
        "Offer the tools in one order, such as that of their names, in every run.",
    ),
    "key_order": (
        "The other run has the keys of this tool's definition in another order.",
        "Write the keys in one order, such as the alphabet's, in every run.",
    ),
    "white_space": (
        "The other run has other white space here.",
        "Write the same white space in every run; strip the ends of lines.",
    ),
    "tools": (
        "The other run offers other tools.",
        "Offer the same tools in every run, and restrict the choice by tool_choice or by words in the last message.",
    ),
    "text": (
        "The other run has other words here.",
        "Put what differs behind what all runs have in common, best into the last user message.",
    ),
}


def check_prompt(
    renderer: PromptRenderer, messages: Messages, tools: Tools = None, other: tuple[Messages, Tools] | None = None
) -> PromptCheck:
    """What will end the reuse of this prompt's stable prefix. `other` has the messages and tools of another run.

    Looked at are the tools, the system messages and turns before the first question, the template's own date, and how
    the prompt changes as the conversation grows; with `other` also every difference between both beginnings.

    Raises:
        InvalidRequestError, TemplateError: as for `PromptRenderer.render`, of either run.
    """
    request = Request(messages, tools)
    measure = Measure(renderer, messages, tools)
    found = [*_volatile(measure, request), *_template_dates(measure), *_growth(renderer, request)]
    if other is not None:
        found += _differences(measure, request, _checked(renderer, other))
    found.sort(key=lambda finding: finding.token)
    return PromptCheck(tuple(found), len(measure.prompt.tokens), measure.stable_tokens, messages, tools)


def _checked(renderer: PromptRenderer, other: Any) -> Request:
    """The other run's request, which the template takes as well."""
    if not isinstance(other, tuple) or len(other) != 2:
        msg = f"other is a {type(other).__name__}. Give the tuple (messages, tools) of another run; tools may be None."
        raise InvalidRequestError(msg)
    renderer.render(*other)
    return Request(*other)


def _volatile(measure: Measure, request: Request) -> Iterator[PromptFinding]:
    conversation = normalize(request.messages, request.tools)
    has_last = any(message.role == "user" for message in conversation.messages)
    for site in sites(request.messages[: question_index(conversation)], request.tools):
        text = text_at(request.messages, request.tools, site)
        for hit in find_volatile(text):
            parting = measure.parting(*_with_another(request, site, text, hit))
            if parting is None:
                continue  # the template leaves it out
            # a default is a value, and no sentence that could be said elsewhere
            movable = has_last and site.path[-1] != "default"
            move = MoveLast(site, *_sentence(text, hit)) if movable else None
            excerpt = text[hit.start : hit.end][:_LONGEST_EXCERPT]
            reason = f"{_NAMES[hit.kind].capitalize()} is another one in the next run, and ends the reuse here."
            yield _finding("volatile", parting, excerpt, reason, _MOVE_IT if movable else _LEAVE_IT_OUT, move)


def _with_another(request: Request, site: Site, text: str, hit: Volatile) -> tuple[Messages, Tools]:
    """The request with other digits and letters in the place of what is volatile."""
    messages, tools = repaired(request.messages, request.tools, ())
    changed = text[hit.start : hit.end].translate(_ANOTHER)
    put_text(messages, tools, site, text[: hit.start] + changed + text[hit.end :])
    return messages, tools


def _sentence(text: str, hit: Volatile) -> tuple[int, int]:
    """Where the sentence around `hit` begins and ends, with the white space or line end that goes with it."""
    line_start = text.rfind("\n", 0, hit.start) + 1
    line_end = text.find("\n", hit.end)
    line_end = len(text) if line_end < 0 else line_end
    start, end = line_start, line_end
    for gap in _SENTENCE_END.finditer(text, line_start, line_end):
        if gap.end() <= hit.start:
            start = gap.end()
        elif gap.start() >= hit.end:
            end = gap.end()
            break
    if end == line_end and start == line_start:
        return start, min(end + 1, len(text))
    if end == line_end:
        start = len(text[:start].rstrip(" \t"))
    return start, end


def _template_dates(measure: Measure) -> Iterator[PromptFinding]:
    text = measure.prompt.text
    for date in dict.fromkeys(measure.dates):
        changed = text.replace(date, date.translate(_ANOTHER), 1)
        reason = "The chat template writes the date or time here by itself."
        remedy = "Give the template without it as chat_template, or say the date in the last user message."
        yield _finding("template_date", measure.parting_of_text(changed), date[:_LONGEST_EXCERPT], reason, remedy)


def _growth(renderer: PromptRenderer, request: Request) -> Iterator[PromptFinding]:
    """One finding for each cause of breaks: reasoning that is dropped, tools that move, anything else."""
    grown = _grown(request.messages, normalize(request.messages, request.tools))
    breaks = _breaks(renderer, grown, request.tools)
    unreasoned = [_without_reasoning(message) for message in grown]
    causes: tuple[tuple[str, Callable[[], list[GrowthBreak]]], ...] = (
        ("drops the reasoning of earlier turns", lambda: _breaks(renderer, unreasoned, request.tools)),
        ("moves the tools to a later turn", lambda: _breaks(renderer, unreasoned, None)),
        ("changes earlier turns", list),
    )
    for cause, breaks_without_it in causes:
        if not breaks:
            return
        remaining = {each.messages for each in breaks_without_it()}
        solved = [each for each in breaks if each.messages not in remaining]
        if solved:
            yield _growth_finding(solved, cause)
        breaks = [each for each in breaks if each.messages in remaining]


def _without_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if not message.get("reasoning_content"):
        return message
    return {**message, "reasoning_content": "", "content": message.get("content") or ""}


def _growth_finding(breaks: Sequence[GrowthBreak], cause: str) -> PromptFinding:
    first = breaks[0]
    worst = max(each.lost_tokens for each in breaks)
    reason = f"The chat template {cause} as the conversation goes on, so that each time the prompt changes from here."
    remedy = "Give a template that leaves earlier turns as they are as chat_template, or keep the conversation short."
    parting = Parting(first.token, worst, first.place.where, first.before)
    return _finding("growth", parting, first.before, reason, remedy)


def _grown(messages: Messages, conversation: Conversation) -> list[Mapping[str, Any]]:
    """The conversation gone on by an answer and a question, unless it waits for a tool."""
    last = conversation.messages[-1]
    if last.tool_calls:
        return [*messages]
    question, answer = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi"}
    opening = [question] if last.role == "system" else []
    return [*messages, *opening, *([answer] if last.role != "assistant" else []), question]


def _breaks(renderer: PromptRenderer, messages: Messages, tools: Tools) -> list[GrowthBreak]:
    try:
        return [*explain_growth(renderer, messages, tools)]
    except TemplateError:
        return []  # the template takes no such continuation, so that none will ever be asked


def _differences(measure: Measure, request: Request, other: Request) -> Iterator[PromptFinding]:
    for found in differences(request, other):
        parting = measure.parting(found.changed.messages, found.changed.tools)
        if parting is not None:
            reason, remedy = _REASONS[found.kind]
            repair = found.repair if _changes(request, found) else None
            yield _finding(found.kind, parting, parting.excerpt, reason, remedy, repair)


def _changes(request: Request, found: Difference) -> bool:
    """Whether the repair does anything to this request; where not, the other one is to be fixed."""
    if found.repair is None:
        return False
    before, after = (normalize(each.messages, each.tools) for each in (request, request.repaired(found.repair)))
    return before != after or [tool.json for tool in before.tools] != [tool.json for tool in after.tools]


def _finding(
    kind: FindingKind, parting: Parting, excerpt: str, reason: str, remedy: str, repair: Repair | None = None
) -> PromptFinding:
    return PromptFinding(kind, parting.where, parting.token, parting.lost_tokens, excerpt, reason, remedy, repair)
