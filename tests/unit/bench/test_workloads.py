"""The workloads are what they say: distinct, within their context, and forced where they are to be."""

from __future__ import annotations

from pinfold import Runtime, Script
from pinfold.bench.texts import MODULE, other_module
from pinfold.bench.workloads import WORKLOADS


def test_names_and_first_messages_are_distinct() -> None:
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS) == 6
    texts = [turn.messages[-1]["content"] for workload in WORKLOADS for turn in workload.turns]
    assert len(set(texts)) == len(texts)


def test_tool_calls_are_forced_and_the_rest_is_free() -> None:
    for workload in WORKLOADS:
        for turn in workload.turns:
            assert ("tools" in turn.options) == (workload.name == "tool calls")
            assert turn.options.get("tool_choice") == ("required" if turn.options else None)
            assert 100 <= turn.max_tokens <= 300


def test_the_edits_hold_the_file_that_is_edited() -> None:
    edits = [turn for workload in WORKLOADS if "edit" in workload.name for turn in workload.turns]
    assert len(edits) == 2
    assert all(MODULE in turn.messages[-1]["content"] for turn in edits)
    assert len({other_module(n) for n in range(40)}) == 40


def test_they_render() -> None:
    with Runtime(Script(), n_ctx=64) as rt:
        for workload in WORKLOADS:
            for turn in workload.turns:
                characters = rt.count_tokens(turn.messages, turn.options.get("tools"))
                assert 50 < characters < 4 * workload.n_ctx
