"""The sample texts on this Python: long enough, and of three sets that share nothing."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from pinfold.quality.texts import CALIBRATION, GATE, HELD_OUT, sample_texts

SETS = {"calibration": CALIBRATION, "gate": GATE, "held out": HELD_OUT}
# Characters of a token, at most: a model may be good at Python.
CHARACTERS = 5.5


def phrases(text: str) -> set[str]:
    """All runs of sixteen words."""
    words = re.findall(r"[A-Za-z]+", text.replace("\\n", " "))
    return {" ".join(words[i : i + 16]) for i in range(len(words) - 16)}


@pytest.mark.parametrize(("name", "tokens"), [("calibration", 1024), ("gate", 800), ("held out", 2256)])
def test_each_text_is_long_enough(name: str, tokens: int) -> None:
    for text in sample_texts(SETS[name]).values():
        assert len(text) > CHARACTERS * tokens


def test_no_source_stands_in_two_sets() -> None:
    for a, b in combinations(SETS.values(), 2):
        sources = [{(kind, name) for kind, *names in s.values() for name in names} for s in (a, b)]
        assert not sources[0] & sources[1]


@pytest.mark.parametrize(("a", "b"), list(combinations(SETS, 2)))
def test_the_sets_have_no_phrases_in_common(a: str, b: str) -> None:
    first, second = (set().union(*map(phrases, sample_texts(SETS[name]).values())) for name in (a, b))
    assert len(first & second) < 0.001 * min(len(first), len(second))


def test_the_kinds_are_those_of_agents() -> None:
    assert {kind for kind, *_ in HELD_OUT.values()} == {"code", "tools", "prose"}
    assert sample_texts({"x": HELD_OUT["tools"]})["x"].startswith('{"type": "function", "function": {"name": "shutil_')
