"""The kernel for attention over codes, compiled for the CPU: what it finds, and when it is used."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinfold.engines.base import Span
from pinfold.engines.mlx.engine import MlxEngine
from pinfold.options import RuntimeOptions
from tests.support.host_kernel import compiler, host_builder

mx = pytest.importorskip("mlx.core")

from pinfold.engines.mlx import fused as fused_module  # noqa: E402
from pinfold.engines.mlx import resident  # noqa: E402
from pinfold.engines.mlx.attention import attend, attend_on_codes  # noqa: E402
from pinfold.engines.mlx.fused import FusedAttention, fused_attention  # noqa: E402
from pinfold.engines.mlx.kernel import Kernel, builder  # noqa: E402
from pinfold.engines.mlx.kv_types import BITS, Steps  # noqa: E402
from pinfold.engines.mlx.packed import PackedCells, Packing  # noqa: E402

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def _less_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU every exchange between lanes takes threads that wait for each other."""
    monkeypatch.setattr(fused_module, "_CHECKED_CELLS", 150)
    monkeypatch.setattr(fused_module, "_CHECKED_ROWS", (1, 2))
    monkeypatch.setattr(fused_module, "_TIMED_ROWS", (1, 8))


def always(*_: Any) -> float:
    return 2.0


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> FusedAttention:
    return FusedAttention(mx, Kernel(mx, host_builder(mx, tmp_path_factory.mktemp("kernels"))), always)


def example(packing: Packing, packed: int, rows: int, size: int, *, room: int = 0) -> tuple[Any, PackedCells]:
    """Queries of six heads over the cells of two."""

    def noise(heads: int, cells: int, seed: int) -> Any:
        return mx.random.normal((1, heads, cells, size), key=mx.random.key(seed))

    k, v = packing.pack(noise(2, packed + room, 1), noise(2, packed + room, 2))
    whole = rows + 70
    keys, values = (noise(2, whole, seed).astype(packing.cells) for seed in (3, 4))
    return 2 * noise(6, rows, 5), PackedCells(packed, whole, k, v, keys, values, packing)


def off(found: Any, plain: Any) -> float:
    return float(mx.abs(found - plain).max())


@pytest.mark.parametrize("size", [32, 64, 96, 128, 256])
def test_it_finds_what_the_plain_form_finds_for_heads_of(size: int, fused: FusedAttention) -> None:
    group = 64 if size % 64 == 0 else 32
    packing = Packing(mx, Steps(8, group), Steps(4, group), rotated=False, cells=mx.float32)
    for packed, rows, room in ((64, 1, 0), (200, 1, 56), (130, 5, 126)):
        options = (*example(packing, packed, rows, size, room=room), size**-0.5, "causal" if rows > 1 else None, None)
        assert off(fused.attend(*options), attend_on_codes(*options)) < 1e-4


@pytest.mark.parametrize(("k_bits", "v_bits"), list(zip(BITS, reversed(BITS), strict=True)))
def test_it_reads_codes_of(k_bits: int, v_bits: int, fused: FusedAttention) -> None:
    packing = Packing(mx, Steps(k_bits, 64), Steps(v_bits, 64), rotated=False, cells=mx.float16)
    options = (*example(packing, 70, 1, 64, room=58), 0.125, None, None)
    assert off(fused.attend(*options), attend_on_codes(*options)) < 2e-3


def test_sinks_take_weight_and_give_nothing(fused: FusedAttention) -> None:
    packing = Packing(mx, Steps(8, 64), Steps(4, 64), rotated=False, cells=mx.float32)
    options = (*example(packing, 128, 3, 64), 0.125, "causal")
    sinks = mx.array([5.0, 1.0, -2.0, 0.0, 9.0, 3.0])
    found = fused.attend(*options, sinks)
    assert off(found, attend_on_codes(*options, sinks)) < 1e-4
    assert off(found, fused.attend(*options, None)) > 0.01


def test_a_row_among_others_has_the_bits_it_has_alone(fused: FusedAttention) -> None:
    packing = Packing(mx, Steps(8, 64), Steps(4, 64), rotated=False, cells=mx.float32)
    queries, cells = example(packing, 300, 4, 64)
    kernel = fused._kernel
    stacked = queries.reshape(1, 2, 12, 64)
    together, _, _ = kernel.packed(stacked, cells)
    alone, _, _ = kernel.packed(stacked[:, :, 9:10], cells)
    assert bool((together[:, :, 9:10] == alone).all())


