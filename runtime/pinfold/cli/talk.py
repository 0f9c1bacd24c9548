"""A conversation on the terminal: the messages so far, and how an answer, its thoughts and its calls are shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from pinfold.cli.terminal import aside, console, safe

if TYPE_CHECKING:
    from pinfold.results import Completion, Delta, ToolCall, Usage
    from pinfold.runtime import Runtime

__all__ = ["Talk", "call_line", "summary"]


class Talk:
    """What was said between a user and a model.

    Attributes:
        waiting: calls of the last answer whose results `give` is to bring.
    """

    def __init__(
        self, runtime: Runtime, messages: list[dict[str, Any]], as_json: bool, generation: dict[str, Any]
    ) -> None:
        self._runtime = runtime
        self._messages = messages
        self._json = as_json
        self._generation = generation
        self._clean = safe if sys.stdout.isatty() else str
        self._open = ""  # the stream whose line is not ended: "thought", "text" or neither
        self.waiting: Sequence[ToolCall] = ()

    def turn(self, prompt: str) -> None:
        """Asks, shows the answer as it comes, and remembers both: also what had come when it failed or was stopped."""
        self._messages.append({"role": "user", "content": prompt})
        self._answer()

    def give(self, results: Sequence[str]) -> None:
        """Sends one result for each call that waits, and shows the next answer."""
        calls, self.waiting = self.waiting, ()
        for call, result in zip(calls, results, strict=True):
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        self._answer()

    def give_up(self) -> None:
        """Forgets calls that got no results, which no prompt could go on from."""
        if self.waiting:
            self._messages.pop()
            self.waiting = ()

    def _answer(self) -> None:
        texts: list[str] = []
        calls: list[ToolCall] = []
        ended = False
        self._open = ""
        try:
            with closing(self._runtime.stream(self._messages, **self._generation)) as deltas:
                for delta in deltas:
                    texts.append(delta.text)
                    calls += delta.tool_calls
                    self._show(delta)
                    ended = delta.done is not None
        finally:
            self._remember("".join(texts), calls if ended else [])
        self.waiting = calls

    def _remember(self, text: str, calls: Sequence[ToolCall]) -> None:
        if not text and not calls:
            self._forget_question()
            return
        answer: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            answer["tool_calls"] = [_as_message(call) for call in calls]
        self._messages.append(answer)

    def _forget_question(self) -> None:
        """Of what was not answered: the question, or the calls with the results that were to follow them."""
        while self._messages and self._messages.pop()["role"] == "tool":
            pass

    def _show(self, delta: Delta) -> None:
        if not self._json:
            self._write("thought", delta.reasoning)
            self._write("text", delta.text)
            for call in delta.tool_calls:
                self._end_line()
                typer.echo(self._clean(call_line(call)))
            for invalid in delta.invalid_tool_calls:
                self._end_line()
                aside(f"no valid call ({invalid.error}): {invalid.text}", "yellow")
        if delta.done is not None:
            self._finish(delta.done)

    def _write(self, kind: str, text: str) -> None:
        if not text:
            return
        if self._open not in ("", kind):
            self._end_line()
        self._open = kind
        if kind == "text":
            typer.echo(self._clean(text), nl=False)
        else:
            console(stderr=True).print(Text(safe(text), "dim italic"), end="")

    def _end_line(self) -> None:
        if self._open:
            typer.echo(err=self._open == "thought")
        self._open = ""

    def _finish(self, done: Completion) -> None:
        if self._json:
            answer = {"text": done.text, "reasoning": done.reasoning, "finish_reason": done.finish_reason}
            calls = {
                "tool_calls": [asdict(call) for call in done.tool_calls],
                "invalid_tool_calls": [asdict(call) for call in done.invalid_tool_calls],
            }
            typer.echo(json.dumps(answer | calls | done.report(), ensure_ascii=False))
            return
        if not done.text and not done.tool_calls:
            self._open = self._open or "text"
        self._end_line()
        aside(summary(done))


def call_line(call: ToolCall) -> str:
    """Such as: -> weigh(barrel=3, gate="north")."""
    arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return f"-> {call.name}({arguments})"


def _as_message(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


def _reused(usage: Usage) -> str:
    if usage.cached_tokens is None or usage.prompt_tokens is None:
        return "the server does not report what it reused"
    share = 100 * usage.cached_tokens // max(usage.prompt_tokens, 1)
    return f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached ({share}%)"


def summary(done: Completion) -> str:
    """One line on what an answer reused and how fast it came, and one more for a miss whose reason is known."""
    usage, cache, timings = done.usage, done.cache, done.timings
    parts = [
        f"{cache.hit_kind}: {_reused(usage)}",
        f"first token after {timings.ttft_s:.2f} s",
    ]
    if usage.completion_tokens is not None and timings.decode_tps is not None:
        parts.append(f"{usage.completion_tokens} tokens at {timings.decode_tps:.1f} a second")
    if done.finish_reason == "length":
        parts.append("cut at the token limit")
    line = " · ".join(parts)
    return f"{line}\n{cache.miss.reason}" if cache.miss is not None else line
