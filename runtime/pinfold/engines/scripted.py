"""An engine that answers from a script: for tests of agents and chains without a model, a GPU or a network.

It keeps the whole contract of an engine (sequences, forks, cells, cancellation), so sessions, pins, reports, stop
strings, grammars and streaming behave as with a model; only the answers are written beforehand. A token is one byte.
"""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.base import Capabilities, Mode, ModelInfo, Span
from pinfold.engines.cells import CellLedger
from pinfold.engines.script import Reply, Script
from pinfold.errors import CacheFullError, EngineError, UnsupportedModeError
from pinfold.kv.snapshot import Opaque, Snapshot, allocate
from pinfold.options import RuntimeOptions

__all__ = ["ScriptedEngine"]

_SPECIAL = ("<|im_start|>", "<|im_end|>", "<|end_of_text|>")
_END = 256 + 1
_EOS = 256 + 2
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ScriptedTokenizer:
    """UTF-8 bytes, and three special tokens."""

    n_vocab = 256 + len(_SPECIAL)
    end_tokens = frozenset((_END, _EOS))

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grammar: Any = None

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:  # noqa: ARG002 - it has none
        data = text.encode("utf-8", "surrogatepass")
        if not special:
            return list(data)
        tokens: list[int] = []
        while data:
            at, number = min(
                ((data.find(mark.encode()), i) for i, mark in enumerate(_SPECIAL) if mark.encode() in data),
                default=(len(data), -1),
            )
            tokens += data[:at]
            if number < 0:
                break
            tokens.append(256 + number)
            data = data[at + len(_SPECIAL[number]) :]
        return tokens

    def piece(self, token: int) -> bytes:
        return bytes((token,)) if token < 256 else _SPECIAL[token - 256].encode()

    def is_control(self, token: int) -> bool:
        return token >= 256

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode("utf-8", "replace")

    def grammar_tokenizer(self) -> Any:
        with self._lock:
            if self._grammar is None:
                self._grammar = _grammar_tokenizer(self)
            return self._grammar


@dataclass(slots=True)
class _Sequence:
    tokens: list[int]
    reply: list[int] | None = None
    asked_at: int = 0


