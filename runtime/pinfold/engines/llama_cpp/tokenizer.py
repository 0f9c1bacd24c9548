"""Text to token ids and back by the model's own vocabulary."""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pinfold.errors import UnsupportedModeError

__all__ = ["LlamaTokenizer"]


class LlamaTokenizer:
    """`engines.base.Tokenizer` over a llama.cpp vocabulary, which is read-only and so safe from any thread."""

    def __init__(self, lib: ModuleType, vocab: Any) -> None:
        self._lib = lib
        self._vocab = vocab
        self._pieces: dict[int, bytes] = {}
        self._grammar_lock = threading.Lock()
        self._grammar: Any = None
        self.n_vocab: int = lib.llama_vocab_n_tokens(vocab)
        self.end_tokens = frozenset(t for t in range(self.n_vocab) if lib.llama_vocab_is_eog(vocab, t))
        self._bos: int = lib.llama_vocab_bos(vocab)
        self._eos: int = lib.llama_vocab_eos(vocab)
        self._wants_bos = bool(lib.llama_vocab_get_add_bos(vocab)) and self._bos >= 0

    @property
    def bos_text(self) -> str:
        """The first token written out, or an empty string."""
        return self._text_of(self._bos)

    @property
    def eos_text(self) -> str:
        """The end token written out, or an empty string."""
        return self._text_of(self._eos)

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        data = text.encode("utf-8", "surrogatepass")
        tokens = self._tokenize(data, special) if data else []
        if bos and self._wants_bos and (not tokens or tokens[0] != self._bos):
            tokens.insert(0, self._bos)
        return tokens

    def piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def is_control(self, token: int) -> bool:
        return bool(self._lib.llama_vocab_is_control(self._vocab, token))

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode("utf-8", "replace")

    def grammar_tokenizer(self) -> Any:
        with self._grammar_lock:
            if self._grammar is None:
                self._grammar = self._build_grammar_tokenizer()
            return self._grammar

    def _build_grammar_tokenizer(self) -> Any:
        try:
            from llguidance.llamacpp import lltokenizer_from_vocab
        except ImportError as e:
            msg = (
                "Forced tool calls and response schemas need llguidance, which is not installed. "
                "Run: pip install 'pinfold[llama-cpp]'."
            )
            raise UnsupportedModeError(msg) from e
        with warnings.catch_warnings():  # it calls functions that llama_cpp has renamed
            warnings.simplefilter("ignore", DeprecationWarning)
            return lltokenizer_from_vocab(self._vocab, eos_token=sorted(self.end_tokens))

    def _tokenize(self, data: bytes, special: bool) -> list[int]:
        room = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * room)()
            count = self._lib.llama_tokenize(self._vocab, data, len(data), buffer, room, False, special)
            if count >= 0:
                return buffer[:count]
            room = -count

    def _read_piece(self, token: int) -> bytes:
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            count = self._lib.llama_token_to_piece(self._vocab, token, buffer, room, 0, True)
            if count >= 0:
                return buffer.raw[:count]
            room = -count

    def _text_of(self, token: int) -> str:
        return self.piece(token).decode("utf-8", "replace") if token >= 0 else ""
