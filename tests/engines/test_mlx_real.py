"""The embedded model on MLX: the same answers, counts and reports as on llama.cpp, and the runtime around it unchanged.

Prompts are short: a CPU gives ten tokens a second.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pinfold import Runtime
from pinfold.engines.base import Span
from pinfold.engines.llama_cpp.engine import LlamaCppEngine
from pinfold.models import resolve
from pinfold.options import RuntimeOptions

PROMPTS = ("The capital of Spain is", "def add(a, b):\n    return")
SYSTEM = [{"role": "system", "content": "Be brief."}]
ASK = [*SYSTEM, {"role": "user", "content": "Capital of France?"}]
# llama.cpp rounds activations to 8 bits for these weights: one logit moves by as much as between two of its own cuts.
LARGEST, MEAN = 1.5, 0.4


@pytest.fixture(scope="module")
def rt(mlx_smollm2: Path) -> Iterator[Runtime]:
    with Runtime(mlx_smollm2, n_ctx=512, store="off") as opened:
        yield opened


@pytest.fixture(scope="module")
def llama_cpp(smollm2: str) -> Iterator[LlamaCppEngine]:
    path = resolve(smollm2).path
    assert path is not None
    engine = LlamaCppEngine(path, "smollm2", RuntimeOptions.parse({"n_ctx": 512}))
    yield engine
    engine.close()


def greedy(engine: LlamaCppEngine, tokens: list[int], count: int) -> tuple[list[int], np.ndarray]:
    """The next tokens and the logits that each was chosen from."""
    (logits,) = engine.forward([Span(0, 0, tokens)])
    said, rows = [], []
    for _ in range(count):
        assert logits is not None
        rows.append(logits[-1].copy())
        said.append(int(rows[-1].argmax()))
        (logits,) = engine.forward([Span(0, engine.length(0), [said[-1]])])
    engine.drop(0)
    return said, np.stack(rows)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_that_of_llama_cpp_up_to_ties(rt: Runtime, llama_cpp: LlamaCppEngine, prompt: str) -> None:
    tokens = llama_cpp.tokenizer.encode(prompt, bos=True)
    assert rt.tokenize(prompt) == llama_cpp.tokenizer.encode(prompt)
    said, expected = greedy(llama_cpp, tokens, 6)

    def follow(manager: object) -> np.ndarray:
        engine, seq = rt._backend.worker.engine, 60
        (logits,) = engine.forward([Span(seq, 0, [*tokens, *said[:-1]], "all")])
        engine.drop(seq)
        assert logits is not None
        return logits[len(tokens) - 1 :]

    found = rt._backend.worker.call(follow)
    assert np.abs(found - expected).mean() < MEAN
    apart = [float(row.max() - row[token]) for row, token in zip(found, said, strict=True)]
    assert max(apart) < LARGEST, apart
    assert sum(gap == 0 for gap in apart) >= len(said) - 1


def test_text_is_the_same_tokens_on_both(rt: Runtime, llama_cpp: LlamaCppEngine) -> None:
    mlx = rt._backend.worker.engine.tokenizer
    for text in ("Hello, world 2024", "naïve 東京 🦊", " \n\t  x", "<|im_start|>user", "it's   100%", ""):
        for special in (True, False):
            tokens = llama_cpp.tokenizer.encode(text, special=special)
            assert mlx.encode(text, special=special) == tokens
            assert [mlx.piece(t) for t in tokens] == [llama_cpp.tokenizer.piece(t) for t in tokens]
    assert mlx.end_tokens
    assert mlx.end_tokens <= llama_cpp.tokenizer.end_tokens


def test_a_pin_is_used_and_warm_equals_cold(rt: Runtime) -> None:
    cold = rt.chat(ASK, max_tokens=6, salt="apart")
    pin = rt.pin(SYSTEM, name="terse")
    warm = rt.chat(ASK, max_tokens=6)
    assert (cold.cache.hit_kind, warm.cache.hit_kind) == ("miss", "resident")
    assert warm.usage.cached_tokens == pin.tokens
    assert warm.usage.prompt_tokens == cold.usage.prompt_tokens
    assert "Paris" in cold.text
    assert warm.text == cold.text
    assert rt.chat(ASK, max_tokens=1).usage.cached_tokens == cold.usage.prompt_tokens - 1


def test_requests_at_once_are_each_answered(rt: Runtime) -> None:
    def ask(word: str) -> None:
        answers[word] = rt.complete(f"The capital of {word} is", max_tokens=2).text

    answers: dict[str, str] = {}
    threads = [threading.Thread(target=ask, args=(word,)) for word in ("Spain", "Italy", "France")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[w].strip(" .,") for w in ("Spain", "Italy", "France")] == ["Madrid", "Rome", "Paris"]


async def test_a_cancelled_prefill_stops_in_the_middle_of_a_forward(rt: Runtime) -> None:
    began = time.perf_counter()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rt.achat([{"role": "user", "content": "word " * 240}], max_tokens=4), 0.5)
    done = await rt.achat(ASK, max_tokens=6)
    assert "Paris" in done.text
    assert time.perf_counter() - began < 10  # the prefill takes 25 s


@pytest.mark.soak
def test_a_schema_is_kept_to(rt: Runtime) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    done = rt.chat([{"role": "user", "content": "n is 3"}], response_format=wanted, max_tokens=4)
    assert done.text.startswith('{"n":')


@pytest.mark.soak
def test_each_step_of_the_ladder(mlx_smollm2: Path) -> None:
    """Bytes and KL divergence of packed cells beside 8 bits for both."""
    import mlx.core as mx

    from pinfold.engines.mlx import packing
    from pinfold.engines.mlx.caches import Slot, open_caches, plan_caches
    from pinfold.engines.mlx.kv_types import LADDER, parse_kv_types
    from pinfold.engines.mlx.loading import load
    from pinfold.engines.mlx.rehearsal import rehearse

    loaded = load(mlx_smollm2, "smollm2", RuntimeOptions.parse({"n_ctx": 512}))
    slots = plan_caches(loaded.model)

    def opened(which: tuple[Slot, ...]) -> object:
        return open_caches(mx, which, mx.float16, lambda *_: None)

    shapes = rehearse(mx, loaded.model, lambda: opened(slots), loaded.tokenizer.n_vocab)
    text = loaded.tokenizer.encode("Ann's locker is 4821. Bob's is 7396. It rained all day. Ann's locker is 4821. Bob")
    found = {}
    for name in LADDER:
        plan = packing.plan_packing(mx, loaded.model, slots, shapes, parse_kv_types(name, "f16"))
        trial = packing.try_packing(mx, loaded.model, plan, text, lambda: opened(slots), lambda p=plan: opened(p.slots))
        packed = sum(layer.bytes_per_token for layer in plan.layers)
        found[name] = (trial.divergence, sum(layer.whole_bytes for layer in plan.layers) / packed)
    loaded.release()
    assert found["q8/q8"][0] < 0.001
    assert found["q8/q4"][0] < 0.01
    assert all(divergence < packing.MOST_DIVERGENCE for divergence, _ in found.values())
    assert found["q8/q4"][1] >= 2.4
    assert found[LADDER[-1]][1] >= 3.4


@pytest.mark.soak
def test_a_runtime_on_packed_cells(mlx_smollm2: Path, tmp_path: Path) -> None:
    with Runtime(mlx_smollm2, n_ctx=512, store=tmp_path, kv_resident="q8/q4") as first:
        first.pin(SYSTEM, name="terse")
        said = first.chat(ASK, max_tokens=6)
    assert "Paris" in said.text
    with Runtime(mlx_smollm2, n_ctx=512, store=tmp_path, kv_resident="q8/q4") as second:
        again = second.chat(ASK, max_tokens=6)
    assert (again.cache.hit_kind, again.text) == ("disk", said.text)


class TestRuntime:
    """On small random models, which answer at once."""

    def test_state_that_cannot_be_cut_is_reused_whole(self, random_mlx: Callable[[str], Path]) -> None:
        messages = [{"role": "system", "content": "Some words that are kept, and a few more of them."}]
        asked = [*messages, {"role": "user", "content": "go on"}]
        with Runtime(random_mlx("qwen3_next"), n_ctx=512, store="off") as rt:
            cold = rt.chat(asked, max_tokens=8, salt="apart")
            pin = rt.pin(messages, name="kept")
            for _ in range(2):
                warm = rt.chat(asked, max_tokens=8)
                assert warm.text == cold.text
                assert warm.usage.cached_tokens in (pin.tokens, cold.usage.prompt_tokens - 1)

    def test_a_session_is_there_after_a_restart_and_for_mlx_only(
        self, random_mlx: Callable[[str], Path], tmp_path: Path
    ) -> None:
        folder = random_mlx("llama")
        messages = [{"role": "system", "content": "Some words that are kept, and a few more of them."}]
        asked = [*messages, {"role": "user", "content": "go on"}]
        with Runtime(folder, n_ctx=512, store=tmp_path) as first:
            pin = first.pin(messages, name="kept")
            expected = first.chat(asked, max_tokens=8)
        with Runtime(folder, n_ctx=512, store=tmp_path) as second:
            found = second.chat(asked, max_tokens=8)
        assert (found.cache.hit_kind, found.text) == ("disk", expected.text)
        assert found.usage.cached_tokens == pin.tokens
        with Runtime("smollm2", n_ctx=512, store=tmp_path) as other:
            assert other.pins() == []
