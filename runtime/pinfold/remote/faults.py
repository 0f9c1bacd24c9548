"""What went wrong at a server or on the way to it, as Pinfold's errors. No key is ever part of a message."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from pinfold.errors import (
    ContextOverflowError,
    InvalidRequestError,
    ModelNotFoundError,
    PinfoldError,
    ServerBusyError,
    ServerError,
    ServerRefusedError,
    ServerReplyError,
    ServerUnreachableError,
)

__all__ = [
    "BUSY",
    "broken_off",
    "certificate_fault",
    "connection_error",
    "excerpt",
    "may_retry",
    "redacted",
    "reply_error",
    "retry_after",
]

BUSY = frozenset({429, 503, 529})
_PASSING = BUSY | {408, 425, 500, 502, 504}
_SHOWN = 400

_WINDOW = re.compile(r"(?:context length|model length|context size|context window)[^\d]{0,20}(\d+)", re.IGNORECASE)
_PROMPT = (
    re.compile(r"(\d+) (?:tokens )?(?:in|from) the (?:messages|prompt|input)"),
    re.compile(r"(\d+) input tokens"),
    re.compile(r"[(]length (\d+)[)]"),
    re.compile(r"(?:input|request|prompt) [(](\d+) tokens"),
)


def may_retry(status: int) -> bool:
    """Whether a reply of this status may be another one if the request is sent again."""
    return status in _PASSING


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, None if it does not."""
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def redacted(text: str, key: str | None) -> str:
    """`text` without the key, in case the server repeats it."""
    return text.replace(key, "***") if key else text


def excerpt(text: str) -> str:
    """The beginning of a reply, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "..."


def reply_error(address: str, status: int, text: str, key: str | None) -> PinfoldError:
    """The error that a reply of this status, or an error event within a stream, stands for."""
    fault = _fault_of(text)
    words = excerpt(redacted(fault.message, key)) or "it gave no reason"
    if overflow := _overflow(fault):
        return ContextOverflowError(*overflow, f"start the server at {address} with a larger context")
    said = f"The server at {address} answered {status}: {words}"
    if status in (401, 403):
        return ServerRefusedError(f"{said}. Pass the server's key as api_key=, or set PINFOLD_API_KEY.")
    if status in BUSY:
        return ServerBusyError(f"{said}. Try again later, or give several servers as base_url.")
    if status == 404 and "model" in words.lower():
        return ModelNotFoundError(f"{said}. Name a model that the server has; its address as model= takes its first.")
    if status in (400, 404, 405, 409, 413, 415, 422, 501):
        return InvalidRequestError(f"{said}.")
    return ServerError(f"{said}.")


def certificate_fault(error: httpx.HTTPError) -> bool:
    """Whether it was TLS that refused the connection: that does not pass."""
    return "CERTIFICATE_VERIFY" in str(error) or any(isinstance(cause, ssl.SSLError) for cause in _causes(error))


def connection_error(address: str, error: httpx.HTTPError) -> ServerError:
    """The error for a connection that could not be made, or not be kept."""
    if certificate_fault(error):
        msg = (
            f"The certificate of {address} could not be verified: {error}. Give its authority with SSL_CERT_FILE, or "
            f"use the name that the certificate is for."
        )
        return ServerUnreachableError(msg)
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError | httpx.UnsupportedProtocol | httpx.PoolTimeout):
        what = str(error) or type(error).__name__
        msg = f"No connection to {address}: {what}. See that the server runs and that base_url is its address."
        return ServerUnreachableError(msg)
    return broken_off(address, f"{type(error).__name__} {error}".rstrip())


def broken_off(address: str, what: str) -> ServerReplyError:
    """The error for a reply that ended before it was whole."""
    msg = f"The answer of {address} broke off: {what}. Ask again; the server's own log says why it stopped."
    return ServerReplyError(msg)


class _Fault:
    """An error in the server's own words."""

    def __init__(self, message: str, kind: str = "", prompt: Any = None, window: Any = None) -> None:
        self.message = message
        self.kind = kind
        self.prompt = prompt
        self.window = window


def _fault_of(text: str) -> _Fault:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _Fault(text)
    if isinstance(value, Mapping) and "error" in value:
        value = value["error"]
    if not isinstance(value, Mapping):
        return _Fault(str(value))
    message = value.get("message") or value.get("detail") or value.get("msg") or text
    kind = f"{value.get('type') or ''} {value.get('code') or ''}"
    return _Fault(str(message), kind, value.get("n_prompt_tokens"), value.get("n_ctx"))


def _overflow(fault: _Fault) -> tuple[int, int] | None:
    """(tokens of the prompt, of the window) if the prompt is what was too long."""
    if isinstance(fault.prompt, int) and isinstance(fault.window, int):
        return fault.prompt, fault.window
    window = _WINDOW.search(fault.message)
    prompts = [int(found.group(1)) for found in (p.search(fault.message) for p in _PROMPT) if found]
    if window is None or not prompts or max(prompts) < int(window.group(1)):
        return None
    return max(prompts), int(window.group(1))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # an error that is raised twice may be its own context
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