class TestChoice:
    PACKING = (Steps(8, 64), Steps(4, 64), False)

    def attention(self, folder: Path, speed: float, spoil: str = "") -> FusedAttention:
        build = host_builder(mx, folder)

        def spoiled(name: str, body: str) -> Any:
            assert spoil in body
            return build(name, body.replace(spoil, f"0.5f * {spoil}") if spoil else body)

        return FusedAttention(mx, Kernel(mx, spoiled), lambda *_: speed)

    def attends(self, attention: FusedAttention, rows: int = 1) -> Any:
        packing = Packing(mx, *self.PACKING, mx.float16, attention)
        return attend(*example(packing, 64, rows, 64), 0.125, "causal" if rows > 1 else None)

    def test_used_where_it_agrees_and_is_faster(self, tmp_path: Path) -> None:
        attention = self.attention(tmp_path, 1.5)
        self.attends(attention)
        assert attention.used
        assert attention.reason.startswith("used: over 8192 cells 1.50 times for 1 and 1.50 times for 8 rows")

    def test_not_used_where_it_is_slower(self, tmp_path: Path) -> None:
        attention = self.attention(tmp_path, 0.9)
        found = self.attends(attention)
        assert not attention.used
        assert attention.reason.startswith("not used: over 8192 cells 0.90 times")
        plain = attend_on_codes(*example(Packing(mx, *self.PACKING, mx.float16), 64, 1, 64), 0.125, None, None)
        assert off(found, plain) == 0.0

    @pytest.mark.parametrize("spoil", ["float(k_steps[group])", "float(v_offsets[group])", "query[r][e] * key[e]"])
    def test_dropped_with_a_warning_where_it_disagrees(
        self, tmp_path: Path, spoil: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        attention = self.attention(tmp_path, 1.5, spoil)
        with caplog.at_level(logging.WARNING, "pinfold.mlx"):
            self.attends(attention)
        assert not attention.used
        assert "disagrees with the plain form" in caplog.text

    def test_dropped_with_a_warning_where_it_does_not_compile(self, caplog: pytest.LogCaptureFixture) -> None:
        def build(name: str, body: str) -> Any:
            msg = "no such intrinsic"
            raise RuntimeError(msg)

        attention = FusedAttention(mx, Kernel(mx, build), always)
        with caplog.at_level(logging.WARNING, "pinfold.mlx"):
            self.attends(attention)
            self.attends(attention)
        assert not attention.used
        assert caplog.text.count("it does not run here: no such intrinsic") == 1

    def test_many_rows_go_the_plain_way_where_only_few_are_faster(self, tmp_path: Path) -> None:
        speeds = iter([1.5, 0.8])
        attention = FusedAttention(mx, Kernel(mx, host_builder(mx, tmp_path)), lambda *_: next(speeds))
        packing = Packing(mx, *self.PACKING, mx.float16, attention)
        assert attention.pays(*example(packing, 64, 1, 64))
        assert not attention.pays(*example(packing, 64, 2, 64))


def test_there_is_none_for_a_cpu() -> None:
    assert fused_attention(mx, "cpu") is None


@pytest.mark.parametrize(("device", "function"), [("metal", "metal_kernel"), ("cuda", "cuda_kernel")])
def test_each_device_gets_its_own_first_line(device: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(mx.fast, function, lambda **options: made.append(options))
    build = builder(mx, device)
    assert build is not None
    build("name", "BODY")
    assert made[0]["source"].endswith("BODY")
    assert made[0]["source"].startswith("const int thread_number")
    assert "LANE_SUM" in made[0]["header"]
    assert (made[0]["input_names"][-1], made[0]["output_names"]) == ("sizes", ["found", "stats"])


@pytest.mark.parametrize("kind", ["llama_64", "gemma3_64"])
def test_a_model_answers_by_the_kernel_as_without(
    random_mlx: Callable[[str], Path], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [(31 * i * i + 7 * i) % 250 for i in range(200)]
    attention = FusedAttention(mx, Kernel(mx, host_builder(mx, tmp_path)), always)
    found = []
    for choice in (None, attention):
        monkeypatch.setattr(resident, "fused_attention", lambda *_, choice=choice: choice)
        path = random_mlx(kind)
        options = RuntimeOptions.parse({"n_ctx": 512, "kv_resident": "q8/q4"})
        engine = MlxEngine(path, path.name, options)
        mode = engine.capabilities.mode("kernel over codes")
        assert mode.usable == (choice is not None), mode.reason
        for at in range(0, 192, 64):
            engine.forward([Span(0, at, tokens[at : at + 64], "none")])
        logits = engine.forward([Span(0, 192, tokens[192:], "all")])[0]
        found.append(np.array(logits))
        engine.close()
    assert attention.used
    np.testing.assert_allclose(found[1], found[0], atol=0.01 * found[0].std(), rtol=0)
    assert (found[1] != found[0]).any()
