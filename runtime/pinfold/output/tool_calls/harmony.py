"""GPT-OSS: everything in channels. ``analysis`` is reasoning, ``final`` is text, ``commentary to=functions.x`` a call.

A message is ``<|channel|>head<|message|>body`` and ends with ``<|end|>``, ``<|call|>`` or ``<|return|>``, or with the
answer.
"""

from __future__ import annotations

import re
from typing import Literal

from pinfold.output.text import open_mark
from pinfold.output.tool_calls.base import Parsed, Schemas, ToolCallParser
from pinfold.output.tool_calls.delimited import CUT_OFF
from pinfold.output.tool_calls.json_call import invalid_call, load_json
from pinfold.output.tool_calls.values import call_of

__all__ = ["harmony_parser"]

_CHANNEL, _MESSAGE, _START = "<|channel|>", "<|message|>", "<|start|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START, _CHANNEL)
_HEADER = re.compile(r"\s*(?:<\|start\|>[\w\s.=-]*)?")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([A-Za-z0-9_.-]+)")

State = Literal["between", "head", "reasoning", "text", "call"]


def harmony_parser(schemas: Schemas, *, forced: bool = False) -> ToolCallParser:  # noqa: ARG001
    """A parser for the family (`base.ParserFactory`); what comes before any channel is text."""
    return _Harmony(schemas)


class _Harmony:
    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._state: State = "between"
        self._held = ""
        self._role = ""
        self._head = ""
        self._body: list[str] = []
        self._opened = False

    def feed(self, text: str) -> Parsed:
        self._held += text
        out, moved = Parsed(), True
        while moved:
            parsed, moved = self._between() if self._state == "between" else self._within()
            out += parsed
        return out

    def finish(self, *, cut: bool) -> Parsed:
        out, rest = Parsed(), self._held
        self._held = ""
        if self._state == "between" and not _HEADER.fullmatch(rest):
            return Parsed(text=rest)
        if self._state in ("reasoning", "text"):
            out += self._show(rest)
        if self._state == "call":
            out += self._call("".join([*self._body, rest]), cut=cut)
        return out

    def _between(self) -> tuple[Parsed, bool]:
        """Outside of messages: text until the first mark, as some answers have none; then the next one's header."""
        if not self._opened:
            return self._before_all()
        at = self._held.find(_CHANNEL)
        if at < 0:
            return Parsed(), False
        self._role, self._held = self._held[:at], self._held[at + len(_CHANNEL) :]
        self._state = "head"
        return Parsed(), True

    def _before_all(self) -> tuple[Parsed, bool]:
        hits = [at for mark in (_CHANNEL, _START) if (at := self._held.find(mark)) >= 0]
        self._opened = bool(hits)
        safe = min(hits) if hits else len(self._held) - max(open_mark(self._held, m) for m in (_CHANNEL, _START))
        shown, self._held = self._held[:safe], self._held[safe:]
        return Parsed(text=shown), self._opened

    def _within(self) -> tuple[Parsed, bool]:
        if self._state == "head":
            at = self._held.find(_MESSAGE)
            if at < 0:
                return Parsed(), False
            self._head, self._held = f"{self._role} {self._held[:at]}", self._held[at + len(_MESSAGE) :]
            self._state, self._body = self._kind(), []
            return Parsed(), True
        hits = [(at, mark) for mark in _ENDS if (at := self._held.find(mark)) >= 0]
        if hits:
            at, mark = min(hits)
            body, self._held = self._held[:at], self._held[at + (len(mark) if mark != _CHANNEL else 0) :]
            parsed = self._call("".join([*self._body, body]), cut=False) if self._state == "call" else self._show(body)
            self._state = "between"
            return parsed, True
        size = max(open_mark(self._held, mark) for mark in _ENDS)
        settled, self._held = self._held[: len(self._held) - size], self._held[len(self._held) - size :]
        if self._state == "call":
            self._body.append(settled)
            return Parsed(), False
        return self._show(settled), False

    def _kind(self) -> State:
        if "to=" in self._head:
            return "call"
        return "reasoning" if self._head.lstrip().startswith("analysis") or "analysis" in self._head else "text"

    def _show(self, body: str) -> Parsed:
        return Parsed(reasoning=body) if self._state == "reasoning" else Parsed(text=body)

    def _call(self, body: str, *, cut: bool) -> Parsed:
        recipient = _RECIPIENT.search(self._head)
        name = recipient[1] if recipient else ""
        try:
            arguments = load_json(body)
        except (ValueError, RecursionError) as e:
            error = CUT_OFF if cut else f"The arguments are no valid JSON: {e}."
            call = invalid_call(f'{{"name": "{name}", "arguments": {body}', error)
            return Parsed(invalid_tool_calls=(call,))
        return call_of(name, arguments, self._schemas, f"{name}{body}")
