"""The fold with loss: within half a step of the original, the same bytes every time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pinfold.errors import SessionCorruptError
from pinfold.kv.blas import ONE_THREAD
from pinfold.kv.calibration import learn
from pinfold.kv.codec import fold, unfold
from pinfold.kv.half import channels
from pinfold.kv.lossy import SINKS
from pinfold.kv.recipe import LADDER, LayerRecipe, Recipe, Rung
from pinfold.kv.rope import Turn
from pinfold.kv.snapshot import Rope, Section, Snapshot
from tests.support.kv_samples import Geometry, make_recipe, make_section, make_snapshot

# Float16 rounds a value by 2^-11 of itself, axes rounded to it are off by as much again, and a value's parts add up.
ROUNDING = 2.0**-9


def restored(snapshot: Snapshot, recipe: Recipe, rung: Rung, threads: int | None = None) -> Snapshot:
    folded = fold(snapshot, recipe, rung)
    assert folded.notes == ()
    most = snapshot.nbytes + 4 * snapshot.tokens
    return unfold(folded.data, lambda digest: {recipe.digest(): recipe}[digest], most_bytes=most, threads=threads)


def by_head(section: Section, number: int) -> NDArray[np.float32]:
    """[heads, size, tokens], keys turned back."""
    plane, heads = section.planes[number], section.heads
    size = heads.k_size if plane.part == "k" else heads.v_size
    values = channels(plane).reshape(-1, size, len(section.positions))
    if plane.part == "k" and heads.rope is not None:
        Turn(heads.rope, section.positions).undo(values)
    return values


def worst(section: Section, back: Section, layers: list[LayerRecipe], rung: Rung) -> float:
    """The largest error along any axis, in half steps, after allowing for rounding."""
    found = 0.0
    for number, plane in enumerate(section.planes):
        layer = layers[plane.layer]
        original, error = by_head(section, number), by_head(section, number) - by_head(back, number)
        axes = layer.k_axes if plane.part == "k" else layer.v_axes
        if plane.part == "k":
            steps = layer.k_spread[:, None, None] * rung.k_step * layer.k_gain
        else:
            rms = np.sqrt((original**2).mean(axis=1, keepdims=True))
            steps = rms * 2**0.125 * rung.v_step * layer.v_gain  # a norm is stored to the nearest quarter of an octave
        length = np.sqrt((original**2).sum(axis=1, keepdims=True))
        along = np.abs(np.matmul(axes.transpose(0, 2, 1), error)) - ROUNDING * length - 1e-6
        found = max(found, float((along / (steps / 2))[:, :, SINKS:].max()))
    return found


sizes = st.sampled_from([32, 64, 80, 96, 128, 256])


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    k_size, v_size = draw(sizes), draw(sizes)
    width = draw(st.sampled_from([k_size, k_size // 2, 2, 0]))
    rope = Rope(draw(st.sampled_from([1e4, 1e6])), draw(st.sampled_from([1.0, 0.125])), width, draw(st.booleans()))
    return Geometry(draw(st.integers(1, 3)), draw(st.integers(1, 2)), k_size, v_size, rope if width else None)


@given(geometries(), st.integers(2, 60), st.sampled_from(LADDER), st.booleans(), st.integers(0, 1000))
@settings(max_examples=25)
def test_every_value_stays_within_half_a_step(
    geometry: Geometry, tokens: int, rung: Rung, from_both: bool, seed: int
) -> None:
    recipe = make_recipe(geometry, 60, from_both=from_both)
    for layer in recipe.sections[0]:
        layer.k_gain, layer.v_gain = 0.7, 1.3
    snapshot = make_snapshot(geometry, tokens, seed)
    back = restored(snapshot, recipe, rung)
    (before,), (after,) = snapshot.sections, back.sections
    assert isinstance(before, Section)
    assert isinstance(after, Section)
    assert worst(before, after, recipe.sections[0], rung) <= 1.02
    for a, b in zip(before.planes, after.planes, strict=True):
        np.testing.assert_array_equal(a.rows[:SINKS], b.rows[:SINKS])
    assert (after.seq, after.heads, back.tokens, back.head) == (before.seq, before.heads, tokens, snapshot.head)


def test_layers_of_unlike_widths() -> None:
    wide, narrow = make_section(Geometry(2, 3), 50), make_section(Geometry(2, 1), 50, seed=3)
    mixed = [wide.planes[0], narrow.planes[1], narrow.planes[2], wide.planes[3]]
    section = Section(0, wide.positions, wide.heads, mixed)
    recipe = learn([Snapshot(50, b"", [section])], "mixed", 10**12)
    assert all(layer.k_from is None and layer.v_from is None for layer in recipe.sections[0])
    back = restored(Snapshot(50, b"", [section]), recipe, LADDER[2]).sections[0]
    assert isinstance(back, Section)
    assert worst(section, back, recipe.sections[0], LADDER[2]) <= 1.02


def test_prediction_makes_it_smaller() -> None:
    geometry = Geometry(6, 2, 64, 64, None)
    recipe, plain = make_recipe(geometry, 400), make_recipe(geometry, 400)
    for layer in plain.sections[0]:
        layer.k_from = layer.v_from = None
    snapshot = make_snapshot(geometry, 400, seed=9)
    assert len(fold(snapshot, recipe, LADDER[4]).data) < 0.9 * len(fold(snapshot, plain, LADDER[4]).data)


@pytest.mark.parametrize("tokens", [2, 3, 511, 512, 513, 514, 1025])
def test_threads_and_repeats_change_no_byte(tokens: int) -> None:
    geometry = Geometry(2, 1)
    recipe, snapshot = make_recipe(geometry), make_snapshot(geometry, tokens)
    folded = fold(snapshot, recipe, LADDER[4])
    assert fold(snapshot, recipe, LADDER[4]).data == folded.data

    def rows(threads: int) -> bytes:
        back = unfold(folded.data, lambda _: recipe, most_bytes=1 << 24, threads=threads)
        return b"".join(plane.rows.tobytes() for _, plane in back.planes())

    expected = rows(1)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(rows, [1, 2, 3, 7, 1, 2])) == {expected}
        assert {f.data for f in pool.map(lambda _: fold(snapshot, recipe, LADDER[4]), range(4))} == {folded.data}


def test_a_fold_leaves_the_snapshot_as_it_was() -> None:
    geometry = Geometry()
    recipe, snapshot = make_recipe(geometry), make_snapshot(geometry, 40)
    for _, plane in snapshot.planes():
        plane.rows.flags.writeable = False
    fold(snapshot, recipe, LADDER[4])
    for (_, plane), (_, same) in zip(snapshot.planes(), make_snapshot(geometry, 40).planes(), strict=True):
        np.testing.assert_array_equal(plane.rows, same.rows)


def test_folded_again_it_loses_little_more() -> None:
    geometry = Geometry()
    recipe, snapshot = make_recipe(geometry), make_snapshot(geometry, 100)
    once = restored(snapshot, recipe, LADDER[4])
    twice = restored(once, recipe, LADDER[4])
    first, second = once.sections[0], twice.sections[0]
    assert isinstance(first, Section)
    assert isinstance(second, Section)
    assert worst(first, second, recipe.sections[0], LADDER[4]) <= 1.02


def test_another_recipe_is_refused() -> None:
    geometry = Geometry()
    recipe, snapshot = make_recipe(geometry), make_snapshot(geometry, 40)
    data = fold(snapshot, recipe, LADDER[4]).data
    for other in (None, make_recipe(Geometry(layers=2)), Recipe("x", [[]]), Recipe("x", [])):
        with pytest.raises(SessionCorruptError):
            unfold(data, lambda _, other=other: other, most_bytes=1 << 24)  # type: ignore[misc]


def test_large_means_stay_numbers() -> None:
    geometry = Geometry(1, 1, 32, 32, Rope(1e4, 1.0, 32, halves=True))
    samples = make_snapshot(geometry, 60)
    samples.sections[0].planes[0].rows.view(np.float16)[:] = 65504  # type: ignore[union-attr]
    recipe = learn([samples], "large", 10**12)
    folded = fold(samples, recipe, LADDER[0])
    back = unfold(folded.data, lambda _: recipe, most_bytes=1 << 24)
    for _, plane in back.planes():
        assert np.isfinite(plane.rows.view(np.float16)).all()


def test_the_blas_limit_is_lifted_by_the_last_to_leave() -> None:
    def counts() -> list[int]:
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]

    before = counts()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with ONE_THREAD:
            inside.set()
            leave.wait(10)

    with ONE_THREAD:
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
        assert set(counts()) <= {1}
    assert set(counts()) <= {1}
    leave.set()
    thread.join()
    assert counts() == before
    with ONE_THREAD:
        assert set(counts()) <= {1}
    assert counts() == before
