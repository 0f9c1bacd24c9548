"""The vocabulary and chat template of a GGUF file, read by llama.cpp without loading the weights."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pinfold.errors import UnsupportedModeError


@dataclass(frozen=True)
class Vocabulary:
    """A file's tokenizer with its template and special tokens."""

    tokenizer: VocabTokenizer
    chat_template: str | None
    bos_token: str
    eos_token: str


class VocabTokenizer:
    """`pinfold.engines.base.Tokenizer` over a model that has only its vocabulary."""

    def __init__(self, model: Any) -> None:
        import llama_cpp

        self._lib = llama_cpp
        self._model = model  # kept alive with its vocabulary
        self._vocab = llama_cpp.llama_model_get_vocab(model)
        self._bos = llama_cpp.llama_vocab_bos(self._vocab)
        self._wants_bos = bool(llama_cpp.llama_vocab_get_add_bos(self._vocab))

    @property
    def n_vocab(self) -> int:
        return int(self._lib.llama_vocab_n_tokens(self._vocab))

    @property
    def end_tokens(self) -> frozenset[int]:
        return frozenset({self._lib.llama_vocab_eos(self._vocab)})

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        data = text.encode()
        room = len(data) + 8
        buffer = (ctypes.c_int32 * room)()
        count = self._lib.llama_tokenize(self._vocab, data, len(data), buffer, room, False, special)
        tokens = list(buffer[:count])
        return [self._bos, *tokens] if bos and self._wants_bos and tokens[:1] != [self._bos] else tokens

    def piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(512)
        count = self._lib.llama_token_to_piece(self._vocab, token, buffer, 512, 0, True)
        return buffer.raw[:count]

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode(errors="replace")

    def grammar_tokenizer(self) -> Any:
        msg = "a vocabulary alone has no grammar tokenizer; use an engine's"
        raise UnsupportedModeError(msg)


def load_vocabulary(path: str) -> Vocabulary:
    """Opens the file at `path`; OSError if it is no model."""
    import llama_cpp

    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not model:
        msg = f"{path} cannot be loaded"
        raise OSError(msg)
    template = llama_cpp.llama_model_chat_template(model, None)
    tokenizer = VocabTokenizer(model)
    bos, eos = llama_cpp.llama_vocab_bos(tokenizer._vocab), llama_cpp.llama_vocab_eos(tokenizer._vocab)
    return Vocabulary(
        tokenizer,
        template.decode() if template else None,
        tokenizer.piece(bos).decode() if bos >= 0 else "",
        tokenizer.piece(eos).decode() if eos >= 0 else "",
    )
