"""The switch by which a chat template turns reasoning on, off or to a level: a variable that it reads."""

from __future__ import annotations

from collections.abc import Container

from pinfold.errors import UnsupportedModeError

__all__ = ["reasoning_variables"]

_FLAGS = ("enable_thinking", "thinking")
_LEVEL = "reasoning_effort"
_LEVELS = ("low", "medium", "high")


def reasoning_variables(mode: str, read: Container[str]) -> dict[str, bool | str]:
    """What to set for ``on``, ``off`` or a level; nothing for ``auto``. `read` is what the template reads.

    Raises:
        UnsupportedModeError: the template has no such switch.
    """
    if mode == "auto":
        return {}
    flag = next((name for name in _FLAGS if name in read), None)
    if mode in _LEVELS and _LEVEL in read:
        return {_LEVEL: mode}
    if mode not in _LEVELS and flag is not None:
        return {flag: mode == "on"}
    known = ["'auto'"]
    known += ["'on', 'off'"] if flag is not None else []
    known += [", ".join(map(repr, _LEVELS))] if _LEVEL in read else []
    msg = f"reasoning={mode!r}: the model's chat template has no such switch. It takes {', '.join(known)}."
    if mode == "off":
        msg += " With reasoning_budget=0 reasoning is ended as soon as it begins."
    raise UnsupportedModeError(msg)
