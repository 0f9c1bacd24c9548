"""Models on Hugging Face: which file of a repository is meant, and where it lies once it is here.

A copy in the cache is used without asking the network, so a model that was used once starts offline.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from pinfold.errors import ModelNotFoundError
from pinfold.models.gguf import models_among, split_parts

__all__ = ["fetch", "folder_files", "is_hub_id", "is_whole_folder", "pick_file"]

TIMEOUT_S = 10.0
# Which quantization is meant when none is named: the best trade of size for quality that a repository tends to have.
PREFERRED = ("Q4_K_M", "Q4_0", "Q4_1", "Q4_K_S", "Q5_K_M", "Q6_K", "Q8_0", "BF16", "F16")

_FOLDER_FILES = (".json", ".safetensors", ".jinja")
_INDEX = "model.safetensors.index.json"
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_HUB_ID = re.compile(rf"({_PART}/{_PART})(?::(.+))?")


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form ``owner/repo`` or ``owner/repo:file-or-quantization``."""
    return _HUB_ID.fullmatch(name) is not None


def fetch(name: str, *, progress: bool) -> Path:
    """The local path of the model `name`, downloaded unless the cache has it: a GGUF file, or the folder of a
    repository in MLX format.

    Raises:
        ModelNotFoundError: no such repository or file, or it is not in the cache and cannot be reached.
    """
    match = _HUB_ID.fullmatch(name)
    if match is None or ".." in name or "--" in match[1]:
        msg = f"{name!r} is no Hugging Face id. Write owner/repo, or owner/repo:file-or-quantization."
        raise ModelNotFoundError(msg)
    repo, wanted = match[1], match[2]
    snapshot = _cached_snapshot(repo)
    if snapshot is not None:
        cached = [f.relative_to(snapshot).as_posix() for f in snapshot.rglob("*.gguf")]
        file = _pick_cached(cached, wanted)
        if file is not None:
            return snapshot / file
        if wanted is None and not cached and is_whole_folder(snapshot):
            return snapshot
    files = _remote_files(repo)
    if wanted is None and not models_among(files):
        folder = folder_files(files)
        if folder:
            paths = [_download(repo, file, progress=progress) for file in folder]
            return paths[0].parent
    file = pick_file(files, wanted, repo)
    parts = [_download(repo, part, progress=progress) for part in split_parts(file)]
    return parts[0]


def pick_file(files: Sequence[str], wanted: str | None, repo: str) -> str:
    """The file of a repository that is meant by `wanted`: a file's name, a quantization, or None for the usual choice.

    Raises:
        ModelNotFoundError: no file fits, or several do; the message lists them.
    """
    models = models_among(files)
    if not models:
        msg = (
            f"{repo} holds no GGUF file and no folder of safetensors with config.json and tokenizer.json. Look for a "
            f"repository of the same model whose name ends in -GGUF, or one of mlx-community."
        )
        raise ModelNotFoundError(msg)
    fitting = _usual(models) if wanted is None else [f for f in models if _fits(f, wanted)]
    if len(fitting) == 1:
        return fitting[0]
    problem = f"holds no file {wanted!r}" if not fitting else "holds several models that fit"
    msg = f"{repo} {problem}. Name one as {repo}:FILE, of: {', '.join(fitting or models)}."
    raise ModelNotFoundError(msg)


def folder_files(files: Sequence[str]) -> list[str]:
    """The files of a repository that make a folder of safetensors with its configuration; none if it is no such one."""
    top = [file for file in files if "/" not in file and "\\" not in file]
    found = sorted(file for file in top if file.endswith(_FOLDER_FILES))
    whole = {"config.json", "tokenizer.json"} <= set(found) and any(f.endswith(".safetensors") for f in found)
    return found if whole else []


def is_whole_folder(folder: Path) -> bool:
    """Whether a cached folder of safetensors has its configuration and every file that its index names."""
    here = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if not folder_files(here):
        return False
    if _INDEX not in here:
        return "model.safetensors" in here
    try:
        named = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        return set(named) <= set(here)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _usual(models: Sequence[str]) -> Sequence[str]:
    """The models of the most preferred quantization that is among them; all of them if none is."""
    by_quant = ([f for f in models if _fits(f, quant)] for quant in PREFERRED)
    return models if len(models) == 1 else next(filter(None, by_quant), models)


def _fits(file: str, wanted: str) -> bool:
    if wanted.lower().endswith(".gguf"):
        return file == wanted or file == split_parts(wanted)[0]
    quant = re.escape(wanted)
    return re.search(rf"(?<![A-Za-z0-9]){quant}(?![A-Za-z0-9_])", PurePosixPath(file).name, re.IGNORECASE) is not None


def _pick_cached(files: Sequence[str], wanted: str | None) -> str | None:
    """Like `pick_file`, but None where the cache alone cannot tell, and only models that are there with all parts."""
    whole = [f for f in files if set(split_parts(f)) <= set(files)]
    try:
        return pick_file(whole, wanted, "")
    except ModelNotFoundError:
        return None


def _cached_snapshot(repo: str) -> Path | None:
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        return None
    return folder / "snapshots" / revision


def _remote_files(repo: str) -> list[str]:
    from huggingface_hub import HfApi

    with _hub_errors(repo):
        info: Any = HfApi().model_info(repo, timeout=TIMEOUT_S)
    return [sibling.rfilename for sibling in info.siblings or ()]


def _download(repo: str, file: str, *, progress: bool) -> Path:
    from huggingface_hub import hf_hub_download

    with _hub_errors(repo), _progress_bars(progress and sys.stderr.isatty()):
        return Path(hf_hub_download(repo, file, etag_timeout=TIMEOUT_S))


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    # The bases are OSError and the root error of whichever HTTP library this huggingface_hub is built on.
    unreachable: tuple[Any, ...] = (HfHubHTTPError, *HfHubHTTPError.__bases__)
    try:
        yield
    except (RepositoryNotFoundError, HFValidationError) as e:
        msg = (
            f"Hugging Face has no model repository {repo!r} that you may read. Check its name; for a private or gated "
            f"one, log in with `hf auth login` or set HF_TOKEN."
        )
        raise ModelNotFoundError(msg) from e
    except unreachable as e:
        msg = (
            f"{repo} is not in the cache ({HF_HUB_CACHE}) and could not be fetched from Hugging Face: {e}. "
            f"Pass the path of a .gguf file or an MLX folder that is on this machine, or point HF_HOME at a cache that "
            f"holds the model."
        )
        raise ModelNotFoundError(msg) from e


@contextmanager
def _progress_bars(shown: bool) -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
