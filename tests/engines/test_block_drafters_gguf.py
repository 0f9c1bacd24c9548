"""Block drafters on llama.cpp: guesses as computed by hand, and features that follow a sequence as far as they can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinfold import Runtime
from pinfold.decoding.costs import POINTS, ForwardCosts
from pinfold.draft_modes import DraftMode
from pinfold.engines.base import BlockDrafts, Span
from pinfold.engines.llama_cpp.block_loading import open_drafter
from pinfold.engines.llama_cpp.engine import LlamaCppEngine
from pinfold.engines.llama_cpp.library import load_library
from pinfold.engines.llama_cpp.symbols import TapSymbols, find_taps
from pinfold.errors import ModelFormatError, ModelNotFoundError, UnsupportedModeError
from pinfold.models import resolve
from pinfold.options import RuntimeOptions
from tests.support.block_drafters import Reference, config_of, random_weights, write_gguf

gguf = pytest.importorskip("gguf")

HIDDEN, VOCAB, MASK = 576, 49_152, 17
TOKENS = [(31 * i * i + 7 * i) % 4000 for i in range(40)]
ANCHOR = 77
TAPS = [0, 13, 27]
CONFIG = config_of(
    "dflash",
    hidden_size=HIDDEN,
    vocab_size=VOCAB,
    num_target_layers=30,
    target_layer_ids=TAPS,
    mask_token_id=MASK,
)
# Logits of a quantized last step against those of its weights in float64; wrong features make ten times as much.
CLOSE = 0.5


@pytest.fixture(scope="module")
def taps_are_there(smollm2: str) -> None:
    if find_taps(load_library()) is None:
        pytest.skip("this build of llama.cpp has no layer taps")


@pytest.fixture(scope="module")
def drafter(taps_are_there: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("drafter") / "small.gguf", CONFIG, weights())


@pytest.fixture(scope="module")
def engine(smollm2: str, drafter: Path) -> Iterator[LlamaCppEngine]:
    opened = open_engine(smollm2, f"dflash:{drafter}")
    yield opened
    opened.close()
    opened.close()


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        engine: LlamaCppEngine = request.getfixturevalue("engine")
        for seq in range(4):
            engine.drop(seq)


@pytest.fixture(scope="module")
def loaded(engine: LlamaCppEngine) -> Callable[[str, Path], None]:
    """Loads a drafter for the target that is there already."""
    options = RuntimeOptions.parse({"n_ctx": 256, "max_sequences": 4})
    return lambda kind, path: open_drafter(engine._loaded, DraftMode(kind, str(path)), options).close()


def weights(config: dict[str, Any] = CONFIG) -> dict[str, Any]:
    """Random ones that speak up against embeddings as small as this target's."""
    found = random_weights(config)
    return {name: array / 4 if array.ndim > 1 else array for name, array in found.items()}


def open_engine(model: str, draft: str) -> LlamaCppEngine:
    path = resolve(model).path
    assert path is not None
    return LlamaCppEngine(path, model, RuntimeOptions.parse({"n_ctx": 256, "max_sequences": 4, "draft": draft}))


def expected(engine: LlamaCppEngine) -> np.ndarray:
    """Logits of the slots behind TOKENS and ANCHOR, by hand, from the outputs of the tapped layers."""
    reference = Reference(CONFIG, weights(), embedding())
    return reference.logits(layer_outputs(engine, TOKENS), ANCHOR)


@cache
def embedding() -> np.ndarray:
    path = resolve("smollm2").path
    (table,) = [t for t in gguf.GGUFReader(path).tensors if t.name == "token_embd.weight"]
    return gguf.dequantize(table.data, table.tensor_type).astype(np.float64)


def layer_outputs(engine: LlamaCppEngine, tokens: list[int]) -> list[np.ndarray]:
    """What the tapped layers gave for a prompt, read from the context itself."""
    engine.forward([Span(3, 0, tokens, "none")])
    main = engine._main
    outputs = [
        np.ctypeslib.as_array(
            main.drafter._symbols.get_layer_input(main._context, tap + 1), shape=(len(tokens), HIDDEN)
        ).astype(np.float64)
        for tap in TAPS
    ]
    engine.drop(3)
    return outputs


