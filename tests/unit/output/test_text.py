from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.output.text import TextDecoder, open_mark


def decode(pieces: list[bytes]) -> str:
    decoder = TextDecoder()
    return "".join(decoder.feed(piece) for piece in pieces) + decoder.finish()


@pytest.mark.parametrize("text", ["plain", "é", "日本語", "👩‍👩‍👧 family", "a\u0000b"])
def test_byte_by_byte_gives_the_text(text: str) -> None:
    assert decode([bytes([b]) for b in text.encode()]) == text


def test_a_character_is_held_until_it_is_complete() -> None:
    decoder = TextDecoder()
    first, last = "é".encode()[:1], "é".encode()[1:]
    assert decoder.feed(first) == ""
    assert decoder.feed(last) == "é"
    assert decoder.finish() == ""


def test_a_cut_character_becomes_one_replacement() -> None:
    assert decode(["日".encode()[:2]]) == "\ufffd"


def test_after_finish_the_decoder_starts_afresh() -> None:
    decoder = TextDecoder()
    decoder.feed(b"\xe6")
    decoder.finish()
    assert decoder.feed(b"ok") == "ok"


@settings(deadline=None)
@given(st.binary(max_size=40), st.data())
def test_any_bytes_at_any_split_equal_the_whole(data: bytes, draw: st.DataObject) -> None:
    at = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=6)))
    edges = [0, *at, len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    assert decode(pieces) == data.decode("utf-8", errors="replace")


@pytest.mark.parametrize(
    ("text", "size"), [("abc<to", 3), ("<tool", 0), ("", 0), ("x<", 1), ("<tool_call>", 0), ("<<", 1), ("<tool_", 6)]
)
def test_open_mark_counts_what_may_begin_a_mark(text: str, size: int) -> None:
    mark = "<tool_call>" if text != "<tool" else "<think>"
    assert open_mark(text, mark) == size
