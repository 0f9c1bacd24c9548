"""Block drafters on MLX: guesses as computed by hand, and kept with the sequence through all that it goes through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinfold.engines.base import BlockDrafts, Span
from pinfold.engines.mlx.engine import MlxEngine
from pinfold.errors import ModelFormatError, ModelNotFoundError, UnsupportedModeError
from pinfold.options import RuntimeOptions
from tests.support.block_drafters import Reference, config_of, random_weights, write_drafter

TOKENS = [(31 * i * i + 7 * i) % 250 for i in range(40)]
ANCHOR = 77
SLIDING = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 9}
KINDS: dict[str, dict[str, Any]] = {
    "dflash": config_of("dflash"),
    "dflash, sliding": config_of("dflash", **SLIDING),
    "dflash, causal": config_of("dflash", is_causal=True),
    "dflash, sliding, not causal": config_of("dflash", is_causal=False, **SLIDING),
    "dflash 2": config_of("dflash2"),
    "dspark": config_of("dspark"),
    "dspark, gated": config_of("dspark", markov_head_type="gated"),
}


@pytest.fixture(scope="module")
def target(random_mlx: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.mlx_folders import random_folder

    random_mlx("llama")  # skips where mlx is missing
    return random_folder("llama", tmp_path_factory.mktemp("target"), num_hidden_layers=4)


def open_engine(target: Path, draft: str) -> MlxEngine:
    options = {"n_ctx": 256, "max_sequences": 4, "kv_resident": "f32", "draft": draft}
    return MlxEngine(target, target.name, RuntimeOptions.parse(options))


def mode_of(config: dict[str, Any], folder: Path) -> str:
    return f"{'dspark' if 'markov_rank' in config else 'dflash'}:{folder}"


@pytest.fixture(scope="module", params=KINDS)
def case(
    request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MlxEngine, Reference]]:
    config = KINDS[request.param]
    weights = random_weights(config)
    folder = write_drafter(tmp_path_factory.mktemp("drafter") / "small", config, weights)
    engine = open_engine(target, mode_of(config, folder))
    yield engine, Reference(config, weights, embedding(target))
    engine.close()


@pytest.fixture
def engine(case: tuple[MlxEngine, Reference]) -> Iterator[MlxEngine]:
    yield case[0]
    for seq in range(4):
        case[0].drop(seq)


@pytest.fixture
def expected(case: tuple[MlxEngine, Reference], target: Path) -> list[int]:
    """What the drafter should guess after TOKENS and ANCHOR, from the target's layers run one by one."""
    return case[1].guess(taps(target, TOKENS), ANCHOR)


def embedding(target: Path) -> np.ndarray:
    from mlx_lm.utils import load_model

    return np.array(load_model(target)[0].model.embed_tokens.weight)


def taps(target: Path, tokens: list[int]) -> list[np.ndarray]:
    import mlx.core as mx
    from mlx_lm.utils import load_model

    body, outputs = load_model(target)[0].model, []
    hidden = body.embed_tokens(mx.array([tokens]))
    for layer in body.layers:
        hidden = layer(hidden, "causal", None)
        outputs.append(np.array(hidden[0], dtype=np.float64))
    return [outputs[number] for number in (0, 2, 3)]


def test_a_guess_is_the_one_computed_by_hand(engine: MlxEngine, expected: list[int]) -> None:
    assert isinstance(engine, BlockDrafts)
    engine.forward([Span(0, 0, TOKENS)])
    assert engine.draft_block(0, ANCHOR) == expected
    assert len(expected) == engine.block_size
    assert engine.draft_block(0, ANCHOR) == expected  # a draft leaves nothing behind
    assert engine.length(0) == len(TOKENS)


def test_a_prompt_in_pieces_gives_the_same_guess(engine: MlxEngine, expected: list[int]) -> None:
    for start in range(0, 40, 7):
        engine.forward([Span(0, start, TOKENS[start : start + 7], "none")])
        engine.draft_block(0, 3)
    assert engine.draft_block(0, ANCHOR) == expected


def test_rows_that_are_cut_back_leave_no_features(engine: MlxEngine, expected: list[int]) -> None:
    engine.forward([Span(0, 0, TOKENS[:30])])
    engine.forward([Span(0, 30, [9, 8, 7, 6], "all")])
    engine.trim(0, 30)
    engine.forward([Span(0, 30, TOKENS[30:], "all")])
    assert engine.draft_block(0, ANCHOR) == expected


def test_forks_share_features(engine: MlxEngine, expected: list[int]) -> None:
    engine.forward([Span(0, 0, [*TOKENS[:25], 1, 2, 3])])
    engine.fork(0, 1, 25)
    engine.forward([Span(0, 28, [5])])
    engine.forward([Span(1, 25, TOKENS[25:])])
    assert engine.draft_block(1, ANCHOR) == expected


