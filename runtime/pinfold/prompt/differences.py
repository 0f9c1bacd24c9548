"""Why the beginnings of two runs' requests are not the same, cause by cause.

Two texts are compared with and without what a cause can change: a cause is one of them if the texts are equal once
all causes are taken away, and not without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pinfold.prompt.continuations import common_length
from pinfold.prompt.measure import question_index
from pinfold.prompt.messages import normalize
from pinfold.prompt.tools import Tool
from pinfold.prompt.volatile import find_volatile
from pinfold.prompt_check import FindingKind
from pinfold.repairs import Repair, SortKeys, SortTools, Tidy, put_text, repaired, sites, text_at

__all__ = ["Difference", "Request", "differences"]

_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Request:
    """Messages and tools as they came."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None

    def repaired(self, repair: Repair) -> Request:
        return Request(*repaired(self.messages, self.tools, [repair]))


@dataclass(frozen=True, slots=True)
class Difference:
    """One cause.

    Attributes:
        changed: the first request with the part in question as the second has it, but for volatile text.
        repair: what makes both equal; None where nothing does.
    """

    kind: FindingKind
    changed: Request
    repair: Repair | None = None


def differences(first: Request, second: Request) -> Iterator[Difference]:
    """All causes but volatile text, which is found in one run alone. Both requests are checked ones."""
    one, other = (normalize(request.messages, request.tools) for request in (first, second))
    yield from _tool_differences(first, second, one.tools, other.tools)
    heads = question_index(one), question_index(other)
    roles = [[message.role for message in run.messages[:head]] for run, head in zip((one, other), heads, strict=True)]
    for index in range(common_length(*roles)):
        if one.messages[index] != other.messages[index]:
            yield from _message_differences(first, second, index)
    if roles[0] != roles[1]:
        yield Difference("text", replace(first, messages=second.messages))


def _tool_differences(
    first: Request, second: Request, ours: Sequence[Tool], theirs: Sequence[Tool]
) -> Iterator[Difference]:
    raw = {tool.name: given for tool, given in zip(theirs, second.tools or (), strict=True)}
    mine = {tool.name: given for tool, given in zip(ours, first.tools or (), strict=True)}
    texts = {tool.name: tool.json for tool in theirs}
    if set(mine) != set(raw):
        yield Difference("tools", replace(first, tools=second.tools))
    shared = [name for name in raw if name in mine]
    if shared != [name for name in mine if name in raw]:
        order = iter(shared)
        tools = [mine[next(order)] if name in raw else given for name, given in mine.items()]
        yield Difference("tool_order", replace(first, tools=tools), SortTools())
    for index, tool in enumerate(ours):
        if tool.name in texts and texts[tool.name] != tool.json:
            pair = Request((), [mine[tool.name]]), Request((), [raw[tool.name]])
            tools = [*(first.tools or ())]
            tools[index : index + 1] = _with_volatile_of(*pair).tools or ()
            changed = replace(first, tools=tools)
            causes = (SortKeys(tool.name), Tidy(tool=tool.name))
            yield from _causes(pair, causes, _tool_text, changed)


def _message_differences(first: Request, second: Request, index: int) -> Iterator[Difference]:
    pair = Request([first.messages[index]]), Request([second.messages[index]])
    messages = [*first.messages]
    messages[index : index + 1] = _with_volatile_of(*pair).messages
    for found in _causes(pair, (Tidy(message=0),), _message_text, replace(first, messages=messages)):
        yield replace(found, repair=Tidy(message=index) if found.repair else None)


def _with_volatile_of(first: Request, second: Request) -> Request:
    """The second with the first's volatile text, where both have as much: what differs besides that."""
    messages, tools = repaired(second.messages, second.tools, ())
    for site in set(sites(messages, tools)) & set(sites(first.messages, first.tools)):
        ours, theirs = text_at(first.messages, first.tools, site), text_at(messages, tools, site)
        hits = find_volatile(theirs), find_volatile(ours)
        if len(hits[0]) == len(hits[1]):
            for old, new in zip(*map(reversed, hits), strict=True):
                theirs = theirs[: old.start] + ours[new.start : new.end] + theirs[old.end :]
            put_text(messages, tools, site, theirs)
    return Request(messages, tools)


def _causes(
    pair: tuple[Request, Request], repairs: Sequence[Repair], text_of: Callable[[Request], str], changed: Request
) -> Iterator[Difference]:
    """What makes the pair's texts differ: the white space or keys that `repairs` put right, or their words."""

    def equal(done: Sequence[Repair], *, spaced: bool = True) -> bool:
        one, other = (_seen(request, done, text_of, spaced=spaced) for request in pair)
        return one == other

    if equal(repairs):
        for repair in repairs:
            if not equal([each for each in repairs if each != repair]):
                kind: FindingKind = "key_order" if isinstance(repair, SortKeys) else "white_space"
                yield Difference(kind, changed, repair)
    else:
        yield Difference("white_space" if equal(repairs, spaced=False) else "text", changed)


def _seen(request: Request, repairs: Sequence[Repair], text_of: Callable[[Request], str], *, spaced: bool) -> str:
    """The text as it is once `repairs` are made, without its volatile text, and without white space if not `spaced`."""
    messages, tools = repaired(request.messages, request.tools, repairs)
    for site in sites(messages, tools):
        text = text_at(messages, tools, site)
        for hit in reversed(find_volatile(text)):
            text = f"{text[: hit.start]}\0{text[hit.end :]}"
        put_text(messages, tools, site, text if spaced else _SPACE.sub("", text))
    return text_of(Request(messages, tools))


def _tool_text(request: Request) -> str:
    return normalize([{"role": "user", "content": ""}], request.tools).tools[0].json


def _message_text(request: Request) -> str:
    message = normalize(request.messages).messages[0]
    calls = [[call.name, call.arguments] for call in message.tool_calls]
    return json.dumps([message.role, message.content, message.reasoning, message.name, calls])
