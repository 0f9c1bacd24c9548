"""An engine whose answers are a known function of the keys and values that it holds."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pinfold.engines.base import ForwardInterrupted, ModelInfo, Span
from pinfold.kv.snapshot import Plane, Section, Snapshot, allocate
from tests.support.kv_samples import Geometry, make_section

__all__ = ["FakeEngine", "finish", "sensitive", "seq_zero"]

F32 = NDArray[np.float32]
Readout = Callable[[F32, F32, int], F32]
T = TypeVar("T")


def seq_zero(_cells: int) -> int:
    """The only sequence; whoever has it drops it before the next asks."""
    return 0


def finish(steps: Generator[None, None, T]) -> T:
    """What a generator returns, its rests skipped."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def sensitive(keys: float, values: float, n_vocab: int = 16) -> Readout:
    """Logits that each token reads from one row of keys and values, by fixed weights of these sizes."""

    @cache
    def weights(k_width: int, v_width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        random = np.random.default_rng(3)
        return random.normal(size=(n_vocab, k_width)) * keys, random.normal(size=(n_vocab, v_width)) * values

    def readout(k: F32, v: F32, token: int) -> F32:
        of_keys, of_values = weights(k.shape[1], v.shape[1])
        row = token % len(k)
        return (of_keys @ k[row] + of_values @ v[row]).astype(np.float32)

    return readout


@dataclass
class FakeEngine:
    """Bytes are tokens; KV is made up from them; after a restore, `readout` gives the logits from the KV there is."""

    readout: Readout = field(default_factory=lambda: sensitive(0.0, 0.0))
    geometry: Geometry = field(default_factory=lambda: Geometry(layers=2, heads=1))
    kind: str = "f16"
    interruptions: int = 0
    n_ctx: int = 4096
    name: str = "llama.cpp"
    closed: bool = False
    forwards: int = 0
    held: dict[int, tuple[list[int], Snapshot | None]] = field(default_factory=dict)

    @property
    def capabilities(self) -> Any:
        model = ModelInfo("fake", "fake", "fake weights", 16, 4096, 2, None, parameters=10**12)
        return SimpleNamespace(
            engine=self.name, model=model, fingerprint="f", facets={"engine": "fake"}, n_ctx=self.n_ctx, n_cells=8192
        )

    @property
    def tokenizer(self) -> Any:
        return SimpleNamespace(encode=lambda text: list(text.encode()))

    def forward(self, spans: Sequence[Span]) -> list[F32 | None]:
        if self.interruptions > 0:
            self.interruptions -= 1
            raise ForwardInterrupted
        self.forwards += 1
        (span,) = spans
        tokens, snapshot = self.held.setdefault(span.seq, ([], None))
        assert span.start == len(tokens)
        tokens += span.tokens
        if span.logits == "none":
            return [None]
        assert snapshot is not None
        (section,) = snapshot.sections
        assert isinstance(section, Section)
        k, v = (section.planes[i].rows.view(np.float16).astype(np.float32) for i in (0, -1))
        return [np.stack([self.readout(k, v, token) for token in span.tokens])]

    def snapshot(self, seq: int) -> memoryview:
        tokens = self.held[seq][0]
        section = make_section(self.geometry, len(tokens), zlib.crc32(bytes(tokens)))
        return self.close_snapshot(Snapshot(len(tokens), b"fake", [section]))

    def restore(self, seq: int, data: memoryview, length: int) -> None:
        assert seq not in self.held
        snapshot = self.open_snapshot(data, length)
        self.held[seq] = ([0] * length, snapshot)

    def drop(self, seq: int) -> None:
        self.held.pop(seq, None)

    def open_snapshot(self, data: memoryview, length: int) -> Snapshot:
        model = make_section(self.geometry, length)
        planes, at = [], 0
        for plane in model.planes:
            rows = np.frombuffer(data[at : at + plane.rows.nbytes], dtype=np.uint8).reshape(plane.rows.shape)
            planes.append(Plane(plane.layer, plane.part, self.kind, rows))
            at += rows.nbytes
        return Snapshot(length, bytes(data[at:]), [Section(0, model.positions, model.heads, planes)])

    def frame_snapshot(self, snapshot: Snapshot) -> None:
        allocate(snapshot)

    def close_snapshot(self, snapshot: Snapshot) -> memoryview:
        rows = [plane.rows.tobytes() for _, plane in snapshot.planes()]
        return memoryview(b"".join((*rows, snapshot.head)))

    def close(self) -> None:
        self.closed = True
