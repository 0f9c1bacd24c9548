"""Every setting that a user can set, with defaults that work. An unknown name is refused with the nearest known one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretBytes,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from pinfold.errors import InvalidRequestError, UnknownOptionError

__all__ = [
    "PRESETS",
    "ChatKeywords",
    "CompleteKeywords",
    "GenerationOptions",
    "Options",
    "RuntimeOptions",
    "ServerOptions",
    "is_address",
    "parse_ttl",
]

PRESETS = ("balanced", "compact", "exact")
"""Names of the ways in which idle sessions are folded."""

_TTL_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_ttl(ttl: str | float | None) -> float | None:
    """Seconds of a time to live such as ``"5m"``, ``"1h"``, ``90``; None means that it never ends.

    Raises:
        InvalidRequestError: it is no such time, or not positive.
    """
    if ttl is None:
        return None
    text = str(ttl).strip().lower()
    scale = _TTL_UNITS.get(text[-1:], 0)
    number = text[:-1] if scale else text
    try:
        seconds = float(number) * (scale or 1)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        msg = f"ttl={ttl!r} is no time to live. Give seconds, or a number with s, m, h or d such as '5m' or '1h'."
        raise InvalidRequestError(msg)
    return seconds


def is_address(model: Any) -> bool:
    """Whether a model's name is the address of a server."""
    return isinstance(model, str) and model.lower().startswith(("http://", "https://"))


