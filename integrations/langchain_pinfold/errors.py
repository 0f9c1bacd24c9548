"""Pinfold's errors in the shape that LangChain's agents and middleware recognise.

Each class below is both Pinfold's own error and langchain-core's, so that code which catches either one works: the
summarisation middleware shortens the history on ``ContextOverflowError``, the retry middleware asks `is_retryable`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core import exceptions as langchain_errors

from pinfold import errors as pinfold_errors

__all__ = [
    "ContextOverflowError",
    "ModelNotFoundError",
    "RequestTimeoutError",
    "ServerBusyError",
    "ServerError",
    "ServerRefusedError",
    "ServerUnreachableError",
    "as_langchain_errors",
]


class ContextOverflowError(pinfold_errors.ContextOverflowError, langchain_errors.ContextOverflowError):
    """The prompt does not fit the context window; `prompt_tokens` and `n_ctx` say by how much."""


class ModelNotFoundError(pinfold_errors.ModelNotFoundError, langchain_errors.ModelNotFoundError):
    """No file, folder, alias or repository of that name can be reached."""


class RequestTimeoutError(pinfold_errors.RequestTimeoutError, langchain_errors.ModelTimeoutError):
    """The request took longer than its timeout and was stopped."""


class ServerUnreachableError(pinfold_errors.ServerUnreachableError, langchain_errors.ModelConnectionError):
    """No connection to the server, or none that TLS could verify."""


class ServerRefusedError(pinfold_errors.ServerRefusedError, langchain_errors.ModelAuthenticationError):
    """The server wants another key, or forbids this one what was asked."""


class ServerBusyError(pinfold_errors.ServerBusyError, langchain_errors.ModelRateLimitError):
    """The server was too busy, and stayed so for as long as it was retried."""


class ServerError(pinfold_errors.ServerError, langchain_errors.ModelAPIError):
    """The server failed, or sent what is no answer."""


_BOTH: tuple[tuple[type[pinfold_errors.PinfoldError], type[pinfold_errors.PinfoldError]], ...] = (
    (pinfold_errors.ModelNotFoundError, ModelNotFoundError),
    (pinfold_errors.RequestTimeoutError, RequestTimeoutError),
    (pinfold_errors.ServerUnreachableError, ServerUnreachableError),
    (pinfold_errors.ServerRefusedError, ServerRefusedError),
    (pinfold_errors.ServerBusyError, ServerBusyError),
    (pinfold_errors.ServerError, ServerError),  # what is left of its kind
)


@contextmanager
def as_langchain_errors() -> Iterator[None]:
    """Inside this block, a Pinfold error that langchain-core has a class for is raised as both."""
    try:
        yield
    except pinfold_errors.ContextOverflowError as e:
        raise ContextOverflowError(e.prompt_tokens, e.n_ctx, e.remedy) from e
    except pinfold_errors.PinfoldError as e:
        for own, both in _BOTH:
            if isinstance(e, own):
                raise both(*e.args) from e
        raise
