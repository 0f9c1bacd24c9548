"""Opens the Runtime that a command works on, with a progress bar for long prefills on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pinfold.cli.terminal import console, is_terminal

if TYPE_CHECKING:
    from pinfold.runtime import Runtime

__all__ = ["DEFAULT_MODEL", "Engine", "Json", "Model", "NCtx", "PrefillBar", "opened"]

DEFAULT_MODEL = "smollm2"

Model = Annotated[
    str, typer.Argument(help="An alias, the path of a .gguf file, or a Hugging Face id.", metavar="MODEL")
]
Engine = Annotated[str, typer.Option(help="The engine that runs the model: auto, llama.cpp or scripted.")]
NCtx = Annotated[int, typer.Option(min=64, help="Tokens that one request may use, prompt and answer together.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


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
