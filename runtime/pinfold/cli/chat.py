"""`pinfold chat`: talk to a model, and see after each answer what it reused."""

from __future__ import annotations

import json
import sys
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinfold.cli.opening import DEFAULT_MODEL, Engine, Json, Model, NCtx, opened
from pinfold.cli.terminal import aside, error, is_terminal, safe
from pinfold.engines.probe import AUTO
from pinfold.errors import PinfoldError
from pinfold.options import RuntimeOptions

if TYPE_CHECKING:
    from pinfold.results import Completion, Usage
    from pinfold.runtime import Runtime

__all__ = ["chat", "summary"]

PROMPT = "> "
HOW_TO_LEAVE = "(Ctrl-D leaves; Ctrl-C stops an answer)"


def chat(
    model: Model = DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(metavar="TEXT|@FILE", help="System prompt, or @ and its file.")] = None,
    pin: Annotated[str | None, typer.Option(metavar="NAME", help="Pin the system prompt under this name.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=100.0, help="0 always takes the likeliest token.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Makes sampling repeatable.")] = None,
    once: Annotated[str | None, typer.Option(metavar="PROMPT", help="Answer this and leave.")] = None,
    engine: Engine = AUTO,
    n_ctx: NCtx = RuntimeOptions.model_fields["n_ctx"].default,
    as_json: Json = False,
) -> None:
    """Talk to MODEL. Without a terminal on stdin, all of stdin is one prompt.

    The answer goes to stdout, one line on what was reused to stderr.
    """
    if pin is not None and system is None:
        msg = "There is no system prompt to pin: give --system."
        raise typer.BadParameter(msg, param_hint="--pin")
    if once is None and not sys.stdin.isatty():
        once = sys.stdin.read()
    if once is not None and not once.strip():
        msg = "The prompt is empty."
        raise typer.BadParameter(msg, param_hint="--once")
    messages = [{"role": "system", "content": _text_or_file(system)}] if system is not None else []
    with opened(model, engine=engine, n_ctx=n_ctx) as runtime:
        if pin is not None:
            pinned = runtime.pin(messages, name=pin)
            aside(f"pinned {pinned.name!r}: {pinned.tokens} tokens" + (f"; {pinned.warning}" if pinned.warning else ""))
        talk = _Talk(runtime, messages, as_json, max_tokens=max_tokens, temperature=temperature, seed=seed)
        if once is not None:
            talk.turn(once)
        else:
            _converse(talk)


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


class _Talk:
    """A conversation: the messages so far, and how an answer is asked for and shown."""

    def __init__(self, runtime: Runtime, messages: list[dict[str, Any]], as_json: bool, **generation: Any) -> None:
        self._runtime = runtime
        self._messages = messages
        self._json = as_json
        self._generation = generation
        self._clean = safe if sys.stdout.isatty() else str

    def turn(self, prompt: str) -> None:
        """Asks, shows the answer as it comes, and remembers both: also what had come when it failed or was stopped."""
        self._messages.append({"role": "user", "content": prompt})
        answer: list[str] = []
        try:
            self._show(answer)
        finally:
            if text := "".join(answer):
                self._messages.append({"role": "assistant", "content": text})
            else:
                self._messages.pop()

    def _show(self, answer: list[str]) -> None:
        with closing(self._runtime.stream(self._messages, **self._generation)) as deltas:
            for delta in deltas:
                answer.append(delta.text)
                if not self._json:
                    typer.echo(self._clean(delta.text), nl=False)
                if delta.done is not None:
                    self._finish(delta.done)

    def _finish(self, done: Completion) -> None:
        if self._json:
            answer = {"text": done.text, "reasoning": done.reasoning, "finish_reason": done.finish_reason}
            typer.echo(json.dumps(answer | done.report(), ensure_ascii=False))
        else:
            typer.echo()
            aside(summary(done))


def _converse(talk: _Talk) -> None:
    with suppress(ImportError):
        import_module("readline")  # gives input() its line editing
    aside(HOW_TO_LEAVE)
    while True:
        try:
            prompt = input(PROMPT if is_terminal() else "")
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            aside(f"\n{HOW_TO_LEAVE}")
            continue
        if prompt.strip():
            _turn_that_may_fail(talk, prompt)


def _turn_that_may_fail(talk: _Talk, prompt: str) -> None:
    try:
        talk.turn(prompt)
    except KeyboardInterrupt:
        aside("\n(stopped)")
    except PinfoldError as e:
        error(str(e))


def _text_or_file(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        msg = f"{text[1:]} cannot be read as text: {e}"
        raise typer.BadParameter(msg, param_hint="--system") from e
