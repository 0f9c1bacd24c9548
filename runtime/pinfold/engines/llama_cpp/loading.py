"""A GGUF file and options -> a loaded model, its context, and the facts about both."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pinfold.engines.base import ModelInfo
from pinfold.engines.llama_cpp.heads import describe_heads
from pinfold.engines.llama_cpp.kv_types import KVTypes, parse_kv_types
from pinfold.engines.llama_cpp.lane import Lane
from pinfold.engines.llama_cpp.library import load_library, recent_errors
from pinfold.engines.llama_cpp.tokenizer import LlamaTokenizer
from pinfold.engines.memory import Fitted, fit_context, free_memory
from pinfold.errors import CacheFullError, ModelFormatError, ModelNotFoundError, UnsupportedModeError
from pinfold.kv.snapshot import Heads
from pinfold.options import RuntimeOptions

__all__ = ["Loaded", "lane_of", "load", "load_model", "open_context", "open_lane", "read_meta"]

log = logging.getLogger("pinfold.llama_cpp")

_FLASH_ATTENTION = 1
_SAMPLES = 64
_SAMPLE_BYTES = 1 << 16


@dataclass(slots=True)
class Loaded:
    """A model and a context that now belong to the caller, who frees both."""

    lib: ModuleType
    model: Any
    context: Any
    tokenizer: LlamaTokenizer
    info: ModelInfo
    kv_types: KVTypes
    device: str
    n_cells: int
    n_ctx: int
    max_tokens: int
    max_rows: int
    bytes_per_token: int
    context_reason: str
    trims: bool
    facets: dict[str, str]
    heads: tuple[Heads, ...]

    def free_model(self) -> None:
        """Frees the model, after all contexts. Calling it twice is fine."""
        if self.model:
            self.lib.llama_model_free(self.model)
            self.model = None


def load(path: Path, name: str, options: RuntimeOptions) -> Loaded:
    """Loads the model and opens its context.

    Raises:
        EngineUnavailableError: llama-cpp-python is missing or broken.
        ModelNotFoundError, ModelFormatError: no such file, or none that llama.cpp can load.
        UnsupportedModeError: KV types that this model or device cannot run.
        CacheFullError: the memory for the KV cells could not be had.
    """
    lib = load_library()
    model = load_model(lib, path, options)
    try:
        return _open(lib, model, path, name, options)
    except BaseException:
        lib.llama_model_free(model)
        raise


def open_lane(loaded: Loaded, options: RuntimeOptions, kv_types: KVTypes, cells: int | None = None) -> Lane:
    """Another context over the loaded model, with cells of `kv_types`: by default as many as one request may use.

    Raises:
        CacheFullError: the memory for its cells could not be had.
    """
    n_cells = cells or _round_up(loaded.n_ctx, 256)
    context = open_context(loaded.lib, loaded.model, options, kv_types, n_cells, loaded.max_tokens, loaded.max_rows)
    return lane_of(loaded, options, context, kv_types, n_cells)


def lane_of(loaded: Loaded, options: RuntimeOptions, context: Any, kv_types: KVTypes, n_cells: int) -> Lane:
    """The lane that now owns `context`."""
    return Lane(
        loaded.lib,
        context,
        kv_types,
        n_cells=n_cells,
        n_seq=options.max_sequences,
        n_vocab=loaded.tokenizer.n_vocab,
        max_tokens=loaded.max_tokens,
        trims=loaded.trims,
        window=loaded.lib.llama_model_n_swa(loaded.model),
    )


def load_model(lib: ModuleType, path: Path, options: RuntimeOptions) -> Any:
    """The model in the file at `path`, which the caller frees.

    Raises:
        ModelNotFoundError, ModelFormatError: there is no such file, or llama.cpp cannot load it.
    """
    if not path.is_file():
        msg = f"There is no model file at {path}."
        raise ModelNotFoundError(msg)
    recent_errors.clear()
    params = lib.llama_model_default_params()
    params.n_gpu_layers = options.n_gpu_layers if options.n_gpu_layers >= 0 else 999
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        why = "; ".join(recent_errors) or "no reason given"
        msg = f"llama.cpp cannot load {path.name}: {why}. Check that the download is whole and the model is supported."
        raise ModelFormatError(msg)
    return model


def _open(lib: ModuleType, model: Any, path: Path, name: str, options: RuntimeOptions) -> Loaded:
    tokenizer = LlamaTokenizer(lib, lib.llama_model_get_vocab(model))
    info = _describe(lib, model, path, name, tokenizer)
    on_gpu = bool(lib.llama_supports_gpu_offload()) and options.n_gpu_layers != 0
    k_size, v_size = _head_sizes(lib, model, info.architecture)
    kv_types = parse_kv_types(options.kv_resident, head_size=k_size, on_gpu=on_gpu)
    if kv_types.quantized and not on_gpu:
        log.warning("kv_resident=%s saves memory but makes prefill 2-3 times slower on a CPU; f16 is fast.", kv_types)
    heads = lib.llama_model_n_head_kv(model) * info.n_layer
    bytes_per_token = kv_types.bytes_of(heads * k_size, heads * v_size)
    fitted = _context_length(options, info, bytes_per_token, on_gpu)
    n_ctx = fitted.n_ctx
    n_cells = _round_up(options.kv_cells or 2 * n_ctx, 256)
    max_tokens = _round_up(options.prefill_chunk + options.max_sequences, 64)
    max_rows = min(max_tokens, max(64, options.max_sequences))
    context = open_context(lib, model, options, kv_types, n_cells, max_tokens, max_rows)
    return Loaded(
        lib=lib,
        model=model,
        context=context,
        tokenizer=tokenizer,
        info=info,
        kv_types=kv_types,
        device="gpu" if on_gpu else "cpu",
        n_cells=n_cells,
        n_ctx=n_ctx,
        max_tokens=max_tokens,
        max_rows=max_rows,
        bytes_per_token=bytes_per_token,
        context_reason=fitted.reason,
        trims=not (lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)),
        facets=_facets(lib, model, info, kv_types),
        heads=describe_heads(
            lib, model, lambda key: read_meta(lib, model, f"{info.architecture}.{key}"), k_size, v_size
        ),
    )


def _context_length(options: RuntimeOptions, info: ModelInfo, bytes_per_token: int, on_gpu: bool) -> Fitted:
    if options.n_ctx != "auto":
        n_ctx = min(options.n_ctx, info.n_ctx_train or options.n_ctx)
        return Fitted(
            n_ctx, "as set" if n_ctx == options.n_ctx else f"cut to the {n_ctx} that the model was trained for"
        )
    if on_gpu and sys.platform != "darwin":
        msg = "n_ctx='auto' measures main memory, and the KV goes to the GPU's. Give n_ctx a number."
        raise UnsupportedModeError(msg)
    return fit_context(free_memory(), bytes_per_token, info.n_ctx_train, options.kv_cells)


def open_context(
    lib: ModuleType,
    model: Any,
    options: RuntimeOptions,
    kv_types: KVTypes,
    cells: int,
    tokens: int,
    rows: int,
    other: Any | None = None,
) -> Any:
    """A context of `cells` KV cells that takes `tokens` in a forward and gives `rows` of logits.

    `other` is the context of the model whose embeddings and last step it shares.

    Raises:
        CacheFullError: the memory could not be had.
    """
    params = lib.llama_context_default_params()
    params.n_ctx = cells
    params.n_batch = params.n_ubatch = tokens
    params.n_outputs_max = rows
    params.n_seq_max = options.max_sequences
    params.kv_unified = True  # forks share cells
    params.swa_full = True  # sliding-window layers keep all cells, so that any prefix can be forked and cut
    params.flash_attn_type = _FLASH_ATTENTION
    params.type_k, params.type_v = kv_types.numbers
    params.n_threads = params.n_threads_batch = options.n_threads or _physical_cores()
    params.no_perf = True
    params.ctx_other = other
    context = lib.llama_init_from_model(model, params)
    if not context:
        why = "; ".join(recent_errors) or "no reason given"
        msg = f"llama.cpp cannot open a context of {cells} KV cells: {why}. Try smaller n_ctx, kv_cells or kv_resident."
        raise CacheFullError(msg)
    return context


def _describe(lib: ModuleType, model: Any, path: Path, name: str, tokenizer: LlamaTokenizer) -> ModelInfo:
    template = lib.llama_model_chat_template(model, None)
    return ModelInfo(
        name=name,
        architecture=read_meta(lib, model, "general.architecture") or "unknown",
        identity=_identity(path),
        n_vocab=tokenizer.n_vocab,
        n_ctx_train=lib.llama_model_n_ctx_train(model),
        n_layer=lib.llama_model_n_layer(model),
        chat_template=template.decode("utf-8", "replace") if template else None,
        bos_token=tokenizer.bos_text,
        eos_token=tokenizer.eos_text,
        parameters=lib.llama_model_n_params(model),
        size_bytes=lib.llama_model_size(model),
        path=path,
        body_parameters=lib.llama_model_n_params(model) - tokenizer.n_vocab * lib.llama_model_n_embd(model),
    )


def read_meta(lib: ModuleType, model: Any, key: str) -> str | None:
    """A value of the model's header as text; None if it has none of that name."""
    buffer = ctypes.create_string_buffer(256)
    count = lib.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if count >= 0 else None


