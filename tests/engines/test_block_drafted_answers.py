"""A Runtime with a block drafter: its answers are the plain ones, whatever the drafter says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinfold import Completion, Runtime
from pinfold.decoding.costs import POINTS, ForwardCosts
from pinfold.errors import UnsupportedModeError
from tests.support.block_drafters import HIDDEN, VOCAB, config_of, random_weights, write_drafter

MESSAGES = [{"role": "user", "content": "Seal the barrel at the north gate."}]
OPTIONS: dict[str, Any] = {"n_ctx": 256, "store": "off", "kv_resident": "f32"}
MASK = 299


def always_drafts(rt: Runtime) -> None:
    """Guesses count as right and rows cost nothing, so that what this machine does meanwhile has no say."""

    def change(_: object) -> None:
        drafting = rt._backend.worker._drafting
        drafting._trial = None
        drafting._arbiter.costs = ForwardCosts("cpu", dict.fromkeys(POINTS, 10.0))
        drafting._arbiter.acceptance.count = lambda *_, **__: None
        drafting.learn = lambda *_: None

    rt._backend.worker.call(change)


def still(weights: dict[str, Any], outputs: str = "o_proj down_proj") -> None:
    """Layers that change nothing: what comes in goes out."""
    for name, array in weights.items():
        if any(f"{output}.weight" in name for output in outputs.split()):
            weights[name] = array * 0


def follower(token: int) -> int:
    """What the chain says after a token."""
    return (token + 7) % 256


def chain(weights: dict[str, Any]) -> None:
    """A target whose next token follows from the last one alone."""
    import mlx.core as mx

    still(weights)
    table = np.array(weights["model.embed_tokens.weight"])
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    head = np.zeros((VOCAB, HIDDEN), "f4")
    for token in range(256):
        head[follower(token)] = table[token]
    weights |= {"model.embed_tokens.weight": mx.array(table), "lm_head.weight": mx.array(head)}


def monotone(weights: dict[str, Any]) -> None:
    """A target that says one token for ever, and not from the first layer on: only its head knows which."""
    import mlx.core as mx

    still(weights)
    table, head = np.array(weights["model.embed_tokens.weight"]), np.zeros((VOCAB, HIDDEN), "f4")
    table[:, 0], head[65, 0] = 8.0, 9.0
    weights |= {"model.embed_tokens.weight": mx.array(table), "lm_head.weight": mx.array(head)}


def dspark_oracle() -> tuple[dict[str, Any], dict[str, Any]]:
    """The Markov head knows the chain."""
    config = config_of("dspark", markov_rank=VOCAB)
    weights = random_weights(config)
    still(weights)
    weights["markov_head.markov_w1.weight"] = np.eye(VOCAB, dtype="f4")
    weights["markov_head.markov_w2.weight"] = 500 * followers()
    return config, weights


def dflash2_oracle(mask: np.ndarray) -> tuple[dict[str, Any], dict[str, Any]]:
    """The selector knows the chain: every slot holds the `mask`'s embedding, which wants all of it."""
    config = config_of("dflash2")
    config["dflash_config"] |= {"selector_rank": VOCAB, "selector_top_k": VOCAB}
    weights = random_weights(config)
    still(weights, "o_proj down_proj kernel_projection")
    weights["norm.weight"][:] = 1
    weights["candidate_selector.hidden_projection.weight"] = np.tile(100 * mask, (VOCAB, 1)).astype("f4")
    weights["candidate_selector.predecessor_codebook"] = np.eye(VOCAB, dtype="f4")
    weights["candidate_selector.successor_codebook"] = followers()
    return config, weights


def dflash_oracle() -> tuple[dict[str, Any], dict[str, Any]]:
    """It leaves the slots alone, and the target's head says the rest."""
    config = config_of("dflash")
    weights = random_weights(config)
    still(weights)
    weights["norm.weight"][:] = 1
    return config, weights


