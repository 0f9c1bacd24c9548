"""A drafter's folder -> a drafter that fits the target, or the reason why it does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pinfold.draft_modes import DraftMode
from pinfold.engines.mlx.blocks.config import BlockConfig, Kind, Target, check_fit, read_config
from pinfold.engines.mlx.blocks.drafter import BlockDrafter, Joined
from pinfold.engines.mlx.blocks.heads import Head, head_shapes
from pinfold.engines.mlx.blocks.network import Network, expected_shapes
from pinfold.engines.mlx.blocks.taps import Taps
from pinfold.engines.mlx.folder import check_whole, identity_of, read_json
from pinfold.errors import ModelFormatError, ModelNotFoundError, UnsupportedModeError

__all__ = ["join_drafter"]

# Copies of the target's that some checkpoints carry; the target's own are used.
_SHARED = ("embed_tokens.weight", "lm_head.weight")


def join_drafter(mx: Any, model: Any, name: str, mode: DraftMode, compute: Any | None) -> tuple[Joined, BlockDrafter]:
    """Loads the drafter that `mode` names for the target `model` and joins both; `compute` is its type if not as saved.

    Raises:
        ModelNotFoundError, ModelFormatError: the folder is no checkpoint, or a damaged one.
        UnsupportedModeError: it was made for another target, or the target cannot be tapped; the message says why.
    """
    kind: Kind = "dspark" if mode.kind == "dspark" else "dflash"
    folder = Path(mode.model).expanduser()
    files = _files(folder, kind)
    config = read_config(read_json(folder / "config.json", needed=True), folder.name, kind)
    embed, logits_of, target = _target(mx, model, name)
    check_fit(config, folder.name, target)
    weights = _weights(mx, files, config, folder.name, compute)
    network = Network(mx, config, weights, _rope(config))
    head = Head(mx, config, weights, logits_of)
    drafter = BlockDrafter(network, head, embed, identity_of([folder / "config.json", *files]))
    return Joined(model, drafter, Taps(model.layers, config.taps)), drafter


def _files(folder: Path, kind: Kind) -> list[Path]:
    if not folder.is_dir():
        msg = f"draft='{kind}:{folder}': there is no such folder. It takes one with config.json and model.safetensors."
        raise ModelNotFoundError(msg)
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        msg = f"draft='{kind}:{folder}': the folder has no model.safetensors. Download the checkpoint again."
        raise ModelNotFoundError(msg)
    for file in files:
        check_whole(file)
    return files


def _target(mx: Any, model: Any, name: str) -> tuple[Any, Any, Target]:
    """How the target turns tokens into embeddings and hidden states into logits, and the facts to compare."""
    text = getattr(model, "language_model", model)
    body = getattr(text, "model", text)
    table = getattr(body, "embed_tokens", None)
    if table is None:
        msg = f"{name} has no table of embeddings that a drafter could share. Use draft='auto'."
        raise UnsupportedModeError(msg)
    scale = getattr(body, "embed_scale", None)
    last = getattr(text, "lm_head", None)
    logits_of = table.as_linear if last is None else last
    row = table(mx.array([[0]]))
    n_vocab = int(logits_of(row).shape[-1])
    facts = Target(name, int(row.shape[-1]), len(model.layers), n_vocab)
    return (table if scale is None else lambda tokens: table(tokens) * scale), logits_of, facts


def _weights(mx: Any, files: list[Path], config: BlockConfig, name: str, compute: Any | None) -> Mapping[str, Any]:
    try:
        found = {key: array for file in files for key, array in mx.load(str(file)).items()}
    except (RuntimeError, ValueError) as e:
        msg = f"The weights of drafter {name} cannot be read: {e}. Download the checkpoint again."
        raise ModelFormatError(msg) from e
    weights = {key.removeprefix("model."): array for key, array in found.items()}
    for shared in _SHARED:
        weights.pop(shared, None)
    _check_shapes(weights, expected_shapes(config) | head_shapes(config), name)
    if compute is not None:
        weights = {key: array.astype(compute) for key, array in weights.items()}
    mx.eval(list(weights.values()))
    return weights


def _check_shapes(weights: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]], name: str) -> None:
    missing, more = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    wrong = [
        f"{key} is {list(weights[key].shape)} and should be {list(shape)}"
        for key, shape in expected.items()
        if key in weights and tuple(weights[key].shape) != shape
    ]
    told = [f"lacks {_few(missing)}"] * bool(missing) + [
        f"has {_few(more)}, which its config does not speak of"
    ] * bool(more)
    if told or wrong:
        msg = f"Drafter {name} does not hold what its config says: {'; '.join([*told, *wrong[:3]])}. Download it again."
        raise ModelFormatError(msg)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _rope(config: BlockConfig) -> Any:
    from mlx_lm.models.rope_utils import initialize_rope

    scaling = dict(config.rope_scaling) if config.rope_scaling else None
    try:
        return initialize_rope(config.head_dim, config.rope_base, False, scaling, config.max_position)
    except (ValueError, KeyError, TypeError) as e:
        msg = f"The drafter turns its keys in a way that mlx-lm does not know: {e}. Upgrade mlx-lm."
        raise UnsupportedModeError(msg) from e
