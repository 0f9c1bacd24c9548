"""What a request gives back: plain frozen values, no engine behind them.

All counts are tokens and all times are seconds, unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = [
    "CacheReport",
    "Completion",
    "Delta",
    "DraftReport",
    "InvalidToolCall",
    "Miss",
    "Timings",
    "ToolCall",
    "Usage",
]

HitKind = Literal["miss", "resident", "memory", "disk", "server", "unknown"]
FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made. `arguments` is the decoded JSON object; `id` is unique within the process."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InvalidToolCall:
    """Text that was meant as a call and is none: cut off, malformed, or naming no tool that was offered."""

    id: str
    name: str | None
    text: str
    error: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. `cached_tokens` counts only prompt tokens whose computation was truly skipped.

    `cache_creation_tokens` counts the prompt tokens that this request computed and a pin now keeps. A count that a
    server does not report is None; an engine in this process reports all.
    """

    prompt_tokens: int | None = 0
    cached_tokens: int | None = 0
    cache_creation_tokens: int | None = 0
    completion_tokens: int | None = 0
    reasoning_tokens: int | None = 0

    @property
    def total_tokens(self) -> int | None:
        """Prompt and completion together."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Miss:
    """Where a prompt parted from the nearest pin, and what that cost.

    Attributes:
        pin: the pin's name.
        kind: what stands at the place of parting.
        where: the place in words, such as ``message 3 (user)`` or ``tool "search"``.
        token: position in the prompt of the first token that differs.
        lost_tokens: tokens of the pin that were computed again because of it.
        reason: one sentence for people, with the remedy where there is one.
    """

    pin: str
    kind: Literal["message", "tool", "template", "evicted"]
    where: str
    token: int
    lost_tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What was reused. `source` names the pin, session or earlier request that the prefix came from.

    `hit_kind` says where the prefix was: in the engine's cells, in memory, on disk, or on the ``server`` that answers.
    It is ``unknown``, and `cached_tokens` None, where a server does not report what it reused.
    `notes` holds what the user should know about reuse on this model (a refused mode, a retried prefill).
    """

    hit_kind: HitKind = "miss"
    cached_tokens: int | None = 0
    source: str | None = None
    miss: Miss | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftReport:
    """What draft-verify decoding did: `requested` against `effective`, and the `reason` where they differ.

    `effective` names the drafters whose guesses were verified, joined by ``+``, or is ``off``. `rounds` counts the
    forwards with guesses, `cost` is what they take, in forwards of one token by the times measured on this machine;
    both are None where a server does not report them. `sources` has each drafter's share,
    ``{"lookup": {"drafted": 40, "accepted": 31}}``.
    """

    requested: str = "auto"
    effective: str = "off"
    reason: str = ""
    rounds: int | None = 0
    drafted: int = 0
    accepted: int = 0
    cost: float | None = 0.0
    sources: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds from the moment the request was made. `queue_s` is the wait before its first step.

    What a server does not report is None.
    """

    queue_s: float | None = 0.0
    ttft_s: float = 0.0
    restore_s: float | None = 0.0
    prefill_s: float | None = 0.0
    decode_s: float = 0.0
    prompt_tps: float | None = 0.0
    decode_tps: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Completion:
    """One whole answer."""

    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    invalid_tool_calls: tuple[InvalidToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    cache: CacheReport = field(default_factory=CacheReport)
    draft: DraftReport = field(default_factory=DraftReport)
    timings: Timings = field(default_factory=Timings)

    def report(self) -> dict[str, Any]:
        """The reports as plain JSON values, as the adapters put them under ``response_metadata["pinfold"]``."""
        return {
            "model": self.model,
            "usage": asdict(self.usage),
            "cache": asdict(self.cache),
            "draft": asdict(self.draft),
            "timings": asdict(self.timings),
        }


@dataclass(frozen=True, slots=True)
class Delta:
    """One piece of a streamed answer.

    `text`, `reasoning` and `tool_calls` are what is new (a call comes whole, once it is complete). The last delta,
    and only that one, has `done`: the whole answer, equal to what the unstreamed request gives.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    invalid_tool_calls: tuple[InvalidToolCall, ...] = ()
    done: Completion | None = None
