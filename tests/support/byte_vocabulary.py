"""A vocabulary of single bytes, a few words and special tokens, as llguidance wants one: grammars without a model."""

from __future__ import annotations

__all__ = ["END", "N_VOCAB", "OPEN", "ByteVocabulary"]

WORDS = [b'{"name": "', b"arguments", b'"}']
SPECIAL = (
    *(b"<|eos|>", b"<tool_call>", b"</tool_call>", b"[TOOL_CALLS]"),
    *(b"<|channel|>", b"<|message|>", b"<|constrain|>", b"<|start|>", b"<|end|>"),
)
END = 256 + len(WORDS)
OPEN = END + 1
N_VOCAB = END + len(SPECIAL)


class ByteVocabulary:
    """256 bytes, some words, the end, and marks of some families as special tokens."""

    eos_token_id = END
    bos_token_id = None
    tokens = (*(bytes([i]) for i in range(256)), *WORDS, *SPECIAL)
    special_token_ids = tuple(range(END, N_VOCAB))

    def __call__(self, text: bytes) -> list[int]:
        tokens: list[int] = []
        while text:
            special = next((t for t in self.special_token_ids if text.startswith(self.tokens[t])), text[0])
            tokens.append(special)
            text = text[len(self.tokens[special]) :]
        return tokens
