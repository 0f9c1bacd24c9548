"""`pinfold doctor`: which engines run here, what a model can do on them, and whether the store is sound."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinfold.cli.opening import Engine, Json, NCtx, Store, no_store, opened, root_of, stored
from pinfold.cli.terminal import json_out, size, table, yes_no
from pinfold.engines.probe import AUTO, SERVER, EngineStatus, survey
from pinfold.errors import PinfoldError
from pinfold.options import RuntimeOptions

if TYPE_CHECKING:
    from pinfold.engines.base import Capabilities

__all__ = ["doctor"]


def doctor(
    model: Annotated[
        str | None, typer.Argument(help="Also load this model and say what it can do.", metavar="[MODEL]")
    ] = None,
    engine: Engine = AUTO,
    n_ctx: NCtx = RuntimeOptions.model_fields["n_ctx"].default,
    store: Store = "auto",
    fix: Annotated[
        bool, typer.Option("--fix", help="Set damaged sessions aside, remove what belongs to none, correct modes.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read every session whole, not its head only.")] = False,
    as_json: Json = False,
) -> None:
    """Show the engines and the store, and with MODEL what it can do here, and why not where it cannot.

    Ends with exit code 1 if no engine can run a model.
    """
    engines = survey()
    state = _examine(store, fix=fix, deep=deep)
    if not as_json:
        _print_engines(engines)
        _print_store(state)
    capabilities = None
    if model is not None:
        with opened(model, engine=engine, n_ctx=n_ctx) as runtime:
            capabilities = runtime.capabilities
    if as_json:
        model_facts = capabilities and _facts(capabilities)
        json_out({"engines": [asdict(e) for e in engines], "store": state, "model": model_facts})
    elif capabilities is not None:
        _print_model(capabilities)
    if not any(e.usable and e.recommended for e in engines):
        raise typer.Exit(1)


def _facts(capabilities: Capabilities) -> dict[str, object]:
    facts = asdict(capabilities)
    facts["model"]["chat_template"] = capabilities.model.chat_template is not None
    if capabilities.device == SERVER:
        facts |= {name: facts[name] or None for name in ("n_cells", "n_seq", "bytes_per_token")}
        facts["model"] = {name: None if value == 0 else value for name, value in facts["model"].items()}
    return facts


def _examine(store: str, *, fix: bool, deep: bool) -> dict[str, Any]:
    """What is found in the store; `error` says why it cannot be used, `missing` why there is none."""
    root = root_of(store)
    state: dict[str, Any] = {"folder": root and str(root), "missing": no_store(root), "error": None}
    if state["missing"] is not None:
        return state
    try:
        with stored(store) as kept:
            report = kept.sessions.check(fix=fix, deep=deep)
            state["read_only"] = kept.sessions.read_only
    except PinfoldError as e:
        state["error"] = str(e)
        return state
    budget: int = RuntimeOptions.model_fields["store_bytes"].default
    return state | asdict(report) | {"budget": budget, "ok": report.ok}


def _print_store(state: dict[str, Any]) -> None:
    rows = [("folder", state["folder"] or "-")]
    problem = state["missing"] or state["error"]
    if problem is not None:
        rows.append(("state", problem))
    else:
        rows += [
            ("sessions", f"{state['entries']:,}"),
            ("size", f"{size(state['bytes'])}; a Runtime allows {size(state['budget'])} unless told otherwise"),
            ("writable", yes_no(not state["read_only"])),
            ("state", "sound" if state["ok"] else "put right" if state["fixed"] else "see below; --fix puts it right"),
            *(("corrupt", f"{name}: {reason}") for name, reason in state["corrupt"]),
            *(("belongs to none", path) for path in state["orphans"]),
            *(("open to others", path) for path in state["modes"]),
            *(("quarantined", f"{name}: {reason}") for name, reason in state["quarantined"]),
        ]
    typer.echo()
    table("Store", ("", ""), rows)


def _print_engines(engines: list[EngineStatus]) -> None:
    rows = [(e.engine, e.version or "-", yes_no(e.usable), yes_no(e.recommended), e.why) for e in engines]
    table("Engines", ("engine", "version", "usable", "recommended", "why"), rows)


def _print_model(c: Capabilities) -> None:
    typer.echo()
    table("Model", ("", ""), _server_rows(c) if c.device == SERVER else _model_rows(c))
    modes = [(m.name, yes_no(m.usable), yes_no(m.recommended), m.reason) for m in c.modes]
    typer.echo()
    table("Modes", ("mode", "usable", "recommended", "why"), modes)


def _server_rows(c: Capabilities) -> list[tuple[str, str]]:
    """What a server tells of its model; of the rest only it knows."""
    trained = f"{c.model.n_ctx_train:,}" if c.model.n_ctx_train else "unknown"
    template = "not shown by the server" if c.model.chat_template is None else "the model's own"
    return [
        ("name", c.model.name),
        ("server", f"{c.engine} {c.facets['version']} at {c.facets['address']}"),
        ("chat template", template),
        ("context", f"{c.facets['n_ctx']} tokens a request; the model was trained on {trained}"),
        ("slots", c.facets["slots"]),
    ]


def _model_rows(c: Capabilities) -> list[tuple[str, str]]:
    kv_mib = c.bytes_per_token * c.n_ctx / 2**20
    return [
        ("name", c.model.name),
        ("engine", f"{c.engine} on {c.device}"),
        ("architecture", f"{c.model.architecture}, {c.model.n_layer} layers, {c.model.parameters / 1e6:,.0f}M weights"),
        ("size", f"{c.model.size_bytes / 2**20:,.0f} MiB"),
        ("chat template", "the model's own" if c.model.chat_template else "none: a plain one is used"),
        ("context", f"{c.n_ctx:,} tokens a request; the model was trained on {c.model.n_ctx_train:,}"),
        (
            "KV",
            f"{c.bytes_per_token / 2**10:,.1f} KiB a token, {kv_mib:,.0f} MiB a full context; room for {c.n_cells:,}",
        ),
        ("sessions", f"{c.n_seq:,} at once"),
        ("reuse", "any prefix" if c.trim == "any" else "whole sessions only: this model's state cannot be cut"),
        ("fingerprint", c.fingerprint[:16]),
    ]
