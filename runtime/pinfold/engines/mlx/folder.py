"""What the files of a model's folder say, read with limits and checked before anything is built from them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinfold.errors import ModelFormatError, ModelNotFoundError, UnsupportedModeError

__all__ = ["ModelFolder", "check_whole", "identity_of", "read_folder", "read_json"]

_MOST_JSON = 64 << 20
_SAMPLES = 64
_SAMPLE_BYTES = 1 << 16
_MOST_HEADER = 100 << 20
_ARCHITECTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The folder's settings. `text` is the part of the configuration that speaks of the language model."""

    path: Path
    architecture: str
    config: Mapping[str, Any]
    text: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    generation: Mapping[str, Any]
    chat_template: str | None
    identity: str
    size_bytes: int

    @property
    def vocabulary(self) -> Path:
        """The file that the tokenizer is made from."""
        return self.path / "tokenizer.json"

    def number(self, key: str, default: float = 0.0) -> float:
        """A positive number of the configuration; what is none counts as not said."""
        value = self.text.get(key)
        known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
        return float(value) if known and value is not None else default


def read_folder(path: Path) -> ModelFolder:
    """Reads the folder at `path`.

    Raises:
        ModelNotFoundError: there is no such folder, or one of its files is missing.
        ModelFormatError: a file is damaged, or says what no model can be.
        UnsupportedModeError: the model wants to run code of its own.
    """
    if not path.is_dir():
        msg = f"There is no model folder at {path}."
        raise ModelNotFoundError(msg)
    config = read_json(path / "config.json", needed=True)
    if "model_file" in config:
        msg = f"{path.name} brings Python code of its own, which Pinfold does not run. Use another conversion of it."
        raise UnsupportedModeError(msg)
    architecture = config.get("model_type")
    if not isinstance(architecture, str) or not _ARCHITECTURE.fullmatch(architecture):
        msg = f"{path / 'config.json'} has no usable model_type. Download the model again."
        raise ModelFormatError(msg)
    if not (path / "tokenizer.json").is_file():
        msg = (
            f"{path} has no tokenizer.json. Convert the model with mlx_lm.convert, or save its tokenizer as a fast one."
        )
        raise ModelNotFoundError(msg)
    tokenizer_config = read_json(path / "tokenizer_config.json")
    weights = _weights(path)
    text = config.get("text_config")
    return ModelFolder(
        path=path,
        architecture=architecture,
        config=config,
        text={**config, **text} if isinstance(text, dict) else config,
        tokenizer_config=tokenizer_config,
        generation=read_json(path / "generation_config.json"),
        chat_template=_template(path, tokenizer_config),
        identity=identity_of([path / "config.json", path / "tokenizer.json", *weights]),
        size_bytes=sum(file.stat().st_size for file in weights),
    )


def _weights(path: Path) -> list[Path]:
    files = sorted(path.glob("model*.safetensors"))
    if not files:
        msg = f"{path} holds no model*.safetensors. Download the model again."
        raise ModelNotFoundError(msg)
    index = read_json(path / "model.safetensors.index.json").get("weight_map", {})
    named = {str(name) for name in index.values()} if isinstance(index, dict) else set()
    missing = sorted(named - {file.name for file in files})
    if missing:
        msg = f"{path} lacks {', '.join(missing)}, which its index names. Download the model again."
        raise ModelNotFoundError(msg)
    for file in files:
        check_whole(file)
    return files


def check_whole(file: Path) -> None:
    """Refuses a file whose tensors reach beyond its end before the loader maps it."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(size - 8, _MOST_HEADER):
            msg = f"{file} is cut short or no safetensors file. Download the model again."
            raise ModelFormatError(msg)
        raw = opened.read(length)
    try:
        tensors = json.loads(raw)
        ends = [tensor["data_offsets"] for name, tensor in tensors.items() if name != "__metadata__"]
        sound = all(0 <= start <= end <= size - 8 - length for start, end in ends)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        msg = f"{file} has a damaged header ({e}). Download the model again."
        raise ModelFormatError(msg) from e
    if not sound:
        msg = f"{file} is cut short: its tensors reach past its {size:,} bytes. Download the model again."
        raise ModelFormatError(msg)


def read_json(path: Path, *, needed: bool = False) -> dict[str, Any]:
    if not path.is_file():
        if needed:
            msg = f"There is no {path.name} in {path.parent}. Download the model again."
            raise ModelNotFoundError(msg)
        return {}
    try:
        if path.stat().st_size > _MOST_JSON:
            msg = f"{path} is larger than {_MOST_JSON >> 20} MiB, which no such file is."
            raise ModelFormatError(msg)
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        msg = f"{path} cannot be read as JSON ({e}). Download the model again."
        raise ModelFormatError(msg) from e
    if not isinstance(value, dict):
        msg = f"{path} holds no JSON object. Download the model again."
        raise ModelFormatError(msg)
    return value


def _template(path: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file() and file.stat().st_size <= _MOST_JSON:
        return file.read_text(encoding="utf-8", errors="replace")
    found = tokenizer_config.get("chat_template")
    if isinstance(found, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default", next(iter(named.values()), None))
    return found if isinstance(found, str) else None


def identity_of(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for i in range(_SAMPLES if size > _SAMPLES * _SAMPLE_BYTES else 1):
                file.seek((size - _SAMPLE_BYTES) * i // (_SAMPLES - 1) if i else 0)
                digest.update(file.read(_SAMPLE_BYTES if size > _SAMPLES * _SAMPLE_BYTES else size))
    return digest.hexdigest()
