"""llama.cpp's state taken apart and put together: the same bytes, whatever they are."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from pinfold.engines.llama_cpp.heads import describe_heads
from pinfold.engines.llama_cpp.state import build_state, parse_state
from pinfold.errors import SessionCorruptError
from pinfold.kv.snapshot import Heads, Opaque, Plane, Rope, Section, Snapshot

HEADS = Heads(32, 64, None)
F16, Q8_0 = 1, 8


def cache(tokens: int, layers: int, kind: int = F16, seq: int = 3, streams: int = 1) -> bytes:
    rng = random.Random(layers)  # noqa: S311
    size = {F16: 2 * 32, Q8_0: 34}[kind]
    parts = [struct.pack("<II", streams, tokens)]
    parts += [struct.pack("<iIi", position, 1, seq) for position in range(tokens)]
    parts.append(struct.pack("<II", 0, layers))
    for width in (size, 2 * size):
        for _ in range(layers):
            parts += [struct.pack("<iQ", kind, width), rng.randbytes(tokens * width)]
    return b"".join(parts)


@pytest.mark.parametrize("kind", [F16, Q8_0])
def test_two_caches_come_back_byte_for_byte(kind: int) -> None:
    data = b"headhead" + cache(5, 2, kind) + cache(5, 3, kind, seq=-1)
    snapshot = parse_state(memoryview(data), 5, [HEADS, HEADS])
    assert [len(s.planes) for s in snapshot.sections if isinstance(s, Section)] == [4, 6]
    assert build_state(snapshot).tobytes() == data


@pytest.mark.parametrize("cut", range(0, 220, 3))
def test_what_cannot_be_read_stays_opaque(cut: int) -> None:
    data = (b"headhead" + cache(3, 1))[:cut]
    snapshot = parse_state(memoryview(data), 3, [HEADS])
    assert build_state(snapshot).tobytes() == data
    assert any(isinstance(s, Opaque) and s.reason for s in snapshot.sections)


def test_mutations_never_raise_and_never_lose_a_byte() -> None:
    rng = random.Random(0)  # noqa: S311
    whole = b"headhead" + cache(4, 2) + cache(4, 1, Q8_0)
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 2, 5])):
            at = rng.choice([rng.randrange(80), rng.randrange(len(data))])
            size = rng.choice([1, 4, 8])
            data[at : at + size] = rng.choice([b"\xff" * size, b"\0" * size, rng.randbytes(size)])
        tokens, heads = rng.choice([4, 4, 0, 1 << 40]), rng.choice([[HEADS, HEADS], [HEADS], [], [Heads(0, 0, None)]])
        snapshot = parse_state(memoryview(data), tokens, heads)
        assert build_state(snapshot).tobytes() == bytes(data)


def test_sections_that_are_not_llama_cpps_are_refused() -> None:
    rows = np.zeros((2, 64), dtype=np.uint8)
    positions = np.arange(2, dtype=np.int32)
    for planes in (
        [Plane(0, "k", "q9_9", rows), Plane(0, "v", "f16", rows)],
        [Plane(0, "k", "f16", rows)],
        [Plane(0, "k", "f16", rows[:1]), Plane(0, "v", "f16", rows)],
    ):
        with pytest.raises(SessionCorruptError):
            build_state(Snapshot(2, b"", [Section(0, positions, HEADS, planes)]))


class Lib:
    def __init__(self, kind: int = 2, window: int = 0) -> None:
        self.kind, self.window = kind, window

    def llama_model_rope_type(self, _: object) -> int:
        return self.kind

    def llama_model_n_swa(self, _: object) -> int:
        return self.window


def describe(meta: dict[str, str], lib: Lib | None = None) -> tuple[Heads, ...]:
    return describe_heads(lib or Lib(), None, meta.get, 64, 64)  # type: ignore[arg-type]


def test_heads_from_metadata() -> None:
    assert describe({"rope.freq_base": "5e5"}) == (Heads(64, 64, Rope(5e5, 1.0, 64, halves=True)),)
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": "8", "rope.dimension_count": "32"}
    full, sliding = describe(linear, Lib(kind=0, window=512))
    assert full.rope == Rope(1e4, 0.125, 32, halves=False)
    assert sliding.rope == Rope(1e4, 1.0, 32, halves=False)
    assert describe({}, Lib(kind=8))[0].rope is None


@pytest.mark.parametrize("value", ["", "x", "nan", "inf", "-1", "0", "1e-320", "1e300"])
def test_metadata_of_any_kind_makes_no_trouble(value: str) -> None:
    for key in ("rope.freq_base", "rope.scaling.factor", "rope.dimension_count", "rope.freq_base_swa"):
        for heads in describe({key: value, "rope.scaling.type": "linear"}, Lib(window=9)):
            assert heads.rope is None or heads.rope.base >= 1
