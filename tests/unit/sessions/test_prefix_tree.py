"""The prefix tree against a list that is searched from end to end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.sessions.prefix_tree import PrefixTree, common_prefix

# Few distinct tokens and some long equal runs: many shared prefixes, splits and joins.
tokens = st.lists(st.integers(0, 2), max_size=12) | st.lists(st.just(1), max_size=200)
steps = st.lists(st.tuples(st.integers(0, 6), st.none() | tokens), max_size=40)


def shared(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(tokens, tokens)
def test_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    assert common_prefix(a, b) == shared(a, b)
    assert common_prefix(a, b, start=shared(a, b) // 2) == shared(a, b)


@given(steps, tokens)
@settings(max_examples=300)
def test_it_finds_what_a_full_search_finds(steps: list[tuple[int, list[int] | None]], sought: list[int]) -> None:
    tree: PrefixTree[int] = PrefixTree()
    plain: dict[int, list[int]] = {}
    for holder, put in steps:
        if put is not None:
            tree.insert(holder, put)
            plain[holder] = put
        elif holder in plain:
            tree.remove(holder)
            del plain[holder]
        tree.check()
        assert set(tree) == set(plain)

    best = max((shared(t, sought) for t in plain.values()), default=0)
    match = tree.longest(sought)
    assert match.length == best
    assert set(match.holders) == ({h for h, t in plain.items() if shared(t, sought) == best} if best else set())

    whole = {h: len(t) for h, t in plain.items() if t == sought[: len(t)]}
    found = list(tree.prefixes(sought))
    assert {h: m.length for m in found for h in m.holders} == whole
    assert [m.length for m in found] == sorted({*whole.values()})


def test_the_same_tokens_may_have_several_holders() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.insert("a", [1, 2, 3])
    tree.insert("b", [1, 2, 3])
    assert set(tree.longest([1, 2, 3, 4]).holders) == {"a", "b"}
    tree.remove("a")
    assert tree.longest([1, 2, 3]).holders == ("b",)


def test_check_notices_a_broken_tree() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.insert("a", [1, 2])
    tree._root.children[1].edge[0] = 7
    with pytest.raises(ValueError, match="hangs wrong"):
        tree.check()
