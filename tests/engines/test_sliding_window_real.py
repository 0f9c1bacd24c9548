"""A sliding-window model whose KV was restored: prefixes whose windows it has are reused, others are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pinfold.engines.base import Span
from pinfold.engines.llama_cpp.engine import LlamaCppEngine
from pinfold.errors import TrimError
from pinfold.kv.snapshot import Section
from pinfold.options import RuntimeOptions

LENGTH, CHUNK = 1200, 256


@pytest.fixture(scope="module")
def engine(gemma3: Path) -> Iterator[LlamaCppEngine]:
    opened = LlamaCppEngine(gemma3, "gemma", RuntimeOptions(n_ctx=2048, kv_cells=8192, max_sequences=8))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def tokens(engine: LlamaCppEngine) -> list[int]:
    text = " ".join(f"Entry {n}: barrel {7 * n} came in at the {n % 5}th gate and was weighed." for n in range(120))
    return engine.tokenizer.encode(text)[:LENGTH]


def compute(engine: LlamaCppEngine, seq: int, tokens: list[int], start: int = 0) -> np.ndarray:
    rows = None
    for at in range(start, len(tokens), CHUNK):
        rows = engine.forward([Span(seq, at, tokens[at : at + CHUNK], "last")])[0]
    assert rows is not None
    return rows[-1].copy()


def test_what_was_computed_here_can_be_cut_anywhere(engine: LlamaCppEngine, tokens: list[int]) -> None:
    compute(engine, 0, tokens)
    for length in (LENGTH - 1, 700, 40):
        engine.fork(0, 1, length)
        assert engine.length(1) == length
        engine.drop(1)
    engine.drop(0)


def test_what_was_restored_serves_its_whole_length_and_refuses_shorter_ones(
    engine: LlamaCppEngine, tokens: list[int]
) -> None:
    compute(engine, 0, tokens)
    engine.restore(1, engine.snapshot(0), LENGTH)
    engine.fork(1, 2, LENGTH)
    question = [*tokens, *tokens[20:60]]
    cold, warm = compute(engine, 3, question), compute(engine, 2, question, LENGTH)
    assert int(cold.argmax()) == int(warm.argmax())
    for length in (LENGTH - 1, 700, 40):
        with pytest.raises(TrimError, match="without some of them"):
            engine.fork(1, 4, length)
        assert engine.length(4) == 0
    with pytest.raises(TrimError):
        engine.trim(1, LENGTH - 5)
    for seq in range(5):
        engine.drop(seq)


def test_the_window_is_a_section_of_its_last_tokens(engine: LlamaCppEngine, tokens: list[int]) -> None:
    compute(engine, 0, tokens)
    full, window = engine.open_snapshot(engine.snapshot(0), LENGTH).sections
    assert isinstance(full, Section)
    assert isinstance(window, Section)
    assert len(full.positions) == LENGTH
    assert window.positions.tolist() == list(range(LENGTH - len(window.positions), LENGTH))
    assert len(window.positions) < LENGTH
    engine.drop(0)
