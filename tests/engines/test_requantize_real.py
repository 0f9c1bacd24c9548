"""Sessions moved into cells of other types: as llama.cpp itself would have written them, and apart from the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinfold import Runtime
from pinfold.engines.base import Span
from pinfold.engines.llama_cpp.engine import LlamaCppEngine
from pinfold.errors import SessionNotFoundError, UnsupportedModeError
from pinfold.kv.snapshot import Section
from pinfold.models import resolve
from pinfold.options import RuntimeOptions
from tests.support.near_ties import assert_same_or_tie

TYPES = ("q8_0", "q8_0/q4_0", "q5_1", "bf16")
SYSTEM = {"role": "system", "content": "You keep the books of a harbour. Every barrel is counted twice. " * 8}
TASK = [{"role": "user", "content": "A barrel is missing. What do you do first?"}]
OPTIONS: dict[str, Any] = {"n_ctx": 1024, "kv": "exact", "store": "off"}


def open_engine(path: Path, kv_resident: str = "f16") -> LlamaCppEngine:
    return LlamaCppEngine(path, "model", RuntimeOptions(n_ctx=512, kv_resident=kv_resident, max_sequences=8))


@pytest.fixture(scope="module")
def path(smollm2: str) -> Path:
    found = resolve(smollm2).path
    assert found is not None
    return found


@pytest.mark.parametrize("types", TYPES)
def test_it_is_what_llama_cpp_would_have_written(path: Path, types: str) -> None:
    tokens = list(range(300, 380))
    engine, other = open_engine(path), open_engine(path, types)
    try:
        for each in (engine, other):
            each.forward([Span(0, 0, tokens, "last")])
        moved = engine.transcode(engine.snapshot(0), len(tokens), types)
        ours, theirs = (e.open_snapshot(data, len(tokens)) for e, data in ((engine, moved), (other, other.snapshot(0))))
        for one, two in zip(ours.sections, theirs.sections, strict=True):
            assert isinstance(one, Section)
            assert isinstance(two, Section)
            assert [p.kind for p in one.planes] == [p.kind for p in two.planes]
            for part in ("k", "v"):  # of the first layer, which saw the same: only roundings differ
                mine, its = (next(p.rows for p in s.planes if p.part == part) for s in (one, two))
                assert (mine == its).mean() > 0.9
        other.restore(1, moved, len(tokens))  # and it takes it
        expected = other.forward([Span(0, len(tokens), [42], "last")])[0]
        assert expected is not None
        expected = expected.copy()
        got = other.forward([Span(1, len(tokens), [42], "last")])[0]
        assert got is not None
        assert np.abs(got - expected).max() < 2.5
    finally:
        engine.close()
        other.close()


def test_sequences_in_several_cells_share_a_forward(path: Path) -> None:
    engine = open_engine(path)
    try:
        tokens = list(range(500, 560))
        engine.forward([Span(0, 0, tokens, "last")])
        engine.restore(1, engine.transcode(engine.snapshot(0), 60, "q8_0"), 60)
        assert (engine.kv_types(0), engine.kv_types(1)) == ("", "q8_0/q8_0")
        engine.fork(1, 2, 50)
        assert engine.kv_types(2) == "q8_0/q8_0"
        rows = engine.forward([Span(1, 60, [7], "last"), Span(0, 60, [7], "last"), Span(2, 50, [9], "none")])
        assert rows[2] is None
        assert rows[0] is not None
        assert rows[1] is not None
        assert 0 < np.abs(rows[0] - rows[1]).max() < 2.5
        assert [engine.length(seq) for seq in (0, 1, 2)] == [61, 61, 51]
        engine.trim(1, 30)
        for seq in (1, 2):
            engine.drop(seq)
        assert engine.kv_types(1) == ""
        assert engine.free_cells() == engine.capabilities.n_cells - 61  # the other context is gone
    finally:
        engine.close()


def test_a_session_changes_its_cells_and_goes_on(smollm2: str) -> None:
    with Runtime(smollm2, **OPTIONS) as rt:
        session = rt.session("task")
        first = session.chat([SYSTEM, *TASK], max_tokens=12)
        assert session.requantize("q8_0") == "q8_0/q8_0"
        talk = [SYSTEM, *TASK, {"role": "assistant", "content": first.text}, {"role": "user", "content": "And then?"}]
        second = session.chat(talk, max_tokens=8)
        assert second.usage.cached_tokens > 100
        assert second.cache.hit_kind == "resident"
        third = session.chat([*talk, {"role": "assistant", "content": second.text}, *TASK], max_tokens=4)
        assert third.usage.cached_tokens > second.usage.prompt_tokens - 16
        plain = rt.chat([SYSTEM, *TASK], max_tokens=12)  # another's request sees nothing of these cells
        assert plain.usage.cached_tokens == 0
        prompt = list(rt._backend._prepare.chat([SYSTEM, *TASK], {})._fields["tokens"])
        assert_same_or_tie(rt, prompt, first.text, plain.text)
        assert session.requantize("") == ""
        assert session.chat(talk, max_tokens=4).usage.cached_tokens > 100


def test_it_outlives_a_restart_in_the_runtimes_own_cells(smollm2: str, tmp_path: Path) -> None:
    options = {**OPTIONS, "store": tmp_path / "store"}
    with Runtime(smollm2, **options) as rt:
        session = rt.session("task")
        session.chat([SYSTEM, *TASK], max_tokens=4)
        session.requantize("q8_0/q4_0")
    with Runtime(smollm2, **options) as rt:
        done = rt.session("task").chat([SYSTEM, *TASK], max_tokens=4)
        assert done.cache.hit_kind == "disk"
        assert done.usage.cached_tokens > 100


def test_what_cannot_be_is_refused_by_name(smollm2: str) -> None:
    with Runtime(smollm2, **OPTIONS) as rt:
        session = rt.session("task")
        with pytest.raises(SessionNotFoundError, match="holds no KV now"):
            session.requantize("q8_0")
        session.chat([SYSTEM, *TASK], max_tokens=2)
        with pytest.raises(UnsupportedModeError, match="q3_9"):
            session.requantize("q3_9")
        assert session.chat([SYSTEM, *TASK], max_tokens=2).usage.cached_tokens > 100
