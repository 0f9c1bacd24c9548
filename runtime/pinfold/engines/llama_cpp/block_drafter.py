"""llama.cpp's own DFlash and DSpark models: a second context that is fed with what the target's layers take in."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.base import Span
from pinfold.engines.llama_cpp.batch import Batch
from pinfold.engines.llama_cpp.symbols import TapSymbols
from pinfold.errors import DecodeError

__all__ = ["BlockDrafter"]

log = logging.getLogger("pinfold.llama_cpp")

Rows = NDArray[np.float32]


class BlockDrafter:
    """Owns the drafter's `model` and `context`; `target` is the context whose layers it reads.

    Its sequences have the target's ids, and are followed as long as nothing of them is missing: a sequence that the
    target had from elsewhere is left out.

    Args:
        taps: layers of the target whose input is read; `hidden` channels each.
        block: slots of a guess, of which the first holds the last token; `mask` is the token in the others.
        anchored: whether the first slot guesses too, as those of DSpark do.
    """

    def __init__(
        self,
        lib: ModuleType,
        symbols: TapSymbols,
        model: Any,
        context: Any,
        target: Any,
        *,
        taps: Sequence[int],
        hidden: int,
        block: int,
        mask: int,
        anchored: bool,
        n_vocab: int,
        max_tokens: int,
    ) -> None:
        self._lib = lib
        self._symbols = symbols
        self._model = model
        self._context = context
        self._target = target
        self._memory = lib.llama_get_memory(context)
        self._taps = tuple(taps)
        self._hidden = hidden
        self._mask = mask
        self._n_vocab = n_vocab
        self._lengths: dict[int, int] = {}
        self._slots = Batch(lib, block)
        self._rows = Batch(lib, max_tokens)
        self._features: Rows = np.zeros((max_tokens, len(taps) * hidden), dtype=np.float32)
        self._first = 0 if anchored else 1
        self.block = block
        self.guesses = block - self._first
        lib.llama_set_causal_attn(context, False)
        for layer in self._taps:
            symbols.set_layer_input(target, layer, True)

    def length(self, seq: int) -> int:
        """Tokens of `seq` whose features are known, from its first on."""
        return self._lengths.get(seq, 0)

    def follow(self, spans: Sequence[Span]) -> None:
        """Takes what the target's layers had for `spans`, in the forward that has just ended."""
        at = 0
        for span in spans:
            if self.length(span.seq) == span.start:
                self._append(span, self._read(at, len(span.tokens)))
            at += len(span.tokens)

    def fork(self, src: int, dst: int, length: int) -> None:
        """`dst` begins as `src` does."""
        self.drop(dst)
        known = min(self.length(src), length)
        self._lib.llama_memory_seq_cp(self._memory, src, dst, 0, known)
        self._lengths[dst] = known

    def trim(self, seq: int, length: int) -> None:
        """Forgets what comes after the first `length` tokens."""
        if self.length(seq) > length:
            self._lib.llama_memory_seq_rm(self._memory, seq, length, -1)
            self._lengths[seq] = length

    def drop(self, seq: int) -> None:
        """Forgets `seq`."""
        self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        self._lengths.pop(seq, None)

    def draft(self, seq: int, token: int) -> list[int]:
        """What may follow `token`, which follows all that is known of `seq`.

        Raises:
            DecodeError: llama.cpp failed.
        """
        return [int(best) for best in self.logits(seq, token)[self._first :].argmax(axis=-1)]

    def logits(self, seq: int, token: int) -> Rows:
        """Logits [block, n_vocab] of the slots of a block; a view that holds until the next call.

        Raises:
            DecodeError: llama.cpp failed.
        """
        known = self.length(seq)
        self._slots.fill([Span(seq, known, [token] + [self._mask] * (self.block - 1), "all")])
        code = self._lib.llama_decode(self._context, self._slots.struct)
        address = ctypes.cast(self._lib.llama_get_logits(self._context), ctypes.c_void_p).value
        self._lib.llama_memory_seq_rm(self._memory, seq, known, -1)
        if code or not address:
            msg = f"llama.cpp failed in a draft with code {code}"
            raise DecodeError(msg)
        block = (ctypes.c_float * (self.block * self._n_vocab)).from_address(address)
        return np.ctypeslib.as_array(block).reshape(self.block, self._n_vocab)

    def append(self, seq: int, features: Rows) -> None:
        """Adds tokens with these features, [tokens, taps * hidden], to `seq`."""
        self._append(Span(seq, self.length(seq), [0] * len(features), "none"), features)

    def close(self) -> None:
        """Frees context and model. Before the target's context is freed."""
        if self._context:
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = self._model = None

    def _read(self, at: int, count: int) -> Rows:
        """Features of rows `at` to `at + count` of the target's last forward."""
        rows = self._features[:count]
        for number, layer in enumerate(self._taps):
            given = self._symbols.get_layer_input(self._target, layer)
            all_rows = np.ctypeslib.as_array(given, shape=(at + count, self._hidden))
            rows[:, number * self._hidden : (number + 1) * self._hidden] = all_rows[at:]
        return rows

    def _append(self, span: Span, features: Rows) -> None:
        self._rows.fill([span])
        code = self._lib.llama_decode(self._context, self._rows.with_embeddings(features))
        if code:
            log.warning("the drafter could not follow sequence %d (code %d): it sits out", span.seq, code)
            self.drop(span.seq)
            return
        self._lengths[span.seq] = span.start + len(span.tokens)
