"""`pinfold spill`, `export` and `import`: puts sessions on disk, and carries them from one store to another."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pinfold.cli.opening import (
    DEFAULT_MODEL,
    Engine,
    Json,
    NCtx,
    Store,
    Stored,
    is_recipe,
    make_root,
    no_store,
    opened,
    root_of,
    stored,
)
from pinfold.cli.pins import read_prompt
from pinfold.cli.store import Which, facts_of, one_of, print_entry
from pinfold.cli.terminal import aside, json_out, size
from pinfold.engines.probe import AUTO
from pinfold.errors import InvalidRequestError, ModelError, SessionCorruptError, StoreError
from pinfold.options import RuntimeOptions

if TYPE_CHECKING:
    from pinfold.sessions.pins import Pin
    from pinfold.store import StoredEntry, StoredRecord
    from pinfold.store.portable import PortableSession

__all__ = ["export", "import_", "spill"]

_LONGEST_NAME = 200


def spill(
    file: Annotated[str, typer.Argument(help='A JSON file {"messages": [...], "tools": [...]}, or - for stdin.')],
    name: Annotated[str, typer.Option(help="Name of the pin.")],
    model: Annotated[
        str, typer.Option(help="An alias, the path of a .gguf file, or a Hugging Face id.")
    ] = DEFAULT_MODEL,
    ttl: Annotated[str, typer.Option(help="Its time to live from its last use, such as 5m, 1h or 7d.")] = "1h",
    engine: Engine = AUTO,
    n_ctx: NCtx = RuntimeOptions.model_fields["n_ctx"].default,
    store: Store = "auto",
    as_json: Json = False,
) -> None:
    """Pin the messages and tools of FILE on a model and leave the pin on disk, for the Runtimes that come."""
    messages, tools = read_prompt(file)
    root = root_of(store)
    if root is None:
        raise StoreError(no_store(root))
    _know_weights(model, root)
    with opened(model, engine=engine, n_ctx=n_ctx, store=str(root)) as runtime:
        pin = runtime.pin(messages, tools, name=name, ttl=ttl)
    if pin.warning:
        aside(f"warning: {pin.warning}", "yellow")
    with stored(str(root)) as kept:
        _print(_stored_as(kept, pin), as_json=as_json)


def export(
    which: Which,
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    store: Store = "auto",
) -> None:
    """Write one session to one FILE, with all that another machine of the same model needs to restore it.

    FILE holds the prompt's tokens and their KV: whoever has it can read the prompt.
    """
    from pinfold.store.portable import write_portable

    with stored(store) as kept:
        session = kept.sessions.get(one_of(kept.sessions.entries(), which).key)
        recipe = _recipe_of(kept, session.payload)
        count = write_portable(file, session, recipe, replace=force)
    typer.echo(f"wrote {size(count)} to {file}")


def import_(
    file: Annotated[Path, typer.Argument(help="A file that `pinfold export` wrote.")],
    name: Annotated[str | None, typer.Option(help="Store it under this name.")] = None,
    store: Store = "auto",
    as_json: Json = False,
) -> None:
    """Verify FILE and put its session into the store, in place of one of the same name and model.

    The digest in FILE shows damage, not who made it: import what you trust as you would trust the prompt.
    """
    from pinfold.store.portable import read_portable

    if name is not None:
        _check_name(name)
    found = read_portable(file)
    try:
        digest = _check_payload(found)
    except SessionCorruptError as e:
        msg = f"{file} is no session that can be imported: {e} Nothing was stored."
        raise SessionCorruptError(msg) from e
    with stored(store, make=True) as kept:
        # A recipe that is here also says what calibration found on this machine, and stays.
        if digest is not None and found.recipe is not None and kept.recipe(digest) is None:
            kept.recipes.write(digest, found.recipe)
        entry = kept.sessions.put(_renewed(found.record, name), found.tokens, found.payload)
    _print(entry, as_json=as_json)


def _print(entry: StoredEntry, *, as_json: bool) -> None:
    if as_json:
        json_out(facts_of(entry))
    else:
        print_entry(entry)


def _check_name(name: str) -> None:
    if not 0 < len(name) <= _LONGEST_NAME or name.startswith("auto:"):
        msg = f"A name has 1 to {_LONGEST_NAME} characters and does not begin with 'auto:'; got {name!r}."
        raise InvalidRequestError(msg)


def _know_weights(model: str, root: Path) -> None:
    """Notes the digest of a model's file. A Runtime learns that of a large file late, and a short one ends before."""
    from pinfold.keeping import recipes_folder
    from pinfold.models import resolve
    from pinfold.sessions.fingerprint import file_digest
    from pinfold.store.recipes import RecipeFiles

    path = resolve(model).path
    if path is None or not path.is_file():
        return
    make_root(root)
    try:
        file_digest(path, RecipeFiles(recipes_folder(root)))
    except OSError as e:
        msg = f"{path} cannot be read: {e.strerror or e}. Make it readable, or give another model."
        raise ModelError(msg) from e


def _stored_as(kept: Stored, pin: Pin) -> StoredEntry:
    """What was stored of a pin that was just made. Raises StoreError where nothing was."""
    from pinfold.store import salt_digest

    found = kept.sessions.named("pin", pin.name, salt_digest(None))
    entry = next((e for e in found if e.created == pin.created), None)
    if entry is None:
        msg = f"The pin {pin.name!r} was computed and not stored. Run `pinfold --debug spill` to see why."
        raise StoreError(msg)
    if entry.codec == "exact":
        aside("It was stored without loss. A Runtime on this store folds it smaller once it has calibrated the model.")
    return entry


def _recipe_of(kept: Stored, payload: memoryview) -> bytes | None:
    """The bytes of the recipe that a payload names. Raises SessionCorruptError where it is not here."""
    from pinfold.kv.codec import codec_of

    _, digest = codec_of(payload)
    if digest is None:
        return None
    data = kept.recipe(digest)
    if data is None:
        msg = f"The recipe {digest[:12]}, by which it was folded, is not in this store, so it cannot be exported."
        raise SessionCorruptError(msg)
    return data


def _check_payload(found: PortableSession) -> str | None:
    """Checks that the payload is of the record's tokens and has the recipe that it names; returns its digest.

    Raises:
        SessionCorruptError: it is not so.
    """
    from pinfold.kv.codec import codec_of
    from pinfold.kv.header import read_header

    most = 2 * found.record.raw_bytes + (1 << 20)
    tokens = read_header(found.payload, most)[0].tokens
    _, digest = codec_of(found.payload)
    if tokens != found.record.n_tokens:
        msg = f"its payload is of {tokens} tokens where its record says {found.record.n_tokens}."
        raise SessionCorruptError(msg)
    if digest is None and found.recipe is not None:
        msg = "it has a recipe that its payload does not need."
        raise SessionCorruptError(msg)
    if digest is not None and not is_recipe(found.recipe or b"", digest):
        msg = "its recipe is not the one that its payload names."
        raise SessionCorruptError(msg)
    return digest


def _renewed(record: StoredRecord, name: str | None) -> StoredRecord:
    """The record under its new name; the time to live of a pin starts anew. Raises InvalidRequestError."""
    values = record.model_dump()
    ttl = record.extra.get("ttl")
    if record.kind == "pin" and isinstance(ttl, int | float):
        values["expires"] = time.time() + ttl
    if name is not None:
        values["name"] = name
    return type(record).parse(values)
