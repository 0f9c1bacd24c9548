"""Puts together what keeps KV for one engine: its sessions, the fold, the disk and their upkeep."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pinfold.engines.base import Engine
from pinfold.errors import StoreError
from pinfold.options import RuntimeOptions
from pinfold.sessions.fingerprint import digest_at_hand, file_digest
from pinfold.sessions.folder import Folder
from pinfold.sessions.idle import IdleTimes
from pinfold.sessions.manager import SessionManager
from pinfold.sessions.upkeep import Upkeep
from pinfold.store.files import store_error
from pinfold.store.recipes import RecipeFiles

if TYPE_CHECKING:
    from pinfold.sessions.early import EarlyPins
    from pinfold.store import SessionStore

__all__ = ["Post", "keep_sessions", "open_early", "recipes_folder", "sessions_folder", "store_key", "store_root"]

log = logging.getLogger("pinfold.sessions")

Post = Callable[[Callable[[], None]], None]

# A model file up to this size is read for its digest before the first request, a larger one beside it.
_READ_AT_ONCE = 1 << 30
_OFF = ("off", "none", "")


def open_early(options: RuntimeOptions, path: Path | None) -> EarlyPins | None:
    """Begins to open the store and to unfold pins of the model file at `path`, for `keep_sessions`.

    None where it is not known yet what the file is called in the store: then nothing is there, or not for long.
    """
    root = store_root(options, "")
    if root is None or path is None or not path.is_file():
        return None
    notes = RecipeFiles(recipes_folder(root))
    weights = digest_at_hand(path, notes)
    if weights is None:
        return None
    from pinfold.sessions.early import EarlyPins

    return EarlyPins(partial(_open, root, options), notes, weights, options.memory_bytes)


def keep_sessions(
    options: RuntimeOptions, model: str, early: EarlyPins | None, engine: Engine, post: Post
) -> tuple[SessionManager, Upkeep]:
    """The sessions of `engine`, and what is done for them while it is idle. Runs on the engine's thread.

    `early` is what `open_early` began.

    Raises:
        StoreError: the store that was named cannot be used. One that was not named is done without, with a warning.
    """
    folder = Folder(engine, options.kv)
    manager = SessionManager(engine, options.memory_bytes, folder=folder)
    times = replace(IdleTimes(), resident=options.idle_resident, memory=options.idle_memory)
    upkeep = Upkeep(engine, manager, folder, times, post)
    root = store_root(options, engine.capabilities.engine)
    if root is not None:
        try:
            store = _open(root, options) if early is None else early.store()
            _attach(store, early, root, engine, model, manager, folder, post)
        except StoreError as e:
            if options.store != "auto":
                raise
            log.warning("sessions are not kept on disk: %s", e)
    return manager, upkeep


def store_root(options: RuntimeOptions, engine: str) -> Path | None:
    """The folder that holds everything Pinfold keeps on disk; None where nothing is to be kept."""
    if options.store is None:
        return None
    named = os.fspath(options.store)
    if named == "auto":
        named = os.environ.get("PINFOLD_STORE", "off" if engine == "scripted" else "")
        if not named:
            return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pinfold"
    return None if named in _OFF else Path(named).expanduser()


def store_key(options: RuntimeOptions) -> bytes | None:
    """The key of the HMAC over stored sessions: the option's, or else the environment's PINFOLD_STORE_KEY."""
    if options.store_key is not None:
        return options.store_key.get_secret_value()
    return os.fsencode(os.environ.get("PINFOLD_STORE_KEY", "")) or None


def sessions_folder(root: Path) -> Path:
    """Where the sessions lie under a root."""
    return root / "sessions"


def recipes_folder(root: Path) -> Path:
    """Where what was learnt of models lies under a root."""
    return root / "models"


def _open(root: Path, options: RuntimeOptions) -> SessionStore:
    from pinfold.store import SessionStore

    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as e:
        raise store_error(e, root) from e
    return SessionStore(sessions_folder(root), budget=options.store_bytes, key=store_key(options))


def _attach(
    store: SessionStore,
    early: EarlyPins | None,
    root: Path,
    engine: Engine,
    model: str,
    manager: SessionManager,
    folder: Folder,
    post: Post,
) -> None:
    notes = RecipeFiles(recipes_folder(root))
    path = engine.capabilities.model.path

    def attach(weights: str) -> None:
        from pinfold.sessions.vault import Vault

        facets = {**engine.capabilities.facets, "weights": weights}
        vault = Vault(store, notes, model, facets)
        folder.find_recipe = vault.recipes.get
        folder.recipe = vault.recipes.current()
        manager.library.attach(vault, early)
        folder.later(folder.get_ready)
        if not store.read_only:
            folder.later(vault.expire)

    if path is None:
        attach(engine.capabilities.model.identity)
    elif path.stat().st_size <= _READ_AT_ONCE or digest_at_hand(path, notes) is not None:
        attach(file_digest(path, notes))
    else:

        def read_it() -> None:
            try:
                digest = file_digest(path, notes)
            except OSError as e:
                log.warning("sessions are not kept on disk: %s cannot be read (%s)", path, e)
                return
            post(lambda: attach(digest))

        folder.later(read_it)
