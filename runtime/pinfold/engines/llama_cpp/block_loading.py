"""A GGUF file of a drafter -> a drafter that fits the target, or the reason why it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pinfold.draft_modes import DraftMode
from pinfold.engines.llama_cpp.block_drafter import BlockDrafter
from pinfold.engines.llama_cpp.loading import Loaded, load_model, open_context, read_meta
from pinfold.engines.llama_cpp.symbols import TapSymbols, find_taps
from pinfold.errors import ModelFormatError, UnsupportedModeError
from pinfold.models.gguf import tensor_names
from pinfold.options import RuntimeOptions

__all__ = ["open_drafter"]

_LARGEST_BLOCK = 64
# Tensors that only one kind has. llama.cpp runs the Markov head itself and leaves the selector to its caller.
_MARKOV, _SELECTOR = "markov_w1.weight", "selector_hidden.weight"
_INSTEAD = "Use draft='auto' or 'model:PATH', or the model and its drafter in MLX format."


def open_drafter(loaded: Loaded, mode: DraftMode, options: RuntimeOptions) -> BlockDrafter:
    """Opens the drafter that `mode` names beside the loaded target.

    Raises:
        ModelNotFoundError, ModelFormatError: there is no such file, or it is damaged.
        UnsupportedModeError: this build lacks layer taps, or the drafter was made for another target.
    """
    symbols = find_taps(loaded.lib)
    if symbols is None:
        msg = f"draft='{mode.kind}:{mode.model}': this llama.cpp was built without layer taps. {_INSTEAD}"
        raise UnsupportedModeError(msg)
    path = Path(mode.model).expanduser()
    if path.is_dir():
        msg = f"draft='{mode.kind}:{path}' is a folder. The llama.cpp engine takes the drafter as a .gguf file."
        raise UnsupportedModeError(msg)
    model = load_model(loaded.lib, path, options)
    try:
        _check_kind(loaded, model, path, mode.kind)
        return _open(loaded, symbols, model, path, options, anchored=mode.kind == "dspark")
    except BaseException:
        loaded.lib.llama_model_free(model)
        raise


def _check_kind(loaded: Loaded, model: Any, path: Path, kind: str) -> None:
    """Raises UnsupportedModeError unless the model is a drafter of this kind."""
    if read_meta(loaded.lib, model, "general.architecture") != "dflash":
        msg = f"{path.name} is no DFlash or DSpark drafter. Use draft='model:PATH' for a smaller model."
        raise UnsupportedModeError(msg)
    names = tensor_names(path)
    if _SELECTOR in names:
        msg = f"{path.name} is a drafter of DFlash 2, which Pinfold does not run on llama.cpp. {_INSTEAD}"
        raise UnsupportedModeError(msg)
    found = "dspark" if _MARKOV in names else "dflash"
    if kind != found:
        msg = f"{path.name} is a {found} drafter. Use draft='{found}:PATH'."
        raise UnsupportedModeError(msg)
    if read_meta(loaded.lib, model, "dflash.sample_from_anchor") == "false":
        msg = f"{path.name} guesses nothing from the last token's slot, which no other DSpark drafter does. {_INSTEAD}"
        raise UnsupportedModeError(msg)


def _open(
    loaded: Loaded, symbols: TapSymbols, model: Any, path: Path, options: RuntimeOptions, *, anchored: bool
) -> BlockDrafter:
    lib = loaded.lib
    taps = [int(symbols.target_layers(model)[k]) for k in range(symbols.count_target_layers(model))]
    block, mask = (
        _number(loaded, model, path, "dflash.block_size"),
        _number(loaded, model, path, "tokenizer.ggml.mask_token_id"),
    )
    wrong = list(_differences(loaded, model, taps, block, mask))
    if wrong:
        msg = (
            f"{path.name} cannot draft for {loaded.info.name}: {'; '.join(wrong)}. Use the drafter made for this model."
        )
        raise UnsupportedModeError(msg)
    cells = loaded.n_cells + 256  # the block's own, beside all that the target can hold
    context = open_context(lib, model, options, loaded.kv_types, cells, loaded.max_tokens, block, loaded.context)
    drafter = BlockDrafter(
        lib,
        symbols,
        model,
        context,
        loaded.context,
        taps=taps,
        hidden=lib.llama_model_n_embd(loaded.model),
        block=block,
        mask=mask,
        anchored=anchored,
        n_vocab=loaded.tokenizer.n_vocab,
        max_tokens=loaded.max_tokens,
    )
    if not _reads_all_taps(drafter, lib.llama_model_n_embd(loaded.model), len(taps)):
        lib.llama_free(context)
        msg = f"This build of llama.cpp wants a drafter's features in a form that Pinfold does not know. {_INSTEAD}"
        raise UnsupportedModeError(msg)
    return drafter


def _differences(loaded: Loaded, model: Any, taps: list[int], block: int, mask: int) -> Iterator[str]:
    lib = loaded.lib
    hidden, own = lib.llama_model_n_embd(model), lib.llama_model_n_embd(loaded.model)
    if hidden != own:
        yield f"its hidden size is {hidden}, the model's {own}"
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    if n_vocab != loaded.tokenizer.n_vocab:
        yield f"its vocabulary has {n_vocab} tokens, the model's {loaded.tokenizer.n_vocab}"
    beyond = [tap for tap in taps if not 0 <= tap < loaded.info.n_layer]
    if beyond or not taps:
        yield f"it reads layers {beyond or taps}, the last one is {loaded.info.n_layer - 1}"
    if mask >= loaded.tokenizer.n_vocab:
        yield f"its mask is token {mask}, the model has {loaded.tokenizer.n_vocab} tokens"
    if not 2 <= block <= _LARGEST_BLOCK:
        yield f"its block has {block} slots, and 2 to {_LARGEST_BLOCK} can be"


def _number(loaded: Loaded, model: Any, path: Path, key: str) -> int:
    value = read_meta(loaded.lib, model, key)
    if value is None or not value.isdecimal():
        msg = f"{path.name} has no usable {key} ({value!r}). Convert the drafter again."
        raise ModelFormatError(msg)
    return int(value)


def _reads_all_taps(drafter: BlockDrafter, hidden: int, n_taps: int) -> bool:
    """Whether a token's features are taken as they are, and not projected by another pass first.

    Features behind the first tap's then change what is guessed. Some builds read only as many channels as one tap has.
    """
    features = np.zeros((1, n_taps * hidden), dtype=np.float32)
    drafter.append(0, features)
    blank = drafter.logits(0, 0).copy()
    drafter.drop(0)
    features[:, hidden:] = np.linspace(-1, 1, (n_taps - 1) * hidden)
    drafter.append(0, features)
    filled = drafter.logits(0, 0).copy()
    drafter.drop(0)
    return n_taps == 1 or not np.array_equal(blank, filled)
