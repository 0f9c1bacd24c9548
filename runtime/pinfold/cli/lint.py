"""`pinfold lint`: what will end the reuse of a prompt, before an agent runs on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from pinfold.cli.opening import DEFAULT_MODEL, Engine, Json, opened
from pinfold.cli.pins import read_request
from pinfold.cli.terminal import aside, console, json_out, safe
from pinfold.engines.probe import AUTO
from pinfold.errors import InvalidRequestError

if TYPE_CHECKING:
    from pinfold.prompt_check import PromptCheck, PromptFinding

__all__ = ["lint"]

_N_CTX = 512  # nothing is evaluated


def lint(
    file: Annotated[
        str, typer.Argument(help='A JSON file {"messages": [...], "tools": [...]}, such as a request; - for stdin.')
    ],
    other: Annotated[str | None, typer.Argument(help="The request of another run of the same agent.")] = None,
    model: Annotated[str, typer.Option(help="Whose template and tokenizer: an alias, a .gguf file, a URL.")] = (
        DEFAULT_MODEL
    ),
    engine: Engine = AUTO,
    fix: Annotated[Path | None, typer.Option(metavar="OUT", help="Write FILE, put right, to this file.")] = None,
    move_volatile: Annotated[
        bool, typer.Option("--move-volatile", help="With --fix: also move what changes from run to run last.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what will end the reuse of FILE's prompt, where, and how many tokens that costs each time.

    With OTHER also what differs between the two runs. The exit code is 1 if anything in FILE costs tokens.
    """
    if move_volatile and fix is None:
        msg = "it needs --fix OUT, the file that the result is written to."
        raise typer.BadParameter(msg, param_hint="--move-volatile")
    request = read_request(file)
    second = None if other is None else read_request(other)
    with opened(model, engine=engine, n_ctx=_N_CTX, store="off", draft="off") as runtime:
        check = runtime.check_prompt(*_prompt(request), other=None if second is None else _prompt(second))
        title = f"{file} on {runtime.model}"
    if fix is not None:
        _write(fix, request, check, move_volatile=move_volatile)
    if as_json:
        json_out(check.report())
    else:
        _print(title, check)
    if check.lost_tokens:
        raise typer.Exit(1)


def _prompt(request: dict[str, Any]) -> tuple[list[Any], list[Any] | None]:
    return request["messages"], request.get("tools")


def _write(out: Path, request: dict[str, Any], check: PromptCheck, *, move_volatile: bool) -> None:
    """The request with what was put right in it, and all else as it was."""
    messages, tools = check.fixed(move_volatile=move_volatile)
    fixed = {**request, "messages": messages} | ({} if tools is None else {"tools": tools})
    try:
        out.write_text(json.dumps(fixed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as e:
        msg = f"{out} cannot be written: {e.strerror or e}. Name another file with --fix."
        raise InvalidRequestError(msg) from e


def _print(title: str, check: PromptCheck) -> None:
    tokens = f"{check.prompt_tokens:,} tokens, of which the first {check.stable_tokens:,} are meant to last"
    console().print(Text(safe(f"{title}: {tokens}"), "bold"))
    for finding in check.findings:
        _print_finding(finding)
    if not check.findings:
        aside("Nothing was found that ends their reuse.")


def _print_finding(finding: PromptFinding) -> None:
    out = console()
    cost = f"costs {finding.lost_tokens:,} tokens" if finding.lost_tokens else "costs nothing"
    out.print()
    out.print(Text.assemble((safe(f"{finding.where}, token {finding.token:,}"), "bold"), f": {cost}"))
    out.print(Text(safe(f"  {finding.excerpt!r}"), "yellow"))
    by = "--fix does it" if finding.fixable else "--fix with --move-volatile does it" if finding.movable else ""
    out.print(Text(safe(f"  {finding.reason}\n  {finding.remedy}{f' ({by})' if by else ''}")))