def _head_sizes(lib: ModuleType, model: Any, architecture: str) -> tuple[int, int]:
    default = lib.llama_model_n_embd(model) // max(lib.llama_model_n_head(model), 1)
    key = read_meta(lib, model, f"{architecture}.attention.key_length")
    value = read_meta(lib, model, f"{architecture}.attention.value_length")
    return int(key or default), int(value or default)


def _identity(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for i in range(_SAMPLES):
            file.seek(max(size - _SAMPLE_BYTES, 0) * i // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _facets(lib: ModuleType, model: Any, info: ModelInfo, kv_types: KVTypes) -> dict[str, str]:
    """Everything besides the tokens that shapes the KV."""
    return {
        "engine": "llama.cpp",
        "version": importlib.metadata.version("llama-cpp-python"),
        "weights": info.identity,
        "kv types": str(kv_types),
        "flash attention": str(_FLASH_ATTENTION),
        "rope": str(lib.llama_model_rope_type(model)),
        "sliding window": str(lib.llama_model_n_swa(model)),
    }


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _physical_cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        hyperthreads = Path("/sys/devices/system/cpu/smt/active").read_text(encoding="ascii").strip() == "1"
    except OSError:
        hyperthreads = False
    return max(cores // 2, 1) if hyperthreads else cores
