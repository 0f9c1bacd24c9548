"""What `Runtime.check_prompt` found: plain frozen values, and the request put right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pinfold.repairs import MoveLast, Repair, repaired

__all__ = ["FindingKind", "PromptCheck", "PromptFinding"]

FindingKind = Literal["volatile", "template_date", "growth", "tool_order", "key_order", "white_space", "tools", "text"]


@dataclass(frozen=True, slots=True)
class PromptFinding:
    """One thing that ends the reuse of a prompt before its stable prefix does.

    Attributes:
        kind: ``volatile`` is text that changes from run to run, ``template_date`` a date that the chat template
            writes, ``growth`` a template that changes earlier turns as the conversation goes on; the others are
            differences from another run: the order of tools, the order of a tool's keys, white space, other tools,
            other text.
        where: the place in words, such as ``message 0 (system)`` or ``tool "search"``.
        token: position in the prompt of the first token that is another one because of it.
        lost_tokens: tokens of the stable prefix that are computed again because of it, if it were the only finding.
        excerpt: what stands there, shortened.
        reason: one sentence on what happens.
        remedy: one sentence on what to do.
        fixable: `PromptCheck.fixed` puts it right.
        movable: `PromptCheck.fixed` with ``move_volatile`` moves it last.
        repair: what `PromptCheck.fixed` does about it; None where that is left to people.
    """

    kind: FindingKind
    where: str
    token: int
    lost_tokens: int
    excerpt: str
    reason: str
    remedy: str
    repair: Repair | None = field(default=None, repr=False)

    @property
    def fixable(self) -> bool:
        return self.repair is not None and not self.movable

    @property
    def movable(self) -> bool:
        return isinstance(self.repair, MoveLast)

    def report(self) -> dict[str, Any]:
        """All of it as JSON values."""
        names = ("kind", "where", "token", "lost_tokens", "excerpt", "reason", "remedy", "fixable", "movable")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class PromptCheck:
    """What was found in a prompt, in the order of its tokens.

    Attributes:
        findings: empty where nothing is known to end the reuse early.
        prompt_tokens: length of the prompt.
        stable_tokens: length of its beginning that is meant to be the same in every run: tools, system messages and
            what stands before the first question.
    """

    findings: tuple[PromptFinding, ...]
    prompt_tokens: int
    stable_tokens: int
    _messages: Sequence[Mapping[str, Any]] = field(default=(), repr=False, compare=False)
    _tools: Sequence[Mapping[str, Any]] | None = field(default=None, repr=False, compare=False)

    @property
    def lost_tokens(self) -> int:
        """What the costliest finding costs each time: tokens."""
        return max((finding.lost_tokens for finding in self.findings), default=0)

    def fixed(self, *, move_volatile: bool = False) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """A copy of the messages and tools in which every fixable finding is put right, at no change of meaning.

        With `move_volatile` the sentences that hold movable text become lines at the end of the last user message.
        Differences between two runs end once both are fixed.
        """
        wanted = [finding for finding in self.findings if finding.fixable or (move_volatile and finding.movable)]
        return repaired(self._messages, self._tools, [f.repair for f in wanted if f.repair is not None])

    def report(self) -> dict[str, Any]:
        """All of it as JSON values, without the messages."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "stable_tokens": self.stable_tokens,
            "lost_tokens": self.lost_tokens,
            "findings": [finding.report() for finding in self.findings],
        }
