"""Pinfold for LangChain: local models whose long prompts are computed once and then reused.

``ChatPinfold`` is the chat model, ``PinfoldLLM`` the plain text one. ``PinfoldPromptCachingMiddleware`` pins the system
prompt and the tools of an agent; it needs the ``langchain`` package, the other two only ``langchain-core``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_pinfold.chat_models import ChatPinfold
from langchain_pinfold.llms import PinfoldLLM

if TYPE_CHECKING:
    from langchain_pinfold.middleware import PinfoldPromptCachingMiddleware

__all__ = ["ChatPinfold", "PinfoldLLM", "PinfoldPromptCachingMiddleware"]


def __getattr__(name: str) -> Any:
    if name != "PinfoldPromptCachingMiddleware":
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        from langchain_pinfold.middleware import PinfoldPromptCachingMiddleware
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] not in {"langchain", "langgraph"}:
            raise
        msg = "PinfoldPromptCachingMiddleware needs LangChain's agents. Install them with: pip install langchain"
        raise ImportError(msg) from e
    return PinfoldPromptCachingMiddleware
