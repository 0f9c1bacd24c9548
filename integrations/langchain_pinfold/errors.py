"""Pinfold's errors in the shape that LangChain's agents and middleware recognise.

Each class below is both Pinfold's own error and langchain-core's, so that code which catches either one works: the
summarisation middleware shortens the history on ``ContextOverflowError``, the retry middleware asks `is_retryable`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core import exceptions as langchain_errors

from pinfold import errors as pinfold_errors

__all__ = ["ContextOverflowError", "ModelNotFoundError", "RequestTimeoutError", "as_langchain_errors"]


class ContextOverflowError(pinfold_errors.ContextOverflowError, langchain_errors.ContextOverflowError):
    """The prompt does not fit the context window; `prompt_tokens` and `n_ctx` say by how much."""


class ModelNotFoundError(pinfold_errors.ModelNotFoundError, langchain_errors.ModelNotFoundError):
    """No file, folder, alias or repository of that name can be reached."""


class RequestTimeoutError(pinfold_errors.RequestTimeoutError, langchain_errors.ModelTimeoutError):
    """The request took longer than its timeout and was stopped."""


@contextmanager
def as_langchain_errors() -> Iterator[None]:
    """Inside this block, a Pinfold error that langchain-core has a class for is raised as both."""
    try:
        yield
    except pinfold_errors.ContextOverflowError as e:
        raise ContextOverflowError(e.prompt_tokens, e.n_ctx) from e
    except pinfold_errors.ModelNotFoundError as e:
        raise ModelNotFoundError(*e.args) from e
    except pinfold_errors.RequestTimeoutError as e:
        raise RequestTimeoutError(*e.args) from e
