"""A server's chunks -> deltas, and what it reported. Nothing in a chunk is trusted to be of its type."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pinfold.answer import PlainText
from pinfold.errors import ServerReplyError
from pinfold.output.parser import OutputParser
from pinfold.output.tool_calls import Parsed, new_call_id
from pinfold.results import Delta, FinishReason, InvalidToolCall, ToolCall

__all__ = ["Reply", "Reported"]

_MOST_CHARACTERS = 64 << 20
_CALL_OPEN, _CALL_CLOSE = "<tool_call>\n", "\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Reported:
    """The server's own figures, None where it gave none; `prefill_s` is in seconds, the others are tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    prefill_s: float | None = None
    drafted: int | None = None
    accepted: int | None = None


class Reply:
    """Reads the chunks of one answer. `take` gives the delta of each; `end` the last one's parts.

    Args:
        parser: reads reasoning, and calls where the server leaves them in the text.
        tools: names of the tools that were offered.
        as_call: the text is a call's JSON alone, as a schema holds it.
        progress: told how far the server is with the prompt, where it says so.
    """

    def __init__(
        self,
        parser: OutputParser | PlainText,
        tools: Sequence[str] = (),
        *,
        as_call: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._parser = parser
        self._tools = frozenset(tools)
        self._as_call = as_call
        self._progress = progress
        self._calls: dict[Any, _OpenCall] = {}
        self._characters = 0
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}
        self._skippy: dict[str, Any] = {}
        self.whole = Parsed()
        self.model = ""
        self.finish_reason: FinishReason | None = None
        self.first_at: float | None = None
        self.notes: tuple[str, ...] = ()
        if as_call:
            self._add(parser.feed(_CALL_OPEN))

    def take(self, chunk: Mapping[str, Any]) -> Delta | None:
        """What `chunk` adds to the answer, None if nothing that can be shown.

        Raises:
            ServerReplyError: it cannot be read.
        """
        self._note(chunk)
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, Mapping):
            return None
        piece = choice.get("delta") or choice.get("message") or {}
        if not isinstance(piece, Mapping):
            _unreadable("delta", piece)
        thought = _text(piece, "reasoning_content") or _text(piece, "reasoning")
        text = _text(piece, "content") or _text(choice, "text")
        parsed = Parsed(reasoning=thought)
        if text:
            parsed += self._parser.feed(text)
        parsed += self._call_pieces(piece.get("tool_calls"))
        self._ends(choice.get("finish_reason"))
        if text or thought or self._calls:
            self._count(len(text) + len(thought))
        return self._shown(parsed)

    def end(self) -> Parsed:
        """What was still open, after the last chunk."""
        cut = self.finish_reason == "length"
        parsed = Parsed()
        if self._as_call and not cut:
            parsed += self._parser.feed(_CALL_CLOSE)
        parsed += self._close_calls() + self._parser.finish(cut=cut)
        return self._add(parsed)

    @property
    def begun(self) -> bool:
        """Whether any of the answer came."""
        return self.first_at is not None

    def reported(self) -> Reported:
        """The server's figures."""
        usage, timings = self._usage, self._timings
        prompt = _number(usage.get("prompt_tokens"))
        cached = _number(
            _inner(usage, "prompt_tokens_details", "cached_tokens"),
            timings.get("cache_n"),
            self._skippy.get("skippy.kv.matched_prefix_tokens"),
        )
        prefill = timings.get("prompt_ms")
        return Reported(
            prompt_tokens=prompt,
            completion_tokens=_number(usage.get("completion_tokens")),
            cached_tokens=None if cached is not None and prompt is not None and cached > prompt else cached,
            reasoning_tokens=_number(_inner(usage, "completion_tokens_details", "reasoning_tokens")),
            prefill_s=prefill / 1000 if isinstance(prefill, int | float) else None,
            drafted=_number(timings.get("draft_n")),
            accepted=_number(timings.get("draft_n_accepted")),
        )

    def _note(self, chunk: Mapping[str, Any]) -> None:
        usage, timings, progress = chunk.get("usage"), chunk.get("timings"), chunk.get("prompt_progress")
        if isinstance(usage, Mapping):
            self._usage = usage
        if isinstance(timings, Mapping):
            self._timings = timings
        if isinstance(chunk.get("model"), str):
            self.model = chunk["model"]
        for place in (chunk, usage, chunk.get("metadata")):
            if isinstance(place, Mapping):
                self._skippy |= {key: value for key, value in place.items() if str(key).startswith("skippy.kv.")}
        if self._progress is not None and isinstance(progress, Mapping):
            done, total = _number(progress.get("processed")), _number(progress.get("total"))
            if done is not None and total:
                self._progress(done, total)

    def _call_pieces(self, pieces: Any) -> Parsed:
        if pieces is None:
            return Parsed()
        if not isinstance(pieces, list):
            _unreadable("tool_calls", pieces)
        parsed = Parsed()
        for position, piece in enumerate(pieces):
            if not isinstance(piece, Mapping):
                _unreadable("tool_calls", piece)
            index = piece.get("index", position)
            if self._calls and index not in self._calls:
                parsed += self._close_calls()
            call = self._calls.setdefault(index, _OpenCall())
            self._count(call.add(piece))
        return parsed

    def _close_calls(self) -> Parsed:
        parsed = Parsed()
        for call in self._calls.values():
            parsed += call.close(self._tools)
        self._calls = {}
        return parsed

    def _ends(self, reason: Any) -> None:
        if reason is None:
            return
        self.finish_reason = "length" if reason == "length" else "stop"
        if reason in ("tool_calls", "function_call"):
            self.finish_reason = "tool_calls"
        elif reason not in ("length", "stop"):
            self.notes = (*self.notes, f"The server ended the answer with {reason!r}.")

    def _count(self, characters: int) -> None:
        if self.first_at is None:
            self.first_at = time.perf_counter()
        self._characters += characters
        if self._characters > _MOST_CHARACTERS:
            msg = f"The server's answer is longer than {_MOST_CHARACTERS >> 20} MiB; it was stopped. Set max_tokens."
            raise ServerReplyError(msg)

    def _shown(self, parsed: Parsed) -> Delta | None:
        self._add(parsed)
        if parsed == Parsed():
            return None
        return Delta(parsed.text, parsed.reasoning, parsed.tool_calls, parsed.invalid_tool_calls)

    def _add(self, parsed: Parsed) -> Parsed:
        if parsed != Parsed():
            self.whole += parsed
        return parsed


