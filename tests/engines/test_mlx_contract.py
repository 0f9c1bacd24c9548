"""The engine's contract on MLX, for a small random model of each kind of cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pinfold.engines.base import ForwardInterrupted, Span
from pinfold.engines.mlx.engine import MlxEngine
from pinfold.errors import CacheFullError, EngineError, SessionCorruptError, TrimError
from pinfold.kv.brain import as_half
from pinfold.kv.calibration import learn
from pinfold.kv.codec import fold, unfold
from pinfold.kv.recipe import LADDER
from pinfold.kv.snapshot import Opaque, Section
from pinfold.options import RuntimeOptions

TOKENS = [(31 * i * i + 7 * i) % 250 for i in range(60)]
CUTTABLE = ("llama", "qwen2", "gemma3", "llama4", "minicpm3", "deepseek_v2")
TOGETHER = ("llama", "qwen2", "gemma3", "minicpm3", "deepseek_v2")
RECURRENT = ("mamba2", "qwen3_next", "falcon_h1")
# Cells of 16 bits and another order of sums; the logits' standard deviation is 1.6 to 6.
CLOSE = 0.05


def open_engine(path: Path, **options: object) -> MlxEngine:
    return MlxEngine(path, path.name, RuntimeOptions.parse({"n_ctx": 512, "max_sequences": 8, **options}))


@pytest.fixture(scope="module", params=CUTTABLE + RECURRENT)
def engine(request: pytest.FixtureRequest, random_mlx: Callable[[str], Path]) -> Iterator[MlxEngine]:
    opened = open_engine(random_mlx(request.param))
    yield opened
    opened.close()
    opened.close()


@pytest.fixture(autouse=True)
def clean(engine: MlxEngine) -> Iterator[None]:
    yield
    for seq in range(engine.capabilities.n_seq):
        engine.drop(seq)
    assert engine.free_cells() == engine.capabilities.n_cells


@pytest.fixture
def cuttable(engine: MlxEngine) -> MlxEngine:
    if engine.capabilities.trim == "never":
        pytest.skip("this model's state cannot be cut")
    return engine


def row(engine: MlxEngine, span: Span) -> np.ndarray:
    (logits,) = engine.forward([span])
    assert logits is not None
    return logits[-1].copy()


def cold(engine: MlxEngine, tokens: list[int], seq: int = 7) -> np.ndarray:
    logits = row(engine, Span(seq, 0, tokens))
    engine.drop(seq)
    return logits


def assert_close(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(a, b, atol=CLOSE * a.std(), rtol=0)


def test_a_prompt_in_pieces_is_the_prompt_whole(engine: MlxEngine) -> None:
    whole = cold(engine, TOKENS)
    for start in range(0, 60, 7):
        pieces = row(engine, Span(0, start, TOKENS[start : start + 7]))
    assert_close(whole, pieces)
    assert whole.argmax() == pieces.argmax()


def test_answers_are_those_of_the_models_own_caches(engine: MlxEngine) -> None:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    caches = make_prompt_cache(engine._model)
    own = [
        engine._model(mx.array(part)[None], cache=caches)[0, -1] for part in (TOKENS[:40], *([t] for t in TOKENS[40:]))
    ]
    engine.forward([Span(0, 0, TOKENS[:39], "none")])
    for at in range(39, 60):
        assert_close(np.array(own[at - 39]), row(engine, Span(0, at, TOKENS[at : at + 1])))


def test_rows_are_those_asked_for(engine: MlxEngine) -> None:
    every, none, last = engine.forward([Span(0, 0, TOKENS, "all"), Span(1, 0, TOKENS, "none"), Span(2, 0, TOKENS)])
    assert every is not None
    assert none is None
    assert every.shape == (60, engine.tokenizer.n_vocab)
    assert every.dtype == np.float32
    assert_close(every[-1], last[0])  # type: ignore[index]
    assert_close(every[40], cold(engine, TOKENS[:41]))
    every[0] = 0  # the caller may write to them


def test_sequences_in_one_step_are_each_its_own(engine: MlxEngine) -> None:
    texts = [TOKENS, TOKENS[20:50], TOKENS[5:9]]
    alone = [cold(engine, text) for text in texts]
    together = engine.forward([Span(i, 0, text) for i, text in enumerate(texts)])
    for one, other in zip(alone, together, strict=True):
        assert_close(one, other[0])  # type: ignore[index]
    engine.forward([Span(1, 30, [3])])  # the others rest meanwhile
    assert_close(row(engine, Span(0, 60, [9])), cold(engine, [*TOKENS, 9]))


def test_the_next_tokens_of_all_are_one_forward(engine: MlxEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, calls = (60, 30, 4), []
    alone = [cold(engine, [*TOKENS[:n], 9]) for n in lengths]
    for seq, length in enumerate(lengths):
        engine.forward([Span(seq, 0, TOKENS[:length], "none")])
    model = engine._model
    monkeypatch.setattr(engine, "_model", lambda *args, **options: calls.append(args) or model(*args, **options))
    together = engine.forward([Span(seq, length, [9]) for seq, length in enumerate(lengths)])
    assert len(calls) == (1 if engine.capabilities.model.name in TOGETHER else 3)
    assert engine.capabilities.mode("batch").recommended == (len(calls) == 1)
    for one, other in zip(alone, together, strict=True):
        assert_close(one, other[0])  # type: ignore[index]
    assert_close(row(engine, Span(1, 31, [5])), cold(engine, [*TOKENS[:30], 9, 5]))


def test_a_whole_fork_shares_and_goes_its_own_way(engine: MlxEngine) -> None:
    engine.forward([Span(0, 0, TOKENS, "none")])
    free = engine.free_cells()
    engine.fork(0, 1, 60)
    engine.fork(0, 2, 60)
    assert (engine.free_cells(), engine.exclusive_cells(0), engine.length(1)) == (free, 0, 60)
    assert_close(row(engine, Span(1, 60, [5])), cold(engine, [*TOKENS, 5]))
    assert_close(row(engine, Span(2, 60, [6])), cold(engine, [*TOKENS, 6]))
    assert_close(row(engine, Span(0, 60, [8])), cold(engine, [*TOKENS, 8]))
    engine.drop(0)
    assert_close(row(engine, Span(1, 61, [9])), cold(engine, [*TOKENS, 5, 9]))
    with pytest.raises(EngineError, match="in use"):
        engine.fork(1, 2, 60)


def test_a_fork_in_the_middle(cuttable: MlxEngine) -> None:
    engine = cuttable
    engine.forward([Span(0, 0, TOKENS, "none")])
    for cut in (1, 15, 16, 17, 40, 59):
        engine.fork(0, 1, cut)
        assert_close(row(engine, Span(1, cut, [5, 6, 7])), cold(engine, [*TOKENS[:cut], 5, 6, 7]))
        engine.fork(1, 2, cut + 2)
        engine.drop(1)
        assert_close(row(engine, Span(2, cut + 2, [8])), cold(engine, [*TOKENS[:cut], 5, 6, 8]))
        engine.drop(2)
    with pytest.raises(TrimError):
        engine.fork(0, 1, 61)


def test_what_forks_share_is_in_memory_once(cuttable: MlxEngine) -> None:
    import mlx.core as mx

    engine = cuttable
    engine.forward([Span(0, 0, TOKENS * 4, "none")])
    engine.forward([Span(7, 0, [1], "none")])  # what is not computed rests
    engine.drop(7)
    before = mx.get_active_memory()
    for seq in range(1, 7):
        engine.fork(0, seq, 200)
        engine.forward([Span(seq, 200, [seq], "none")])
    engine.forward([Span(7, 0, [1], "none")])
    engine.drop(7)
    prefix = 200 * engine.capabilities.bytes_per_token
    assert mx.get_active_memory() - before < prefix // 2  # of six forks
    assert engine.capabilities.n_cells - engine.free_cells() == 240 + 6


def test_a_trim_is_exact(cuttable: MlxEngine) -> None:
    engine = cuttable
    for length in (59, 33, 2):
        engine.forward([Span(0, 0, TOKENS, "none")])
        engine.fork(0, 1, 60)
        engine.trim(0, length)
        assert engine.length(0) == length
        assert_close(row(engine, Span(0, length, [5])), cold(engine, [*TOKENS[:length], 5]))
        engine.trim(1, length)  # one that rests
        assert_close(row(engine, Span(1, length, [5])), cold(engine, [*TOKENS[:length], 5]))
        engine.drop(0)
        engine.drop(1)


def test_what_cannot_be_cut_is_refused(engine: MlxEngine) -> None:
    if engine.capabilities.trim == "any":
        return
    assert not engine.capabilities.mode("trim").usable
    engine.forward([Span(0, 0, TOKENS, "none")])
    with pytest.raises(TrimError, match="cannot be cut"):
        engine.fork(0, 1, 30)
    assert engine.length(1) == 0
    engine.trim(0, 60)
    engine.forward([Span(0, 60, [9], "none")])
    with pytest.raises(TrimError, match="dropped"):
        engine.trim(0, 30)
    assert engine.length(0) == 0


def test_tokens_of_the_last_forward_are_taken_back_from_any_state(engine: MlxEngine) -> None:
    if engine.capabilities.trim == "any":
        assert not engine.capabilities.undo
        return
    assert engine.capabilities.undo
    for length in (64, 62, 60):
        engine.forward([Span(0, 0, TOKENS, "none"), Span(1, 0, TOKENS[:40], "none")])
        engine.forward([Span(0, 60, [9, 8, 7, 6, 5], "all"), Span(1, 40, [3, 4], "all")])
        engine.fork(0, 2, 65)  # settles what the sequence is taken back behind
        engine.interrupt()  # comes between two forwards, and has no effect
        engine.trim(0, length)
        engine.trim(1, 41)
        assert (engine.length(0), engine.length(1)) == (length, 41)
        found = row(engine, Span(0, length, [2]))
        assert_close(found, cold(engine, [*TOKENS, *[9, 8, 7, 6, 5][: length - 60], 2]))
        assert_close(row(engine, Span(1, 41, [2])), cold(engine, [*TOKENS[:40], 3, 2]))
        for seq in range(3):
            engine.drop(seq)


def test_what_was_taken_back_once_is_not_taken_back_from_an_older_forward(engine: MlxEngine) -> None:
    if engine.capabilities.trim == "any":
        return
    engine.forward([Span(0, 0, TOKENS, "none")])
    engine.forward([Span(1, 0, TOKENS, "none")])
    with pytest.raises(TrimError, match="dropped"):
        engine.trim(0, 30)
    assert engine.length(1) == 60


def test_a_snapshot_comes_back_bit_for_bit(engine: MlxEngine) -> None:
    engine.forward([Span(0, 0, TOKENS, "none")])
    resting = engine.snapshot(0)
    snapshot = engine.open_snapshot(resting, 60)
    assert bytes(engine.close_snapshot(snapshot)) == bytes(resting)
    back = unfold(fold(snapshot).data, lambda _: None, most_bytes=2 * len(resting))
    engine.restore(1, engine.close_snapshot(back), 60)
    assert (row(engine, Span(0, 60, [5])) == row(engine, Span(1, 60, [5]))).all()
    assert bytes(engine.snapshot(0)) == bytes(engine.snapshot(1))
    assert len(resting) >= 60 * engine.capabilities.bytes_per_token  # the bytes that are counted are the bytes kept


def test_attention_is_understood_and_recurrent_state_is_opaque(engine: MlxEngine) -> None:
    engine.forward([Span(0, 0, TOKENS, "none")])
    sections = engine.open_snapshot(engine.snapshot(0), 60).sections
    name = engine.capabilities.model.name
    assert any(isinstance(s, Section) for s in sections) == (name != "mamba2")
    assert any(isinstance(s, Opaque) for s in sections) == (name in RECURRENT)


def test_the_fold_works_as_it_is(engine: MlxEngine) -> None:
    if engine.capabilities.mode("fold").usable:
        assert_folds(engine)


def test_bfloat16_cells_fold_too(engine: MlxEngine, random_mlx: Callable[[str], Path]) -> None:
    brain = open_engine(random_mlx(engine.capabilities.model.name), kv_resident="bf16")
    if brain.capabilities.mode("fold").usable:
        assert_folds(brain)
    brain.close()


def assert_folds(engine: MlxEngine) -> None:
    engine.forward([Span(0, 0, TOKENS * 3, "none")])
    state = engine.snapshot(0)
    snapshot = as_half(engine.open_snapshot(state, 180))
    recipe = learn([snapshot], "test", engine.capabilities.model.parameters)
    folded = fold(snapshot, recipe, LADDER[4])
    assert folded.codec == LADDER[4].name
    back = unfold(folded.data, lambda _: recipe, most_bytes=2 * len(state))
    engine.restore(1, engine.close_snapshot(back), 180)
    exact, lossy = row(engine, Span(0, 180, [5])), row(engine, Span(1, 180, [5]))
    assert 0 < np.abs(exact - lossy).mean() < 0.5 * exact.std()


@pytest.mark.parametrize(
    "spoil",
    [lambda d: d[: len(d) // 2], lambda d: b"", lambda d: b"\0" * len(d), lambda d: d + b"\0", lambda d: d[1:]],
)
def test_what_is_no_snapshot_leaves_the_sequence_unused(engine: MlxEngine, spoil: Callable[[bytes], bytes]) -> None:
    engine.forward([Span(0, 0, TOKENS, "none")])
    spoilt = spoil(bytes(engine.snapshot(0)))
    with pytest.raises(EngineError, match="no snapshot"):
        engine.restore(1, spoilt, 60)
    with pytest.raises(EngineError, match="no snapshot"):
        engine.restore(1, engine.snapshot(0), 59)
    assert engine.length(1) == 0
    with pytest.raises(CacheFullError):
        engine.restore(1, b"", engine.capabilities.n_cells)


def test_planes_of_another_shape_are_refused(engine: MlxEngine) -> None:
    engine.forward([Span(0, 0, TOKENS, "none")])
    snapshot = engine.open_snapshot(engine.snapshot(0), 60)
    sections = [s for s in snapshot.sections if isinstance(s, Section)]
    if not sections:
        return
    sections[0].planes[0].rows = sections[0].planes[0].rows[:-1]
    with pytest.raises(SessionCorruptError, match="none of this model's"):
        engine.close_snapshot(snapshot)


def test_spans_that_do_not_fit_change_nothing(engine: MlxEngine) -> None:
    with pytest.raises(EngineError, match="starts at 3"):
        engine.forward([Span(0, 3, [1])])
    with pytest.raises(EngineError, match="takes 1 to"):
        engine.forward([])
    with pytest.raises(EngineError, match="takes 1 to"):
        engine.forward([Span(0, 0, [5] * (engine.max_tokens + 1))])
    assert engine.length(0) == 0


def test_an_interrupted_step_leaves_all_sequences_as_they_were(
    engine: MlxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.interrupt()  # between two forwards: no effect
    engine.forward([Span(0, 0, TOKENS[:20], "none"), Span(1, 0, TOKENS[:5], "none")])
    run, calls = engine._run, []

    def interrupted(*args: object, **options: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            thread = threading.Thread(target=engine.interrupt)
            thread.start()
            thread.join()
        return run(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_run", interrupted)
    with pytest.raises(ForwardInterrupted):
        engine.forward([Span(0, 20, TOKENS[20:], "none"), Span(1, 5, TOKENS[5:], "none")])
    monkeypatch.undo()
    assert (engine.length(0), engine.length(1)) == (20, 5)
    assert_close(row(engine, Span(0, 20, [5])), cold(engine, [*TOKENS[:20], 5]))
    assert_close(row(engine, Span(1, 5, [5])), cold(engine, [*TOKENS[:5], 5]))


def test_capabilities_say_what_is_kept(engine: MlxEngine) -> None:
    c = engine.capabilities
    assert (c.engine, c.facets["engine"]) == ("mlx", "mlx")
    assert c.trim == ("never" if c.model.name in RECURRENT else "any")
    assert c.n_ctx == 512
    kinds = {
        "gemma3": "4 sliding (window 16), 2 full",
        "llama4": "3 chunked, 1 full",
        "mamba2": "2 recurrent",
        "qwen3_next": "3 recurrent, 1 full",
        "falcon_h1": "2 recurrent, 2 full",
    }
    assert c.mode("caches").reason == kinds.get(c.model.name, "2 full")
    for kind in ("lookup", "grammar", "model"):
        mode = c.mode(f"draft {kind}")
        assert mode.usable
        assert ("costs a forward more" in mode.reason) == (c.trim == "never")
    assert "not in use" in c.mode("kv_resident quantized").reason


def test_text_goes_to_tokens_and_back(engine: MlxEngine) -> None:
    tokenizer = engine.tokenizer
    for text in ("Hello, world", "naïve 東京 🦊", "a\0b", " \n\t", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|im_start|>") == [257]
    assert len(tokenizer.encode("<|im_start|>", special=False)) == 12
    assert tokenizer.end_tokens == {256}
    assert tokenizer.piece(299) == b""
