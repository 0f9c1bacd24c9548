"""Which engine runs a model here, and why the others do not. Looks at installed packages without importing them."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from pinfold.errors import EngineUnavailableError, UnsupportedModeError

if TYPE_CHECKING:
    from pinfold.models import ResolvedModel

__all__ = ["ENGINES", "Choice", "EngineStatus", "choose_engine", "survey"]

AUTO, LLAMA_CPP, MLX, SERVER, SCRIPTED = "auto", "llama.cpp", "mlx", "server", "scripted"
ENGINES = (AUTO, LLAMA_CPP, MLX, SCRIPTED)

LLAMA_CPP_MIN = (0, 3, 36)
INSTALL = "pip install 'pinfold[llama-cpp]'"
NO_MLX = "the MLX engine is not in this version"
NO_SERVER = "servers are not supported in this version"
USE_GGUF = "Use a GGUF file of the same model: it runs on llama.cpp."


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that was chosen, and why, one sentence each."""

    engine: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine on this machine. `version` is that of its package, None where it has none or it is not installed."""

    engine: str
    version: str | None
    usable: bool
    recommended: bool
    why: str


def choose_engine(model: ResolvedModel, engine: str = AUTO) -> Choice:
    """The engine for `model`: the one asked for, or with ``auto`` the one that fits the model's kind.

    Raises:
        UnsupportedModeError: an engine that is unknown, not in this version, or does not run this kind of model.
        EngineUnavailableError: the engine's package is missing or too old; the message has the install command.
    """
    if engine not in ENGINES:
        near = difflib.get_close_matches(engine, ENGINES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        msg = f"There is no engine {engine!r}.{hint} Known engines: {', '.join(ENGINES)}."
        raise UnsupportedModeError(msg)
    _refuse_what_is_absent(model, engine)
    fitting = SCRIPTED if model.kind == "scripted" else LLAMA_CPP
    if engine not in (AUTO, fitting):
        msg = f"The {engine} engine does not run {model.name} ({model.kind}). Use engine={fitting!r} or 'auto'."
        raise UnsupportedModeError(msg)
    asked = "it was asked for" if engine != AUTO else f"it runs models of the kind {model.kind}"
    if fitting == SCRIPTED:
        return Choice(SCRIPTED, (asked,))
    found, problem = _llama_cpp()
    if problem:
        msg = f"The llama.cpp engine cannot run: {problem}."
        raise EngineUnavailableError(msg)
    return Choice(LLAMA_CPP, (asked, f"llama-cpp-python {found} is installed"))


def survey() -> list[EngineStatus]:
    """Every engine that Pinfold knows, the usable ones with what they lack, the others with the reason."""
    llama_cpp, problem = _llama_cpp()
    why = problem or "runs GGUF files on CPU, and on the GPU where the build has one"
    if not problem and _installed("llguidance") is None:
        why += f"; without llguidance no answer can be constrained ({INSTALL})"
    return [
        EngineStatus(LLAMA_CPP, llama_cpp, not problem, not problem, why),
        EngineStatus(MLX, _installed("mlx-lm"), False, False, NO_MLX),
        EngineStatus(SERVER, None, False, False, NO_SERVER),
        EngineStatus(SCRIPTED, None, True, False, "answers from a script, for offline tests"),
    ]


def _refuse_what_is_absent(model: ResolvedModel, engine: str) -> None:
    reason = ""
    if model.kind == "remote":
        reason = f"{model.name} is a server's URL, and {NO_SERVER}."
    elif model.kind == "mlx":
        reason = f"{model.name} is a model in MLX format, and {NO_MLX}."
    elif engine == MLX:
        reason = f"engine='mlx' was asked for, and {NO_MLX}."
    if reason:
        msg = f"{reason} {USE_GGUF}"
        raise UnsupportedModeError(msg)


def _llama_cpp() -> tuple[str | None, str]:
    """The version that is installed, and what is wrong with it: nothing, if the text is empty."""
    found = _installed("llama-cpp-python")
    if found is None:
        return None, f"llama-cpp-python is not installed; run: {INSTALL}"
    if tuple(int(n) for n in re.findall(r"\d+", found)[:3]) < LLAMA_CPP_MIN:
        least = ".".join(str(n) for n in LLAMA_CPP_MIN)
        return found, f"llama-cpp-python {found} is older than {least}; run: {INSTALL} --upgrade"
    return found, ""


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
