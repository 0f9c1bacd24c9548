"""One llama.cpp context: KV cells of one type, and the sequences in them. Lanes of one engine share the model."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.base import ForwardInterrupted, Span
from pinfold.engines.buffers import BufferPool
from pinfold.engines.cells import CellLedger
from pinfold.engines.llama_cpp.batch import Batch, rows_of
from pinfold.engines.llama_cpp.block_drafter import BlockDrafter
from pinfold.engines.llama_cpp.kv_types import KVTypes
from pinfold.engines.llama_cpp.library import expecting_errors
from pinfold.errors import CacheFullError, DecodeError, EngineError, TrimError

__all__ = ["Lane"]

_NO_SLOT = 1
_ABORTED = 2


class Lane:
    """Owns `context`. See `engines.base.Engine` for what its methods promise; ids are those of the engine."""

    def __init__(
        self,
        lib: ModuleType,
        context: Any,
        kv_types: KVTypes,
        *,
        n_cells: int,
        n_seq: int,
        n_vocab: int,
        max_tokens: int,
        trims: bool,
        window: int,
    ) -> None:
        self._lib = lib
        self._context: Any = context
        self._memory = lib.llama_get_memory(context)
        self.kv_types = kv_types
        self._trims = trims
        self._window = window
        self._max_tokens = max_tokens
        self._batch = Batch(lib, max_tokens)
        self.cells = CellLedger(n_cells, n_seq)
        self._n_vocab = n_vocab
        self._logits: NDArray[np.float32] = np.empty((0, n_vocab), dtype=np.float32)
        self._logits_at = (0, 0)
        self.buffers = BufferPool()
        self.drafter: BlockDrafter | None = None
        self._abort_flag = _install_abort_flag(lib, context)

    def forward(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        self._check(spans)
        rows = self._batch.fill(spans)
        self._abort_flag[0] = 0
        expecting_errors.clear()
        code = self._lib.llama_decode(self._context, self._batch.struct)
        if code:
            self._undo(code, spans)
        for span in spans:
            self.cells.append(span.seq, len(span.tokens))
        if self.drafter is not None:
            self.drafter.follow(spans)
        return self._split_logits(spans, rows)

    def interrupt(self) -> None:
        expecting_errors.set()
        self._abort_flag[0] = 1

    def fork(self, src: int, dst: int, length: int) -> None:
        have = self.cells.length(src)
        if self.cells.length(dst):
            msg = f"sequence {dst} is in use"
            raise EngineError(msg)
        if length > have or (length < have and not self._trims):
            msg = f"cannot fork {length} of {have} tokens: this model's state cannot be cut"
            raise TrimError(msg)
        self._lib.llama_memory_seq_cp(self._memory, src, dst, 0 if self._trims else -1, length if self._trims else -1)
        self.cells.share(src, dst, length)
        if self.drafter is not None:
            self.drafter.fork(src, dst, length)
        if not self._is_whole(dst, length):
            self.drop(dst)
            msg = f"the fork of {length} tokens came out without some of them; it was dropped"
            raise TrimError(msg)

    def trim(self, seq: int, length: int) -> None:
        if length == self.cells.length(seq):
            return
        done = self._trims and bool(self._lib.llama_memory_seq_rm(self._memory, seq, length, -1))
        if not done or (length and not self._is_whole(seq, length)):
            self.drop(seq)
            msg = f"this model's state cannot be cut back to {length} tokens; the sequence was dropped"
            raise TrimError(msg)
        self.cells.cut(seq, length)
        if self.drafter is not None:
            self.drafter.trim(seq, length)

    def _is_whole(self, seq: int, length: int) -> bool:
        """Whether the context has all cells of `seq` that its next token sees.

        What was restored lacks the sliding windows' older cells, which a shorter prefix would need.
        """
        if self._lib.llama_memory_seq_pos_max(self._memory, seq) != length - 1:
            return False
        if self._window <= 0:
            return True
        return bool(self._lib.llama_memory_seq_pos_min(self._memory, seq) <= max(0, length - self._window))

    def drop(self, seq: int) -> None:
        self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        self.cells.cut(seq, 0)
        if self.drafter is not None:
            self.drafter.drop(seq)

    def snapshot(self, seq: int) -> memoryview:
        size = self._lib.llama_state_seq_get_size(self._context, seq)
        buffer = self.buffers.lend(size)
        written = self._lib.llama_state_seq_get_data(self._context, _bytes_at(buffer), size, seq)
        if written != size:
            msg = f"llama.cpp wrote {written} of {size} bytes of sequence {seq}"
            raise EngineError(msg)
        return buffer.data

    def restore(self, seq: int, data: memoryview | bytes, length: int) -> None:
        if length > self.cells.free:
            msg = f"{length} tokens do not fit into {self.cells.free} free KV cells"
            raise CacheFullError(msg)
        buffer = np.frombuffer(data, dtype=np.uint8)
        read = self._lib.llama_state_seq_set_data(self._context, _bytes_at(buffer), len(data), seq)
        if read != len(data) or self._lib.llama_memory_seq_pos_max(self._memory, seq) != length - 1:
            self.drop(seq)
            msg = f"the bytes are no snapshot of {length} tokens of this model and context"
            raise EngineError(msg)
        self.cells.append(seq, length)

    def close(self) -> None:
        if self.drafter is not None:
            self.drafter.close()
        if self._context:
            self._lib.llama_free(self._context)
            self._context = None

    def _check(self, spans: Sequence[Span]) -> None:
        total = sum(len(span.tokens) for span in spans)
        if not spans or total > self._max_tokens:
            msg = f"a forward takes 1 to {self._max_tokens} tokens, not {total}"
            raise EngineError(msg)
        for span in spans:
            have = self.cells.length(span.seq)
            if span.start != have or not span.tokens:
                msg = f"span of sequence {span.seq} starts at {span.start}, its KV ends at {have}"
                raise EngineError(msg)
        if total > self.cells.free:
            msg = f"{total} tokens do not fit into {self.cells.free} free KV cells"
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


def _install_abort_flag(lib: ModuleType, context: Any) -> Any:
    """A two-byte buffer; setting its first byte ends the running forward.

    llama.cpp asks a C callback at every graph node whether to go on. libc's strlen over the buffer is that callback:
    0 while the first byte is 0, else 1. A Python callback would take the GIL hundreds of times a forward.
    """
    flag = (ctypes.c_uint8 * 2)()
    libc = ctypes.CDLL(None) if os.name != "nt" else ctypes.CDLL("msvcrt")
    strlen = ctypes.cast(libc.strlen, lib.ggml_abort_callback)
    lib.llama_set_abort_callback(context, strlen, ctypes.cast(flag, ctypes.c_void_p))
    return flag
