"""What `draft=` may say."""

from __future__ import annotations

from dataclasses import dataclass

from pinfold.errors import InvalidRequestError

__all__ = ["BLOCKS", "DraftMode", "parse_draft"]

BLOCKS = ("dflash", "dspark")
"""Kinds of drafters that guess a block from what the model's layers give."""

_PLAIN = ("auto", "off", "lookup", "grammar")
_PATHS = ("model", *BLOCKS)
_KNOWN = "'auto', 'off', 'lookup', 'grammar', 'model:PATH', 'dflash:PATH' or 'dspark:PATH'"


@dataclass(frozen=True, slots=True)
class DraftMode:
    """A kind of drafting, and the drafter's name or path where it has one."""

    kind: str
    model: str = ""


def parse_draft(draft: str) -> DraftMode:
    """``auto``, ``off``, ``lookup``, ``grammar``, or ``model``, ``dflash`` or ``dspark`` with ``:PATH``.

    Raises:
        InvalidRequestError: it is none of these.
    """
    kind, _, model = draft.partition(":")
    if (kind in _PLAIN and not model) or (kind in _PATHS and model):
        return DraftMode(kind, model)
    msg = f"draft={draft!r} is none of {_KNOWN}."
    raise InvalidRequestError(msg)
