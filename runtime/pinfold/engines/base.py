"""The contract of an engine: tokens in, logits out, and a KV cache that can be shared, cut and saved by sequence.

An engine holds one model and one context with `n_seq` sequence ids over `n_cells` KV cells. A *sequence* is an id in
``range(n_seq)`` and its first ``length(seq)`` tokens that were evaluated. The engine knows nothing of requests,
pins or text; who owns which id is the session manager's business.

Threads: everything on `Engine` runs on one owner thread, the constructor included; only `interrupt` may be called from
others. A `Tokenizer` may be used from any thread at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pinfold.kv.snapshot import Snapshot

    Logits = NDArray[np.float32]

__all__ = ["BlockDrafts", "Capabilities", "Engine", "ForwardInterrupted", "Mode", "ModelInfo", "Span", "Tokenizer"]


class ForwardInterrupted(Exception):  # noqa: N818 - a signal between engine and worker, never seen by users
    """`Engine.interrupt` ended a forward early. Every span's sequence is back at its start; nothing else changed."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What an engine knows of its model. `body_parameters` are those that each token of a prompt is computed with: all
    but the vocabulary's table. `identity` names the weights: a digest over the file's size, its header
    and blocks sampled throughout."""

    name: str
    architecture: str
    identity: str
    n_vocab: int
    n_ctx_train: int
    n_layer: int
    chat_template: str | None
    bos_token: str = ""
    eos_token: str = ""
    parameters: int = 0
    size_bytes: int = 0
    path: Path | None = None
    body_parameters: int = 0


@dataclass(frozen=True, slots=True)
class Mode:
    """One thing an engine may or may not be able to do, with the reason in words."""

    name: str
    usable: bool
    recommended: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this model can do on this machine.

    Attributes:
        engine: the engine's name; `device` is where it computes.
        trim: ``any`` length, or ``never`` (recurrent state): then only whole sequences are reused.
        undo: whether `Engine.trim` can take back tokens of the last forward even so.
        fingerprint: everything besides the tokens that shaped the KV (weights, KV types, RoPE, versions).
        facets: the same as the fingerprint by name, as text, so that a difference can be explained.
        bytes_per_token: KV bytes of one token in all layers.
        modes: one row for each mode that users ask about.
    """

    engine: str
    device: str
    model: ModelInfo
    n_ctx: int
    n_cells: int
    n_seq: int
    trim: Literal["any", "never"]
    fingerprint: str
    bytes_per_token: int
    modes: tuple[Mode, ...] = field(default=())
    facets: Mapping[str, str] = field(default_factory=dict)
    undo: bool = False

    def mode(self, name: str) -> Mode:
        """The row called `name`; KeyError if there is none."""
        for row in self.modes:
            if row.name == name:
                return row
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens to evaluate for one sequence in one forward.

    Attributes:
        seq: the sequence; the span begins where it ends, at `start` == ``length(seq)``.
        tokens: at least one token id.
        logits: for which of them logits are wanted.
    """

    seq: int
    start: int
    tokens: Sequence[int]
    logits: Literal["none", "last", "all"] = "last"


class Tokenizer(Protocol):
    """Text to token ids and back. Safe to use from any thread."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end an answer (end of sequence, of turn, of message)."""

    def encode(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """Token ids of `text`. `special` reads ``<|...|>`` and the like as the model's special tokens; `bos` puts the
        model's first token in front where the model wants one and the text does not begin with it already."""

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for, special tokens written out; may be part of a UTF-8 character."""

    def is_control(self, token: int) -> bool:
        """Whether `token` is the model's own markup (the start of a turn and the like) and stands for no text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`, special tokens written out; bytes that are no UTF-8 become U+FFFD."""

    def grammar_tokenizer(self) -> Any:
        """The ``llguidance.LLTokenizer`` of this vocabulary, built once (takes a fraction of a second).

        Raises:
            UnsupportedModeError: this engine or installation has no constrained decoding.
        """


class Engine(Protocol):
    """One model, one context, many sequences. See the module's docstring for threads and terms."""

    capabilities: Capabilities

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def max_tokens(self) -> int:
        """Most tokens in one forward, all spans together."""

    @property
    def max_rows(self) -> int:
        """Most rows of logits that one forward gives, all spans together."""

    def forward(self, spans: Sequence[Span]) -> list[Logits | None]:
        """Evaluates all spans in one pass and appends them to their sequences.

        Returns one item per span: float32 logits of shape [rows, n_vocab] (1 row for "last", all for "all"), or None
        for "none". The arrays are views that hold until the next call; the caller may write to them.

        Raises:
            CacheFullError: no free cells; nothing changed.
            ForwardInterrupted: see there.
            DecodeError: the pass failed; the spans' sequences are in an unknown state and must be dropped.
        """

    def interrupt(self) -> None:
        """Ends the forward that is running now, if any, as soon as the device allows. Safe from any thread.

        A call that comes between two forwards has no effect on the next one.
        """

    def length(self, seq: int) -> int:
        """Tokens of `seq` that are evaluated; 0 for an unused id."""

    def fork(self, src: int, dst: int, length: int) -> None:
        """Makes the unused `dst` begin with the first `length` tokens of `src`, sharing their cells, no bytes copied.

        Raises:
            TrimError: `length` is not the whole of `src` and this model cannot be cut.
        """

    def trim(self, seq: int, length: int) -> None:
        """Cuts `seq` back to its first `length` tokens and verifies it.

        Raises:
            TrimError: the model cannot; the sequence was dropped.
        """

    def drop(self, seq: int) -> None:
        """Forgets `seq`; cells that no other sequence shares become free. Unused ids are fine."""

    def free_cells(self) -> int:
        """Cells that no sequence holds."""

    def exclusive_cells(self, seq: int) -> int:
        """Cells that dropping `seq` would free: those that no other sequence shares."""

    def snapshot(self, seq: int) -> memoryview:
        """The KV of `seq` as bytes that `restore` of the same fingerprint takes back exactly."""

    def restore(self, seq: int, data: memoryview | bytes, length: int) -> None:
        """Fills the unused `seq` from a snapshot of `length` tokens, checked.

        Raises:
            CacheFullError: no room; nothing changed.
            EngineError: not such a snapshot; `seq` is unused afterwards.
        """

    def transcode(self, data: memoryview | bytes, length: int, kv_types: str) -> memoryview:
        """A snapshot of `length` tokens with its cells in `kv_types`, such as ``q8_0/q4_0``; "" is the engine's own.

        `restore` takes it, and the sequence then lives in such cells, apart from those of the engine's own types.

        Raises:
            UnsupportedModeError: this engine, model or device has no such cells.
        """

    def kv_types(self, seq: int) -> str:
        """The types of the cells that `seq` lives in; "" for the engine's own."""

    def open_snapshot(self, data: memoryview | bytes, length: int) -> Snapshot:
        """A snapshot of `length` tokens as arrays, views into `data`. Safe from any thread."""

    def frame_snapshot(self, snapshot: Snapshot) -> None:
        """Gives the planes of `snapshot`, of which only the shapes count, rows to be filled before it is closed.

        An engine may place them within its own bytes (`Snapshot.state`), so that closing copies nothing. Safe from any
        thread.
        """

    def close_snapshot(self, snapshot: Snapshot) -> memoryview:
        """The bytes that `open_snapshot` took apart, or bytes of changed arrays. Safe from any thread."""

    def close(self) -> None:
        """Frees the model. Calling it twice is fine."""


@runtime_checkable
class BlockDrafts(Protocol):
    """An engine that may have been opened with a drafter that reads what the model's layers give, in ``draft``.

    What the drafter needs of a sequence's tokens is forked and cut with the sequence. Where snapshots hold it too, it
    counts in `Capabilities.bytes_per_token`, and the drafter's weights count in `Capabilities.fingerprint`.
    """

    @property
    def block_size(self) -> int:
        """Tokens of one guess; 0 where the engine was opened without such a drafter."""

    def knows_features(self, seq: int) -> bool:
        """Whether the drafter has what it needs of all of `seq`: not if it was restored from a snapshot without."""

    def draft_block(self, seq: int, token: int) -> list[int]:
        """Up to `block_size` tokens that may follow `token`, which itself follows all of `seq`. `seq` stays as it is.

        Raises:
            DecodeError: the drafter failed; `seq` is as it was.
        """
