"""The MLX engine: `engines.base.Engine` over a model of mlx-lm, with sequences that share pieces of KV."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.base import Capabilities, ForwardInterrupted, Span
from pinfold.engines.cells import CellLedger
from pinfold.engines.mlx.layout import LayoutMismatch
from pinfold.engines.mlx.loading import Loaded, load
from pinfold.engines.mlx.modes import describe_modes
from pinfold.engines.mlx.replay import Replays
from pinfold.engines.mlx.sequences import Mark, Sequence
from pinfold.engines.mlx.state import StateBytes
from pinfold.engines.mlx.together import NotTogether, share
from pinfold.errors import CacheFullError, DecodeError, EngineError, TrimError, UnsupportedModeError
from pinfold.kv.snapshot import Snapshot, allocate
from pinfold.options import RuntimeOptions

__all__ = ["MlxEngine"]

# Tokens between two looks at the interrupt where no attention layer looks at it.
_STRIDE = 32


class MlxEngine:
    """One folder of safetensors. See `engines.base.Engine` for the contract and the rule about threads."""

    def __init__(self, path: Path, name: str, options: RuntimeOptions) -> None:
        loaded = load(path, name, options)
        self._mx = loaded.mx
        self._model: Any = loaded.model
        self._layout = loaded.layout
        self._drafter = loaded.drafter
        self._together = loaded.together
        self._state = StateBytes(loaded.mx, loaded.layout, loaded.leaves)
        self._trims = loaded.trims
        self._loaded_make = loaded.make
        self._release = loaded.release
        self._by_layer = loaded.device.name == "cpu"
        self._stride = _STRIDE if self._by_layer and not loaded.attends else 1 << 30
        self._cells = CellLedger(loaded.n_cells, options.max_sequences)
        self._sequences = [self._unused() for _ in range(options.max_sequences)]
        self._interrupted = False
        self._replays = Replays(self._logits_of)
        self._eager = False
        self.tokenizer = loaded.tokenizer
        self.max_tokens = loaded.max_tokens
        self.max_rows = loaded.max_rows
        self.block_size = loaded.drafter.guesses if loaded.drafter else 0
        self.capabilities = _capabilities(loaded, options)

    def forward(self, spans: Items[Span]) -> list[NDArray[np.float32] | None]:
        self._check(spans)
        self._interrupted = False
        self._replays.keep((), ())
        running = {span.seq for span in spans}
        for seq, sequence in enumerate(self._sequences):
            if seq not in running:
                sequence.rest()
        marks = [self._sequences[span.seq].mark() for span in spans]
        try:
            rows = self._evaluate_all(spans, marks)
        except ForwardInterrupted:
            self._go_back(spans, marks)
            raise
        except (RuntimeError, ValueError) as e:
            self._go_back(spans, marks)
            msg = f"MLX failed in a forward of {sum(len(s.tokens) for s in spans)} tokens: {e}"
            raise DecodeError(msg) from e
        for span in spans:
            self._cells.append(span.seq, len(span.tokens))
        if not self._trims:
            self._replays.keep(spans, marks)
        return rows

    def interrupt(self) -> None:
        self._interrupted = True

    def length(self, seq: int) -> int:
        return self._cells.length(seq)

    def fork(self, src: int, dst: int, length: int) -> None:
        have = self._cells.length(src)
        if self._cells.length(dst):
            msg = f"sequence {dst} is in use"
            raise EngineError(msg)
        if length > have or (length < have and not self._trims):
            msg = f"cannot fork {length} of {have} tokens: this model's state cannot be cut"
            raise TrimError(msg)
        self._sequences[dst] = self._sequences[src].share(length)
        self._cells.share(src, dst, length)

    def trim(self, seq: int, length: int) -> None:
        have = self._cells.length(seq)
        if length == have:
            return
        sequence = self._sequences[seq]
        if length > have or not (self._trims or self._replays.cut(seq, sequence, length)):
            self.drop(seq)
            msg = f"this model's state cannot be cut back to {length} tokens; the sequence was dropped"
            raise TrimError(msg)
        if self._trims:
            sequence.cut(length)
        self._cells.cut(seq, length)

    def drop(self, seq: int) -> None:
        self._sequences[seq] = self._unused()
        self._cells.cut(seq, 0)
        self._replays.forget(seq)

    def free_cells(self) -> int:
        return self._cells.free

    def exclusive_cells(self, seq: int) -> int:
        return self._cells.exclusive(seq)

    def snapshot(self, seq: int) -> memoryview:
        sequence = self._sequences[seq]
        return self._layout.pack(sequence.length, self._state.take(sequence))

    def restore(self, seq: int, data: memoryview | bytes, length: int) -> None:
        if length > self._cells.free:
            msg = f"{length} tokens do not fit into {self._cells.free} free KV cells"
            raise CacheFullError(msg)
        try:
            contents = self._layout.unpack(memoryview(data), length)
        except LayoutMismatch as e:
            self.drop(seq)
            msg = f"the bytes are no snapshot of {length} tokens of this model: {e}"
            raise EngineError(msg) from e
        sequence = self._unused()
        self._state.fill(sequence, contents, length)
        self._sequences[seq] = sequence
        self._cells.append(seq, length)

    def transcode(self, data: memoryview | bytes, length: int, kv_types: str) -> memoryview:  # noqa: ARG002
        if not kv_types:
            return memoryview(data)
        msg = f"kv_resident={kv_types!r}: on MLX all sessions have the cells that the Runtime was opened with."
        raise UnsupportedModeError(msg)

    def kv_types(self, seq: int) -> str:  # noqa: ARG002
        return ""

    def open_snapshot(self, data: memoryview | bytes, length: int) -> Snapshot:
        return self._layout.open(memoryview(data), length)

    def frame_snapshot(self, snapshot: Snapshot) -> None:
        allocate(snapshot)

    def close_snapshot(self, snapshot: Snapshot) -> memoryview:
        return self._layout.close(snapshot)

    def draft_block(self, seq: int, token: int) -> list[int]:
        if self._drafter is None:
            msg = "this engine was opened without a drafter"
            raise EngineError(msg)
        try:
            return self._drafter.draft(self._sequences[seq].open().for_model, token)
        except (RuntimeError, ValueError) as e:
            msg = f"MLX failed in a draft: {e}"
            raise DecodeError(msg) from e

    def knows_features(self, seq: int) -> bool:  # noqa: ARG002 - they are in snapshots too
        return self._drafter is not None

    def close(self) -> None:
        if self._model is not None:
            self._model = self._drafter = None
            self._sequences.clear()
            self._release()

    def _unused(self) -> Sequence:
        return Sequence(self._mx, lambda: self._loaded_make(self._after_layer))

    def _after_layer(self, keys: Any, values: Any) -> None:
        """Evaluates layer by layer where a forward is long, so that it can be interrupted in the middle."""
        self._stop_if_asked()
        if self._eager:
            self._mx.eval(keys, values)

    def _check(self, spans: Items[Span]) -> None:
        total = sum(len(span.tokens) for span in spans)
        if not spans or total > self.max_tokens:
            msg = f"a forward takes 1 to {self.max_tokens} tokens, not {total}"
            raise EngineError(msg)
        for span in spans:
            have = self._cells.length(span.seq)
            if span.start != have or not span.tokens:
                msg = f"span of sequence {span.seq} starts at {span.start}, its KV ends at {have}"
                raise EngineError(msg)
        if total > self._cells.free:
            msg = f"{total} tokens do not fit into {self._cells.free} free KV cells"
            raise CacheFullError(msg)

    def _evaluate_all(self, spans: Items[Span], marks: Items[Mark]) -> list[NDArray[np.float32] | None]:
        """All spans: those of one token with logits in one forward where the model takes them so, the others apart."""
        found: dict[int, NDArray[np.float32] | None] = {}
        if self._together:
            single = [n for n, span in enumerate(spans) if len(span.tokens) == 1 and span.logits != "none"]
            if len(single) > 1:
                found = self._evaluate_together(spans, marks, single)
        return [found[n] if n in found else self._evaluate(span) for n, span in enumerate(spans)]

    def _evaluate_together(
        self, spans: Items[Span], marks: Items[Mark], single: list[int]
    ) -> dict[int, NDArray[np.float32] | None]:
        if self._interrupted:
            raise ForwardInterrupted
        sequences = [self._sequences[spans[n].seq] for n in single]
        opened = [sequence.open() for sequence in sequences]
        self._eager = False
        tokens = self._mx.array([spans[n].tokens[0] for n in single])[:, None]
        try:
            logits = self._model(tokens, cache=share(self._mx, opened))
        except NotTogether:
            self._go_back([spans[n] for n in single], [marks[n] for n in single])
            return {}
        for sequence in sequences:
            sequence.added(1)
        self._mx.eval(logits, [cache.arrays() for one in opened for cache in one.attention])
        return dict(zip(single, np.array(logits.astype(self._mx.float32)), strict=True))

    def _evaluate(self, span: Span) -> NDArray[np.float32] | None:
        """One span. Logits are computed for the tokens that want them only: those before are evaluated apart."""
        sequence = self._sequences[span.seq]
        silent = {"none": len(span.tokens), "last": len(span.tokens) - 1, "all": 0}[span.logits]
        for at in range(0, silent, self._stride):
            self._run(sequence, span.tokens[at : min(at + self._stride, silent)], wanted=False)
        if span.logits == "none":
            return None
        return self._logits_of(sequence, span.tokens[silent:])

    def _logits_of(self, sequence: Sequence, tokens: Items[int]) -> NDArray[np.float32]:
        """[tokens, n_vocab], each row as it is where its token is computed alone."""
        parts = (self._run(sequence, part, wanted=True)[0] for part in _steadily(sequence, tokens))
        return np.concatenate([np.array(part.astype(self._mx.float32)) for part in parts])

    def _run(self, sequence: Sequence, tokens: Items[int], *, wanted: bool) -> Any:
        """Evaluates `tokens`; their logits, [1, tokens, n_vocab], only if they are `wanted`."""
        self._stop_if_asked()
        caches = sequence.open()
        self._eager = self._by_layer and len(tokens) > 1
        logits = self._model(self._mx.array(list(tokens))[None], cache=caches.for_model)
        sequence.added(len(tokens))
        held = [cache.arrays() for cache in caches.attention]
        states = [array for state in sequence.states for array in state if array is not None]
        self._mx.eval(held, states, logits if wanted else [])
        return logits

    def _stop_if_asked(self) -> None:
        if self._interrupted and not self._replays.running:
            raise ForwardInterrupted

    def _go_back(self, spans: Items[Span], marks: Items[Mark]) -> None:
        for span, mark in zip(spans, marks, strict=True):
            self._sequences[span.seq].back(mark)


def _steadily(sequence: Sequence, tokens: Items[int]) -> Iterator[Items[int]]:
    """Parts of `tokens`, each to be computed before the next is asked for: within one, no more cells get packed."""
    at = 0
    while at < len(tokens):
        steps = (cache.steady for cache in sequence.open().attention)
        end = min(at + min(steps, default=len(tokens)), len(tokens))
        yield tokens[at:end]
        at = end


def _capabilities(loaded: Loaded, options: RuntimeOptions) -> Capabilities:
    return Capabilities(
        engine="mlx",
        device=loaded.device.name,
        model=loaded.info,
        n_ctx=loaded.n_ctx,
        n_cells=loaded.n_cells,
        n_seq=options.max_sequences,
        trim="any" if loaded.trims else "never",
        fingerprint=hashlib.sha256(repr(sorted(loaded.facets.items())).encode()).hexdigest(),
        bytes_per_token=loaded.layout.bytes_per_token,
        modes=describe_modes(loaded),
        facets=loaded.facets,
        undo=not loaded.trims,
    )
