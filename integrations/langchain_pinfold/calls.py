"""Requests to the runtime: repeated after a failure of the engine, with errors that LangChain recognises."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any

from langchain_pinfold.errors import as_langchain_errors
from pinfold.errors import CacheFullError, DecodeError, TrimError
from pinfold.results import Completion, Delta

__all__ = ["acomplete", "astream", "complete", "stream"]

logger = logging.getLogger(__name__)

# Failures after which the engine has dropped what it was working on, so that the same request starts afresh.
_TRANSIENT = (CacheFullError, DecodeError, TrimError)


def complete(call: Callable[..., Completion], request: dict[str, Any], retries: int) -> Completion:
    """The whole answer of ``call(**request)``, tried at most 1 + `retries` times."""
    with as_langchain_errors():
        for left in range(retries, 0, -1):
            try:
                return call(**request)
            except _TRANSIENT as e:
                _log_retry(e, left)
        return call(**request)


async def acomplete(call: Callable[..., Awaitable[Completion]], request: dict[str, Any], retries: int) -> Completion:
    """As `complete`, without a thread: cancelling the task stops the engine."""
    with as_langchain_errors():
        for left in range(retries, 0, -1):
            try:
                return await call(**request)
            except _TRANSIENT as e:
                _log_retry(e, left)
        return await call(**request)


def stream(call: Callable[..., Any], request: dict[str, Any], retries: int) -> Generator[Delta, None, None]:
    """The deltas of the generator ``call(**request)``. A failure is retried only before the first delta.

    Leaving the loop early closes the runtime's stream, which stops the engine.
    """
    with as_langchain_errors():
        for left in range(retries, -1, -1):
            started = False
            deltas = call(**request)
            try:
                for delta in deltas:
                    started = True
                    yield delta
            except _TRANSIENT as e:
                if started or not left:
                    raise
                _log_retry(e, left)
            else:
                return
            finally:
                deltas.close()


async def astream(call: Callable[..., Any], request: dict[str, Any], retries: int) -> AsyncGenerator[Delta, None]:
    """As `stream`, without a thread: closing the generator or cancelling the task stops the engine."""
    with as_langchain_errors():
        for left in range(retries, -1, -1):
            started = False
            deltas = call(**request)
            try:
                async for delta in deltas:
                    started = True
                    yield delta
            except _TRANSIENT as e:
                if started or not left:
                    raise
                _log_retry(e, left)
            else:
                return
            finally:
                await deltas.aclose()


def _log_retry(error: Exception, left: int) -> None:
    logger.warning("The engine failed (%s); trying the request again, %d more times at most.", error, left)
