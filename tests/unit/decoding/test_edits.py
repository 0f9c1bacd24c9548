"""A copy with changes: found again after each, and changed in the same way where that is due again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinfold.decoding.drafters.edits import Copy
from pinfold.decoding.drafters.lookup import Lookup

NAME, OTHER = 7, (800, 801)  # what a name is replaced by has two tokens
# Between the names no two runs are alike.
ORIGINAL = [token for n in range(12) for token in (*range(100 + 10 * n, 110 + 10 * n), NAME)]
COPIED = [token for old in ORIGINAL for token in (OTHER if old == NAME else (old,))]


def right_guesses(tokens: list[int], answer: list[int], most: int = 8) -> list[int]:
    """Drafts and verifies `answer` behind `tokens`: how many tokens each draft brought."""
    lookup, right = Lookup(tokens), []
    while answer:
        guess = lookup.guess([], most)
        came = 0
        if guess is not None:
            came = next((i for i, pair in enumerate(zip(guess.tokens, answer, strict=False)) if pair[0] != pair[1]), 99)
            came = min(came, len(guess.tokens), len(answer))
        right.append(came)
        tokens += answer[: came + 1]
        answer = answer[came + 1 :]
    return right


def following(original: list[int], place: int = 1) -> tuple[list[int], Copy]:
    tokens = [0, *original, 1]
    copy = Copy(tokens)
    copy.follow(place, len(tokens), 6)
    return tokens, copy


def guess_after(tokens: list[int], copy: Copy, *came: int, most: int = 4) -> list[int]:
    tokens += came
    copy.catch_up()
    return copy.guess(most)


def test_a_change_is_guessed_where_it_is_due_again() -> None:
    right = right_guesses([0, *ORIGINAL, 1, 2], list(COPIED))
    # Nothing at the start, and for the first name nothing until the copy is found again; whole drafts from then on.
    assert right[:5] == [0, 0, 8, 0, 0]
    assert set(right[5:-1]) == {8}


def test_a_copy_is_found_again_behind_what_was_put_in_left_out_or_replaced() -> None:
    for came in ((60, 61, 11), (11,), (60, 11), (10, 60, 61, 62, 11)):
        tokens, copy = following([10, *range(11, 30)])
        assert guess_after(tokens, copy, *came) == [12, 13, 14, 15], came


def test_a_change_is_made_up_to_its_end() -> None:
    tokens, copy = following([NAME, 11, 12, NAME, 13, 14])
    assert guess_after(tokens, copy, *OTHER, 11) == [12, *OTHER, 13]
    assert guess_after(tokens, copy, 12, OTHER[0]) == [OTHER[1], 13, 14, 1]


def test_what_is_no_longer_changed_is_forgotten() -> None:
    tokens, copy = following([NAME, 11, NAME, 12, NAME, 13])
    assert guess_after(tokens, copy, *OTHER, 11, most=2) == [*OTHER]
    assert guess_after(tokens, copy, NAME, 12) == [NAME, 13, 1, *tokens[-1:]][:3] + guess_after(tokens, copy)[3:]


def test_a_place_that_was_not_the_right_one_is_left() -> None:
    tokens, copy = following([10, 11, 12, 13, 14, 15, 16])
    assert guess_after(tokens, copy, 60, 13, most=1) == [14]  # but 13 was part of what is new
    assert guess_after(tokens, copy, 61, most=1) == []
    assert guess_after(tokens, copy, 11, most=2) == [12, 13]


def test_a_change_without_end_ends_the_copy() -> None:
    tokens, copy = following(list(range(10, 30)))
    assert guess_after(tokens, copy, *range(500, 540)) == []
    assert copy.agreed == 0
    assert guess_after(tokens, copy, 11) == []


few_tokens = st.lists(st.integers(0, 4), min_size=2, max_size=60)


@given(few_tokens, few_tokens, st.integers(1, 12))
def test_whatever_comes_a_guess_is_of_known_tokens(before: list[int], after: list[int], most: int) -> None:
    tokens = [*before, *before]
    copy = Copy(tokens)
    copy.follow(len(before), len(tokens), 1)
    for token in after:
        guess = guess_after(tokens, copy, token, most=most)
        assert len(guess) <= most
        assert set(guess) <= set(tokens)
        assert bool(guess) == bool(copy.agreed)


@given(few_tokens, few_tokens)
def test_what_comes_at_once_is_seen_as_one_by_one(before: list[int], after: list[int]) -> None:
    single = [*before, *before]
    copy = Copy(single)
    copy.follow(len(before), len(single), 1)
    at_once = list(single)
    other = Copy(at_once)
    other.follow(len(before), len(at_once), 1)
    for token in after:
        one_by_one = guess_after(single, copy, token)
    assert one_by_one == guess_after(at_once, other, *after)
