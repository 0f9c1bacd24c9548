from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.output.stop import StopScanner


def scan(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    scanner, shown = StopScanner(stops), ""
    for piece in pieces:
        text, stopped = scanner.feed(piece)
        shown += text
        if stopped:
            return shown, True
    return shown + scanner.finish(), False


def reference(stops: list[str], text: str) -> tuple[str, bool]:
    """Reads character by character and stops at the first that completes a stop string; the longest such counts."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            return text[: end - max(map(len, done))], True
    return text, False


CASES = [
    (["END"], "all ENDED"),
    (["END"], "EEENEND"),
    (["\n\n", "\nUser:"], "hi\nUser: x"),
    (["aab"], "aaaab"),
    (["abcd", "bc"], "xabcd"),
    (["abc", "c"], "xabc"),
    (["abc", "bc", "c"], "aabc"),
    (["<|im_end|>"], "a <|im_en or <|im_end|> b"),
    (["never"], "nothing neve"),
    (["é日"], "éé日"),
]


@pytest.mark.parametrize(("stops", "text"), CASES)
def test_every_split_in_two_or_three_equals_the_whole(stops: list[str], text: str) -> None:
    whole = reference(stops, text)
    assert scan(stops, [text]) == whole
    assert scan(stops, list(text)) == whole
    for a, b in itertools.combinations(range(len(text) + 1), 2):
        assert scan(stops, [text[:a], text[a:b], text[b:]]) == whole


@settings(deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    st.lists(st.text("abc", max_size=4), max_size=8),
)
def test_any_stops_and_pieces_equal_the_slow_reference(stops: list[str], pieces: list[str]) -> None:
    assert scan(stops, pieces) == reference(stops, "".join(pieces))


@settings(deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3), st.text("ab", max_size=30))
def test_nothing_shown_is_ever_taken_back_and_no_stop_leaks(stops: list[str], text: str) -> None:
    shown, stopped = scan(stops, list(text))
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
    assert stopped == any(stop in text for stop in stops)


def test_text_is_released_by_the_character_that_rules_a_stop_out() -> None:
    scanner = StopScanner(["stop!"])
    assert scanner.feed("say st") == ("say ", False)
    assert scanner.feed("op") == ("", False)
    assert scanner.feed("s") == ("stop", False)  # the new "s" may begin another
    assert scanner.finish() == "s"


def test_after_a_stop_nothing_comes_out() -> None:
    scanner = StopScanner(["."])
    assert scanner.feed("one. two") == ("one", True)
    assert scanner.stopped
    assert scanner.feed("three") == ("", True)
    assert scanner.finish() == ""


def test_without_stops_a_piece_passes_as_it_is() -> None:
    scanner, piece = StopScanner([]), "any piece"
    shown, stopped = scanner.feed(piece)
    assert shown is piece
    assert not stopped
    assert scanner.finish() == ""
