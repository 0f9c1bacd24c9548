"""Models on Hugging Face: which file of a repository is meant, and where it lies once it is here.

A copy in the cache is used without asking the network, so a model that was used once starts offline.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from pinfold.errors import ModelNotFoundError
from pinfold.models.gguf import models_among, split_parts

__all__ = ["fetch", "is_hub_id", "pick_file"]

TIMEOUT_S = 10.0
# Which quantization is meant when none is named: the best trade of size for quality that a repository tends to have.
PREFERRED = ("Q4_K_M", "Q4_0", "Q4_1", "Q4_K_S", "Q5_K_M", "Q6_K", "Q8_0", "BF16", "F16")

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_HUB_ID = re.compile(rf"({_PART}/{_PART})(?::(.+))?")


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form ``owner/repo`` or ``owner/repo:file-or-quantization``."""
    return _HUB_ID.fullmatch(name) is not None


def fetch(name: str, *, progress: bool) -> Path:
    """The local path of the model `name`, downloaded unless the cache has it.

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
    file = pick_file(_remote_files(repo), wanted, repo)
    parts = [_download(repo, part, progress=progress) for part in split_parts(file)]
    return parts[0]


def pick_file(files: Sequence[str], wanted: str | None, repo: str) -> str:
    """The file of a repository that is meant by `wanted`: a file's name, a quantization, or None for the usual choice.

    Raises:
        ModelNotFoundError: no file fits, or several do; the message lists them.
    """
    models = models_among(files)
    if not models:
        msg = f"{repo} holds no GGUF file. Look for a repository of the same model whose name ends in -GGUF."
        raise ModelNotFoundError(msg)
    fitting = _usual(models) if wanted is None else [f for f in models if _fits(f, wanted)]
    if len(fitting) == 1:
        return fitting[0]
    problem = f"holds no file {wanted!r}" if not fitting else "holds several models that fit"
    msg = f"{repo} {problem}. Name one as {repo}:FILE, of: {', '.join(fitting or models)}."
    raise ModelNotFoundError(msg)


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
            f"Pass the path of a .gguf file that is on this machine, or point HF_HOME at a cache that holds the model."
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
