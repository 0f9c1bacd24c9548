"""From the name of a model to the function that opens its engine. The only place that names concrete engines."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pinfold.engines.base import Engine
from pinfold.engines.probe import choose_engine
from pinfold.engines.script import Script
from pinfold.errors import ModelNotFoundError
from pinfold.models import resolve
from pinfold.options import RuntimeOptions

__all__ = ["open_engine"]


def open_engine(model: str | os.PathLike[str] | Script, options: RuntimeOptions) -> tuple[Callable[[], Engine], str]:
    """A function that opens the engine (to be called on the thread that will own it), and the model's short name.

    Raises:
        ModelError: there is no such model.
        UnsupportedModeError, EngineUnavailableError: no engine runs it here; the message says why.
    """
    if isinstance(model, Script):
        return lambda: _open_scripted(model, options), "scripted"
    found = resolve(model)
    choice = choose_engine(found, options.engine)
    if choice.engine == "scripted":
        return lambda: _open_scripted(Script(), options), "scripted"
    path = found.path
    if path is None:
        msg = f"The model {found.name} has no file to load."
        raise ModelNotFoundError(msg)
    if choice.engine == "mlx":
        return lambda: _open_mlx(path, found.name, options), found.name
    return lambda: _open_llama_cpp(path, found.name, options), found.name


def _open_scripted(script: Script, options: RuntimeOptions) -> Engine:
    from pinfold.engines.scripted import ScriptedEngine

    return ScriptedEngine(script, options)


def _open_llama_cpp(path: Path, name: str, options: RuntimeOptions) -> Engine:
    from pinfold.engines.llama_cpp.engine import LlamaCppEngine

    return LlamaCppEngine(path, name, options)


def _open_mlx(path: Path, name: str, options: RuntimeOptions) -> Engine:
    from pinfold.engines.mlx.engine import MlxEngine

    return MlxEngine(path, name, options)
