"""A recipe written and read again: the same in all that folding uses, or refused."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pinfold.errors import SessionCorruptError
from pinfold.kv.codec import fold, unfold
from pinfold.kv.lossless import pack_bytes, packed_size, unpack_bytes
from pinfold.kv.recipe import LADDER, Recipe
from pinfold.kv.recipe_file import dump_recipe, load_recipe
from tests.support.kv_samples import Geometry, make_recipe, make_snapshot


def learnt(*, from_both: bool = True) -> Recipe:
    recipe = make_recipe(Geometry(3, 2, 32, 64, None), from_both=from_both)
    recipe.sections.append([])
    recipe.sections[0][1].k_gain = 0.7123456789
    recipe.rungs["balanced"] = -1
    recipe.notes["balanced"] = "lost too much: é"
    return recipe


@pytest.mark.parametrize("from_both", [True, False])
def test_it_comes_back_the_same(from_both: bool) -> None:
    recipe = learnt(from_both=from_both)
    back = load_recipe(memoryview(dump_recipe(recipe)))
    assert back.digest() == recipe.digest()
    assert (back.fingerprint, back.rungs, back.notes) == (recipe.fingerprint, recipe.rungs, recipe.notes)
    assert [len(section) for section in back.sections] == [3, 0]
    snapshot = make_snapshot(Geometry(3, 2, 32, 64, None), 50)
    folded = fold(snapshot, recipe, LADDER[4])
    assert fold(snapshot, back, LADDER[4]).data == folded.data
    rows = [
        b"".join(p.rows.tobytes() for _, p in unfold(folded.data, lambda _, r=r: r, most_bytes=1 << 24).planes())  # type: ignore[misc]
        for r in (recipe, back)
    ]
    assert rows[0] == rows[1]
    assert dump_recipe(back) == dump_recipe(recipe)


def test_a_recipe_of_nothing() -> None:
    empty = Recipe("nothing", [])
    assert load_recipe(dump_recipe(empty)).digest() == empty.digest()


def test_the_digest_follows_gains_arrays_and_fingerprint() -> None:
    recipe = learnt()
    seen = {recipe.digest()}
    recipe.sections[0][2].v_gain = 1.25  # after the first digest, as calibration does
    seen.add(recipe.digest())
    for change in range(3):
        other = load_recipe(dump_recipe(recipe))
        if change == 0:
            other.sections[0][0].k_axes[0, 0, 0] += 1
        elif change == 1:
            other.fingerprint = "another"
        else:
            other.sections[0][1].k_from = None
        seen.add(other.digest())
    assert len(seen) == 5


def test_matrices_that_float16_cannot_hold_are_refused() -> None:
    recipe = learnt()
    recipe.sections[0][0].k_axes[0, 0, 0] = 0.1
    with pytest.raises(ValueError, match="float16"):
        dump_recipe(recipe)


def test_flips_and_cuts_are_noticed() -> None:
    data = dump_recipe(learnt())
    rng = random.Random(0)  # noqa: S311
    for _ in range(500):
        bad = bytearray(data)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        with pytest.raises(SessionCorruptError):
            load_recipe(bytes(bad))
    for cut in (0, 1, 40, 60, len(data) - 1):
        with pytest.raises(SessionCorruptError):
            load_recipe(data[:cut])


def forged(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A recipe with another header and a checksum that fits."""
    data = dump_recipe(learnt())[:-32]
    size = int.from_bytes(data[8:12], "little")
    packed = memoryview(data)[12 : 12 + size]
    header = json.loads(unpack_bytes(packed, packed_size(packed)).tobytes())
    change(header)
    text = pack_bytes(json.dumps(header).encode())
    whole = data[:8] + len(text).to_bytes(4, "little") + text + data[12 + size :]
    return whole + hashlib.sha256(whole).digest()


def test_headers_that_say_other_things_are_refused() -> None:
    changes: list[Callable[[dict[str, Any]], object]] = [
        lambda h: h["sections"][0][0].update(k=[1 << 14, 1 << 14]),
        lambda h: h["sections"][0][0].update(k=[0, 32]),
        lambda h: h["sections"][0][0].update(k=[1, 32]),
        lambda h: h["sections"][0][1].update(k_from=1),
        lambda h: h["sections"][0][1].update(k_from=0),
        lambda h: h["sections"][0][0].update(gains=[float("nan"), 1.0]),
        lambda h: h["sections"][0].pop(),
        lambda h: h["sections"][0].extend(h["sections"][0] * 300),
        lambda h: h["rungs"].update(balanced=99),
        lambda h: h.update(more=1),
    ]
    tracemalloc.start()
    for change in changes:
        data = forged(change)
        with pytest.raises(SessionCorruptError):
            load_recipe(data)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_arrays_that_are_no_arrays_are_refused() -> None:
    def spoil(recipe: Recipe, how: int) -> None:
        layer = recipe.sections[0][1]
        if how == 0:
            layer.k_axes[0, 0, 0] = np.float32(np.inf)
        elif how == 1:
            layer.k_spread[0] = 0
        elif how == 2:
            layer.k_spread[0] = np.nan
        else:
            layer.v_order[0] = layer.v_order[1]

    for how in range(4):
        recipe = learnt()
        spoil(recipe, how)
        with pytest.raises((SessionCorruptError, ValueError)):
            load_recipe(dump_recipe(recipe))


def test_the_snapshots_module_is_light() -> None:
    code = (
        "import sys, pinfold.kv.snapshot, pinfold.kv.recipe;"
        "print([m for m in ('zstandard', 'threadpoolctl', 'pydantic', 'diskcache', 'llama_cpp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[]", "['pydantic']")  # the package itself has pydantic
