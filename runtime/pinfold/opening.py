"""From the name of a model to the function that opens its engine. The only place that names concrete engines."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pinfold.engines.base import Engine, Mode
from pinfold.engines.probe import Choice, choose_engine
from pinfold.engines.script import Script
from pinfold.errors import EngineUnavailableError, ModelFormatError, UnsupportedModeError
from pinfold.models import resolve
from pinfold.options import RuntimeOptions

__all__ = ["Opening", "open_engine"]

log = logging.getLogger("pinfold")


@dataclass(frozen=True, slots=True)
class Opening:
    """An engine that is not open yet: `open` is called on the thread that will own it.

    Attributes:
        name: the model's short name.
        path: its file or folder; None for a scripted one.
    """

    open: Callable[[], Engine]
    name: str
    path: Path | None = None


def open_engine(model: str | os.PathLike[str] | Script, options: RuntimeOptions) -> Opening:
    """Which engine runs `model`, and how it is opened.

    Raises:
        ModelError: there is no such model.
        UnsupportedModeError, EngineUnavailableError: no engine runs it here; the message says why.
    """
    if isinstance(model, Script):
        return Opening(lambda: _open_scripted(model, options), "scripted")
    choice = choose_engine(resolve(model), options.engine)
    if choice.engine == "server":
        msg = (
            f"{choice.model.name} is a server's URL. This needs a model of this process: a .gguf file or an MLX folder."
        )
        raise UnsupportedModeError(msg)
    return Opening(lambda: _open(choice, options), choice.model.name, choice.model.path)


def _open(choice: Choice, options: RuntimeOptions) -> Engine:
    try:
        engine = _open_chosen(choice, options)
    except (EngineUnavailableError, ModelFormatError, UnsupportedModeError) as e:
        if choice.fallback is None:
            raise
        log.warning("%s runs %s, since %s does not: %s", choice.fallback.engine, choice.model.name, choice.engine, e)
        refused = (f"{choice.engine} refused it: {e}", *choice.fallback.reasons)
        return _open(replace(choice.fallback, reasons=refused), options)
    why = Mode("engine", True, True, f"{choice.engine}: {'; '.join(choice.reasons)}")
    engine.capabilities = replace(engine.capabilities, modes=(why, *engine.capabilities.modes))
    return engine


def _open_chosen(choice: Choice, options: RuntimeOptions) -> Engine:
    name, path = choice.model.name, choice.model.path
    if path is None:
        return _open_scripted(Script(), options)
    if choice.engine == "mlx":
        return _open_mlx(path, name, options)
    return _open_llama_cpp(path, name, options)


def _open_scripted(script: Script, options: RuntimeOptions) -> Engine:
    from pinfold.engines.scripted import ScriptedEngine

    return ScriptedEngine(script, options)


def _open_llama_cpp(path: Path, name: str, options: RuntimeOptions) -> Engine:
    from pinfold.engines.llama_cpp.engine import LlamaCppEngine

    return LlamaCppEngine(path, name, options)


def _open_mlx(path: Path, name: str, options: RuntimeOptions) -> Engine:
    from pinfold.engines.mlx.engine import MlxEngine

    return MlxEngine(path, name, options)
