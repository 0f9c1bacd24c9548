"""`pinfold ls`, `show`, `rm` and `warm`: what is kept on disk, without opening a model."""

from __future__ import annotations

import difflib
import json
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinfold.cli.opening import Json, Store, Stored, no_store, root_of, stored
from pinfold.cli.server_pins import print_server_pins, server_pins
from pinfold.cli.terminal import aside, json_out, size, span, table, yes_no
from pinfold.errors import InvalidRequestError, SessionCorruptError, SessionNotFoundError

if TYPE_CHECKING:
    from pinfold.store import StoredEntry, StoredSession

__all__ = ["facts_of", "ls", "one_of", "print_entry", "rm", "show", "warm"]

_KEY_PART = re.compile(r"[0-9a-f]{8,64}")
_SHOWN_OF_KEY = 12

Which = Annotated[str, typer.Argument(help="A name, or the first 8 or more digits of a key.", metavar="NAME_OR_KEY")]
Each = Annotated[
    list[str], typer.Argument(help="Names, or the first 8 or more digits of keys.", metavar="NAME_OR_KEY...")
]


def ls(store: Store = "auto", as_json: Json = False) -> None:
    """List the sessions on disk, the most recently used first, and the pins on servers.

    What running processes hold in memory and in the engine's cells is theirs: Runtime.pins() and Runtime.sessions()
    show it.
    """
    root = root_of(store)
    remote = server_pins(root)
    entries: Sequence[StoredEntry] = ()
    missing = no_store(root)
    if missing is None:
        with stored(store) as kept:
            entries = kept.sessions.entries()
    if as_json:
        json_out([*map(facts_of, entries), *remote])
    if missing is not None and not remote:
        aside(missing)
    elif not entries and not remote:
        aside("The store is empty.")
    if entries and not as_json:
        _print_entries(entries)
    if remote and not as_json:
        print_server_pins(remote)


def show(which: Which, store: Store = "auto", as_json: Json = False) -> None:
    """Show all that is known of one session, and read it whole to verify it."""
    with stored(store) as kept:
        session = kept.sessions.get(one_of(kept.sessions.entries(), which).key)
        facts = facts_of(session.entry) | _more_facts(session) | _recipe_facts(kept, session)
    if as_json:
        json_out(facts)
    else:
        print_entry(session.entry, _as_rows(facts))


def rm(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names, or the first 8 or more digits of keys.", metavar="[NAME_OR_KEY]..."),
    ] = None,
    expired: Annotated[bool, typer.Option("--expired", help="Also those whose time to live has ended.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Every session of the store.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --all.")] = False,
    store: Store = "auto",
) -> None:
    """Delete sessions from the disk, so that no bytes of them stay in the folder.

    A running process that holds one of them in memory keeps that copy: Runtime.unpin and Runtime.drop_session end it.
    """
    if not (names or expired or everything):
        msg = "Name what to delete, or give --expired or --all."
        raise typer.BadParameter(msg)
    with stored(store) as kept:
        entries, now = kept.sessions.entries(), time.time()
        doomed = {entry.key: entry for entry in (one_of(entries, name) for name in names or ())}
        doomed |= {e.key: e for e in entries if everything or (expired and e.expires is not None and e.expires <= now)}
        if everything and not yes:
            _ask(f"Delete all {len(doomed)} sessions in {kept.sessions.folder}?")
        for entry in doomed.values():
            if kept.sessions.delete(entry.key):
                typer.echo(f"deleted {_label(entry)}")
    if not doomed:
        aside("There was nothing to delete.")


def warm(names: Each, store: Store = "auto") -> None:
    """Read sessions whole, so that the system has them in memory and their next use need not wait for the disk.

    Each is verified, and the time to live of a pin starts anew.
    """
    with stored(store) as kept:
        entries = kept.sessions.entries()
        for entry in [one_of(entries, name) for name in names]:
            start = time.perf_counter()
            kept.sessions.get(entry.key)
            seconds = time.perf_counter() - start
            _start_anew(kept, entry)
            typer.echo(f"read {_label(entry)}: {size(entry.stored_bytes)} in {seconds:.3f} s")


