"""Every error that Pinfold raises. Each message says what happened and what to do about it.

::

    PinfoldError
    ├── InvalidRequestError (also a ValueError)
    │   ├── UnknownOptionError
    │   ├── UnsupportedModeError
    │   ├── ContextOverflowError
    │   ├── ToolSchemaError
    │   └── TemplateError
    ├── ModelError
    │   ├── ModelNotFoundError (also a FileNotFoundError)
    │   └── ModelFormatError
    ├── EngineError
    │   ├── EngineUnavailableError
    │   ├── DecodeError
    │   ├── CacheFullError
    │   ├── TrimError
    │   └── ServerError
    │       ├── ServerUnreachableError (also a ConnectionError)
    │       ├── ServerRefusedError
    │       ├── ServerBusyError
    │       └── ServerReplyError
    ├── SessionError
    │   ├── SessionNotFoundError (also a KeyError)
    │   ├── PinNotFoundError (also a KeyError)
    │   ├── PinExpiredError
    │   └── SessionCorruptError
    ├── StoreError
    │   ├── StoreBusyError
    │   ├── StoreFullError
    │   └── StoreReadOnlyError
    ├── RequestCancelledError
    ├── RequestTimeoutError (also a TimeoutError)
    └── RuntimeClosedError
"""

from __future__ import annotations

__all__ = [
    "CacheFullError",
    "ContextOverflowError",
    "DecodeError",
    "EngineError",
    "EngineUnavailableError",
    "InvalidRequestError",
    "ModelError",
    "ModelFormatError",
    "ModelNotFoundError",
    "PinExpiredError",
    "PinNotFoundError",
    "PinfoldError",
    "RequestCancelledError",
    "RequestTimeoutError",
    "RuntimeClosedError",
    "ServerBusyError",
    "ServerError",
    "ServerRefusedError",
    "ServerReplyError",
    "ServerUnreachableError",
    "SessionCorruptError",
    "SessionError",
    "SessionNotFoundError",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StoreReadOnlyError",
    "TemplateError",
    "ToolSchemaError",
    "TrimError",
    "UnknownOptionError",
    "UnsupportedModeError",
]


class PinfoldError(Exception):
    """Base of everything below: catch this to catch all of Pinfold."""

    def __str__(self) -> str:  # KeyError would otherwise quote the message
        return str(self.args[0]) if self.args else ""


class InvalidRequestError(PinfoldError, ValueError):
    """The request cannot be served as written; nothing was computed or changed."""


class UnknownOptionError(InvalidRequestError):
    """An option that Pinfold does not have; the message names it and the nearest one that exists."""


class UnsupportedModeError(InvalidRequestError):
    """A mode that exists but cannot run here; the message has the reason and what works instead."""


class ContextOverflowError(InvalidRequestError):
    """The prompt does not fit the context window.

    Attributes:
        prompt_tokens: tokens in the rendered prompt.
        n_ctx: tokens that one request may use, prompt and answer together.
        remedy: what makes the window larger.
    """

    def __init__(self, prompt_tokens: int, n_ctx: int, remedy: str = "open the Runtime with a larger n_ctx") -> None:
        super().__init__(
            f"The prompt has {prompt_tokens} tokens and the context window holds {n_ctx}, one of which must stay "
            f"free for the answer. Shorten the prompt, or {remedy}."
        )
        self.prompt_tokens = prompt_tokens
        self.n_ctx = n_ctx
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[ContextOverflowError], tuple[int, int, str]]:
        return type(self), (self.prompt_tokens, self.n_ctx, self.remedy)


class ToolSchemaError(InvalidRequestError):
    """A tool definition or a response schema that is not one; the message names the tool and the place."""


class TemplateError(InvalidRequestError):
    """The model's chat template refused the messages, or is no valid template."""


class ModelError(PinfoldError):
    """The model that was named cannot be used."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """No file, folder, alias or repository of that name can be reached."""


class ModelFormatError(ModelError):
    """The file exists but is no model that the engine can load (truncated, another format, unknown architecture)."""


class EngineError(PinfoldError):
    """The engine below failed; the runtime goes on with the next request."""


class EngineUnavailableError(EngineError):
    """The engine's package is missing or does not load; the message has the install command."""


class DecodeError(EngineError):
    """A forward pass failed; the sequences that took part were dropped, never reused."""


class CacheFullError(EngineError):
    """No KV cell is left, even after everything idle was evicted."""


class TrimError(EngineError):
    """A sequence could not be cut back to the length asked for; it was dropped, never reused."""


class ServerError(EngineError):
    """The server that a request was sent to failed; its message is in this one, without any key."""


class ServerUnreachableError(ServerError, ConnectionError):
    """No connection to the server, or none that TLS could verify."""


class ServerRefusedError(ServerError):
    """The server wants another key, or forbids this one what was asked."""


class ServerBusyError(ServerError):
    """The server was too busy, and stayed so for as long as it was retried."""


class ServerReplyError(ServerError):
    """The server's reply is none that can be read, or broke off."""


class SessionError(PinfoldError):
    """A named session or pin cannot be used."""


class SessionNotFoundError(SessionError, KeyError):
    """No session of that name is known."""


class PinNotFoundError(SessionError, KeyError):
    """No pin of that name is known."""


class PinExpiredError(SessionError):
    """The pin's TTL has run out; pin it again."""


class SessionCorruptError(SessionError):
    """What was stored of the session is damaged; it was set aside, and the next use computes it again."""


class StoreError(PinfoldError):
    """The folder of stored sessions cannot be used, or not now."""


class StoreBusyError(StoreError):
    """Other processes held the store's index for longer than we wait; nothing was changed."""


class StoreFullError(StoreError):
    """The disk or the store's budget has no room for the session; what was stored before is untouched."""


class StoreReadOnlyError(StoreError):
    """The store's folder cannot be written; what is in it can still be restored."""


class RequestCancelledError(PinfoldError):
    """The request was cancelled before it ended."""


class RequestTimeoutError(PinfoldError, TimeoutError):
    """The request took longer than the timeout it was given; it was stopped and its KV released."""


class RuntimeClosedError(PinfoldError):
    """The Runtime has been closed; open a new one."""