def test_a_snapshot_has_the_features_in_it(engine: MlxEngine, expected: list[int]) -> None:
    engine.forward([Span(0, 0, TOKENS[:33])])
    data = bytes(engine.snapshot(0))
    engine.restore(2, data, 33)
    engine.forward([Span(2, 33, TOKENS[33:])])
    assert engine.draft_block(2, ANCHOR) == expected


def test_answers_are_those_without_a_drafter(
    case: tuple[MlxEngine, Reference], engine: MlxEngine, target: Path
) -> None:
    plain = open_engine(target, "off")
    (alone,), (joined,) = (e.forward([Span(0, 0, TOKENS, "all")]) for e in (plain, engine))
    assert alone is not None
    assert joined is not None
    np.testing.assert_array_equal(alone, joined)
    assert plain.capabilities.fingerprint != engine.capabilities.fingerprint
    assert plain.capabilities.bytes_per_token < engine.capabilities.bytes_per_token
    assert plain.block_size == 0
    plain.close()


def test_little_confidence_ends_a_guess(target: Path, tmp_path: Path) -> None:
    config = config_of("dspark", enable_confidence_head=True, confidence_head_with_markov=True)
    weights = random_weights(config)
    weights["confidence_head.proj.weight"][:] = 0
    lengths = []
    for number, bias in enumerate((3.0, -3.0)):
        weights["confidence_head.proj.bias"][:] = bias
        engine = open_engine(target, f"dspark:{write_drafter(tmp_path / str(number), config, weights)}")
        engine.forward([Span(0, 0, TOKENS)])
        lengths.append(len(engine.draft_block(0, ANCHOR)))
        engine.close()
    assert lengths == [6, 0]


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "hidden": (config_of("dflash", hidden_size=32), UnsupportedModeError, "hidden size is 32, the model's 64"),
    "layers": (config_of("dflash", num_target_layers=36), UnsupportedModeError, "36 layers, the model has 4"),
    "taps": (config_of("dflash", target_layer_ids=[1, 9]), UnsupportedModeError, r"layers \[9\], the last one is 3"),
    "vocabulary": (config_of("dflash", vocab_size=151936), UnsupportedModeError, "151936 tokens, the model's 300"),
    "mask": (config_of("dflash", mask_token_id=300), UnsupportedModeError, "mask is token 300"),
    "block": (config_of("dflash", block_size=1), ModelFormatError, "block_size is 1"),
    "no taps": (config_of("dflash", target_layer_ids=[]), ModelFormatError, "target_layer_ids"),
    "windows": (config_of("dflash", layer_types=["sliding_attention"] * 2), ModelFormatError, "sliding_window"),
    "kind": (config_of("dspark"), UnsupportedModeError, "draft='dspark:PATH'"),
    "architecture": (config_of("dflash", model_type="gemma4"), UnsupportedModeError, "gemma4"),
    "quantized": (config_of("dflash", quantization={"bits": 4}), UnsupportedModeError, "quantized"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_drafter_for_another_target_is_refused_by_name(name: str, target: Path, tmp_path: Path) -> None:
    config, error, text = WRONG[name]
    folder = write_drafter(tmp_path / "small", config, random_weights(config_of("dflash")))
    with pytest.raises(error, match=text):
        open_engine(target, f"dflash:{folder}")


def test_a_drafter_that_is_damaged_or_missing_is_refused(target: Path, tmp_path: Path) -> None:
    config = config_of("dflash")
    weights = random_weights(config)
    lacking = {name: array for name, array in weights.items() if name != "fc.weight"}
    odd = {**weights, "d2t": np.zeros(3, "f4")}
    short = {**weights, "norm.weight": np.ones(5, "f4")}
    for number, (changed, text) in enumerate(((lacking, "lacks fc.weight"), (odd, "has d2t"), (short, "norm.weight"))):
        folder = write_drafter(tmp_path / str(number), config, changed)
        with pytest.raises(ModelFormatError, match=text):
            open_engine(target, f"dflash:{folder}")
    with pytest.raises(ModelNotFoundError, match="no such folder"):
        open_engine(target, f"dflash:{tmp_path / 'nowhere'}")
    with pytest.raises(UnsupportedModeError, match="no DSpark checkpoint"):
        open_engine(target, f"dspark:{write_drafter(tmp_path / 'whole', config, weights)}")


def test_a_target_without_a_table_of_embeddings_is_refused(random_mlx: Callable[[str], Path], tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "small", config_of("dflash"), random_weights(config_of("dflash")))
    with pytest.raises(UnsupportedModeError, match="no table of embeddings"):
        open_engine(random_mlx("mamba2"), f"dflash:{folder}")
