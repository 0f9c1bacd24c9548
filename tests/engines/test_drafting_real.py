"""Draft-verify decoding on the embedded model: the same answers, fewer forwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold import Runtime
from pinfold.bench.workloads import WORKLOADS
from pinfold.decoding.costs import POINTS, ForwardCosts
from pinfold.decoding.drafters.model import check_vocabulary
from pinfold.engines.script import Script
from pinfold.engines.scripted import ScriptedEngine, ScriptedTokenizer
from pinfold.errors import ModelNotFoundError, UnsupportedModeError
from pinfold.options import RuntimeOptions
from tests.support.near_ties import assert_same_or_tie

COPY = WORKLOADS[0].turns[0].messages  # a file to be written out again, with one name changed
PROSE = [{"role": "user", "content": "Tell me a short story about a harbour in winter."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weigh_barrel",
        "parameters": {
            "type": "object",
            "properties": {"barrel_number": {"type": "integer"}, "gate_name": {"type": "string", "maxLength": 20}},
            "required": ["barrel_number", "gate_name"],
        },
    },
}
CALL = [{"role": "user", "content": "Weigh barrel 17 at the north gate."}]
OPTIONS: dict[str, Any] = {"n_ctx": 1024, "store": "off"}


@pytest.fixture(scope="module")
def rt(smollm2: str) -> Iterator[Runtime]:
    with Runtime(smollm2, **OPTIONS) as runtime:
        runtime._backend.worker.call(lambda _: count_on(runtime))
        yield runtime


def count_on(rt: Runtime) -> None:
    """Rows cost nothing, as far as the arbiter knows: what this machine is doing meanwhile has no say."""
    drafting = rt._backend.worker._drafting
    drafting._trial = None
    drafting._arbiter.costs = ForwardCosts("cpu", dict.fromkeys(POINTS, 0.01))
    drafting.learn = lambda *_: None


def same(rt: Runtime, messages: list[dict[str, Any]], **options: Any) -> tuple[Any, Any]:
    plain, drafted = (rt.chat(messages, draft=draft, **options) for draft in ("off", "auto"))
    prompt = list(rt._backend._prepare.chat(messages, {})._fields["tokens"])
    assert_same_or_tie(rt, prompt, plain.text, drafted.text)
    return plain, drafted


def test_a_copy_takes_fewer_forwards(rt: Runtime) -> None:
    plain, drafted = same(rt, COPY, max_tokens=90)
    assert plain.draft.effective == "off"
    assert plain.draft.reason == "it was asked for"
    assert drafted.draft.effective == "lookup"
    forwards = drafted.usage.completion_tokens - drafted.draft.accepted
    assert forwards < 0.6 * drafted.usage.completion_tokens  # how many of the free guesses miss is the processor's say
    assert drafted.draft.sources == {"lookup": {"drafted": drafted.draft.drafted, "accepted": drafted.draft.accepted}}


def test_prose_is_the_same(rt: Runtime) -> None:
    same(rt, PROSE, max_tokens=60)


def test_sampling_with_a_seed_goes_the_same_way(rt: Runtime) -> None:
    """A near-tie may tip a sample too, so the first words are compared."""
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.8, "seed": 11}
    plain, drafted = (rt.chat(COPY, draft=draft, **options) for draft in ("off", "lookup"))
    assert plain.text[:12] == drafted.text[:12]


def test_a_forced_call_is_the_same_and_its_frame_is_guessed(rt: Runtime) -> None:
    plain, drafted = (
        rt.chat(CALL, tools=[TOOL], tool_choice="required", max_tokens=80, draft=draft) for draft in ("off", "grammar")
    )
    assert [(c.name, c.arguments) for c in plain.tool_calls] == [(c.name, c.arguments) for c in drafted.tool_calls]
    assert drafted.draft.sources["grammar"]["accepted"] > 5
    assert drafted.draft.rounds > 0


def test_a_model_that_drafts_for_itself_is_nearly_always_right(smollm2: str) -> None:
    with Runtime(smollm2, draft=f"model:{smollm2}", **OPTIONS) as rt:
        rt._backend.worker.call(lambda _: (count_on(rt), make_it_pay(rt)))
        done = rt.chat(PROSE, max_tokens=40)
        assert done.draft.effective == "model"
        assert done.draft.accepted >= 0.85 * done.draft.drafted > 10
        plain = rt.chat(PROSE, max_tokens=40, draft="off")
        prompt = list(rt._backend._prepare.chat(PROSE, {})._fields["tokens"])
        assert_same_or_tie(rt, prompt, plain.text, done.text)


def make_it_pay(rt: Runtime) -> None:
    """A model of the same size never pays: its guesses are made to cost nothing."""
    model = rt._backend.worker._drafting._model  # type: ignore[union-attr]
    type(model).seconds_per_token = property(lambda _self: 1e-6, lambda _self, _value: None)  # type: ignore[union-attr]


def test_a_restored_session_drafts_as_well_as_a_fresh_one(smollm2: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_ctx": 1024, "store": tmp_path / "store", "kv": "exact"}
    with Runtime(smollm2, **options) as rt:
        rt._backend.worker.call(lambda _: count_on(rt))
        rt.session("copy").chat(COPY, max_tokens=2)
        fresh = rt.session("copy").chat(COPY, max_tokens=60)
    with Runtime(smollm2, **options) as rt:
        rt._backend.worker.call(lambda _: count_on(rt))
        back = rt.session("copy").chat(COPY, max_tokens=60)
        assert back.cache.hit_kind == "disk"
        assert back.draft.accepted > fresh.draft.accepted / 2 > 10


def test_another_vocabulary_is_refused() -> None:
    class OtherTokenizer(ScriptedTokenizer):
        def piece(self, token: int) -> bytes:
            return super().piece(token).upper()

    target, small = (ScriptedEngine(Script(), RuntimeOptions(n_ctx=64)) for _ in range(2))
    check_vocabulary(target, small)
    small.tokenizer = OtherTokenizer()
    with pytest.raises(UnsupportedModeError, match="cannot draft for scripted: token 97"):
        check_vocabulary(target, small)


def test_a_draft_model_that_is_not_there_is_refused_at_load(smollm2: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nothing\.gguf"):
        Runtime(smollm2, draft=f"model:{tmp_path / 'nothing.gguf'}", **OPTIONS)


def test_other_families_cannot_draft_for_each_other(smollm2: str, qwen05: Path) -> None:
    with pytest.raises(UnsupportedModeError, match="Use a smaller model of the same family"):
        Runtime(smollm2, draft=f"model:{qwen05}", **OPTIONS)
