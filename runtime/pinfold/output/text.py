"""Token bytes to text, and marks in text that comes in pieces."""

from __future__ import annotations

import codecs

__all__ = ["TextDecoder", "open_mark"]


class TextDecoder:
    """Incremental UTF-8: bytes in any pieces give the text that the whole would give.

    A character may span tokens; its bytes are held until it is complete. Bytes that are no UTF-8 become U+FFFD.
    """

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        """The text that `data` completes."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """U+FFFD for a character whose end never came, else nothing. The decoder starts afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def open_mark(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the first of `mark`; fewer than the whole mark has."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)