class Options(BaseModel):
    """Base of the option groups: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Options from keyword arguments.

        Raises:
            UnknownOptionError: a name that is no option, with the nearest one.
            InvalidRequestError: a value out of its range, with the range.
        """
        for name in values:
            if name not in cls.model_fields:
                near = difflib.get_close_matches(name, cls.model_fields, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                msg = f"Unknown option {name!r}.{hint} Known options: {', '.join(sorted(cls.model_fields))}."
                raise UnknownOptionError(msg)
        try:
            return cls(**values)
        except ValidationError as e:
            first = e.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            msg = f"Option {name!r}: {first['msg']} (got {first['input']!r})."
            raise InvalidRequestError(msg) from e


class ServerOptions(Options):
    """What goes with a server that answers in place of an engine in this process.

    Attributes:
        base_url: the address of an OpenAI-compatible server such as ``http://host:8000/v1``, or several of one model.
        api_key: its key; None is the environment's PINFOLD_API_KEY. It is left out of pickles.
        connect_timeout: seconds for a connection to be made.
        first_token_timeout: seconds from the request to the first sign of an answer.
        token_timeout: seconds from one piece of an answer to the next.
        retries: how often a request is sent again where the server was busy or failed before anything was answered.
        rendering: ``own`` renders the chat template here and sends raw prompts, ``messages`` sends the chat as it is,
            ``auto`` is ``own`` where the server gives its template and tokenizer.
        pin_refresh: seconds after which a pin that nobody used is sent again, so that the server keeps it.
        lmcache: the address of an LMCache controller that pins are reported to.
    """

    base_url: tuple[str, ...] = ()
    api_key: SecretStr | None = None
    connect_timeout: float = Field(default=10.0, gt=0)
    first_token_timeout: float = Field(default=600.0, gt=0)
    token_timeout: float = Field(default=120.0, gt=0)
    retries: int = Field(default=2, ge=0, le=20)
    rendering: Literal["auto", "own", "messages"] = "auto"
    pin_refresh: float = Field(default=120.0, gt=0)
    lmcache: str | None = None

    @field_validator("base_url", mode="before")
    @classmethod
    def _one_or_several(cls, urls: Any) -> Any:
        if urls is None:
            return ()
        return (urls,) if isinstance(urls, str) else tuple(urls)

    def refuse_server_only(self) -> None:
        """Raises InvalidRequestError for what is set here although no server was named."""
        for name, field in ServerOptions.model_fields.items():
            if getattr(self, name) != field.default:
                msg = (
                    f"{name} goes with a server. Name one as base_url, such as 'http://host:8000/v1', or leave it out."
                )
                raise InvalidRequestError(msg)

    def __getstate__(self) -> dict[Any, Any]:
        state = dict(super().__getstate__())
        values = state["__dict__"]
        state["__dict__"] = values | {
            name: None for name, v in values.items() if isinstance(v, SecretStr | SecretBytes)
        }
        return state


class RuntimeOptions(ServerOptions):
    """How a Runtime is opened. What goes with a server is in `ServerOptions`.

    Attributes:
        engine: ``auto`` (chosen by the probe), ``llama.cpp``, ``mlx`` or ``scripted``.
        n_ctx: tokens that one request may use, prompt and answer together; cut to what the model was trained for.
            ``auto`` is the most that the memory which is free now holds; `Runtime.capabilities` says how it came to it.
        kv_cells: tokens of KV that the engine holds for all sessions together; default 2 times n_ctx.
        kv_memory: bytes of main memory for the KV of idle sessions that left the engine's cells; default an eighth of
            the machine's memory and at most 4 GiB; 0 is none.
        kv_resident: type of the resident K/V cells, one for both or ``K/V``, such as ``f16`` or ``q8_0/q4_0``;
            ``auto`` is quantized where memory is short and the engine gains by it, else f16.
        kv: how idle sessions are folded: ``balanced``, ``compact`` or ``exact`` (without loss).
        store: the folder that pins and named sessions are kept in, so that they outlive the process; ``auto`` is
            the environment's PINFOLD_STORE or else a folder in the user's cache, ``off`` or None keeps nothing.
        store_bytes: most bytes that the store may take.
        store_key: key of the HMAC over stored sessions, against other writers of the folder; None is the environment's
            PINFOLD_STORE_KEY, and where that is not set a plain digest.
        idle_resident: seconds without a use after which KV leaves the engine's cells for memory.
        idle_memory: seconds without a use after which a session that is on disk leaves memory; pins stay.
        n_threads: threads of a forward; default the physical cores.
        n_gpu_layers: layers on the GPU where the build has one; -1 is all.
        prefill_chunk: most prompt tokens in one forward; smaller ones stop sooner when cancelled.
        max_sequences: most sessions, pins and requests whose KV is resident at once.
        draft: where guesses of the next tokens come from, which make answers faster and never change them: ``auto``
            (whatever pays), ``lookup`` (the prompt and the answer), ``grammar`` (what a schema forces), ``model:PATH``
            (a smaller model of the same vocabulary), ``dflash:PATH`` or ``dspark:PATH`` (a checkpoint that was made for
            this model) or ``off``.
        draft_history: whether lookup also guesses from earlier answers of the same salt, in this process.
        chat_template: a Jinja template to use in place of the model's own.
        tool_format: the family of formats that tool calls are read by; ``auto`` is that of the chat template.
        reasoning: ``auto``, or where the template has such a switch ``on``, ``off``, ``low``, ``medium`` or ``high``.
        timeout: seconds after which a request that set no timeout is stopped; None is never.
    """

    engine: str = "auto"
    n_ctx: Annotated[int, Field(ge=64)] | Literal["auto"] = 8192
    kv_cells: int | None = Field(default=None, ge=64)
    kv_memory: int | None = Field(default=None, ge=0)
    kv_resident: str = "f16"
    kv: Literal["balanced", "compact", "exact"] = "balanced"
    store: str | os.PathLike[str] | None = "auto"
    store_bytes: int = Field(default=20 << 30, ge=1 << 20)
    store_key: SecretBytes | None = None
    idle_resident: float = Field(default=300.0, ge=0)
    idle_memory: float = Field(default=1800.0, ge=0)
    n_threads: int | None = Field(default=None, ge=1, le=512)
    n_gpu_layers: int = Field(default=-1, ge=-1)
    prefill_chunk: int = Field(default=256, ge=16, le=4096)
    max_sequences: int = Field(default=64, ge=4, le=240)
    draft: str = "auto"
    draft_history: bool = False
    chat_template: str | None = None
    tool_format: str = "auto"
    reasoning: Literal["auto", "on", "off", "low", "medium", "high"] = "auto"
    timeout: float | None = Field(default=None, gt=0)

    @property
    def memory_bytes(self) -> int:
        """`kv_memory`, or its default on this machine."""
        if self.kv_memory is not None:
            return self.kv_memory
        try:
            machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):
            machine = 8 << 30
        return min(machine // 8, 4 << 30)

    @model_validator(mode="after")
    def _cells_hold_one_request(self) -> Self:
        if self.kv_cells is not None and self.n_ctx != "auto" and self.kv_cells < self.n_ctx:
            msg = f"kv_cells={self.kv_cells} cannot hold one request of n_ctx={self.n_ctx} tokens"
            raise ValueError(msg)
        return self


class GenerationOptions(Options):
    """How one answer is generated.

    Attributes:
        max_tokens: most tokens of the answer; None is as many as the context holds.
        temperature: 0 is greedy; above, the distribution is sampled.
        top_k: only the k most likely tokens; 0 is off.
        top_p: the smallest set whose probability reaches p; 1 is off.
        min_p: only tokens at least this fraction as likely as the best; 0 is off.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen lately; 1 is off.
        presence_penalty: subtracted from the logit of each token generated before; 0 is off.
        frequency_penalty: subtracted once for each time it was generated; 0 is off.
        penalty_window: tokens (prompt included) that repetition_penalty looks back on.
        seed: makes sampling repeatable; None draws a fresh one.
        stop: strings that end the answer, in addition to the model's own; never part of it.
        draft: as the Runtime's, for this answer alone: ``auto``, ``lookup``, ``grammar``, ``model``, ``dflash``,
            ``dspark`` (what the Runtime was opened with) or ``off``; None uses the Runtime's.
        timeout: seconds until the request is stopped with RequestTimeoutError; None uses the Runtime's.
    """

    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=0.0, ge=0.0, le=100.0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=10.0)
    presence_penalty: float = Field(default=0.0, ge=-10.0, le=10.0)
    frequency_penalty: float = Field(default=0.0, ge=-10.0, le=10.0)
    penalty_window: int = Field(default=64, ge=0)
    seed: int | None = Field(default=None, ge=0)
    stop: tuple[str, ...] = ()
    draft: Literal["auto", "off", "lookup", "grammar", "model", "dflash", "dspark"] | None = None
    timeout: float | None = Field(default=None, gt=0)

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_is_a_list(cls, stop: Any) -> Any:
        if stop is None:
            return ()
        return (stop,) if isinstance(stop, str) else tuple(stop)

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if any(not s for s in stop):
            msg = "an empty stop string would end every answer at once"
            raise ValueError(msg)
        return stop


class CompleteKeywords(TypedDict, total=False):
    """Keyword arguments of `Runtime.complete`: a salt, and the fields of `GenerationOptions`."""

    salt: str | None
    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_window: int
    seed: int | None
    stop: Sequence[str] | str | None
    draft: str | None
    timeout: float | None


class ChatKeywords(CompleteKeywords, total=False):
    """Keyword arguments of `Runtime.chat`: those of `complete`, what a chat has besides, and `ChatOptions`."""

    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: Any
    response_format: Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    reasoning: str | None
    reasoning_budget: int | None
    session: str | None
