"""`pinfold pins`: try out a prompt that is to be pinned."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

import typer

from pinfold.cli.opening import DEFAULT_MODEL, Engine, Json, Model, NCtx, opened
from pinfold.cli.terminal import aside, json_out, table
from pinfold.engines.probe import AUTO
from pinfold.errors import InvalidRequestError
from pinfold.options import RuntimeOptions

if TYPE_CHECKING:
    from pinfold.runtime import Runtime

__all__ = ["app", "read_prompt", "read_request", "read_tools"]

app = typer.Typer(help="Try out a prompt that is to be pinned. To pin it on disk: pinfold spill.", no_args_is_help=True)
QUESTION = {"role": "user", "content": "Hello."}


@app.callback()
def _group() -> None:
    """Keeps `check` a subcommand while it is the only one."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a pin costs and saves. `cold_ttft_s` is a first answer without it, `warm_ttft_s` one with it."""

    name: str
    model: str
    tokens: int | None
    kv_bytes: int | None
    cold_ttft_s: float
    warm_ttft_s: float
    cached_tokens: int | None
    prompt_tokens: int | None
    warning: str | None


@app.command()
def check(
    file: Annotated[str, typer.Argument(help='A JSON file {"messages": [...], "tools": [...]}, or - for stdin.')],
    model: Model = DEFAULT_MODEL,
    name: Annotated[str, typer.Option(help="Name of the pin.")] = "check",
    engine: Engine = AUTO,
    n_ctx: NCtx = RuntimeOptions.model_fields["n_ctx"].default,
    as_json: Json = False,
) -> None:
    """Pin the messages and tools of FILE on MODEL, then ask on top of the pin: its size, its cost, what it saves."""
    messages, tools = read_prompt(file)
    with opened(model, engine=engine, n_ctx=n_ctx) as runtime:
        checked = _measure(runtime, messages, tools, name)
    if as_json:
        json_out(asdict(checked))
    else:
        _print(checked)


def _measure(runtime: Runtime, messages: list[Any], tools: list[Any] | None, name: str) -> Checked:
    start = time.perf_counter()
    pin = runtime.pin(messages, tools, name=name)
    prefill_s = time.perf_counter() - start
    asked_already = bool(messages) and messages[-1].get("role") == "user"
    warm = runtime.chat(messages if asked_already else [*messages, QUESTION], tools=tools, max_tokens=1)
    return Checked(
        name=pin.name,
        model=runtime.model,
        tokens=pin.tokens,
        kv_bytes=(pin.tokens or 0) * runtime.capabilities.bytes_per_token or None,
        cold_ttft_s=prefill_s + warm.timings.ttft_s,
        warm_ttft_s=warm.timings.ttft_s,
        cached_tokens=warm.usage.cached_tokens,
        prompt_tokens=warm.usage.prompt_tokens,
        warning=pin.warning,
    )


def _print(c: Checked) -> None:
    rows = [
        ("pinned", f"{_count(c.tokens)} tokens"),
        ("KV", "on the server" if c.kv_bytes is None else f"{c.kv_bytes / 2**20:,.1f} MiB"),
        ("first token without the pin", f"{c.cold_ttft_s:.2f} s"),
        ("first token with it", f"{c.warm_ttft_s:.2f} s"),
        ("reused by the next prompt", f"{_count(c.cached_tokens)} of {_count(c.prompt_tokens)} tokens"),
    ]
    table(f"Pin {c.name!r} on {c.model}", ("", ""), rows)
    if c.warning:
        aside(f"warning: {c.warning}", "yellow")


def _count(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"


def read_prompt(file: str) -> tuple[list[Any], list[Any] | None]:
    """The messages and tools of a JSON file that has nothing else.

    Raises:
        InvalidRequestError: it cannot be read, or is no such JSON.
    """
    request = read_request(file)
    unknown = sorted(set(request) - {"messages", "tools"})
    if unknown:
        raise InvalidRequestError(_no_prompt(file, f"unknown keys {unknown}"))
    return request["messages"], request.get("tools")


def read_tools(file: str) -> list[dict[str, Any]]:
    """The tools of a JSON file: a list of them, or an object that has them.

    Raises:
        InvalidRequestError: it cannot be read, or is no such JSON.
    """
    data = _read_json(file)
    tools = data.get("tools") if isinstance(data, dict) else data
    if not _is_list_of_objects(tools):
        msg = f'{file}: no list of tools. Give [...] or {{"tools": [...]}}, in the form that a chat request has them.'
        raise InvalidRequestError(msg)
    return tools


def read_request(file: str) -> dict[str, Any]:
    """The JSON object in a file, "-" for stdin: its messages, its tools if it has any, and what else it has.

    A list alone is taken for the messages.

    Raises:
        InvalidRequestError: it cannot be read, or is no such JSON.
    """
    data = _read_json(file)
    if not isinstance(data, dict):
        data = {"messages": data}
    tools = data.get("tools")
    if _is_list_of_objects(data.get("messages")) and (tools is None or _is_list_of_objects(tools)):
        return data
    raise InvalidRequestError(_no_prompt(file, "'messages' or 'tools' is no list of objects"))


def _read_json(file: str) -> Any:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, ValueError, RecursionError) as e:
        msg = f'{file} cannot be read as JSON: {e}. Give a file such as {{"messages": [...], "tools": [...]}}.'
        raise InvalidRequestError(msg) from e


def _no_prompt(file: str, found: str) -> str:
    return f'{file}: {found}. Give {{"messages": [...], "tools": [...]}}, in the form that a chat request has them.'


def _is_list_of_objects(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)