def logits(engine: LlamaCppEngine, seq: int) -> np.ndarray:
    return engine._main.drafter.logits(seq, ANCHOR).copy()


def test_the_first_layers_input_is_the_embedding(engine: LlamaCppEngine) -> None:
    symbols, context = engine._main.drafter._symbols, engine._main._context
    symbols.set_layer_input(context, 0, True)
    engine.forward([Span(0, 0, TOKENS, "none")])
    rows = np.ctypeslib.as_array(symbols.get_layer_input(context, 0), shape=(40, HIDDEN))
    np.testing.assert_allclose(rows, embedding()[TOKENS], atol=1e-6)
    symbols.set_layer_input(context, 0, False)


def test_a_guess_is_the_one_computed_by_hand(engine: LlamaCppEngine) -> None:
    assert isinstance(engine, BlockDrafts)
    assert engine.block_size == 5
    wanted = expected(engine)
    engine.forward([Span(1, 0, TOKENS[:9], "none"), Span(0, 0, TOKENS, "last")])
    found = logits(engine, 0)
    np.testing.assert_allclose(found, wanted, atol=CLOSE)
    assert engine.draft_block(0, ANCHOR) == [int(best) for best in found[1:].argmax(axis=-1)]
    np.testing.assert_array_equal(logits(engine, 0), found)  # a draft leaves nothing behind
    assert engine.knows_features(0)
    other = expected_without_context(engine)
    assert np.abs(other - wanted).max() > 4 * CLOSE  # so the context is what was compared


def expected_without_context(engine: LlamaCppEngine) -> np.ndarray:
    reference = Reference(CONFIG, weights(), embedding())
    return reference.logits([np.zeros((40, HIDDEN))] * 3, ANCHOR)


def test_dspark_fills_all_slots_from_left_to_right(smollm2: str, taps_are_there: None, tmp_path: Path) -> None:
    """The Markov head says 1000 more than the token before it, whatever the slots say."""
    one, two = np.zeros((VOCAB, 16), "f4"), np.zeros((VOCAB, 16), "f4")
    code = np.random.default_rng(5).choice([-1, 1], (8, 16))  # a code word for each token of the chain
    for place in range(7):
        one[ANCHOR + 1000 * place] = code[place]
        two[ANCHOR + 1000 * (place + 1)] = 30 * code[place]
    heads = {"markov_w1.weight": one, "markov_w2.weight": two}
    engine = open_engine(smollm2, f"dspark:{write_gguf(tmp_path / 'dspark.gguf', CONFIG, weights(), **heads)}")
    engine.forward([Span(0, 0, TOKENS, "none")])
    assert engine.block_size == 6
    assert engine.draft_block(0, ANCHOR) == [ANCHOR + 1000 * place for place in range(1, 7)]
    assert engine.capabilities.mode("draft dspark").recommended
    engine.close()


def test_pieces_cuts_and_forks_leave_the_right_features(engine: LlamaCppEngine) -> None:
    wanted = expected(engine)
    for start in range(0, 28, 7):
        engine.forward([Span(0, start, TOKENS[start : start + 7], "none")])
    engine.forward([Span(0, 28, [9, 8, 7, 6], "all")])
    engine.trim(0, 28)
    engine.fork(0, 1, 21)
    engine.forward([Span(0, 28, TOKENS[28:], "none"), Span(1, 21, TOKENS[21:], "none")])
    for seq in (0, 1):
        np.testing.assert_allclose(logits(engine, seq), wanted, atol=CLOSE)


def test_a_restored_sequence_sits_out(engine: LlamaCppEngine) -> None:
    engine.forward([Span(0, 0, TOKENS, "none")])
    data = bytes(engine.snapshot(0))
    engine.restore(1, data, 40)
    engine.forward([Span(1, 40, [5], "none")])
    assert engine.knows_features(0)
    assert not engine.knows_features(1)


