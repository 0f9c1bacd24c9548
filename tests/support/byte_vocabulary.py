"""A vocabulary of single bytes, a few words and special tokens, as llguidance wants one: grammars without a model."""

from __future__ import annotations

__all__ = ["CLOSE", "END", "N_VOCAB", "OPEN", "ByteVocabulary"]

WORDS = [b'{"name": "', b"arguments", b'"}']
END, OPEN, CLOSE = 259, 260, 261
N_VOCAB = 262


class ByteVocabulary:
    """256 bytes, some words, the end, and the tags of a call as special tokens."""

    eos_token_id = END
    bos_token_id = None
    tokens = (*(bytes([i]) for i in range(256)), *WORDS, b"<|end|>", b"<tool_call>", b"</tool_call>")
    special_token_ids = (END, OPEN, CLOSE)

    def __call__(self, text: bytes) -> list[int]:
        tokens: list[int] = []
        while text:
            special = next((t for t in self.special_token_ids if text.startswith(self.tokens[t])), text[0])
            tokens.append(special)
            text = text[len(self.tokens[special]) :]
        return tokens
