"""Finds the stored session that shares the longest prefix with a prompt, without reading the sessions.

Of each session one byte per token stands here, its mark. Marks are kept sorted, so the sessions nearest to a prompt
are its neighbours, and the marks that two sequences share are at least as many as the tokens that they share. The
tokens themselves are fetched for the few that could be best, and decide.
"""

from __future__ import annotations

import base64
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from pinfold.store.records import Row, little_endian

__all__ = ["Catalogue", "marks_of", "shared"]

TokensOf: TypeAlias = "Callable[[Row], array[int] | None]"  # an array takes no parameters at run time before 3.12


def marks_of(tokens: array[int]) -> bytes:
    """The lowest byte of each token."""
    return little_endian(tokens)[::4]


def shared(a: bytes, b: bytes) -> int:
    """How many bytes two strings have in common from the start."""
    n = min(len(a), len(b))
    a, b = a[:n], b[:n]
    if a == b:
        return n
    differing = int.from_bytes(a, "big") ^ int.from_bytes(b, "big")
    return n - (differing.bit_length() + 7) // 8


def _shared_tokens(a: array[int], b: array[int]) -> int:
    return shared(little_endian(a), little_endian(b)) // 4


class Catalogue:
    """All rows by key, by file, and sorted by their marks within each salt and fingerprint."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.files: set[str] = set()
        self.used_bytes = 0
        self._groups: dict[tuple[str, str], list[tuple[bytes, str]]] = {}

    def put(self, row: Row) -> None:
        """Adds a row, or replaces the one of that key."""
        old = self.rows.get(row.entry.key)
        if old is not None and old.file == row.file:  # its tokens, and so its place, are the same
            self.rows[row.entry.key] = row
            return
        self.remove(row.entry.key)
        self.rows[row.entry.key] = row
        self.files.add(row.file)
        self.used_bytes += row.entry.stored_bytes
        insort(self._groups.setdefault(_group(row), []), _place(row))

    def remove(self, key: str) -> None:
        """Takes a row out if it is there."""
        row = self.rows.pop(key, None)
        if row is None:
            return
        self.files.discard(row.file)
        self.used_bytes -= row.entry.stored_bytes
        group = self._groups[_group(row)]
        del group[bisect_left(group, _place(row))]
        if not group:
            del self._groups[_group(row)]

    def fill(self, rows: Sequence[Row]) -> None:
        """Starts anew with these rows."""
        self.rows = {row.entry.key: row for row in rows}
        self.files = {row.file for row in rows}
        self.used_bytes = sum(row.entry.stored_bytes for row in rows)
        self._groups = {}
        for row in self.rows.values():
            self._groups.setdefault(_group(row), []).append(_place(row))
        for group in self._groups.values():
            group.sort()

    def fingerprints(self, salt: str) -> list[str]:
        """The fingerprints under which something is stored for a salt."""
        return [fingerprint for of_salt, fingerprint in self._groups if of_salt == salt]

    def longest(
        self, tokens: array[int], fingerprint: str, salt: str, tokens_of: TokensOf, *, whole: bool = False
    ) -> tuple[Row, int] | None:
        """The row that shares most tokens with `tokens`, and how many; of equals, one that holds nothing more.

        Args:
            tokens: the prompt.
            fingerprint: only rows of this one.
            salt: only rows of this salt's digest.
            tokens_of: fetches a row's tokens, or None where they cannot be had; such a row is passed over.
            whole: only rows all of whose tokens are shared.
        """
        marks = marks_of(tokens)
        group = list(self._groups.get((salt, fingerprint), ()))
        near = _prefixes(group, marks) if whole else _neighbours(group, marks)
        best: tuple[Row, int] | None = None
        for bound, key in near:
            if best is not None and bound <= best[1]:
                break
            found = self._compare(key, tokens, tokens_of)
            if found and found[1] > (best[1] if best else 0) and (not whole or found[1] == found[0].entry.n_tokens):
                best = found
        if best is None or whole or best[0].entry.n_tokens == best[1]:
            return best
        return self._exact(group, marks[: best[1]], tokens, tokens_of) or best

    def _compare(self, key: str, tokens: array[int], tokens_of: TokensOf) -> tuple[Row, int] | None:
        row = self.rows.get(key)
        stored = tokens_of(row) if row is not None else None
        return None if row is None or stored is None else (row, _shared_tokens(stored, tokens))

    def _exact(
        self, group: list[tuple[bytes, str]], marks: bytes, tokens: array[int], tokens_of: TokensOf
    ) -> tuple[Row, int] | None:
        """The row that holds exactly the tokens of `marks`: it restores as much as a longer one, in less time."""
        for at in range(bisect_left(group, (marks,)), len(group)):
            if group[at][0] != marks:
                break
            found = self._compare(group[at][1], tokens, tokens_of)
            if found and found[1] == len(marks):  # other tokens may have the same marks
                return found
        return None


def _group(row: Row) -> tuple[str, str]:
    return row.entry.salt, row.entry.fingerprint


def _place(row: Row) -> tuple[bytes, str]:
    return base64.b64decode(row.marks, validate=True), row.entry.key


def _neighbours(group: list[tuple[bytes, str]], marks: bytes) -> Iterator[tuple[int, str]]:
    """Keys with the number of marks that they share, most first."""
    right = bisect_left(group, (marks,))
    left = right - 1
    on_left = shared(group[left][0], marks) if left >= 0 else -1
    on_right = shared(group[right][0], marks) if right < len(group) else -1
    while max(on_left, on_right) > 0:
        if on_left >= on_right:
            yield on_left, group[left][1]
            left -= 1
            on_left = shared(group[left][0], marks) if left >= 0 else -1
        else:
            yield on_right, group[right][1]
            right += 1
            on_right = shared(group[right][0], marks) if right < len(group) else -1


def _prefixes(group: list[tuple[bytes, str]], marks: bytes) -> Iterator[tuple[int, str]]:
    """Keys all of whose marks `marks` begin with, longest first."""
    at = bisect_left(group, (marks + b"\0",)) - 1  # past all that equal `marks`
    while at >= 0:
        common = shared(group[at][0], marks)
        if common == 0:
            return
        if common == len(group[at][0]):
            yield common, group[at][1]
            at -= 1
        else:  # nothing longer than what they share can be a prefix of both
            at = min(at, bisect_left(group, (marks[:common] + b"\0",))) - 1
