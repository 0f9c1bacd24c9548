"""What `draft=` may say."""

from __future__ import annotations

from dataclasses import dataclass

from pinfold.errors import InvalidRequestError, UnsupportedModeError

__all__ = ["DraftMode", "parse_draft"]

_PLAIN = ("auto", "off", "lookup", "grammar")
_KNOWN = "'auto', 'off', 'lookup', 'grammar' or 'model:PATH'"


@dataclass(frozen=True, slots=True)
class DraftMode:
    """A kind of drafting, and the draft model's name or path where it has one."""

    kind: str
    model: str = ""


def parse_draft(draft: str) -> DraftMode:
    """``auto``, ``off``, ``lookup``, ``grammar`` or ``model:PATH``.

    Raises:
        InvalidRequestError: it is none of these.
        UnsupportedModeError: no engine here has that drafter.
    """
    kind, _, model = draft.partition(":")
    if kind in ("dflash", "dspark"):
        msg = f"draft={draft!r}: no engine of this version runs {kind} checkpoints. Use 'auto' or 'model:PATH'."
        raise UnsupportedModeError(msg)
    if (kind in _PLAIN and not model) or (kind == "model" and model):
        return DraftMode(kind, model)
    msg = f"draft={draft!r} is none of {_KNOWN}."
    raise InvalidRequestError(msg)