class _OpenCall:
    """A call whose arguments are still coming."""

    def __init__(self) -> None:
        self._id = ""
        self._name = ""
        self._arguments: list[str] = []

    def add(self, piece: Mapping[str, Any]) -> int:
        """Takes a fragment in; returns its characters."""
        function = piece.get("function")
        function = function if isinstance(function, Mapping) else {}
        self._id = self._id or _text(piece, "id")
        self._name = self._name or _text(function, "name")
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):  # as some servers send a whole call
            arguments = json.dumps(arguments)
        elif arguments is not None and not isinstance(arguments, str):
            _unreadable("arguments", arguments)
        self._arguments.append(arguments or "")
        return len(arguments or "")

    def close(self, tools: frozenset[str]) -> Parsed:
        """The call, or why it is none."""
        text, call_id = "".join(self._arguments), self._id or new_call_id()
        error = ""
        arguments: Any = {}
        try:
            arguments = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as e:
            error = f"The arguments are no valid JSON: {e}."
        if not error and not isinstance(arguments, dict):
            error = "The arguments are no JSON object."
        if not error and self._name not in tools:
            error = f"No tool {self._name!r} was offered."
        if error:
            return Parsed(invalid_tool_calls=(InvalidToolCall(call_id, self._name or None, text, error),))
        return Parsed(tool_calls=(ToolCall(call_id, self._name, arguments),))


def _text(value: Mapping[str, Any], key: str) -> str:
    text = value.get(key)
    if isinstance(text, list):  # content in blocks
        text = "".join(b["text"] for b in text if isinstance(b, Mapping) and isinstance(b.get("text"), str))
    if text is None:
        return ""
    if not isinstance(text, str):
        _unreadable(key, text)
    return text


def _inner(value: Mapping[str, Any], *keys: str) -> Any:
    found: Any = value
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _number(*values: Any) -> int | None:
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0), None)


def _unreadable(name: str, value: Any) -> NoReturn:
    msg = f"The server sent {name}={str(value)[:80]!r}, which is none."
    raise ServerReplyError(msg)
