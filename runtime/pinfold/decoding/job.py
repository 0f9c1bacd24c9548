"""What a caller hands to the worker, and the events that come back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from pinfold.errors import PinfoldError
from pinfold.options import GenerationOptions
from pinfold.sessions.pins import Pin, PinRecord

if TYPE_CHECKING:
    from pinfold.output.constraint import Constraint
    from pinfold.output.reasoning import LeadingReasoning

__all__ = [
    "DraftFacts",
    "Event",
    "Failed",
    "Finished",
    "Job",
    "Mark",
    "MissFacts",
    "Outcome",
    "Piece",
    "Progress",
    "ReasoningLimit",
    "Sink",
    "SourceFacts",
]


@dataclass(frozen=True, slots=True)
class Mark:
    """The first `length` tokens of the prompt are to be pinned for `ttl` seconds once they are computed."""

    length: int
    ttl: float | None


@dataclass(frozen=True, slots=True)
class MissFacts:
    """The nearest pin, the tokens shared with it, and its length; `evicted` if only its KV was missing."""

    pin: str
    shared: int
    length: int
    evicted: bool


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Tokens that one drafter's guesses put into a forward, and how many of them came true."""

    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """Forwards that verified a draft, and what was drafted by source; `reason` where drafting had to end. `cost` is
    what those forwards cost, counted in forwards of one token."""

    rounds: int = 0
    sources: Mapping[str, SourceFacts] = field(default_factory=dict)
    reason: str = ""
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class ReasoningLimit:
    """How a request's reasoning is told, counted and bounded.

    After `budget` tokens of reasoning (None is any number) the answer goes on with `ending`, which closes the block.
    """

    reasoning: LeadingReasoning
    budget: int | None = None
    ending: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended, in tokens and seconds."""

    text: str
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    hit: Literal["miss", "resident", "memory", "disk"]
    cached_tokens: int
    created_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    source: str | None
    miss: MissFacts | None
    notes: tuple[str, ...]
    queue_s: float
    ttft_s: float
    restore_s: float
    prefill_s: float
    decode_s: float
    pin: Pin | None = None
    draft: DraftFacts = DraftFacts()


@dataclass(frozen=True, slots=True)
class Piece:
    """New text of a streamed answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Prompt tokens computed so far, of `total`."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that ended well."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that did not."""

    error: PinfoldError


Event = Piece | Progress | Finished | Failed


class Sink(Protocol):
    """Where a job's events go. Called on the engine's thread; must not block."""

    def put(self, event: Event) -> None: ...


@dataclass(slots=True, eq=False)
class Job:
    """One request.

    `draft`: which drafters may help, as `options.RuntimeOptions.draft` without a path.
    `pin`: compute the prompt, keep it as this pin, and generate nothing.
    `deadline`: value of `time.perf_counter` at which it is stopped.
    `cancelled` may be set from any thread; the worker looks at it at every step, and sets `ended` with the last event.
    """

    tokens: list[int]
    sink: Sink
    options: GenerationOptions
    salt: str | None = None
    session: str | None = None
    constraint: Constraint | None = None
    reasoning: ReasoningLimit | None = None
    marks: tuple[Mark, ...] = ()
    pin: PinRecord | None = None
    draft: str = "off"
    streams: bool = False
    reports_progress: bool = False
    deadline: float | None = None
    cancelled: bool = False
    ended: bool = False
    created: float = field(default_factory=time.perf_counter)