def test_answers_stay_the_same(smollm2: str, drafter: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Say where the clerk seals the barrel."}]
    with Runtime(smollm2, n_ctx=256, draft=f"dflash:{drafter}", store=tmp_path) as rt:
        rt._backend.worker.call(lambda _: always_drafts(rt))
        drafted = rt.chat(messages, max_tokens=24, temperature=0)
        plain = rt.chat(messages, max_tokens=24, temperature=0, draft="off")
        rt.pin(messages, name="kept")
    assert drafted.text == plain.text
    assert drafted.draft.effective == "dflash"
    assert drafted.draft.accepted < drafted.draft.drafted
    with Runtime(smollm2, n_ctx=256, draft=f"dflash:{drafter}", store=tmp_path) as again:
        again._backend.worker.call(lambda _: always_drafts(again))
        restored = again.chat(messages, max_tokens=8, temperature=0)
    assert restored.cache.hit_kind == "disk"
    assert restored.draft.effective == "off"
    assert "restored without" in restored.draft.reason


def always_drafts(rt: Runtime) -> None:
    drafting = rt._backend.worker._drafting
    drafting._trial = None
    drafting._arbiter.costs = ForwardCosts("cpu", dict.fromkeys(POINTS, 10.0))
    drafting._arbiter.acceptance.count = lambda *_, **__: None
    drafting.learn = lambda *_: None


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "hidden": ({"hidden_size": 288}, "hidden size is 288, the model's 576"),
    "vocabulary": ({"vocab_size": 300}, "300 tokens, the model's 49152"),
    "taps": ({"target_layer_ids": [1, 40]}, r"layers \[41\], the last one is 29"),
    "mask": ({"mask_token_id": 49_152}, "mask is token 49152"),
    "block": ({"block_size": 1}, "block has 1 slots"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_drafter_for_another_target_is_refused_by_name(
    name: str, loaded: Callable[[str, Path], None], tmp_path: Path
) -> None:
    changes, text = WRONG[name]
    config = {**CONFIG, "dflash_config": {**CONFIG["dflash_config"]}}
    for key, value in changes.items():
        (config["dflash_config"] if key in config["dflash_config"] else config)[key] = value
    with pytest.raises(UnsupportedModeError, match=text):
        loaded("dflash", write_gguf(tmp_path / "small.gguf", config, weights(config)))


def test_other_heads_files_and_modes_are_refused_by_name(
    loaded: Callable[[str, Path], None], smollm2: str, drafter: Path, tmp_path: Path
) -> None:
    markov = {"markov_w1.weight": np.zeros((VOCAB, 8), "f4"), "markov_w2.weight": np.zeros((VOCAB, 8), "f4")}
    other = write_gguf(tmp_path / "dspark.gguf", CONFIG, weights(), **markov)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(drafter.read_bytes()[:5000])
    target = resolve(smollm2).path
    assert target is not None
    refused: list[tuple[str, Path, type[Exception], str]] = [
        ("dflash", other, UnsupportedModeError, "is a dspark drafter"),
        ("dspark", drafter, UnsupportedModeError, "is a dflash drafter"),
        ("dflash", target, UnsupportedModeError, "is no DFlash or DSpark drafter"),
        ("dflash", tmp_path, UnsupportedModeError, "is a folder"),
        ("dflash", tmp_path / "nowhere.gguf", ModelNotFoundError, "no model file"),
        ("dflash", cut, ModelFormatError, "cut"),
    ]
    for kind, path, error, text in refused:
        with pytest.raises(error, match=text):
            loaded(kind, path)


def test_a_build_without_taps_says_so(smollm2: str, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinfold.engines.llama_cpp.block_loading.find_taps", lambda _: None)
    with pytest.raises(UnsupportedModeError, match="built without layer taps"):
        open_engine(smollm2, f"dflash:{drafter}")


def test_symbols_that_are_missing_are_noticed(monkeypatch: pytest.MonkeyPatch, taps_are_there: None) -> None:
    lib = load_library()
    assert isinstance(find_taps(lib), TapSymbols)
    monkeypatch.setattr(lib.llama_cpp, "_lib", object())
    assert find_taps(lib) is None
