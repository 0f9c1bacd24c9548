"""The state that llama.cpp really gives: taken apart, folded without loss, restored to the same logits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pinfold.engines.base import Span
from pinfold.engines.llama_cpp.engine import LlamaCppEngine
from pinfold.kv.calibration import learn
from pinfold.kv.codec import fold, unfold
from pinfold.kv.recipe import LADDER
from pinfold.kv.recipe_file import dump_recipe, load_recipe
from pinfold.kv.snapshot import Section
from pinfold.models import resolve
from pinfold.options import RuntimeOptions

TEXT = "def total(prices: list[float]) -> float:\n    # the sum of all prices, taxes included\n" * 12


def opened(path: Path, kv: str) -> LlamaCppEngine:
    return LlamaCppEngine(path, "model", RuntimeOptions.parse({"n_ctx": 512, "kv_resident": kv}))


@pytest.fixture(scope="module", params=["smollm2", "qwen05", "gemma3"])
def path(request: pytest.FixtureRequest) -> Path:
    given = request.getfixturevalue(request.param)
    return given if isinstance(given, Path) else resolve(given).path


@pytest.fixture(scope="module", params=["f16", "q8_0", "q8_0/q4_0"])
def engine(request: pytest.FixtureRequest, path: Path) -> Iterator[LlamaCppEngine]:
    engine = opened(path, request.param)
    yield engine
    engine.close()


def evaluate(engine: LlamaCppEngine, seq: int, tokens: list[int]) -> None:
    for start in range(0, len(tokens), engine.max_tokens):
        engine.forward([Span(seq, start, tokens[start : start + engine.max_tokens])])


def next_row(engine: LlamaCppEngine, seq: int, token: int) -> np.ndarray:
    (logits,) = engine.forward([Span(seq, engine.length(seq), [token])])
    assert logits is not None
    return logits[-1].copy()


def test_state_comes_back_byte_for_byte_and_to_the_same_logits(engine: LlamaCppEngine) -> None:
    tokens = engine.tokenizer.encode(TEXT)[:100]
    evaluate(engine, 0, tokens[:-1])
    state = bytes(engine.snapshot(0))
    snapshot = engine.open_snapshot(state, len(tokens) - 1)
    assert all(isinstance(section, Section) for section in snapshot.sections)
    assert bytes(engine.close_snapshot(snapshot)) == state
    folded = fold(snapshot)
    back = unfold(folded.data, lambda _: None, most_bytes=2 * len(state))
    rebuilt = bytes(engine.close_snapshot(back))
    assert rebuilt == state
    expected = next_row(engine, 0, tokens[-1])
    engine.drop(0)
    engine.restore(0, rebuilt, len(tokens) - 1)
    np.testing.assert_array_equal(next_row(engine, 0, tokens[-1]), expected)
    engine.drop(0)


def test_a_learnt_recipe_is_small_and_folds_the_real_thing(path: Path) -> None:
    engine = opened(path, "f16")
    tokens = engine.tokenizer.encode(TEXT)[:200]
    evaluate(engine, 0, tokens)
    state = bytes(engine.snapshot(0))
    snapshot = engine.open_snapshot(state, len(tokens))
    parameters = engine.capabilities.model.parameters
    recipe = learn([snapshot], "test", parameters)
    data = dump_recipe(recipe)
    assert len(data) < 10_000_000
    assert load_recipe(data).digest() == recipe.digest()
    folded = fold(snapshot, recipe, LADDER[4])
    assert folded.notes == ()
    assert folded.raw_bytes > 3 * len(folded.data)
    back = unfold(folded.data, lambda _: load_recipe(data), most_bytes=2 * len(state))
    framed = unfold(folded.data, lambda _: recipe, most_bytes=2 * len(state), frame=engine.frame_snapshot)
    assert framed.state is not None
    assert bytes(engine.close_snapshot(framed)) == bytes(engine.close_snapshot(back))
    engine.restore(1, engine.close_snapshot(framed), len(tokens))
    cold, warm = (next_row(engine, seq, tokens[0]) for seq in (0, 1))
    assert cold.argmax() == warm.argmax()
    engine.close()
