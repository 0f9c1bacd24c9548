"""Guesses from the prompt and the answer: against a search of everything, and what a step costs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.decoding.drafters.base import Guess
from pinfold.decoding.drafters.lookup import Lookup
from pinfold.decoding.drafters.runs import RunIndex, best_match

few_tokens = st.lists(st.integers(0, 3), max_size=60)


def brute_force(tokens: Sequence[int], places: int = 8, most: int = 32) -> int:
    """Where what follows the longest match begins, among the latest places; of equal ones the latest; 0 for none."""
    for size in (3, 2):
        found = [p for p in range(len(tokens) - 1, size - 1, -1) if tokens[p - size : p] == tokens[-size:]][:places]
        best, longest = 0, 0
        for place in found:
            matched = size
            while matched < min(place, most, len(tokens)) and tokens[place - matched - 1] == tokens[-matched - 1]:
                matched += 1
            if matched > longest:
                best, longest = place, matched
        if best:
            return best
    return 0


@given(few_tokens)
def test_it_is_the_longest_of_the_latest_matches(tokens: list[int]) -> None:
    place = brute_force(tokens) if len(tokens) >= 2 else 0
    guess = Lookup(tokens).guess([], 5)
    if not place:
        assert guess is None
    else:
        circle = tokens[place:]
        assert guess is not None
        assert list(guess.tokens) == [circle[i % len(circle)] for i in range(5)]


@given(few_tokens, few_tokens)
def test_growing_is_as_being_made_anew(before: list[int], after: list[int]) -> None:
    tokens = list(before)
    grown = RunIndex(tokens, 3)
    for token in after:
        grown.catch_up()
        tokens.append(token)
    assert best_match((grown,), tokens) == best_match((RunIndex(list(tokens), 3),), tokens)


@given(few_tokens)
def test_a_match_is_split_where_another_as_long_goes_on_otherwise(tokens: list[int]) -> None:
    match = best_match((RunIndex(tokens, 2),), tokens)
    found = [p for p in range(len(tokens) - 1, 1, -1) if tokens[p - 2 : p] == tokens[-2:]][:8]
    as_long = [p for p in found if p >= match.length and tokens[p - match.length : p] == tokens[-match.length :]]
    assert match.split == (len({tokens[p] for p in as_long}) > 1)


def test_a_split_match_is_a_class_of_its_own() -> None:
    run = [50, 51, 52, 53]
    split = Lookup([1, *run, 7, 2, *run, 8, 3, *run]).guess([], 1)
    whole = Lookup([1, *run, 7, 2, *run, 7, 3, *run]).guess([], 1)
    assert (split, whole) == (Guess([8], "lookup", 5), Guess([7], "lookup", 1))


@given(few_tokens, st.lists(st.integers(0, 3), max_size=6))
def test_it_goes_on_behind_what_others_have_guessed(tokens: list[int], ahead: list[int]) -> None:
    guess = Lookup(tokens).guess(ahead, 3)
    if guess is not None:  # what it names stands behind the same two tokens, in the request's own tokens
        tail = [*tokens, *ahead][-2:]
        assert any(tokens[p - 2 : p] == tail and tokens[p] == guess.tokens[0] for p in range(2, len(tokens)))


@pytest.mark.parametrize(("matching", "strength"), [(2, 0), (3, 1), (5, 1), (6, 2), (12, 3), (24, 4), (31, 4)])
def test_longer_matches_are_stronger(matching: int, strength: int) -> None:
    run = list(range(100, 100 + matching))
    guess = Lookup([1, *run, 7, 8, 9, 2, *run]).guess([], 3)
    assert guess is not None
    assert (list(guess.tokens), guess.strength) == ([7, 8, 9], strength)


def test_a_step_looks_at_no_more_for_a_longer_prompt() -> None:
    """Counted, not timed: reads of the token list while guessing, the index being built."""

    class Counting(list[int]):
        reads = 0

        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            type(self).reads += 1 if isinstance(key, int) else len(range(*key.indices(len(self))))
            return super().__getitem__(key)

    def reads_of(repeats: int) -> int:
        tokens = Counting([1, 2, 3, 4, 5, 6, 7] * repeats)
        lookup = Lookup(tokens)
        lookup.guess([], 8)
        Counting.reads = 0
        lookup.guess([], 8)
        return Counting.reads

    assert reads_of(2000) == reads_of(50)
