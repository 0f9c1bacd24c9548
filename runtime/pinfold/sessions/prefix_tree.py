"""A radix tree over token ids: which of the sequences put in shares the longest prefix with a new one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Match", "PrefixTree", "common_prefix"]

H = TypeVar("H", bound=Hashable)
_BLOCK = 64


def common_prefix(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """Length of the longest common prefix; the caller knows that the first `start` tokens are equal."""
    end = min(len(a), len(b))
    at = start
    while at < end and a[at : at + _BLOCK] == b[at : at + _BLOCK]:
        at += _BLOCK
    while at < end and a[at] == b[at]:
        at += 1
    return min(at, end)


@dataclass(slots=True, eq=False)
class _Node(Generic[H]):
    """`edge` leads here from the parent. `through` are the holders at or below, `ends` those that end here."""

    edge: list[int]
    parent: _Node[H] | None = None
    children: dict[int, _Node[H]] = field(default_factory=dict)
    through: dict[H, None] = field(default_factory=dict)
    ends: dict[H, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Match(Generic[H]):
    """`holders` (never empty unless length is 0) all begin with the first `length` tokens of the sequence sought."""

    length: int
    holders: tuple[H, ...]


class PrefixTree(Generic[H]):
    """Holders, each with one token sequence. Look-up, insertion and removal are linear in the sequence's length."""

    def __init__(self) -> None:
        self._root: _Node[H] = _Node([])
        self._at: dict[H, _Node[H]] = {}

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, holder: H) -> bool:
        return holder in self._at

    def __iter__(self) -> Iterator[H]:
        return iter(self._at)

    def insert(self, holder: H, tokens: Sequence[int]) -> None:
        """Puts `holder` in with `tokens`, in place of what it had before."""
        if holder in self._at:
            self.remove(holder)
        tokens = list(tokens)
        node = self._root
        node.through[holder] = None
        at = 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                child = _Node(tokens[at:], parent=node)
                node.children[tokens[at]] = child
            else:
                shared = common_prefix(child.edge, tokens[at : at + len(child.edge)])
                if shared < len(child.edge):
                    child = self._split(child, shared)
            child.through[holder] = None
            at += len(child.edge)
            node = child
        node.ends[holder] = None
        self._at[holder] = node

    def remove(self, holder: H) -> None:
        """Takes `holder` out; KeyError if it is not in."""
        node: _Node[H] | None = self._at.pop(holder)
        if node is not None:
            del node.ends[holder]
        while node is not None:
            del node.through[holder]
            parent = node.parent
            if parent is not None and not node.through:
                del parent.children[node.edge[0]]
            elif parent is not None and len(node.children) == 1 and not node.ends:
                self._join(node)
            node = parent

    def longest(self, tokens: Sequence[int]) -> Match[H]:
        """The holders that share the longest prefix with `tokens`, and its length."""
        tokens = list(tokens)
        node = self._root
        at = 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                break
            shared = common_prefix(child.edge, tokens[at : at + len(child.edge)])
            at += shared
            node = child
            if shared < len(child.edge):
                break
        return Match(at, tuple(node.through) if at else ())

    def prefixes(self, tokens: Sequence[int]) -> Iterator[Match[H]]:
        """The holders whose whole sequence is a prefix of `tokens`, shortest first."""
        tokens = list(tokens)
        node = self._root
        at = 0
        while True:
            if node.ends:
                yield Match(at, tuple(node.ends))
            child = node.children.get(tokens[at]) if at < len(tokens) else None
            if child is None or child.edge != tokens[at : at + len(child.edge)]:
                return
            at += len(child.edge)
            node = child

    def _split(self, node: _Node[H], at: int) -> _Node[H]:
        """Puts a new node in the middle of the edge to `node`, and returns it."""
        upper: _Node[H] = _Node(node.edge[:at], parent=node.parent, through=dict(node.through))
        if node.parent is not None:
            node.parent.children[node.edge[0]] = upper
        node.edge = node.edge[at:]
        node.parent = upper
        upper.children[node.edge[0]] = node
        return upper

    def _join(self, node: _Node[H]) -> None:
        """Merges `node`, which has one child and no end of its own, into that child."""
        (child,) = node.children.values()
        child.edge = node.edge + child.edge
        child.parent = node.parent
        if node.parent is not None:
            node.parent.children[child.edge[0]] = child

    def check(self) -> None:
        """Raises ValueError unless every invariant holds; for tests."""
        for holder, node in self._at.items():
            if holder not in node.ends:
                msg = f"{holder} does not end where it should"
                raise ValueError(msg)
        stack = [self._root]
        while stack:
            node = stack.pop()
            below = dict.fromkeys(h for c in node.children.values() for h in c.through) | node.ends
            if set(below) != set(node.through):
                msg = "a node's holders are not those at and below it"
                raise ValueError(msg)
            for first, child in node.children.items():
                if child.parent is not node or not child.edge or child.edge[0] != first:
                    msg = "a child hangs wrong"
                    raise ValueError(msg)
            lonely = node.parent is not None and len(node.children) < 2 and not node.ends
            if lonely:
                msg = "a node that carries nothing was left"
                raise ValueError(msg)
            stack.extend(node.children.values())
