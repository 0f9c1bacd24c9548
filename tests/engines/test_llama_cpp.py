"""The engine's contract, on the embedded model and, where a path is given, on one with sliding windows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pinfold.engines.base import ForwardInterrupted, Span
from pinfold.engines.llama_cpp.engine import LlamaCppEngine
from pinfold.errors import CacheFullError, EngineError, ModelFormatError, ModelNotFoundError, UnsupportedModeError
from pinfold.models import resolve
from pinfold.options import RuntimeOptions

TEXT = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"
# The largest difference of one logit that batches of another shape make (seen: 0.8 on SmolLM2, whose logits have a
# standard deviation of 2.7), and the mean over the vocabulary.
LARGEST, MEAN = 1.5, 0.4


def open_engine(path: Path, **options: object) -> LlamaCppEngine:
    return LlamaCppEngine(path, "model", RuntimeOptions.parse({"n_ctx": 1024, **options}))


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def engine(request: pytest.FixtureRequest) -> Iterator[LlamaCppEngine]:
    given = request.getfixturevalue(request.param)
    path = given if isinstance(given, Path) else resolve(given).path
    opened = open_engine(path)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        engine = request.getfixturevalue("engine")
        for seq in range(engine.capabilities.n_seq):
            engine.drop(seq)
        assert engine.free_cells() == engine.capabilities.n_cells


def row(engine: LlamaCppEngine, span: Span) -> np.ndarray:
    """The last row of logits of a forward of one span, safe from the next."""
    (logits,) = engine.forward([span])
    assert logits is not None
    return logits[-1].copy()


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() < LARGEST and np.abs(a - b).mean() < MEAN)


def test_it_knows_the_next_word(engine: LlamaCppEngine) -> None:
    tokens = engine.tokenizer.encode(TEXT, bos=True)
    (logits,) = engine.forward([Span(0, 0, tokens)])
    assert logits is not None
    assert logits.shape == (1, engine.tokenizer.n_vocab)
    assert engine.tokenizer.decode([int(logits[0].argmax())]).strip() == "Madrid"


def test_a_fork_shares_cells_and_goes_its_own_way(engine: LlamaCppEngine) -> None:
    tokens = engine.tokenizer.encode(TEXT, bos=True)
    engine.forward([Span(0, 0, tokens, "none")])
    free = engine.free_cells()
    engine.fork(0, 1, 7)
    assert engine.free_cells() == free
    assert (engine.length(1), engine.exclusive_cells(1)) == (7, 0)
    warm, cold = (int(row(engine, span).argmax()) for span in (Span(1, 7, tokens[7:]), Span(2, 0, tokens)))
    assert engine.tokenizer.decode([warm]).strip() == "Madrid"
    assert warm == cold
    engine.drop(0)
    assert engine.length(1) == len(tokens)


def test_warm_logits_are_cold_logits_within_the_tolerance(engine: LlamaCppEngine) -> None:
    tokens = engine.tokenizer.encode(TEXT * 20, bos=True)[:300]
    engine.forward([Span(0, 0, tokens[:256], "none")])
    cold = row(engine, Span(0, 256, tokens[256:]))
    for cut in (1, 100, 299):
        engine.fork(0, 1, cut)
        assert close(row(engine, Span(1, cut, tokens[cut:])), cold)
        engine.drop(1)


def test_several_sequences_in_one_forward_equal_each_alone(engine: LlamaCppEngine) -> None:
    texts = [engine.tokenizer.encode(t, bos=True) for t in (TEXT, "Two plus two is", "Once upon a time")]
    alone = [row(engine, Span(9 + i, 0, t)) for i, t in enumerate(texts)]
    together = engine.forward([Span(i, 0, t) for i, t in enumerate(texts)])
    for one, other in zip(alone, together, strict=True):
        assert close(one, other[0])  # type: ignore[index]


def test_rows_are_those_asked_for(engine: LlamaCppEngine) -> None:
    tokens = engine.tokenizer.encode(TEXT, bos=True)
    every, none, last = engine.forward([Span(0, 0, tokens, "all"), Span(1, 0, tokens, "none"), Span(2, 0, tokens)])
    assert every is not None
    assert every.shape[0] == len(tokens)
    assert none is None
    assert close(every[-1], last[0])  # type: ignore[index]


def test_a_trim_is_exact(engine: LlamaCppEngine) -> None:
    tokens = engine.tokenizer.encode(TEXT, bos=True)
    before = row(engine, Span(0, 0, tokens))
    engine.forward([Span(0, len(tokens), tokens[1:6], "none")])
    engine.trim(0, len(tokens) - 1)
    assert engine.length(0) == len(tokens) - 1
    assert close(row(engine, Span(0, len(tokens) - 1, tokens[-1:])), before)


def test_a_snapshot_comes_back_bit_for_bit(engine: LlamaCppEngine) -> None:
    tokens = engine.tokenizer.encode(TEXT, bos=True)
    engine.forward([Span(0, 0, tokens, "none")])
    data = engine.snapshot(0)
    engine.restore(1, data, len(tokens))
    assert len(engine.snapshot(1)) == len(data)
    assert (row(engine, Span(0, len(tokens), [5])) == row(engine, Span(1, len(tokens), [5]))).all()


@pytest.mark.parametrize("spoil", [lambda d: d[: len(d) // 2], lambda d: b"", lambda d: b"\0" * len(d)])
def test_what_is_no_snapshot_leaves_the_sequence_unused(engine: LlamaCppEngine, spoil: object) -> None:
    engine.forward([Span(0, 0, engine.tokenizer.encode(TEXT), "none")])
    with pytest.raises(EngineError, match="no snapshot"):
        engine.restore(1, spoil(engine.snapshot(0)), engine.length(0))  # type: ignore[operator]
    assert engine.length(1) == 0
    with pytest.raises(CacheFullError):
        engine.restore(1, b"", engine.capabilities.n_cells)


def test_spans_that_do_not_fit_change_nothing(engine: LlamaCppEngine) -> None:
    with pytest.raises(EngineError, match="starts at 3"):
        engine.forward([Span(0, 3, [1])])
    with pytest.raises(EngineError, match="takes 1 to"):
        engine.forward([])
    with pytest.raises(EngineError, match="takes 1 to"):
        engine.forward([Span(0, 0, [5] * (engine.max_tokens + 1))])
    step = engine.max_tokens
    while engine.free_cells() >= step:
        engine.forward([Span(0, engine.length(0), [5] * step, "none")])
    with pytest.raises(CacheFullError, match="free KV cells"):
        engine.forward([Span(1, 0, [5] * (engine.free_cells() + 1))])
    assert engine.length(1) == 0


def forward_for_ever(engine: LlamaCppEngine, tokens: list[int]) -> None:
    while True:
        engine.forward([Span(0, 50, tokens[50:300], "none")])
        engine.trim(0, 50)


def test_an_interrupted_forward_ends_at_once_and_leaves_the_sequences_as_they_were(
    engine: LlamaCppEngine, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = engine.tokenizer.encode(TEXT * 20, bos=True)
    engine.interrupt()  # between forwards: no effect
    engine.forward([Span(0, 0, tokens[:50], "none")])
    timer = threading.Timer(0.02, engine.interrupt)
    timer.start()
    began = time.perf_counter()
    with caplog.at_level(logging.WARNING), pytest.raises(ForwardInterrupted):
        forward_for_ever(engine, tokens)
    timer.join()
    assert time.perf_counter() - began < 5
    assert engine.length(0) == 50
    assert not caplog.records  # the library complains, the user need not hear of it
    interrupted = row(engine, Span(0, 50, tokens[50:100]))
    engine.forward([Span(1, 0, tokens[:50], "none")])
    assert close(row(engine, Span(1, 50, tokens[50:100])), interrupted)


def test_text_goes_to_tokens_and_back(engine: LlamaCppEngine) -> None:
    tokenizer = engine.tokenizer
    for text in ("Hello, world", "naïve 東京 🦊", "a\0b", " \n\t", ""):
        assert tokenizer.decode(tokenizer.encode(text)).strip(" ") == text.strip(" ")
    assert tokenizer.encode("x", bos=True)[-1:] == tokenizer.encode("x")[-1:]
    assert tokenizer.end_tokens
    assert all(0 <= t < tokenizer.n_vocab for t in tokenizer.end_tokens)


def test_special_tokens_are_read_only_where_asked(smollm2: str) -> None:
    engine = open_engine(resolve(smollm2).path)  # type: ignore[arg-type]
    tokenizer = engine.tokenizer
    assert len(tokenizer.encode("<|im_start|>")) == 1
    assert len(tokenizer.encode("<|im_start|>", special=False)) > 1
    engine.close()
    engine.close()


def test_a_missing_a_foreign_and_a_broken_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nowhere\.gguf"):
        open_engine(tmp_path / "nowhere.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(ModelFormatError, match=r"cannot load broken\.gguf"):
        open_engine(broken)


def test_kv_types_are_used_or_refused_by_name(smollm2: str) -> None:
    path = resolve(smollm2).path
    assert path is not None
    full, small = open_engine(path), open_engine(path, kv_resident="q8_0/q4_0")
    ratio = small.capabilities.bytes_per_token / full.capabilities.bytes_per_token
    assert ratio == pytest.approx((34 + 18) / 128)
    tokens = full.tokenizer.encode(TEXT)
    for engine in (full, small):
        engine.forward([Span(0, 0, tokens, "none")])
    assert len(small.snapshot(0)) < 0.5 * len(full.snapshot(0))  # the bytes are really fewer
    assert full.capabilities.fingerprint != small.capabilities.fingerprint
    full.close()
    small.close()
    for wrong in ("q3_k", "f16/f16/f16", ""):
        with pytest.raises(UnsupportedModeError, match="pair of KV types"):
            open_engine(path, kv_resident=wrong)
