"""The llama.cpp engine: `engines.base.Engine` over one context with many sequences in a unified KV."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.base import Capabilities, ForwardInterrupted, Mode, Span
from pinfold.engines.buffers import BufferPool
from pinfold.engines.cells import CellLedger
from pinfold.engines.llama_cpp.batch import Batch, rows_of
from pinfold.engines.llama_cpp.library import expecting_errors
from pinfold.engines.llama_cpp.loading import Loaded, load
from pinfold.engines.llama_cpp.state import build_state, parse_state
from pinfold.errors import CacheFullError, DecodeError, EngineError, TrimError
from pinfold.kv.snapshot import Snapshot
from pinfold.options import RuntimeOptions

__all__ = ["LlamaCppEngine"]

_NO_SLOT = 1
_ABORTED = 2


class LlamaCppEngine:
    """One GGUF model. See `engines.base.Engine` for the contract and the rule about threads."""

    def __init__(self, path: Path, name: str, options: RuntimeOptions) -> None:
        loaded = load(path, name, options)
        self._lib = loaded.lib
        self._model: Any = loaded.model
        self._context: Any = loaded.context
        self._memory = self._lib.llama_get_memory(loaded.context)
        self._trims = loaded.trims
        self._heads = loaded.heads
        self._batch = Batch(loaded.lib, loaded.max_tokens)
        self._cells = CellLedger(loaded.n_cells, options.max_sequences)
        self._n_vocab = loaded.tokenizer.n_vocab
        self._logits: NDArray[np.float32] = np.empty((0, self._n_vocab), dtype=np.float32)
        self._logits_at = (0, 0)
        self._buffers = BufferPool()
        self._abort_flag = _install_abort_flag(loaded)
        self.tokenizer = loaded.tokenizer
        self.max_tokens = loaded.max_tokens
        self.max_rows = loaded.max_rows
        self.capabilities = _capabilities(loaded, options)

    def forward(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        self._check(spans)
        rows = self._batch.fill(spans)
        self._abort_flag[0] = 0
        expecting_errors.clear()
        code = self._lib.llama_decode(self._context, self._batch.struct)
        if code:
            self._undo(code, spans)
        for span in spans:
            self._cells.append(span.seq, len(span.tokens))
        return self._split_logits(spans, rows)

    def interrupt(self) -> None:
        expecting_errors.set()
        self._abort_flag[0] = 1

    def length(self, seq: int) -> int:
        return self._cells.length(seq)

    def fork(self, src: int, dst: int, length: int) -> None:
        have = self._cells.length(src)
        if self._cells.length(dst):
            msg = f"sequence {dst} is in use"
            raise EngineError(msg)
        if length > have or (length < have and not self._trims):
            msg = f"cannot fork {length} of {have} tokens: this model's state cannot be cut"
            raise TrimError(msg)
        self._lib.llama_memory_seq_cp(self._memory, src, dst, 0 if self._trims else -1, length if self._trims else -1)
        self._cells.share(src, dst, length)
        if self._lib.llama_memory_seq_pos_max(self._memory, dst) != length - 1:
            self.drop(dst)
            msg = f"the fork of {length} tokens came out with another length; it was dropped"
            raise TrimError(msg)

    def trim(self, seq: int, length: int) -> None:
        if length == self._cells.length(seq):
            return
        done = self._trims and bool(self._lib.llama_memory_seq_rm(self._memory, seq, length, -1))
        if not done or self._lib.llama_memory_seq_pos_max(self._memory, seq) != length - 1:
            self.drop(seq)
            msg = f"this model's state cannot be cut back to {length} tokens; the sequence was dropped"
            raise TrimError(msg)
        self._cells.cut(seq, length)

    def drop(self, seq: int) -> None:
        self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        self._cells.cut(seq, 0)

    def free_cells(self) -> int:
        return self._cells.free

    def exclusive_cells(self, seq: int) -> int:
        return self._cells.exclusive(seq)

    def snapshot(self, seq: int) -> memoryview:
        size = self._lib.llama_state_seq_get_size(self._context, seq)
        buffer = self._buffers.lend(size)
        written = self._lib.llama_state_seq_get_data(self._context, _bytes_at(buffer), size, seq)
        if written != size:
            msg = f"llama.cpp wrote {written} of {size} bytes of sequence {seq}"
            raise EngineError(msg)
        return buffer.data

    def restore(self, seq: int, data: memoryview | bytes, length: int) -> None:
        if length > self._cells.free:
            msg = f"{length} tokens do not fit into {self._cells.free} free KV cells"
            raise CacheFullError(msg)
        buffer = np.frombuffer(data, dtype=np.uint8)
        read = self._lib.llama_state_seq_set_data(self._context, _bytes_at(buffer), len(data), seq)
        if read != len(data) or self._lib.llama_memory_seq_pos_max(self._memory, seq) != length - 1:
            self.drop(seq)
            msg = f"the bytes are no snapshot of {length} tokens of this model and context"
            raise EngineError(msg)
        self._cells.append(seq, length)

    def open_snapshot(self, data: memoryview | bytes, length: int) -> Snapshot:
        return parse_state(memoryview(data), length, self._heads)

    def close_snapshot(self, snapshot: Snapshot) -> memoryview:
        return build_state(snapshot).data

    def close(self) -> None:
        if self._context:
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = self._model = None

    def _check(self, spans: Sequence[Span]) -> None:
        total = sum(len(span.tokens) for span in spans)
        if not spans or total > self.max_tokens:
            msg = f"a forward takes 1 to {self.max_tokens} tokens, not {total}"
            raise EngineError(msg)
        for span in spans:
            if span.start != self._cells.length(span.seq) or not span.tokens:
                msg = (
                    f"span of sequence {span.seq} starts at {span.start}, its KV ends at {self._cells.length(span.seq)}"
                )
                raise EngineError(msg)
        if total > self._cells.free:
            msg = f"{total} tokens do not fit into {self._cells.free} free KV cells"
            raise CacheFullError(msg)

    def _undo(self, code: int, spans: Sequence[Span]) -> None:
        if code == _NO_SLOT:
            msg = f"llama.cpp found no room for {sum(len(s.tokens) for s in spans)} tokens in its KV"
            raise CacheFullError(msg)
        if code == _ABORTED and all(
            self._lib.llama_memory_seq_rm(self._memory, span.seq, span.start, -1) for span in spans
        ):
            raise ForwardInterrupted
        msg = f"llama_decode failed with code {code}; the sequences that took part were dropped"
        raise DecodeError(msg)

    def _split_logits(self, spans: Sequence[Span], rows: int) -> list[NDArray[np.float32] | None]:
        if not rows:
            self._lib.llama_synchronize(self._context)
            return [None] * len(spans)
        logits = self._view_logits(rows)
        split: list[NDArray[np.float32] | None] = []
        at = 0
        for span in spans:
            count = rows_of(span)
            split.append(logits[at : at + count] if count else None)
            at += count
        return split

    def _view_logits(self, rows: int) -> NDArray[np.float32]:
        address = ctypes.cast(self._lib.llama_get_logits(self._context), ctypes.c_void_p).value
        if not address:
            msg = "llama.cpp gave no logits for a finished forward"
            raise DecodeError(msg)
        if (address, rows) != self._logits_at:  # it seldom moves, and a view takes a while to make
            block = (ctypes.c_float * (rows * self._n_vocab)).from_address(address)
            self._logits = np.ctypeslib.as_array(block).reshape(rows, self._n_vocab)
            self._logits_at = (address, rows)
        return self._logits


def _bytes_at(buffer: NDArray[np.uint8]) -> Any:
    return ctypes.cast(buffer.ctypes.data, ctypes.POINTER(ctypes.c_uint8))


def _install_abort_flag(loaded: Loaded) -> Any:
    """A two-byte buffer; setting its first byte ends the running forward.

    llama.cpp asks a C callback at every graph node whether to go on. libc's strlen over the buffer is that callback:
    0 while the first byte is 0, else 1. A Python callback would take the GIL hundreds of times a forward.
    """
    flag = (ctypes.c_uint8 * 2)()
    libc = ctypes.CDLL(None) if os.name != "nt" else ctypes.CDLL("msvcrt")
    strlen = ctypes.cast(libc.strlen, loaded.lib.ggml_abort_callback)
    loaded.lib.llama_set_abort_callback(loaded.context, strlen, ctypes.cast(flag, ctypes.c_void_p))
    return flag


def _capabilities(loaded: Loaded, options: RuntimeOptions) -> Capabilities:
    cannot_cut = "recurrent state cannot be cut: only whole sessions and pins are reused"
    window = loaded.lib.llama_model_n_swa(loaded.model)
    reuse = f"any prefix; the sliding window of {window} keeps full cells" if window > 0 else "any prefix"
    slow = "saves memory; prefill 2-3 times slower on a CPU" if loaded.device == "cpu" else "saves memory"
    quantized = loaded.kv_types.quantized
    modes = (
        Mode("prefix reuse", True, True, reuse if loaded.trims else cannot_cut),
        Mode("n_ctx", True, True, loaded.context_reason),
        Mode("fork", True, True, "shares KV cells, copies no bytes"),
        Mode("trim", loaded.trims, loaded.trims, "verified after every cut" if loaded.trims else cannot_cut),
        Mode("snapshot", True, True, "byte-exact state of one sequence"),
        Mode("kv_resident f16", True, loaded.device == "cpu", "in use" if not quantized else "fast everywhere"),
        Mode(
            "kv_resident quantized", True, loaded.device != "cpu", f"in use: {loaded.kv_types}" if quantized else slow
        ),
    )
    return Capabilities(
        engine="llama.cpp",
        device=loaded.device,
        model=loaded.info,
        n_ctx=loaded.n_ctx,
        n_cells=loaded.n_cells,
        n_seq=options.max_sequences,
        trim="any" if loaded.trims else "never",
        fingerprint=hashlib.sha256(repr(sorted(loaded.facets.items())).encode()).hexdigest(),
        bytes_per_token=loaded.bytes_per_token,
        modes=modes,
        facets=loaded.facets,
    )
