from __future__ import annotations

import itertools

import pytest

from pinfold.output.reasoning import ReasoningSplitter


def split(pieces: list[str], *, is_open: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(is_open=is_open)
    parts = [splitter.feed(piece) for piece in pieces]
    parts.append(splitter.finish())
    return "".join(text for text, _ in parts), "".join(reasoning for _, reasoning in parts)


CASES = [
    ("<think>\nwhy not\n</think>\n\nYes.", False, ("Yes.", "why not")),
    ("  <think>a</think>b", False, ("b", "a")),
    ("<think>\n\n</think>\n\nYes. ", False, ("Yes. ", "")),
    ("no block", False, ("no block", "")),
    (" \n<thin air", False, (" \n<thin air", "")),
    ("<th", False, ("<th", "")),
    ("\n ", False, ("\n ", "")),
    ("the tag <think>x</think> is text here", False, ("the tag <think>x</think> is text here", "")),
    ("<think>a</think>b <think>c</think>", False, ("b <think>c</think>", "a")),
    ("<think>never closed, a < b", False, ("", "never closed, a < b")),
    ("<think>a  \n b </thin", False, ("", "a  \n b </thin")),
    ("already open</think> text", True, ("text", "already open")),
    ("\n<think>said again</think>x", True, ("x", "<think>said again")),
    ("no end", True, ("", "no end")),
    ("</think>", True, ("", "")),
    ("lone </think> end", False, ("lone </think> end", "")),
]


@pytest.mark.parametrize(("text", "is_open", "expected"), CASES)
def test_every_split_equals_the_whole(text: str, is_open: bool, expected: tuple[str, str]) -> None:
    assert split([text], is_open=is_open) == expected
    assert split(list(text), is_open=is_open) == expected
    for a, b in itertools.combinations(range(len(text) + 1), 2):
        assert split([text[:a], text[a:b], text[b:]], is_open=is_open) == expected


def test_reasoning_streams_as_it_comes() -> None:
    splitter = ReasoningSplitter()
    assert splitter.feed("<think>\nfirst ") == ("", "first")
    assert splitter.feed("second") == ("", " second")
    assert splitter.feed("</think>\n") == ("", "")
    assert splitter.feed("text") == ("text", "")
