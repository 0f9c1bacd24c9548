"""Opens what a command works on: a Runtime, with a progress bar for long prefills on a terminal, or the store alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pinfold.cli.terminal import console, is_terminal
from pinfold.errors import SessionCorruptError, StoreError
from pinfold.options import RuntimeOptions

if TYPE_CHECKING:
    from pinfold.runtime import Runtime
    from pinfold.store import SessionStore
    from pinfold.store.recipes import RecipeFiles

__all__ = [
    "DEFAULT_MODEL",
    "Engine",
    "Json",
    "Model",
    "NCtx",
    "PrefillBar",
    "Store",
    "Stored",
    "is_recipe",
    "make_root",
    "no_store",
    "opened",
    "root_of",
    "stored",
]

DEFAULT_MODEL = "smollm2"

Model = Annotated[
    str,
    typer.Argument(
        help="An alias, the path of a .gguf file or MLX folder, a Hugging Face id, or a server's URL.", metavar="MODEL"
    ),
]
Engine = Annotated[str, typer.Option(help="The engine that runs the model: auto, llama.cpp, mlx, server or scripted.")]
NCtx = Annotated[int, typer.Option(min=64, help="Tokens that one request may use, prompt and answer together.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Store = Annotated[
    str,
    typer.Option(
        metavar="DIR",
        help="The folder that Runtimes keep sessions in; auto is that of PINFOLD_STORE, or else one in the user's "
        "cache. If it has a key, that is read from PINFOLD_STORE_KEY.",
    ),
]

# A command looks and copies: what makes room for what is a Runtime's to decide, by the budget that it was given.
_NO_BUDGET = 1 << 62


class PrefillBar:
    """Shows the progress of a prefill on stderr. The engine's thread calls it, the command's thread closes it."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("reading the prompt"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("tokens"),
            TimeRemainingColumn(),
            console=console(stderr=True),
            transient=True,
        )
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._task is None:
            self._task = self._progress.add_task("prefill", total=total)
            self._progress.start()
        self._progress.update(self._task, completed=done, total=total)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Takes the bar off the screen; the next prefill draws a new one."""
        if self._task is not None:
            self._progress.stop()
            self._progress.remove_task(self._task)
            self._task = None


@contextmanager
def opened(model: str, **options: Any) -> Iterator[Runtime]:
    """A Runtime for one command, closed when the command ends."""
    bar = PrefillBar() if is_terminal() else None
    with new_runtime(model, progress=bar, **options) as runtime:
        try:
            yield runtime
        finally:
            if bar is not None:
                bar.close()


def new_runtime(model: str, **options: Any) -> Runtime:
    """Opens a Runtime; it is imported here so that `--help` does not wait for it."""
    from pinfold.runtime import Runtime

    return Runtime(model, **options)


@dataclass(frozen=True, slots=True)
class Stored:
    """What is kept on disk: `sessions`, and in `recipes` what unfolding them needs."""

    sessions: SessionStore
    recipes: RecipeFiles

    def recipe(self, digest: str) -> bytes | None:
        """The bytes of the recipe of that digest, verified; None where it is not here."""
        data = self.recipes.read(digest)
        return data if data is not None and is_recipe(data, digest) else None


def is_recipe(data: bytes, digest: str) -> bool:
    """Whether these are the bytes of the recipe of that digest."""
    from pinfold.kv.recipe_file import load_recipe

    try:
        return load_recipe(data).digest() == digest
    except SessionCorruptError:
        return False


def root_of(store: str) -> Path | None:
    """The folder that `--store` means; None where nothing is kept."""
    from pinfold.keeping import store_root

    return store_root(RuntimeOptions.parse({"store": store}), "")


def no_store(root: Path | None) -> str | None:
    """Why there is nothing to look at in `root`; None where there is a store."""
    from pinfold.keeping import sessions_folder

    if root is None:
        return "No sessions are kept on disk: the store is off. Name its folder with --store or PINFOLD_STORE."
    if os.path.lexists(sessions_folder(root)):
        return None
    return f"There is no store in {root} yet. Make a pin with `pinfold spill`, or name its folder with --store."


def make_root(root: Path) -> None:
    """Makes the folder of a store, private, if it is not there. Raises StoreError."""
    from pinfold.store.files import store_error

    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as e:
        raise store_error(e, root) from e


@contextmanager
def stored(store: str, *, make: bool = False) -> Iterator[Stored]:
    """The store that `--store` means, without a Runtime; `make` makes it where there is none yet.

    Raises:
        StoreError: there is none, or it cannot be opened.
    """
    from pinfold.keeping import recipes_folder, sessions_folder, store_key
    from pinfold.store import SessionStore
    from pinfold.store.recipes import RecipeFiles

    root = root_of(store)
    missing = no_store(root)
    if root is None or (missing is not None and not make):
        raise StoreError(missing)
    if make:
        make_root(root)
    key = store_key(RuntimeOptions())
    with SessionStore(sessions_folder(root), budget=_NO_BUDGET, key=key) as sessions:
        yield Stored(sessions, RecipeFiles(recipes_folder(root)))
