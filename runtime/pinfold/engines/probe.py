"""Which engine runs a model here, and why the others do not. Looks at installed packages without importing them."""

from __future__ import annotations

import difflib
import platform
import re
import sys
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from pinfold.errors import EngineUnavailableError, UnsupportedModeError

if TYPE_CHECKING:
    from pinfold.models import ResolvedModel

__all__ = ["ENGINES", "Choice", "EngineStatus", "choose_engine", "survey"]

AUTO, LLAMA_CPP, MLX, SERVER, SCRIPTED = "auto", "llama.cpp", "mlx", "server", "scripted"
ENGINES = (AUTO, LLAMA_CPP, MLX, SERVER, SCRIPTED)
_RUNS = {"gguf": LLAMA_CPP, "mlx": MLX, "remote": SERVER, "scripted": SCRIPTED}

LLAMA_CPP_MIN = (0, 3, 36)
MLX_LM_MIN = (0, 30)
INSTALL = "pip install 'pinfold[llama-cpp]'"
INSTALL_MLX = "pip install 'pinfold[mlx]'"
INSTALL_CUDA = "pip install 'pinfold[mlx-cuda]'"
CUDA_PACKAGES = ("mlx-cuda-12", "mlx-cuda-13")
USE_GGUF = "Use a GGUF file of the same model: it runs on llama.cpp."


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that was chosen for `model`, the form of it that this engine takes, and why, one sentence each.

    `fallback` is what runs another form of the same model, should this engine refuse this one when it loads it.
    """

    engine: str
    model: ResolvedModel
    reasons: tuple[str, ...]
    fallback: Choice | None = None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine on this machine. `version` is that of its package, None where it has none or it is not installed."""

    engine: str
    version: str | None
    usable: bool
    recommended: bool
    why: str


def choose_engine(model: ResolvedModel, engine: str = AUTO) -> Choice:
    """The engine for `model`: the one asked for, or with ``auto`` the fastest here of those that run a form of it.

    Raises:
        UnsupportedModeError: an engine that is unknown, or does not run this kind of model.
        EngineUnavailableError: the engine's package is missing or too old; the message has the install command.
    """
    if engine not in ENGINES:
        near = difflib.get_close_matches(engine, ENGINES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        msg = f"There is no engine {engine!r}.{hint} Known engines: {', '.join(ENGINES)}."
        raise UnsupportedModeError(msg)
    forms = {_RUNS[form.kind]: form for form in (model, model.other) if form is not None}
    if engine not in (AUTO, *forms):
        use = " or ".join(repr(name) for name in (*forms, AUTO))
        msg = f"The {engine} engine does not run {model.name} ({model.kind}). Use engine={use}."
        raise UnsupportedModeError(msg)
    if engine != AUTO:
        return _chosen(engine, forms[engine], ("it was asked for",))
    return _fastest(forms)


def _fastest(forms: dict[str, ResolvedModel]) -> Choice:
    """MLX before llama.cpp where it has a GPU; the other one where that cannot run, with the reason."""
    order = sorted(forms, key=lambda name: name != MLX or not _mlx_device()[0])
    if order[0] == MLX and len(order) > 1 and not _mlx()[1]:
        fallback = None if _llama_cpp()[1] else _chosen(LLAMA_CPP, forms[LLAMA_CPP], ())
        return replace(_chosen(MLX, forms[MLX], ("the model is here in both forms",)), fallback=fallback)
    usable = [name for name in order if not _problem(name)]
    name = (usable or order)[0]
    others = tuple(f"{other} was left out: {_problem(other) or _mlx_device()[1]}" for other in order if other != name)
    return _chosen(name, forms[name], (f"it runs models of the kind {forms[name].kind}", *others))


def _chosen(engine: str, model: ResolvedModel, why: tuple[str, ...]) -> Choice:
    problem = _problem(engine)
    if problem:
        msg = f"The {engine} engine cannot run: {problem}."
        if engine == MLX:
            msg += f" {USE_GGUF}"
        raise EngineUnavailableError(msg)
    if engine == MLX:
        why = (*why, f"mlx-lm {_mlx()[0]} is installed", f"it computes {_mlx_device()[1]}")
    if engine == LLAMA_CPP:
        why = (*why, f"llama-cpp-python {_llama_cpp()[0]} is installed")
    return Choice(engine, model, why)


def _problem(engine: str) -> str:
    """Why an engine cannot run here; nothing if it can."""
    return {LLAMA_CPP: _llama_cpp, MLX: _mlx}[engine]()[1] if engine in (LLAMA_CPP, MLX) else ""


def survey() -> list[EngineStatus]:
    """Every engine that Pinfold knows, the usable ones with what they lack, the others with the reason."""
    llama_cpp, problem = _llama_cpp()
    why = problem or "runs GGUF files on CPU, and on the GPU where the build has one"
    if not problem and _installed("llguidance") is None:
        why += f"; without llguidance no answer can be constrained ({INSTALL})"
    return [
        EngineStatus(LLAMA_CPP, llama_cpp, not problem, not problem, why),
        _mlx_status(),
        EngineStatus(
            SERVER, None, True, False, "a server's URL in place of a model; `pinfold doctor URL` asks what it can do"
        ),
        EngineStatus(SCRIPTED, None, True, False, "answers from a script, for offline tests"),
    ]


def _mlx_status() -> EngineStatus:
    found, problem = _mlx()
    if problem:
        return EngineStatus(MLX, found, False, False, problem)
    fast, where = _mlx_device()
    why = f"runs folders of safetensors {where}"
    if _installed("llguidance") is None:
        why += f"; without llguidance no answer can be constrained ({INSTALL_MLX})"
    return EngineStatus(MLX, found, True, fast, why)


def _llama_cpp() -> tuple[str | None, str]:
    """The version that is installed, and what is wrong with it: nothing, if the text is empty."""
    return _at_least("llama-cpp-python", LLAMA_CPP_MIN, INSTALL)


def _mlx() -> tuple[str | None, str]:
    """The same for mlx-lm."""
    install = INSTALL_MLX if sys.platform == "darwin" else f"{INSTALL_MLX}, or {INSTALL_CUDA} for an NVIDIA GPU"
    found, problem = _at_least("mlx-lm", MLX_LM_MIN, install)
    if not problem and _installed("mlx") is None:
        problem = f"mlx is not installed; run: {install}"
    return found, problem


def _mlx_device() -> tuple[bool, str]:
    """Whether MLX as installed computes on a GPU, and where, in words."""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return True, "on the GPU, by Metal"
    if any(_installed(package) for package in CUDA_PACKAGES):
        return True, "on an NVIDIA GPU"
    return False, "on the CPU, many times slower than llama.cpp with a GGUF file"


def _at_least(package: str, least: tuple[int, ...], install: str) -> tuple[str | None, str]:
    found = _installed(package)
    if found is None:
        return None, f"{package} is not installed; run: {install}"
    if tuple(int(n) for n in re.findall(r"\d+", found)[:3]) < least:
        oldest = ".".join(str(n) for n in least)
        return found, f"{package} {found} is older than {oldest}; run: {install} --upgrade"
    return found, ""


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
