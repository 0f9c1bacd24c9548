"""The C batch that one forward takes, filled through numpy views and allocated once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.base import Span

__all__ = ["Batch", "rows_of"]


def rows_of(span: Span) -> int:
    """Rows of logits that the span asks for."""
    if span.logits == "last":
        return 1
    return len(span.tokens) if span.logits == "all" else 0


class Batch:
    """Room for `capacity` tokens, each of one sequence."""

    def __init__(self, lib: ModuleType, capacity: int) -> None:
        self._token = np.zeros(capacity, dtype=np.int32)
        self._pos = np.zeros(capacity, dtype=np.int32)
        self._seq = np.zeros(capacity, dtype=np.int32)
        self._wanted = np.zeros(capacity, dtype=np.int8)
        self._seq_count = np.ones(capacity, dtype=np.int32)
        # seq_id is an array of pointers: each points at its own cell of _seq
        self._seq_at = self._seq.ctypes.data + 4 * np.arange(capacity, dtype=np.uintp)
        self.struct: Any = lib.llama_batch()
        fields: dict[str, NDArray[Any]] = {
            "token": self._token,
            "pos": self._pos,
            "n_seq_id": self._seq_count,
            "seq_id": self._seq_at,
            "logits": self._wanted,
        }
        types = dict(lib.llama_batch._fields_)
        for name, array in fields.items():
            setattr(self.struct, name, ctypes.cast(array.ctypes.data, types[name]))

    def with_embeddings(self, rows: NDArray[np.float32]) -> Any:
        """The same batch with one of `rows` in place of each token; `rows` must outlive its use."""
        batch = type(self.struct)()
        for name, _ in batch._fields_:
            setattr(batch, name, getattr(self.struct, name))
        types = dict(batch._fields_)
        batch.token = types["token"]()
        batch.embd = ctypes.cast(rows.ctypes.data, types["embd"])
        return batch

    def fill(self, spans: Sequence[Span]) -> int:
        """Lays the spans out one after the other; returns the number of rows of logits that they ask for."""
        at = 0
        rows = 0
        for span in spans:
            end = at + len(span.tokens)
            if end - at == 1:
                self._token[at], self._pos[at], self._seq[at] = span.tokens[0], span.start, span.seq
            else:
                self._token[at:end] = span.tokens
                self._pos[at:end] = np.arange(span.start, span.start + end - at)
                self._seq[at:end] = span.seq
                self._wanted[at:end] = span.logits == "all"
            self._wanted[end - 1] = span.logits != "none"
            rows += rows_of(span)
            at = end
        self.struct.n_tokens = at
        return rows