def one_of(entries: Sequence[StoredEntry], which: str) -> StoredEntry:
    """The one entry of that name or beginning of a key.

    Raises:
        SessionNotFoundError: there is none.
        InvalidRequestError: there are several; the message lists them.
    """
    found = [entry for entry in entries if entry.name == which]
    if _KEY_PART.fullmatch(which):
        found += [entry for entry in entries if entry.key.startswith(which) and entry not in found]
    if len(found) == 1:
        return found[0]
    if found:
        listed = "; ".join(f"{e.key[:_SHOWN_OF_KEY]} ({e.kind}, {e.n_tokens:,} tokens of {e.model})" for e in found)
        msg = f"{len(found)} sessions are called {which!r}. Give the key of one of them: {listed}."
        raise InvalidRequestError(msg)
    near = difflib.get_close_matches(which, [entry.name for entry in entries], n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    msg = f"No session on disk is called {which!r}. {hint}`pinfold ls` lists them; of a key give 8 digits or more."
    raise SessionNotFoundError(msg)


def facts_of(entry: StoredEntry) -> dict[str, Any]:
    """An entry for programs: bytes, Unix seconds, seconds. Salts stay out, digests of them too."""
    from pinfold.store import salt_digest

    return {
        "key": entry.key,
        "name": entry.name,
        "kind": entry.kind,
        "model": entry.model,
        "tokens": entry.n_tokens,
        "raw_bytes": entry.raw_bytes,
        "stored_bytes": entry.stored_bytes,
        "times_smaller": round(entry.raw_bytes / entry.stored_bytes, 3) if entry.stored_bytes else None,
        "codec": entry.codec,
        "hits": entry.hits,
        "created": entry.created,
        "used": entry.used,
        "expires": entry.expires,
        "ttl_left": max(entry.expires - time.time(), 0.0) if entry.expires is not None else None,
        "salted": entry.salt != salt_digest(None),
    }


def print_entry(entry: StoredEntry, more: Sequence[tuple[str, str]] = ()) -> None:
    """An entry for people, one fact a line."""
    facts = facts_of(entry)
    rows = [
        ("key", entry.key),
        ("model", entry.model),
        ("tokens", f"{entry.n_tokens:,}"),
        (
            "KV",
            f"{size(entry.raw_bytes)} unfolded, {size(entry.stored_bytes)} on disk, {_smaller(facts)} times smaller",
        ),
        ("codec", entry.codec),
        ("hits", str(entry.hits)),
        ("created", _date(entry.created)),
        ("last use", _date(entry.used)),
        ("time to live", _left(facts)),
        ("salted", yes_no(facts["salted"])),
    ]
    table(_label(entry), ("", ""), [*rows, *more])


def _print_entries(entries: Sequence[StoredEntry]) -> None:
    columns = ("name", "kind", "model", "tokens", "KV", "on disk", "smaller", "codec", "hits", "last use", "TTL", "key")
    rows = []
    for entry in entries:
        facts = facts_of(entry)
        rows.append(
            (
                entry.name or "-",
                entry.kind,
                entry.model,
                f"{entry.n_tokens:,}",
                size(entry.raw_bytes),
                size(entry.stored_bytes),
                f"{_smaller(facts)}x",
                entry.codec,
                str(entry.hits),
                f"{span(time.time() - entry.used)} ago",
                _left(facts),
                entry.key[:_SHOWN_OF_KEY],
            )
        )
    table("Sessions on disk", columns, rows)


def _more_facts(session: StoredSession) -> dict[str, Any]:
    entry = session.entry
    extra = {name: value for name, value in entry.extra.items() if name != "prompt"}
    facts: dict[str, Any] = {"fingerprint": entry.fingerprint, "facets": entry.facets, "extra": extra, "verified": True}
    prompt = entry.extra.get("prompt")
    if isinstance(prompt, dict):
        counts = {
            part: len(found) if isinstance(found := prompt.get(part), list) else 0 for part in ("messages", "tools")
        }
        facts["prompt"] = {**counts, "bytes": len(json.dumps(prompt).encode())}
    return facts


def _recipe_facts(kept: Stored, session: StoredSession) -> dict[str, Any]:
    """The recipe that the payload names, and whether it can be unfolded here."""
    from pinfold.kv.codec import codec_of

    try:
        _, digest = codec_of(session.payload)
    except SessionCorruptError as e:
        return {"recipe": None, "readable": False, "why": str(e)}
    if digest is None or kept.recipe(digest) is not None:
        return {"recipe": digest, "readable": True}
    return {"recipe": digest, "readable": False, "why": "its recipe is not here"}


def _as_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("verified", "the whole file, against its digest")]
    rows.append(("recipe", facts["recipe"] or "none is needed" if facts["readable"] else f"unreadable: {facts['why']}"))
    if prompt := facts.get("prompt"):
        what = f"{prompt['messages']} messages and {prompt['tools']} tools, {size(prompt['bytes'])}"
        rows.append(("prompt", what))
    rows += [(f"extra: {name}", json.dumps(value)) for name, value in facts["extra"].items()]
    rows.append(("fingerprint", facts["fingerprint"]))
    return rows + [(f"facet: {name}", value) for name, value in sorted(facts["facets"].items())]


def _start_anew(kept: Stored, entry: StoredEntry) -> None:
    if kept.sessions.read_only:
        aside("The store cannot be written here, so no time to live was started anew.")
        return
    ttl = entry.extra.get("ttl") if entry.kind == "pin" else None
    expires = time.time() + ttl if isinstance(ttl, int | float) else None
    kept.sessions.touch(entry.key, hit=False, expires=expires)


def _ask(question: str) -> None:
    """Goes on if the answer is yes. Raises InvalidRequestError where nobody can be asked."""
    if not _can_ask():
        msg = "There is no terminal to ask on: give --yes as well."
        raise InvalidRequestError(msg)
    typer.confirm(question, abort=True, err=True)


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _label(entry: StoredEntry) -> str:
    return f"{entry.kind} {entry.name!r} ({entry.key[:_SHOWN_OF_KEY]})" if entry.name else f"{entry.kind} {entry.key}"


def _smaller(facts: dict[str, Any]) -> str:
    return f"{facts['times_smaller']:.1f}" if facts["times_smaller"] is not None else "-"


def _left(facts: dict[str, Any]) -> str:
    left = facts["ttl_left"]
    if left is None:
        return "no end"
    return span(left) if left > 0 else "ended"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")
