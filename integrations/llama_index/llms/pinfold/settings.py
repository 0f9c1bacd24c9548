"""Which setting is whose: the engine's, the answer's, or one request's. Unknown names are refused here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pinfold
from pinfold.errors import InvalidRequestError, UnknownOptionError
from pinfold.options import GenerationOptions, RuntimeOptions

if TYPE_CHECKING:
    from pinfold import Runtime

__all__ = [
    "CHAT_FIELDS",
    "ENGINE_FIELDS",
    "GENERATION_FIELDS",
    "RuntimeHandle",
    "check_constructor",
    "refuse_beside_runtime",
    "split_call",
]

ENGINE_FIELDS = ("base_url", "engine", "n_ctx", "kv_cells", "draft", "n_threads", "chat_template")
# `draft` is the engine's, as it may name a draft model; a call may set it too.
GENERATION_FIELDS = tuple(name for name in GenerationOptions.model_fields if name not in ENGINE_FIELDS)
CHAT_FIELDS = ("reasoning", "reasoning_budget", "response_format")
REQUEST_FIELDS = ("draft", "parallel_tool_calls", "salt", "session", "tool_choice", "tools", *CHAT_FIELDS)


def check_constructor(settings: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The constructor's settings, each checked against the range that the runtime gives it.

    Raises:
        UnknownOptionError: a name that is no setting.
        InvalidRequestError: a value out of its range, or a setting given twice.
    """
    _refuse_unknown(settings, known)
    engine = {name: settings[name] for name in ENGINE_FIELDS if name in settings}
    rest = settings.get("runtime_options") or {}
    for name in rest:
        if name in (*ENGINE_FIELDS, "timeout"):
            msg = f"runtime_options may not hold {name!r}: it is an argument of Pinfold itself. Pass it there."
            raise InvalidRequestError(msg)
    RuntimeOptions.parse({**engine, **rest})
    generation = {name: settings[name] for name in GENERATION_FIELDS if name in settings}
    parsed = GenerationOptions.parse(generation)
    return {**settings, **{name: getattr(parsed, name) for name in generation}}


def refuse_beside_runtime(settings: Mapping[str, Any]) -> None:
    """A runtime that is open already has its settings; others beside it would be ignored.

    Raises:
        InvalidRequestError: an engine setting was given.
    """
    for name in (*ENGINE_FIELDS, "runtime_options"):
        if name in settings:
            msg = (
                f"{name!r} was settled when the runtime that was passed in was opened. Give it there, or leave it out."
            )
            raise InvalidRequestError(msg)


def split_call(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """One call's keyword arguments: those that shape the answer, and those that shape the request.

    Raises:
        UnknownOptionError: a name that is neither.
    """
    _refuse_unknown(kwargs, (*GENERATION_FIELDS, *REQUEST_FIELDS))
    generation = {name: value for name, value in kwargs.items() if name in GENERATION_FIELDS}
    return generation, {name: value for name, value in kwargs.items() if name in REQUEST_FIELDS}


def _refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    names = sorted(known)
    for name in given:
        if name in names:
            continue
        if name in RuntimeOptions.model_fields:
            msg = f"{name!r} is an option of the engine. Pass it when Pinfold is made"
            msg += "." if name in ENGINE_FIELDS else f", as runtime_options={{{name!r}: ...}}."
            raise UnknownOptionError(msg)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        msg = f"Unknown option {name!r}.{hint} Known options: {', '.join(names)}."
        raise UnknownOptionError(msg)


class RuntimeHandle:
    """The runtime that was passed in, or the shared one for these settings, opened at the first use.

    Copies share it; a pickle leaves it out, and the key with it.
    """

    def __init__(self, runtime: Runtime | None = None, api_key: Any = None) -> None:
        self._given = runtime
        self._api_key = api_key
        self._opened: Runtime | None = runtime

    def open(self, model: str, options: Mapping[str, Any]) -> Runtime:
        """The runtime, loading the model if this process has not yet."""
        key = {} if self._api_key is None else {"api_key": self._api_key}
        self._opened = self._given or pinfold.shared_runtime(model, **options, **key)
        return self._opened

    @property
    def n_ctx(self) -> int | None:
        """The true context window once the model is loaded."""
        return self._opened.n_ctx if self._opened else None

    def __deepcopy__(self, memo: dict[int, Any]) -> RuntimeHandle:
        return self

    def __reduce__(self) -> tuple[type[RuntimeHandle], tuple[()]]:
        return type(self), ()
