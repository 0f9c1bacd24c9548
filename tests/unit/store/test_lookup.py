"""The search equals the slow one that compares everything."""

from __future__ import annotations

import base64
from array import array

from hypothesis import example, given
from hypothesis import strategies as st

from pinfold.store.lookup import Catalogue, marks_of, shared
from pinfold.store.records import Row, StoredEntry, fingerprint_of
from tests.support.store_sessions import FACETS, NO_SALT, record

# Ids that differ only above the lowest byte make marks agree where tokens do not.
IDS = st.sampled_from([1, 2, 257, 258, 513, 70_000])
SEQUENCE = st.lists(IDS, min_size=1, max_size=12)
PRINT = fingerprint_of(FACETS)


def row(number: int, tokens: list[int]) -> Row:
    facts = record(f"s{number}", len(tokens)).model_dump()
    entry = StoredEntry(**facts, key=f"{number:064x}", stored_bytes=10, used=0.0)
    marks = base64.b64encode(marks_of(array("i", tokens))).decode()
    return Row(entry=entry, file=f"{number:064x}", origin=entry.key, marks=marks)


def slowly(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@example(stored=[[1], [257], [257, 257]], prompt=[257, 1], removed=set(), whole=False)  # equal marks
@given(
    stored=st.lists(SEQUENCE, max_size=12), prompt=SEQUENCE, removed=st.sets(st.integers(0, 11)), whole=st.booleans()
)
def test_the_longest_prefix_is_found(
    stored: list[list[int]], prompt: list[int], removed: set[int], whole: bool
) -> None:
    catalogue = Catalogue()
    kept = {}
    for number, tokens in enumerate(stored):
        catalogue.put(row(number, tokens))
        kept[f"{number:064x}"] = tokens
    for number in removed:
        catalogue.remove(f"{number:064x}")
        kept.pop(f"{number:064x}", None)

    found = catalogue.longest(array("i", prompt), PRINT, NO_SALT, lambda r: array("i", kept[r.entry.key]), whole=whole)
    lengths = [n for t in kept.values() if (n := slowly(t, prompt)) and (not whole or n == len(t))]
    assert (found[1] if found else 0) == max(lengths, default=0)
    if found is not None:
        tokens = kept[found[0].entry.key]
        assert slowly(tokens, prompt) == found[1]
        assert len(tokens) == found[1] or not any(t == prompt[: found[1]] for t in kept.values())
    assert catalogue.used_bytes == 10 * len(kept)
    assert catalogue.files == set(kept)


@given(a=st.binary(max_size=20), b=st.binary(max_size=20))
def test_shared_counts_bytes_from_the_start(a: bytes, b: bytes) -> None:
    assert shared(a, b) == slowly(list(a), list(b))


def test_rows_whose_tokens_cannot_be_had_are_passed_over() -> None:
    catalogue = Catalogue()
    sequences = {f"{n:064x}": tokens for n, tokens in enumerate(([1, 2, 3, 4], [1, 2, 3], [9]))}
    for number, tokens in enumerate(sequences.values()):
        catalogue.put(row(number, tokens))
    found = catalogue.longest(
        array("i", [1, 2, 3, 4, 5]),
        PRINT,
        NO_SALT,
        lambda r: None if r.entry.key.endswith("0") else array("i", sequences[r.entry.key]),
    )
    assert found is not None
    assert (found[0].entry.name, found[1]) == ("s1", 3)


def test_other_salts_and_fingerprints_are_other_groups() -> None:
    catalogue = Catalogue()
    catalogue.put(row(0, [1, 2]))
    tokens = array("i", [1, 2])
    assert catalogue.longest(tokens, PRINT, "0" * 64, lambda _: tokens) is None
    assert catalogue.longest(tokens, "0" * 64, NO_SALT, lambda _: tokens) is None
    assert catalogue.fingerprints(NO_SALT) == [PRINT]