def followers() -> np.ndarray:
    """[token, the one before it], 1 where one follows the other."""
    after = np.zeros((VOCAB, VOCAB), "f4")
    for token in range(256):
        after[follower(token), token] = 1
    return after


@pytest.fixture(scope="module")
def folders(random_mlx: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Targets by name: random, the chain, and the monotone one."""
    random_mlx("llama")  # skips where mlx is missing
    from tests.support.mlx_folders import random_folder

    def folder(edit: Callable[[dict[str, Any]], None], **changes: Any) -> Path:
        root = tmp_path_factory.mktemp("target")
        return random_folder("llama", root, edit, num_hidden_layers=4, **changes)

    return {
        "random": folder(lambda _: None),
        "chain": folder(chain, tie_word_embeddings=False),
        "monotone": folder(monotone, tie_word_embeddings=False),
    }


def table_of(folder: Path) -> np.ndarray:
    import mlx.core as mx

    return np.array(mx.load(str(folder / "model.safetensors"))["model.embed_tokens.weight"])


@pytest.fixture
def opened() -> Iterator[Callable[..., Runtime]]:
    runtimes: list[Runtime] = []

    def open_runtime(folder: Path, draft: str, **options: Any) -> Runtime:
        runtimes.append(Runtime(folder, draft=draft, **OPTIONS | options))
        return runtimes[-1]

    yield open_runtime
    for rt in runtimes:
        rt.close()


def plain_and_drafted(rt: Runtime, **options: Any) -> tuple[Completion, Completion]:
    always_drafts(rt)
    options = {"max_tokens": 40, "temperature": 0, **options}
    drafted = rt.chat(MESSAGES, **options)
    return rt.chat(MESSAGES, draft="off", **options), drafted


@pytest.mark.parametrize("name", ["dspark", "dflash2", "dflash"])
def test_an_oracle_is_always_right(
    name: str, folders: dict[str, Path], opened: Callable[..., Runtime], tmp_path: Path
) -> None:
    target = folders["monotone" if name == "dflash" else "chain"]
    made = {
        "dspark": dspark_oracle,
        "dflash2": lambda: dflash2_oracle(table_of(target)[MASK]),
        "dflash": dflash_oracle,
    }
    kind = "dspark" if name == "dspark" else "dflash"
    rt = opened(target, f"{kind}:{write_drafter(tmp_path / 'small', *made[name]())}")
    plain, drafted = plain_and_drafted(rt)
    assert drafted.text == plain.text
    assert drafted.usage.completion_tokens == 40
    assert drafted.draft.effective == kind
    assert drafted.draft.accepted == drafted.draft.drafted
    block = 6 if kind == "dspark" else 5
    assert drafted.draft.rounds == -(-39 // (block + 1))  # the first token comes with the prompt
    assert plain.draft.effective == "off"


@pytest.mark.parametrize("name", ["dflash", "dflash2", "dspark"])
def test_a_drafter_that_is_wrong_changes_nothing(
    name: str, folders: dict[str, Path], opened: Callable[..., Runtime], tmp_path: Path
) -> None:
    config = config_of(name)
    kind = "dspark" if name == "dspark" else "dflash"
    rt = opened(folders["random"], f"{kind}:{write_drafter(tmp_path / 'small', config, random_weights(config))}")
    plain, drafted = plain_and_drafted(rt)
    assert drafted.text == plain.text
    assert drafted.draft.rounds > 5
    assert drafted.draft.accepted < drafted.draft.drafted
    sampled = plain_and_drafted(rt, temperature=0.9, seed=5)
    assert sampled[0].text == sampled[1].text


def test_a_session_from_disk_drafts_on(
    folders: dict[str, Path], opened: Callable[..., Runtime], tmp_path: Path
) -> None:
    draft = f"dspark:{write_drafter(tmp_path / 'small', *dspark_oracle())}"
    first = opened(folders["chain"], draft, store=tmp_path / "store")
    pin = first.pin(MESSAGES, name="kept")
    first.close()
    second = opened(folders["chain"], draft, store=tmp_path / "store")
    always_drafts(second)
    done = second.chat(MESSAGES, max_tokens=30, temperature=0)
    assert done.cache.hit_kind == "disk"
    assert done.usage.cached_tokens == pin.tokens - 1
    assert done.draft.drafted == done.draft.accepted > 0


def test_a_target_of_packed_cells_is_drafted_for(
    random_mlx: Callable[[str], Path], opened: Callable[..., Runtime], tmp_path: Path
) -> None:
    from tests.support.mlx_folders import random_folder

    random_mlx("llama_64")  # skips where mlx is missing
    (tmp_path / "target").mkdir()
    target = random_folder("llama_64", tmp_path / "target", chain, num_hidden_layers=4, tie_word_embeddings=False)
    draft = f"dspark:{write_drafter(tmp_path / 'small', *dspark_oracle())}"
    rt = opened(target, draft, kv_resident="q8/q4")
    plain, drafted = plain_and_drafted(rt, max_tokens=160)
    assert (drafted.text, drafted.usage.completion_tokens) == (plain.text, 160)
    assert drafted.draft.accepted == drafted.draft.drafted > 100
    modes = {mode.name: mode for mode in rt.capabilities.modes}
    assert modes["kv_resident quantized"].usable
    assert "a drafter" in modes["batch"].reason


def test_wrong_guesses_leave_packed_cells_as_they_were(
    random_mlx: Callable[[str], Path], opened: Callable[..., Runtime], tmp_path: Path
) -> None:
    config = config_of("dspark", num_target_layers=2, target_layer_ids=[0, 1])
    folder = write_drafter(tmp_path / "small", config, random_weights(config))
    answers = []
    for draft in (f"dspark:{folder}", "off"):  # each computes its prompt itself: what is shared was packed earlier
        rt = opened(random_mlx("llama_64"), draft, kv_resident="q8/q4")
        if draft != "off":
            always_drafts(rt)
        answers.append(rt.chat(MESSAGES, max_tokens=160, temperature=0))
    assert answers[0].text == answers[1].text
    assert answers[0].draft.accepted < answers[0].draft.drafted


def test_a_request_may_name_the_drafter_that_is_there(
    folders: dict[str, Path], opened: Callable[..., Runtime], tmp_path: Path
) -> None:
    rt = opened(folders["chain"], f"dspark:{write_drafter(tmp_path / 'small', *dspark_oracle())}")
    always_drafts(rt)
    assert rt.chat(MESSAGES, draft="dspark", max_tokens=9, temperature=0).draft.effective == "dspark"
    assert "dspark" in rt.chat(MESSAGES, draft="auto", max_tokens=9, temperature=0).draft.effective
    with pytest.raises(UnsupportedModeError, match="dflash"):
        rt.chat(MESSAGES, draft="dflash", max_tokens=9)


@pytest.mark.parametrize("name", ["qwen3_next", "falcon_h1"])
def test_a_recurrent_state_goes_back_to_where_it_was(
    name: str, random_mlx: Callable[[str], Path], opened: Callable[..., Runtime], tmp_path: Path
) -> None:
    layers = 4 if name == "qwen3_next" else 2
    config = config_of("dflash", num_target_layers=layers, target_layer_ids=[0, layers - 1])
    folder = write_drafter(tmp_path / "small", config, random_weights(config))
    rt = opened(random_mlx(name), f"dflash:{folder}")
    plain, drafted = plain_and_drafted(rt)
    assert drafted.text == plain.text
    assert drafted.draft.rounds > 5
    assert drafted.draft.accepted < drafted.draft.drafted


@pytest.mark.parametrize("draft", ["dflash:x", "dspark:x"])
def test_an_engine_without_such_drafters_says_so(draft: str) -> None:
    with pytest.raises(UnsupportedModeError, match="the scripted engine runs no d"):
        Runtime("scripted", draft=draft)
