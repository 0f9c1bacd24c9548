"""The pin book: by name, by tokens, by time."""

from __future__ import annotations

from pinfold.sessions.pins import PinBook, PinRecord, digest_of


def record(name: str, tokens: list[int], salt: str | None = None, ttl: float | None = None) -> PinRecord:
    made = PinRecord(name, tokens, salt, ttl)
    made.begin(0.0)
    return made


def test_covering_and_nearest() -> None:
    book = PinBook()
    short, long, other = record("short", [1, 2]), record("long", [1, 2, 3, 4]), record("other", [9, 9])
    for pin in (short, long, other):
        book.add(pin)
    assert book.covering([1, 2, 3, 4, 5], None) == [short, long]
    assert book.covering([1, 2, 3], None) == [short]
    assert book.covering([1, 2, 3], "salt") == []
    assert book.nearest([1, 2, 3, 7], None) == (long, 3)
    assert book.nearest([5], None) == (long, 0)
    assert book.nearest([1, 2, 3, 7], "salt") is None
    assert book.exact([1, 2], None) is short
    assert book.exact([1], None) is None


def test_a_pin_without_ttl_never_ends() -> None:
    book = PinBook()
    book.add(record("p", [1]))
    assert book.expire(1e12) == []


def test_the_digest_depends_on_tokens_and_salt() -> None:
    digests = {digest_of([1, 2], None), digest_of([1, 2], ""), digest_of([1, 2], "None"), digest_of([2, 1], None)}
    assert len(digests) == 4
    assert digest_of([1, 2], "a") == digest_of((1, 2), "a")


def test_many_expired_names_are_not_remembered_for_ever() -> None:
    book = PinBook()
    for i in range(1000):
        book.add(record(f"p{i}", [i], ttl=1.0))
    book.expire(2.0)
    assert len(book._expired) == 256