class ScriptedEngine:
    """`engines.base.Engine` over a `Script`."""

    max_tokens = 1 << 16
    max_rows = 1 << 16

    def __init__(self, script: Script, options: RuntimeOptions) -> None:
        self._script = script
        self._taken = 0
        self._sequences = [_Sequence([]) for _ in range(options.max_sequences)]
        n_ctx = 8192 if options.n_ctx == "auto" else options.n_ctx
        n_cells = options.kv_cells or 2 * n_ctx
        self._cells = CellLedger(n_cells, options.max_sequences)
        self.tokenizer = ScriptedTokenizer()
        model = ModelInfo("scripted", "scripted", "scripted", ScriptedTokenizer.n_vocab, n_ctx, 0, _TEMPLATE)
        modes = (Mode("prefix reuse", True, True, "any prefix"), Mode("fork", True, True, "copies token ids only"))
        self.capabilities = Capabilities(
            "scripted",
            "none",
            model,
            n_ctx,
            n_cells,
            options.max_sequences,
            "any",
            "scripted",
            4,
            modes,
            {"engine": "scripted"},
        )

    def forward(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        if sum(len(span.tokens) for span in spans) > self._cells.free:
            msg = "the scripted engine's cells are full"
            raise CacheFullError(msg)
        return [self._evaluate(span) for span in spans]

    def interrupt(self) -> None:
        """A forward ends at once anyway."""

    def length(self, seq: int) -> int:
        return self._cells.length(seq)

    def fork(self, src: int, dst: int, length: int) -> None:
        self._cells.share(src, dst, length)
        self._sequences[dst] = _Sequence(self._sequences[src].tokens[:length])

    def trim(self, seq: int, length: int) -> None:
        self._cells.cut(seq, length)
        old = self._sequences[seq]
        goes_on = length > old.asked_at  # the answer was cut back, not the prompt
        self._sequences[seq] = _Sequence(old.tokens[:length], old.reply if goes_on else None, old.asked_at)

    def drop(self, seq: int) -> None:
        self.trim(seq, 0)

    def free_cells(self) -> int:
        return self._cells.free

    def exclusive_cells(self, seq: int) -> int:
        return self._cells.exclusive(seq)

    def snapshot(self, seq: int) -> memoryview:
        return memoryview(array("i", self._sequences[seq].tokens).tobytes())

    def restore(self, seq: int, data: memoryview | bytes, length: int) -> None:
        tokens = array("i", bytes(data)).tolist()
        if len(tokens) != length:
            msg = f"the bytes are no snapshot of {length} tokens"
            raise EngineError(msg)
        self._cells.append(seq, length)
        self._sequences[seq] = _Sequence(tokens)

    def transcode(self, data: memoryview | bytes, length: int, kv_types: str) -> memoryview:  # noqa: ARG002
        if not kv_types:
            return memoryview(data)
        msg = f"kv_resident={kv_types!r}: a script has no keys and values."
        raise UnsupportedModeError(msg)

    def kv_types(self, seq: int) -> str:  # noqa: ARG002
        return ""

    def open_snapshot(self, data: memoryview | bytes, length: int) -> Snapshot:
        return Snapshot(length, b"", [Opaque(bytes(data), "a script has no keys and values")])

    def frame_snapshot(self, snapshot: Snapshot) -> None:
        allocate(snapshot)

    def close_snapshot(self, snapshot: Snapshot) -> memoryview:
        return memoryview(b"".join(s.data for s in snapshot.sections if isinstance(s, Opaque)))

    def close(self) -> None:
        """Nothing is held."""

    def _evaluate(self, span: Span) -> NDArray[np.float32] | None:
        sequence = self._sequences[span.seq]
        if span.start != len(sequence.tokens):
            msg = f"span starts at {span.start}, the sequence ends at {len(sequence.tokens)}"
            raise EngineError(msg)
        if (len(span.tokens) > 1 and span.logits != "all") or span.logits == "none":
            sequence.reply = None  # more of a prompt: what follows it is another answer
        self._cells.append(span.seq, len(span.tokens))
        rows = []
        for token in span.tokens:
            sequence.tokens.append(token)
            if span.logits == "all":
                rows.append(self._row(sequence))
        if span.logits == "last":
            rows.append(self._row(sequence))
        return np.stack(rows) if rows else None

    def _row(self, sequence: _Sequence) -> NDArray[np.float32]:
        if sequence.reply is None:
            sequence.asked_at = len(sequence.tokens)
            sequence.reply = [*self.tokenizer.encode(self._next_reply(sequence.tokens)), _END]
        row = np.zeros(ScriptedTokenizer.n_vocab, dtype=np.float32)
        row[sequence.reply[min(self._said(sequence), len(sequence.reply) - 1)]] = 10.0
        return row

    @staticmethod
    def _said(sequence: _Sequence) -> int:
        return len(sequence.tokens) - sequence.asked_at

    def _next_reply(self, prompt: list[int]) -> str:
        replies = self._script.replies
        if callable(replies):
            return _text_of(replies(self.tokenizer.decode(prompt)))
        reply = replies[min(self._taken, len(replies) - 1)]
        self._taken += 1
        return _text_of(reply)


def _text_of(reply: Reply) -> str:
    if isinstance(reply, str):
        return reply
    call = json.dumps({"name": reply["name"], "arguments": reply.get("arguments", {})}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _grammar_tokenizer(tokenizer: ScriptedTokenizer) -> Any:
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ImportError as e:
        msg = "Forced tool calls and response schemas need llguidance. Run: pip install 'pinfold[llama-cpp]'."
        raise UnsupportedModeError(msg) from e

    class Vocabulary:
        """What llguidance asks of a tokenizer."""

        eos_token_id = _END
        bos_token_id = None
        tokens = [tokenizer.piece(t) for t in range(tokenizer.n_vocab)]  # noqa: RUF012 - never written
        special_token_ids = [256, 257, 258]  # noqa: RUF012

        def __call__(self, text: str) -> list[int]:
            return tokenizer.encode(text)

    return LLTokenizer(TokenizerWrapper(Vocabulary()))
