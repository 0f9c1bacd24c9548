"""Sections kept without loss come back byte for byte, whatever is in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.kv.codec import EXACT, codec_of, fold, unfold
from pinfold.kv.recipe import LADDER
from pinfold.kv.snapshot import Heads, Opaque, Plane, Section, Snapshot
from tests.support.kv_samples import Geometry, make_recipe, make_section, make_snapshot

MOST = 1 << 24


def same(a: Snapshot, b: Snapshot) -> None:
    assert (a.tokens, a.head, len(a.sections)) == (b.tokens, b.head, len(b.sections))
    for left, right in zip(a.sections, b.sections, strict=True):
        if isinstance(left, Opaque) or isinstance(right, Opaque):
            assert isinstance(left, Opaque)
            assert isinstance(right, Opaque)
            assert (left.data, left.reason) == (right.data, right.reason)
            continue
        assert (left.seq, left.heads) == (right.seq, right.heads)
        np.testing.assert_array_equal(left.positions, right.positions)
        assert [(p.layer, p.part, p.kind) for p in left.planes] == [(p.layer, p.part, p.kind) for p in right.planes]
        for p, q in zip(left.planes, right.planes, strict=True):
            assert p.rows.tobytes() == q.rows.tobytes()


def round_trip(snapshot: Snapshot) -> None:
    folded = fold(snapshot)
    assert (folded.codec, folded.recipe, folded.notes, folded.raw_bytes) == (EXACT, None, (), snapshot.nbytes)
    assert codec_of(folded.data) == (EXACT, None)
    same(unfold(folded.data, lambda _: None, most_bytes=snapshot.nbytes + 4 * snapshot.tokens + 64), snapshot)


def section(rows: list[np.ndarray], kind: str, positions: np.ndarray | None = None) -> Section:
    half = len(rows) // 2
    planes = [Plane(i % half, "k" if i < half else "v", kind, r) for i, r in enumerate(rows)]
    where = np.arange(len(rows[0]), dtype=np.int32) if positions is None else positions
    return Section(0, where, Heads(32, 32, None), planes)


def test_every_float16_there_is() -> None:
    values = np.arange(1 << 16, dtype=np.uint16).reshape(
        64, 1024
    )  # NaNs, infinities, denormals and -0.0 are among them
    rows = values.view(np.uint8).reshape(64, 2048)
    round_trip(Snapshot(64, b"", [section([rows, rows[::-1].copy()], "f16")]))


@given(
    st.sampled_from(["f16", "q8_0", "q4_0", "f32", "bf16"]),
    st.integers(0, 9),
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_any_bytes_of_any_width(kind: str, tokens: int, width: int, layers: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = [random.integers(0, 256, (tokens, width), dtype=np.uint8) for _ in range(2 * layers)]
    round_trip(Snapshot(tokens, random.bytes(8), [section(rows, kind)]))


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20))
@settings(max_examples=30)
def test_any_positions(positions: list[int]) -> None:
    rows = np.zeros((len(positions), 4), dtype=np.uint8)
    round_trip(Snapshot(len(positions), b"", [section([rows, rows], "q8_0", np.array(positions, dtype=np.int32))]))


@pytest.mark.parametrize("data", [b"", b"x", bytes(3_000_000), np.random.default_rng(0).bytes(100_000)])
def test_opaque_bytes(data: bytes) -> None:
    round_trip(Snapshot(0, b"", [Opaque(data, "recurrent state")]))


def test_a_snapshot_of_nothing() -> None:
    round_trip(Snapshot(0, b"", []))


def test_sections_of_all_kinds_together() -> None:
    geometry = Geometry(rope=None)
    parts = [make_section(geometry, 6), Opaque(b"abc", "why not"), make_section(geometry, 6, seed=1)]
    round_trip(Snapshot(6, b"12345678", parts))


def test_what_a_recipe_does_not_cover_is_kept_and_named() -> None:
    geometry = Geometry()
    recipe, rung = make_recipe(geometry), LADDER[3]
    good = make_snapshot(geometry, 30)
    cases: dict[str, Snapshot] = {"other layers": make_snapshot(Geometry(layers=2), 30)}
    cases["kept exactly"] = make_snapshot(geometry, 1)
    moved = make_snapshot(geometry, 30)
    moved.sections[0].positions[7:] += 5  # type: ignore[union-attr]
    cases["positions"] = moved
    for bad in (np.inf, np.nan):
        broken = make_snapshot(geometry, 30)
        broken.sections[0].planes[1].rows.view(np.float16)[3, 2] = bad  # type: ignore[union-attr]
        cases[f"no numbers{bad}"] = broken
    quantized = make_snapshot(geometry, 30)
    quantized.sections[0].planes[0].kind = "q8_0"  # type: ignore[union-attr]
    cases["q8_0 already"] = quantized
    cases["other heads: other layers"] = make_snapshot(Geometry(heads=1, k_size=64, v_size=64), 30)
    cases["its state is opaque"] = Snapshot(30, b"", [Opaque(b"abc", "its state is opaque")])
    for name, snapshot in cases.items():
        folded = fold(snapshot, recipe, rung)
        assert folded.codec == EXACT, name
        assert len(folded.notes) == 1
        assert name.split(":")[-1].strip().rstrip("nafi") in folded.notes[0]
        same(unfold(folded.data, lambda _: recipe, most_bytes=MOST), snapshot)
    assert fold(good, recipe, rung).notes == ()
    assert "not calibrated" in fold(good, None, rung).notes[0]


def test_the_last_tokens_of_a_sliding_window_are_folded_where_they_stand() -> None:
    geometry = Geometry()
    window = make_snapshot(geometry, 30)
    window.sections[0].positions += 500  # type: ignore[union-attr]
    window.tokens = 530
    folded = fold(window, make_recipe(geometry), LADDER[3])
    assert (folded.codec, folded.notes) == (LADDER[3].name, ())
    back = unfold(folded.data, lambda _: make_recipe(geometry), most_bytes=MOST)
    section = back.sections[0]
    assert isinstance(section, Section)
    assert section.positions.tolist() == list(range(500, 530))
    assert back.tokens == 530
    exact = unfold(fold(window).data, lambda _: None, most_bytes=MOST)
    same(exact, window)


def test_values_out_of_reach_are_kept_not_clipped() -> None:
    geometry = Geometry(rope=None)
    recipe = make_recipe(geometry)
    for plane in (0, 5):
        snapshot = make_snapshot(geometry, 30)
        rows = snapshot.sections[0].planes[plane].rows.view(np.float16)  # type: ignore[union-attr]
        if plane == 0:
            rows[9, :] = 60_000
        else:
            rows[9, :] = 0  # its norm is nothing, but what is predicted is not
        folded = fold(snapshot, recipe, LADDER[0])
        assert "steps" in folded.notes[0]
        same(unfold(folded.data, lambda _: recipe, most_bytes=MOST), snapshot)


def test_one_section_lost_nothing_and_the_other_little() -> None:
    geometry = Geometry()
    recipe = make_recipe(geometry)
    recipe.sections.append([])
    snapshot = Snapshot(40, b"", [make_section(geometry, 40), make_section(geometry, 40, seed=1)])
    folded = fold(snapshot, recipe, LADDER[2])
    assert folded.codec == LADDER[2].name
    assert len(folded.notes) == 1
    assert codec_of(folded.data) == (LADDER[2].name, recipe.digest())
    back = unfold(folded.data, lambda _: recipe, most_bytes=MOST)
    same(Snapshot(40, b"", back.sections[1:]), Snapshot(40, b"", snapshot.sections[1:]))
