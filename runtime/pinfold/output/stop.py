"""Stop strings in streamed text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ["StopScanner"]


class StopScanner:
    """Lets text through until a stop string is complete, and never any part of one.

    The stop string that is complete first ends the answer; where several end at the same character, the longest.
    What comes out is the text before it, whatever the pieces were. Text that could still become a stop string is
    held, and released by the character that rules it out. Work is one dictionary look-up a character (Aho-Corasick).
    """

    __slots__ = ("_depth", "_held", "_match", "_next", "_state", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match = [0]
        self._state = 0
        self._held = ""
        self.stopped = False
        for stop in stops:
            self._insert(stop)
        self._complete()

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            child = self._next[state].get(char)
            if child is None:
                child = len(self._next)
                self._next[state][char] = child
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(0)
            state = child
        self._match[state] = self._depth[state]

    def _complete(self) -> None:
        """Turns the trie into an automaton: a character that does not go on leads to the longest suffix that does."""
        fail = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            back = fail[state]
            self._match[state] = self._match[state] or self._match[back]
            for char, child in self._next[state].items():
                fail[child] = self._next[back].get(char, 0)
                queue.append(child)
            self._next[state] = self._next[back] | self._next[state]

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string has ended the answer.

        After a stop nothing more comes out.
        """
        if self.stopped:
            return "", True
        if len(self._next) == 1:
            return text, False
        state = self._state
        for read, char in enumerate(text, 1):
            state = self._next[state].get(char, 0)
            if self._match[state]:
                self.stopped = True
                seen = self._held + text[:read]
                self._held = ""
                return seen[: len(seen) - self._match[state]], True
        self._state = state
        seen = self._held + text
        safe = len(seen) - self._depth[state]
        self._held = seen[safe:]
        return seen[:safe], False

    def finish(self) -> str:
        """The text still held when the answer ends by itself; it was the beginning of a stop string, and no more."""
        rest, self._held, self._state = self._held, "", 0
        return rest
