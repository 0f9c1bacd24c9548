"""The llama.cpp engine: `engines.base.Engine` over contexts with many sequences in a unified KV."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pinfold.draft_modes import BLOCKS, DraftMode, parse_draft
from pinfold.engines.base import Capabilities, Mode, Span
from pinfold.engines.llama_cpp.kv_types import KVTypes, parse_kv_types
from pinfold.engines.llama_cpp.lane import Lane
from pinfold.engines.llama_cpp.loading import Loaded, lane_of, load, open_lane
from pinfold.engines.llama_cpp.state import build_state, frame_state, kv_types_of, parse_state
from pinfold.engines.llama_cpp.symbols import find_taps
from pinfold.engines.llama_cpp.transcode import Transcoder
from pinfold.errors import EngineError, PinfoldError
from pinfold.kv.snapshot import Snapshot
from pinfold.options import RuntimeOptions

__all__ = ["LlamaCppEngine"]


class LlamaCppEngine:
    """One GGUF model. See `engines.base.Engine` for the contract and the rule about threads.

    Sequences live in the main lane, whose cells have the type that the engine was opened with. Another lane is opened
    when a sequence of other types is restored, and closed when its last one is dropped.
    """

    def __init__(self, path: Path, name: str, options: RuntimeOptions) -> None:
        self._loaded = loaded = load(path, name, options)
        self._options = options
        self._main = lane_of(loaded, options, loaded.context, loaded.kv_types, loaded.n_cells)
        self._others: dict[KVTypes, Lane] = {}
        self._lane_of: dict[int, Lane] = {}  # of the sequences that are not in the main lane
        self._transcoder: Transcoder | None = None
        self.tokenizer = loaded.tokenizer
        self.max_tokens = loaded.max_tokens
        self.max_rows = loaded.max_rows
        self.block_size = 0
        self._open_drafter(parse_draft(options.draft))
        self.capabilities = _capabilities(loaded, options)

    def forward(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        if not self._lane_of:
            return self._main.forward(spans)
        by_lane: dict[Lane, list[int]] = {}
        for place, span in enumerate(spans):
            by_lane.setdefault(self._lane(span.seq), []).append(place)
        results: list[NDArray[np.float32] | None] = [None] * len(spans)
        done: list[Span] = []
        for lane, places in by_lane.items():
            part = [spans[place] for place in places]
            try:
                logits = lane.forward(part)
            except PinfoldError:
                for span in done:  # all or nothing
                    self.trim(span.seq, span.start)
                raise
            for place, rows in zip(places, logits, strict=True):
                results[place] = rows
            done += part
        return results

    def interrupt(self) -> None:
        for lane in self._lanes:
            lane.interrupt()

    def length(self, seq: int) -> int:
        return self._lane(seq).cells.length(seq)

    def fork(self, src: int, dst: int, length: int) -> None:
        lane = self._lane(src)
        if self.length(dst):
            msg = f"sequence {dst} is in use"
            raise EngineError(msg)
        lane.fork(src, dst, length)
        if lane is not self._main:
            self._lane_of[dst] = lane

    def trim(self, seq: int, length: int) -> None:
        self._lane(seq).trim(seq, length)

    def drop(self, seq: int) -> None:
        lane = self._lane(seq)
        lane.drop(seq)
        if self._lane_of.pop(seq, None) is not None and lane not in self._lane_of.values():
            del self._others[lane.kv_types]
            lane.close()

    def free_cells(self) -> int:
        return min(lane.cells.free for lane in self._lanes)

    def exclusive_cells(self, seq: int) -> int:
        return self._lane(seq).cells.exclusive(seq)

    def snapshot(self, seq: int) -> memoryview:
        return self._lane(seq).snapshot(seq)

    def restore(self, seq: int, data: memoryview | bytes, length: int) -> None:
        kv_types = kv_types_of(memoryview(data), length, self._loaded.heads)
        if kv_types is None or kv_types == self._main.kv_types:
            self._main.restore(seq, data, length)
            return
        lane = self._others.get(kv_types)
        if lane is None:
            lane = self._others[kv_types] = open_lane(self._loaded, self._options, kv_types)
        self._lane_of[seq] = lane
        try:
            lane.restore(seq, data, length)
        except PinfoldError:
            self.drop(seq)
            raise

    def open_snapshot(self, data: memoryview | bytes, length: int) -> Snapshot:
        return parse_state(memoryview(data), length, self._loaded.heads)

    def frame_snapshot(self, snapshot: Snapshot) -> None:
        frame_state(snapshot, self._main.buffers.lend)

    def close_snapshot(self, snapshot: Snapshot) -> memoryview:
        return build_state(snapshot).data

    def kv_types(self, seq: int) -> str:
        lane = self._lane(seq)
        return "" if lane is self._main else str(lane.kv_types)

    def transcode(self, data: memoryview | bytes, length: int, kv_types: str) -> memoryview:
        wanted = self._main.kv_types
        if kv_types:
            on_gpu = self.capabilities.device != "cpu"
            wanted = parse_kv_types(kv_types, head_size=self._loaded.heads[0].k_size, on_gpu=on_gpu)
        snapshot = self.open_snapshot(data, length)
        if self._transcoder is None:
            self._transcoder = Transcoder(self._loaded, self._options)
        return build_state(self._transcoder.to(snapshot, wanted)).data

    def draft_block(self, seq: int, token: int) -> list[int]:
        if self._main.drafter is None:
            msg = "this engine was opened without a drafter"
            raise EngineError(msg)
        return self._main.drafter.draft(seq, token)

    def knows_features(self, seq: int) -> bool:
        drafter = self._main.drafter
        return drafter is not None and drafter.length(seq) == self.length(seq)

    def close(self) -> None:
        for lane in (*self._others.values(), self._main):
            lane.close()
        self._others.clear()
        self._lane_of.clear()
        self._loaded.free_model()

    def _open_drafter(self, mode: DraftMode) -> None:
        if mode.kind not in BLOCKS:
            return
        from pinfold.engines.llama_cpp.block_loading import open_drafter

        try:
            self._main.drafter = open_drafter(self._loaded, mode, self._options)
        except BaseException:
            self.close()
            raise
        self.block_size = self._main.drafter.guesses

    @property
    def _lanes(self) -> tuple[Lane, ...]:
        return (self._main, *self._others.values())

    def _lane(self, seq: int) -> Lane:
        return self._lane_of.get(seq, self._main)


def _capabilities(loaded: Loaded, options: RuntimeOptions) -> Capabilities:
    cannot_cut = "recurrent state cannot be cut: only whole sessions and pins are reused"
    window = loaded.lib.llama_model_n_swa(loaded.model)
    reuse = f"any prefix; the sliding window of {window} keeps full cells" if window > 0 else "any prefix"
    slow = "saves memory; prefill 2-3 times slower on a CPU" if loaded.device == "cpu" else "saves memory"
    quantized = loaded.kv_types.quantized
    drafts = "a wrong guess could not be taken back: this model's state cannot be cut"
    on_cpu = loaded.device == "cpu"
    modes = (
        Mode("prefix reuse", True, True, reuse if loaded.trims else cannot_cut),
        Mode("n_ctx", True, True, loaded.context_reason),
        Mode("fork", True, True, "shares KV cells, copies no bytes"),
        Mode("trim", loaded.trims, loaded.trims, "verified after every cut" if loaded.trims else cannot_cut),
        Mode("snapshot", True, True, "byte-exact state of one sequence"),
        Mode("kv_resident f16", True, loaded.device == "cpu", "in use" if not quantized else "fast everywhere"),
        Mode(
            "kv_resident quantized", True, loaded.device != "cpu", f"in use: {loaded.kv_types}" if quantized else slow
        ),
        Mode("draft lookup", loaded.trims, loaded.trims, "guesses from the text so far" if loaded.trims else drafts),
        Mode("draft grammar", loaded.trims, loaded.trims, "guesses what is forced" if loaded.trims else drafts),
        Mode(
            "draft model",
            loaded.trims,
            loaded.trims and not on_cpu,
            drafts
            if not loaded.trims
            else "seldom pays on a CPU"
            if on_cpu
            else "a smaller model of the same vocabulary",
        ),
        *(_drafter_mode(kind, loaded, options) for kind in BLOCKS),
    )
    return Capabilities(
        engine="llama.cpp",
        device=loaded.device,
        model=loaded.info,
        n_ctx=loaded.n_ctx,
        n_cells=loaded.n_cells,
        n_seq=options.max_sequences,
        trim="any" if loaded.trims else "never",
        fingerprint=hashlib.sha256(repr(sorted(loaded.facets.items())).encode()).hexdigest(),
        bytes_per_token=loaded.bytes_per_token,
        modes=modes,
        facets=loaded.facets,
    )


def _drafter_mode(kind: str, loaded: Loaded, options: RuntimeOptions) -> Mode:
    if find_taps(loaded.lib) is None:
        return Mode(f"draft {kind}", False, False, "this build of llama.cpp has no layer taps")
    if not loaded.trims:
        return Mode(f"draft {kind}", False, False, "a wrong guess could not be taken back: this state cannot be cut")
    used = parse_draft(options.draft).kind == kind
    return Mode(f"draft {kind}", True, used, "in use" if used else "with a GGUF drafter that was made for this model")
