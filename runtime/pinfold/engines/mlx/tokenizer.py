"""Text to token ids and back by the vocabulary in a model's folder."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pinfold.engines.mlx.folder import ModelFolder
from pinfold.errors import ModelFormatError, UnsupportedModeError

__all__ = ["FolderTokenizer"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Tokens that end an answer in models whose settings name only one of theirs.
_ENDS = frozenset(
    (
        *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|return|>"),
        *("<|call|>", "<end_of_turn>", "<turn|>", "</s>", "<eos>", "<|END_OF_TURN_TOKEN|>", "[EOS]"),
    )
)


class FolderTokenizer:
    """`engines.base.Tokenizer` over a tokenizer.json. `n_vocab` is the number of logits, which may be more."""

    def __init__(self, folder: ModelFolder) -> None:
        self._source = _read(folder)
        self._marked = _build(self._source, folder)
        self._plain = _build(self._source, folder)
        self._plain.encode_special_tokens = True
        self._bytes = _unicode_to_byte() if _byte_level(self._source) else None
        added = self._marked.get_added_tokens_decoder()
        self._added: dict[int, str] = {token: each.content for token, each in added.items()}
        self._control = frozenset(token for token, each in added.items() if each.special)
        self._pieces: dict[int, bytes] = {}
        self._grammar_lock = threading.Lock()
        self._grammar: Any = None
        self.n_vocab: int = self._marked.get_vocab_size()
        self.bos_text = _content(folder.tokenizer_config.get("bos_token"))
        self.eos_text = _content(folder.tokenizer_config.get("eos_token"))
        self._bos: int | None = self._marked.token_to_id(self.bos_text) if self.bos_text else None
        self._wants_bos = self._bos is not None and self._adds_bos(folder.tokenizer_config)
        self.end_tokens = self._find_ends(folder)

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        text = text.encode("utf-8", "replace").decode()  # a lone surrogate is no text for this library
        tokens: list[int] = (self._marked if special else self._plain).encode(text, add_special_tokens=False).ids
        if bos and self._wants_bos and self._bos is not None and tokens[:1] != [self._bos]:
            tokens.insert(0, self._bos)
        return tokens

    def piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def is_control(self, token: int) -> bool:
        return token in self._control

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode("utf-8", "replace")

    def grammar_tokenizer(self) -> Any:
        with self._grammar_lock:
            if self._grammar is None:
                self._grammar = self._build_grammar_tokenizer()
            return self._grammar

    def _build_grammar_tokenizer(self) -> Any:
        try:
            from llguidance import LLTokenizer
        except ImportError as e:
            msg = (
                "Forced tool calls and response schemas need llguidance, which is not installed. "
                "Run: pip install 'pinfold[mlx]'."
            )
            raise UnsupportedModeError(msg) from e
        return LLTokenizer(self._marked.to_str(), n_vocab=self.n_vocab, eos_token=sorted(self.end_tokens))

    def _read_piece(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        text: str | None = self._marked.id_to_token(token)
        if text is None:  # logits that the vocabulary has no token for
            return b""
        if self._bytes is not None:
            return b"".join(bytes((self._bytes[c],)) if c in self._bytes else c.encode() for c in text)
        byte = _BYTE.fullmatch(text)
        return bytes.fromhex(byte[1]) if byte else text.replace("\u2581", " ").encode()

    def _adds_bos(self, config: Mapping[str, Any]) -> bool:
        said = config.get("add_bos_token")
        if isinstance(said, bool):
            return said
        return bool(self._marked.encode("x", add_special_tokens=True).ids[:1] == [self._bos])

    def _find_ends(self, folder: ModelFolder) -> frozenset[int]:
        ends = {self._marked.token_to_id(self.eos_text)} if self.eos_text else set()
        for said in (folder.generation.get("eos_token_id"), folder.text.get("eos_token_id")):
            ends.update(said if isinstance(said, list) else [said])
        ends.update(token for token, content in self._added.items() if content in _ENDS)
        found = frozenset(t for t in ends if isinstance(t, int) and 0 <= t < self.n_vocab)
        if not found:
            msg = f"{folder.path} names no token that ends an answer. Add eos_token_id to its generation_config.json."
            raise ModelFormatError(msg)
        return found


def _read(folder: ModelFolder) -> str:
    try:
        return folder.vocabulary.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        msg = f"{folder.vocabulary} cannot be read ({e}). Download the model again."
        raise ModelFormatError(msg) from e


def _build(source: str, folder: ModelFolder) -> Any:
    from tokenizers import Tokenizer

    try:
        built = Tokenizer.from_str(source)
    except Exception as e:  # the library raises nothing narrower
        msg = f"{folder.vocabulary} is no tokenizer ({e}). Download the model again."
        raise ModelFormatError(msg) from e
    built.no_padding()
    built.no_truncation()
    return built


def _byte_level(source: str) -> bool:
    """Whether the vocabulary writes each byte as one character of its own."""
    parsed = json.loads(source)
    return '"ByteLevel"' in json.dumps([parsed.get("pre_tokenizer"), parsed.get("decoder")])


def _unicode_to_byte() -> dict[str, int]:
    """The characters by which byte-level vocabularies write bytes: printable ones stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def _content(token: Any) -> str:
    """A token of the settings, which is text or an object that has it."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else ""
