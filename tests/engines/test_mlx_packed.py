"""Packed cells on MLX: attention over codes, and sequences cut, shared and saved, on small random models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pinfold.engines.base import Span
from pinfold.engines.mlx.engine import MlxEngine
from pinfold.engines.mlx.kv_types import KVTypes, parse_kv_types, pays, rotates
from pinfold.errors import EngineError, UnsupportedModeError
from pinfold.options import RuntimeOptions

mx = pytest.importorskip("mlx.core")

from pinfold.engines.mlx.attention import attend  # noqa: E402
from pinfold.engines.mlx.kv_types import Steps  # noqa: E402
from pinfold.engines.mlx.packed import BLOCK, TAIL, PackedCache, PackedCells, Packing  # noqa: E402

TOKENS = [(31 * i * i + 7 * i) % 250 for i in range(300)]
MODELS = ("llama_64", "gemma3_64", "falcon_h1_64")
CLOSE = 0.05


def rows(count: int, seed: int, heads: int = 2, size: int = 64) -> tuple[object, object]:
    keys, values = (mx.random.normal((1, heads, count, size), key=mx.random.key(seed + n)) for n in (0, 1))
    return keys, values


def packing(k: int = 8, v: int = 4, *, rotated: bool = False) -> Packing:
    return Packing(mx, Steps(k, 64), Steps(v, 64), rotated, mx.float16)


def cache(kind: Packing) -> PackedCache:
    return PackedCache(kind, lambda *_: None)


def grow(held: PackedCache, start: int, end: int, step: int) -> PackedCells:
    keys, values = rows(512, 3)
    for at in range(start, end, step):
        seen, _ = held.update_and_fetch(
            keys[..., at : min(at + step, end), :], values[..., at : min(at + step, end), :]
        )
    return seen


def same(one: PackedCells, other: PackedCells) -> bool:
    pairs = list(zip(one.arrays(), other.arrays(), strict=True))
    return (one.packed, one.whole) == (other.packed, other.whole) and all(bool((a == b).all()) for a, b in pairs)


class TestCache:
    def test_the_newest_tokens_are_whole_and_the_rest_is_packed(self) -> None:
        held = cache(packing())
        grow(held, 0, 300, 1)
        assert TAIL <= held.offset - held.packed < TAIL + BLOCK + 1
        part = held.part(0, 300)
        assert part.nbytes == part.packed * 2 * (68 + 36) + part.whole * 2 * 2 * 64 * 2

    @pytest.mark.parametrize("rotated", [False, True])
    def test_a_trim_and_an_append_are_a_straight_rebuild(self, rotated: bool) -> None:
        straight = cache(packing(rotated=rotated))
        grow(straight, 0, 300, 1)
        for cut in (299, 290, 300 - TAIL):
            held = cache(packing(rotated=rotated))
            grow(held, 0, 300, 1)
            held.cut(cut)
            grow(held, cut, 300, 1)
            assert same(held.part(0, 300), straight.part(0, 300))

    def test_a_trim_among_packed_tokens_keeps_their_bits(self) -> None:
        held, straight = cache(packing()), cache(packing())
        grow(held, 0, 300, 1)
        grow(straight, 0, 300, 1)
        held.cut(101)
        assert same(held.part(0, 101), straight.part(0, 101))
        grow(held, 101, 300, 1)
        both = min(held.packed, straight.packed)
        assert same(held.part(0, both), straight.part(0, both))

    def test_pieces_joined_are_the_row_they_were_cut_from(self) -> None:
        held = cache(packing(rotated=True))
        pieces = []
        for start, end in ((0, 150), (150, 170), (170, 300)):
            grow(held, start, end, 1)
            pieces.append(held.part(start, end))
        joined = cache(packing(rotated=True))
        joined.fill(pieces)
        assert same(joined.part(0, 300), held.part(0, 300))
        joined.fill([held.part(0, 300).first(40)])
        assert same(joined.part(0, 40), held.part(0, 40))


class TestAttention:
    @pytest.mark.parametrize("mask", ["none", "causal", "boolean", "added", "by head"])
    @pytest.mark.parametrize("sinks", [False, True])
    @pytest.mark.parametrize("count", [1, 5, 40])
    def test_codes_give_what_the_cells_that_they_stand_for_give(self, mask: str, sinks: bool, count: int) -> None:
        kind = packing(6, 3, rotated=True)
        held = cache(kind)
        grow(held, 0, 201, 1)
        cells = grow(held, 201, 201 + count, count)
        assert cells.packed % BLOCK == 0
        queries = mx.random.normal((1, 6, count, 64), key=mx.random.key(9))
        total = cells.packed + cells.whole
        seen = mx.random.uniform(shape=(count, total), key=mx.random.key(4)) > 0.3
        given = {
            "none": None,
            "causal": "causal" if count > 1 else None,
            "boolean": seen,
            "added": mx.where(seen, 0.0, -1e4),
            "by head": mx.random.normal((1, 6, count, total)),
        }[mask]
        sink = mx.arange(6).astype(mx.float32) if sinks else None
        k, v = kind.unpack(tuple(a[..., : cells.packed, :] for a in cells.k), tuple(
            a[..., : cells.packed, :] for a in cells.v
        ), mx.float32)  # fmt: skip
        keys, values = (kind.turn(mx.concatenate(pair, axis=2)) for pair in ((k, cells.keys), (v, cells.values)))
        plain = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.1, mask=given, sinks=sink)
        np.testing.assert_allclose(np.array(attend(queries, cells, 0.1, given, sink)), np.array(plain), atol=2e-5)

    def test_an_odd_number_of_packed_cells(self) -> None:
        held = cache(packing())
        grow(held, 0, 300, 1)
        held.cut(101)
        cells = grow(held, 101, 103, 2)
        queries = mx.random.normal((1, 2, 2, 64))
        few = attend(queries, cells, 0.1, "causal")
        many = attend(mx.tile(queries, (1, 1, 10, 1)), cells, 0.1)
        assert few.shape == (1, 2, 2, 64)
        np.testing.assert_allclose(np.array(few[..., 1, :]), np.array(many[..., 1, :]), atol=2e-5)


class TestNames:
    def test_what_the_names_mean(self) -> None:
        assert parse_kv_types("f16", "bf16") == KVTypes("bf16")
        assert parse_kv_types("Q8_0/q4_0", "f16") == KVTypes("f16", 8, 4)
        assert str(parse_kv_types("auto", "f16")) == "q8/q4"
        assert parse_kv_types("q6", "f16") == KVTypes("f16", 6, 6)
        assert [rotates(size) for size in (32, 64, 96, 160, 288)] == [True, True, True, True, False]
        for wrong in ("q7", "q8/f16", "q8/q4/q4", "", "int4"):
            with pytest.raises(UnsupportedModeError, match="q8/q4"):
                parse_kv_types(wrong, "f16")

    def test_auto_packs_where_memory_is_short(self) -> None:
        assert not pays("cpu", 1 << 40, 1 << 30)[0]
        assert not pays("cuda", 1 << 40, None)[0]
        assert not pays("metal", 1 << 30, 16 << 30)[0]
        assert pays("metal", 8 << 30, 16 << 30) == (
            True,
            "whole cells would take 50% of the memory that the device has free",
        )


def open_engine(path: Path, **options: object) -> MlxEngine:
    options = {"n_ctx": 512, "max_sequences": 8, "kv_cells": 2048, "kv_resident": "q8/q4", **options}
    return MlxEngine(path, path.name, RuntimeOptions.parse(options))


@pytest.fixture(scope="module", params=MODELS)
def engine(request: pytest.FixtureRequest, random_mlx: Callable[[str], Path]) -> Iterator[MlxEngine]:
    opened = open_engine(random_mlx(request.param))
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        engine = request.getfixturevalue("engine")
        for seq in range(8):
            engine.drop(seq)
        assert engine.free_cells() == engine.capabilities.n_cells


def row(engine: MlxEngine, span: Span) -> np.ndarray:
    (logits,) = engine.forward([span])
    assert logits is not None
    return logits[-1].copy()


def feed(engine: MlxEngine, seq: int, tokens: list[int]) -> None:
    """In steps as the worker makes them, so that cells are packed between them."""
    for at in range(0, len(tokens), 64):
        engine.forward([Span(seq, engine.length(seq), tokens[at : at + 64], "none")])


def assert_close(a: np.ndarray, b: np.ndarray, share: float = CLOSE) -> None:
    np.testing.assert_allclose(a, b, atol=share * a.std(), rtol=0)


class TestEngine:
    @pytest.mark.parametrize("kind", MODELS)
    def test_packed_cells_answer_as_whole_ones(self, random_mlx: Callable[[str], Path], kind: str) -> None:
        found = []
        for cells in ("f16", "q8"):
            engine = open_engine(random_mlx(kind), kv_resident=cells)
            feed(engine, 0, TOKENS)
            found.append(row(engine, Span(0, 300, [5])))
            engine.close()
        assert 0 < np.abs(found[0] - found[1]).mean() < 0.03 * found[0].std()

    def test_sequences_in_one_step_are_each_its_own(self, engine: MlxEngine) -> None:
        texts = [TOKENS, TOKENS[20:250]]
        for seq, text in enumerate(texts):
            feed(engine, seq, text)
            feed(engine, seq + 2, text)
        one = engine.forward([Span(0, 300, [9]), Span(1, 230, [9])])
        assert_close(one[0][0].copy(), row(engine, Span(2, 300, [9])))  # type: ignore[index]
        assert_close(one[1][0].copy(), row(engine, Span(3, 230, [9])))  # type: ignore[index]

    @pytest.mark.parametrize("start", [TAIL + BLOCK - 5, TAIL + BLOCK - 1, TAIL + BLOCK])
    def test_guesses_see_what_they_see_one_by_one(self, engine: MlxEngine, start: int) -> None:
        guesses, wrong = TOKENS[start : start + 8], [3, 1, 4, 1, 5, 9, 2, 6]
        for seq in (0, 1):
            feed(engine, seq, TOKENS[: TAIL + BLOCK - 6])
            for token in TOKENS[TAIL + BLOCK - 6 : start]:
                engine.forward([Span(seq, engine.length(seq), [token], "last")])
        engine.forward([Span(0, start, [guesses[0], *wrong], "all")])
        engine.trim(0, start + 1)
        (together,) = engine.forward([Span(0, start + 1, guesses[1:], "all")])
        alone = [row(engine, Span(1, start + n, [token])) for n, token in enumerate(guesses)]
        assert together is not None
        assert_close(together, np.array(alone[1:]))

    def test_a_fork_shares_and_goes_its_own_way(self, engine: MlxEngine) -> None:
        feed(engine, 0, TOKENS)
        feed(engine, 7, [1])
        before = mx.get_active_memory()
        for seq in range(1, 6):
            engine.fork(0, seq, 300)
            feed(engine, seq, [seq])
        feed(engine, 7, [1])
        assert mx.get_active_memory() - before < 300 * engine.capabilities.bytes_per_token
        feed(engine, 6, [*TOKENS, 3])
        assert_close(row(engine, Span(3, 301, [9])), row(engine, Span(6, 301, [9])))

    def test_a_trim_is_exact(self, engine: MlxEngine) -> None:
        if engine.capabilities.trim == "never":
            return
        feed(engine, 0, TOKENS)
        engine.fork(0, 1, 300)
        engine.trim(0, 280)
        feed(engine, 0, TOKENS[280:])
        assert_close(row(engine, Span(0, 300, [5])), row(engine, Span(1, 300, [5])), 1e-3)
        engine.trim(0, 70)
        engine.fork(1, 2, 70)
        assert_close(row(engine, Span(0, 70, [5])), row(engine, Span(2, 70, [5])), 1e-3)

    @pytest.mark.parametrize("length", [300, 30])
    def test_a_snapshot_comes_back_bit_for_bit(self, engine: MlxEngine, length: int) -> None:
        feed(engine, 0, TOKENS[:length])
        data = engine.snapshot(0)
        assert bytes(engine.close_snapshot(engine.open_snapshot(data, length))) == bytes(data)
        engine.restore(1, data, length)
        assert bytes(engine.snapshot(1)) == bytes(data)
        assert (row(engine, Span(0, length, [5])) == row(engine, Span(1, length, [5]))).all()
        for spoilt in (data[:-1], data[: len(data) // 2], bytes(data) + b"\0"):
            with pytest.raises(EngineError, match="no snapshot"):
                engine.restore(2, spoilt, length)
        whole = sum(layer.whole_bytes for layer in engine._layout.packed)
        assert len(data) < length * (engine.capabilities.bytes_per_token + whole)

    def test_capabilities_say_what_is_packed(self, engine: MlxEngine) -> None:
        c = engine.capabilities
        layers = {"llama_64": 2, "gemma3_64": 2, "falcon_h1_64": 2}[c.model.name]
        reason = c.mode("kv_resident quantized").reason
        assert f"q8/q4 in {layers} layers, 2.46 times smaller" in reason
        assert "KL divergence" in reason
        assert c.facets["kv types"] == "q8/q4"
        skipped = {"gemma3_64": "4 of sliding layers"}
        assert skipped.get(c.model.name, "newest tokens") in c.mode("kv_resident f16").reason


class TestLoad:
    @pytest.mark.parametrize("kind", ["deepseek_v2", "minicpm3", "mamba2", "llama"])
    def test_models_that_cannot_are_refused_by_name(self, random_mlx: Callable[[str], Path], kind: str) -> None:
        with pytest.raises(UnsupportedModeError, match="f16"):
            open_engine(random_mlx(kind))

    def test_auto_keeps_whole_cells_on_a_cpu(self, random_mlx: Callable[[str], Path]) -> None:
        engine = open_engine(random_mlx("llama_64"), kv_resident="auto")
        assert "faster on a CPU" in engine.capabilities.mode("kv_resident f16").reason
        engine.close()

    @pytest.mark.parametrize(("kind", "why"), [("llama_64", "KL divergence"), ("deepseek_v2", "f16")])
    def test_auto_drops_what_fails(
        self, random_mlx: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, kind: str, why: str
    ) -> None:
        monkeypatch.setattr("pinfold.engines.mlx.resident.pays", lambda *_: (True, "short of memory"))
        monkeypatch.setattr("pinfold.engines.mlx.packing.MOST_DIVERGENCE", -1.0)
        engine = open_engine(random_mlx(kind), kv_resident="auto")
        mode = engine.capabilities.mode("kv_resident quantized")
        assert "dropped" in mode.reason
        assert why in mode.reason
        assert engine.capabilities.facets["kv types"] == "f16"
        feed(engine, 0, TOKENS[:100])
        engine.close()

    def test_other_models_of_the_process_keep_their_attention(self, random_mlx: Callable[[str], Path]) -> None:
        from mlx_lm.models import llama

        before = (llama.Attention.__call__, llama.scaled_dot_product_attention)
        open_engine(random_mlx("llama_64")).close()
        assert (llama.Attention.__call__, llama.scaled_dot_product_attention) == before
