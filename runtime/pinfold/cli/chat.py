"""`pinfold chat`: talk to a model, and see after each answer what it reused."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from pinfold.cli.opening import DEFAULT_MODEL, Engine, Json, Model, NCtx, opened
from pinfold.cli.pins import read_tools
from pinfold.cli.talk import Talk
from pinfold.cli.terminal import aside, error, is_terminal
from pinfold.engines.probe import AUTO
from pinfold.errors import PinfoldError
from pinfold.options import RuntimeOptions

__all__ = ["chat"]

PROMPT = "> "
HOW_TO_LEAVE = "(Ctrl-D leaves; Ctrl-C stops an answer)"


def chat(
    model: Model = DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(metavar="TEXT|@FILE", help="System prompt, or @ and its file.")] = None,
    pin: Annotated[str | None, typer.Option(metavar="NAME", help="Pin the system prompt under this name.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=100.0, help="0 always takes the likeliest token.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Makes sampling repeatable.")] = None,
    tools: Annotated[
        str | None, typer.Option(metavar="FILE", help="Offer these tools: a JSON list, or an object with such tools.")
    ] = None,
    once: Annotated[str | None, typer.Option(metavar="PROMPT", help="Answer this and leave.")] = None,
    engine: Engine = AUTO,
    n_ctx: NCtx = RuntimeOptions.model_fields["n_ctx"].default,
    as_json: Json = False,
) -> None:
    """Talk to MODEL. Without a terminal on stdin, all of stdin is one prompt.

    The answer and its tool calls go to stdout; what the model thought, and one line on what was reused, to stderr.
    In a conversation you are asked what each tool gives.
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
    offered = None if tools is None else read_tools(tools)
    generation: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    if offered is not None:
        generation["tools"] = offered
    with opened(model, engine=engine, n_ctx=n_ctx) as runtime:
        if pin is not None:
            pinned = runtime.pin(messages, offered, name=pin)
            aside(f"pinned {pinned.name!r}: {pinned.tokens} tokens" + (f"; {pinned.warning}" if pinned.warning else ""))
        talk = Talk(runtime, messages, as_json, generation)
        if once is not None:
            talk.turn(once)
        else:
            _converse(talk)


def _converse(talk: Talk) -> None:
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


def _turn_that_may_fail(talk: Talk, prompt: str) -> None:
    try:
        talk.turn(prompt)
        while talk.waiting:
            talk.give([input(f"{call.name} gives> ") for call in talk.waiting])
    except EOFError:
        talk.give_up()
        aside("\n(no results: the calls are forgotten)")
    except KeyboardInterrupt:
        talk.give_up()
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
