"""Tokens of reasoning, counted at any cutting of the answer into tokens."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.output.reasoning import CHANNELS, THINK, LeadingReasoning, ReasoningMarks, ReasoningMeter

TEXT = st.text("ab<>/thinkend|\n ", max_size=20)


@st.composite
def answers(draw: st.DrawFn, marks: ReasoningMarks) -> tuple[list[str], int]:
    """Pieces of an answer with one block and the number of those that the block has a part in."""
    thought = draw(TEXT.filter(lambda text: marks.closing not in text + marks.closing[:-1]))
    block = marks.opening + thought + marks.closing
    whole = block + draw(TEXT)
    cuts = sorted(draw(st.sets(st.integers(1, len(whole) - 1), max_size=len(whole))))
    spans = list(itertools.pairwise([0, *cuts, len(whole)]))
    return [whole[a:b] for a, b in spans], sum(a < len(block) for a, _ in spans)


def count(marks: ReasoningMarks, pieces: list[str], *, is_open: bool = False) -> int:
    meter = ReasoningMeter(LeadingReasoning(marks, is_open))
    for piece in pieces:
        meter.feed(piece)
    assert not meter.is_open
    return meter.tokens


@settings(max_examples=200, deadline=None)
@given(answers(THINK), answers(CHANNELS))
def test_every_token_of_a_block_counts_and_no_other(
    think: tuple[list[str], int], channel: tuple[list[str], int]
) -> None:
    assert count(THINK, think[0]) == think[1]
    assert count(CHANNELS, channel[0]) == channel[1]


def test_blocks_may_come_again_in_channels_only() -> None:
    first = ["<|channel|>", "analysis", "<|message|>", "a", "b", "<|end|>", "<|start|>", "assistant"]
    assert count(CHANNELS, [*first, *first, "<|channel|>", "final"]) == 12
    assert count(THINK, ["<think>", "a", "</think>", "<think>", "a", "</think>"]) == 3
    assert count(THINK, ["a", "</think>", "b"], is_open=True) == 2
    assert count(THINK, ["\n", "<th", "ink>", "</think>", "b"]) == 4
    assert count(THINK, ["a", "<think>", "b", "</think>"]) == 0
