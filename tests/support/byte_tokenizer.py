"""A tokenizer that needs no model: one token for a byte, and one for each special marker it is given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pinfold.errors import UnsupportedModeError


class ByteTokenizer:
    """Bytes are tokens 0-255, the specials those after; `bos` is put first where the text does not begin with it."""

    def __init__(self, specials: Sequence[str] = ("<|im_start|>", "<|im_end|>"), bos: str = "") -> None:
        self._specials = [*specials, *([bos] if bos else [])]
        self._bos = bos
        self._split = re.compile("(" + "|".join(map(re.escape, self._specials)) + ")")

    @property
    def n_vocab(self) -> int:
        return 256 + len(self._specials)

    @property
    def end_tokens(self) -> frozenset[int]:
        return frozenset({self.n_vocab - 1})

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        if bos and self._bos and not text.startswith(self._bos):
            text = self._bos + text
        tokens: list[int] = []
        for part in self._split.split(text) if special else [text]:
            if special and part in self._specials:
                tokens.append(256 + self._specials.index(part))
            else:
                tokens.extend(part.encode())
        return tokens

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else self._specials[token - 256].encode()

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode(errors="replace")

    def grammar_tokenizer(self) -> Any:
        msg = "bytes have no grammar tokenizer; use an engine's"
        raise UnsupportedModeError(msg)
