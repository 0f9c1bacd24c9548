"""llama.cpp over its low-level API with nothing around it: what any runtime's time is held against."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

__all__ = ["BareLlama"]

_BATCH = 512
_FLASH_ATTENTION = 1


class BareLlama:
    """One model and one context.

    Args:
        unified: all sequences share one pool of cells, as in Pinfold; else each has its own part, as in llama-server.
    """

    def __init__(self, path: Path, *, threads: int, cells: int, sequences: int, unified: bool = True) -> None:
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = params.n_ubatch = _BATCH
        params.n_seq_max = sequences
        params.kv_unified = unified
        params.flash_attn_type = _FLASH_ATTENTION
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            msg = f"llama.cpp opened no context for {path}"
            raise SystemExit(msg)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)
        self.end_tokens = frozenset(
            token for token in range(self._n_vocab) if llama_cpp.llama_vocab_is_eog(vocab, token)
        )

    def evaluate(self, seq: int, start: int, tokens: Sequence[int]) -> int:
        """Computes `tokens` as those of `seq` from position `start` on; returns the greedy next token."""
        for at in range(0, len(tokens), _BATCH):
            self._decode(seq, start + at, tokens[at : at + _BATCH])
        row = llama_cpp.llama_get_logits_ith(self._context, -1)
        logits = (ctypes.c_float * self._n_vocab).from_address(ctypes.addressof(row.contents))
        return int(np.frombuffer(logits, dtype=np.float32).argmax())

    def text(self, tokens: Sequence[int]) -> str:
        """What `tokens` stand for."""
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        buffer = ctypes.create_string_buffer(64 * len(tokens) + 64)
        size = llama_cpp.llama_detokenize(vocab, ids, len(tokens), buffer, len(buffer), False, True)
        return buffer.raw[: max(size, 0)].decode("utf-8", "replace")

    def cut(self, seq: int, length: int) -> None:
        """Forgets all of `seq` but its first `length` tokens."""
        llama_cpp.llama_memory_seq_rm(self._memory, seq, length, -1)

    def close(self) -> None:
        """Frees the model."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def _decode(self, seq: int, start: int, tokens: Sequence[int]) -> None:
        batch: Any = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = start + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = seq
            batch.logits[i] = 0
        batch.logits[len(tokens) - 1] = 1
        code = llama_cpp.llama_decode(self._context, batch)
        if code:
            msg = f"llama_decode failed with code {code}"
            raise SystemExit(msg)
