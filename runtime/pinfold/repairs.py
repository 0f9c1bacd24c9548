"""Repairs of a request's messages and tools that leave its meaning as it is, made on a copy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "MoveLast",
    "Repair",
    "Site",
    "SortKeys",
    "SortTools",
    "Tidy",
    "put_text",
    "repaired",
    "sites",
    "text_at",
]

_TOOL_TEXT = ("description", "title", "default")
_NO_TEXT = ("examples", "example", "enum", "const")
_LINE_ENDS = re.compile(r"[ \t\r]+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a string stands: by keys from the list of messages, or from the tool of that name."""

    path: tuple[str | int, ...]
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class SortTools:
    """Tools in the order of their names."""


@dataclass(frozen=True, slots=True)
class SortKeys:
    """The keys of one tool's definition in the order of the alphabet, at every depth."""

    tool: str


@dataclass(frozen=True, slots=True)
class Tidy:
    """No white space at the ends of lines and of the text, in one message or one tool."""

    message: int | None = None
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class MoveLast:
    """Characters `start` to `end` of a string become a line of their own at the end of the last user message."""

    site: Site
    start: int
    end: int


Repair = SortTools | SortKeys | Tidy | MoveLast


def repaired(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, repairs: Iterable[Repair]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """A copy of the request with `repairs` made; those that find nothing to do leave it as it is."""
    new_messages: list[dict[str, Any]] = _plain(messages)
    new_tools: list[dict[str, Any]] | None = None if tools is None else _plain(tools)
    todo = set(repairs)
    _move_last(new_messages, new_tools or [], [repair for repair in todo if isinstance(repair, MoveLast)])
    for repair in todo:
        if isinstance(repair, Tidy):
            _tidy_texts(new_messages, new_tools or [], repair)
    for index, tool in enumerate(new_tools or []):
        if new_tools is not None and SortKeys(_name(tool)) in todo:
            new_tools[index] = _sorted_keys(tool)
    if new_tools is not None and SortTools() in todo:
        new_tools.sort(key=_name)
    return new_messages, new_tools


def sites(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> Iterator[Site]:
    """Every string that people wrote: contents of messages; descriptions, titles and defaults of tools."""
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, str):
            yield Site((index, "content"))
        for block, item in enumerate(content if isinstance(content, list | tuple) else ()):
            path = (index, "content", block)
            yield Site(path if isinstance(item, str) else (*path, "text"))
    for tool in tools or ():
        yield from (Site(path, _name(tool)) for path in _tool_paths(tool, ()))


def text_at(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, site: Site) -> str:
    """The string at `site`."""
    *parents, last = site.path
    value: str = _holder(messages, tools or (), site.tool, parents)[last]
    return value


def put_text(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, site: Site, text: str) -> None:
    """Replaces the string at `site`, in place."""
    *parents, last = site.path
    _holder(messages, tools or (), site.tool, parents)[last] = text


def _plain(value: Any) -> Any:
    """A copy in dicts and lists of our own."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _tidy(text: str) -> str:
    """`text` without white space at the ends of its lines, and without empty lines at its own."""
    return _LINE_ENDS.sub("", text).strip("\n")


def _holder(messages: Any, tools: Any, tool: str | None, parents: Sequence[str | int]) -> Any:
    value = messages if tool is None else next(item for item in tools if _name(item) == tool)
    for key in parents:
        value = value[key]
    return value


def _tool_paths(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, str):
                yield from [(*path, key)] if key in _TOOL_TEXT else []
            elif key not in _NO_TEXT or isinstance(item, Mapping):  # a parameter may have such a name
                yield from _tool_paths(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tool_paths(item, (*path, index))


def _name(tool: Mapping[str, Any]) -> str:
    function: Mapping[str, Any] = tool.get("function", tool)
    return str(function.get("name"))


def _sorted_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted_keys(value[key]) for key in sorted(value)}
    return [_sorted_keys(item) for item in value] if isinstance(value, list) else value


def _tidy_texts(messages: list[dict[str, Any]], tools: list[dict[str, Any]], repair: Tidy) -> None:
    for site in sites(messages, tools):
        ours = site.tool == repair.tool if repair.tool is not None else not site.tool and site.path[0] == repair.message
        if ours:
            put_text(messages, tools, site, _tidy(text_at(messages, tools, site)))


def _move_last(messages: list[dict[str, Any]], tools: list[dict[str, Any]], moves: Sequence[MoveLast]) -> None:
    lines: list[str] = []
    for site in sites(messages, tools):
        text = text_at(messages, tools, site)
        kept, at = "", 0
        for move in sorted((move for move in moves if move.site == site), key=lambda move: move.start):
            if move.end > at:  # else it is a sentence that holds two
                said = text[max(move.start, at) : move.end].strip()
                kept, at = kept + text[at : move.start], move.end
                lines.append(said if site.tool is None else f'Of the tool "{site.tool}": {said}')
        if at:
            put_text(messages, tools, site, kept + text[at:])
    last = next((message for message in reversed(messages) if message.get("role") == "user"), None)
    if last is not None and lines:
        text = "\n".join(lines)
        content = last["content"]
        last["content"] = (
            f"{content}\n{text}" if isinstance(content, str) else [*content, {"type": "text", "text": text}]
        )
