"""Middleware that pins an agent's system prompt and tools."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from langchain.agents.middleware.types import AgentMiddleware, ModelCallResult, ModelRequest, ModelResponse
from langchain_core.messages import SystemMessage
from langchain_core.runnables import RunnableBinding
from langchain_core.tools import BaseTool

from langchain_pinfold.chat_models import ChatPinfold
from pinfold.errors import UnsupportedModeError
from pinfold.options import parse_ttl

__all__ = ["PinfoldPromptCachingMiddleware"]


class PinfoldPromptCachingMiddleware(AgentMiddleware[Any, Any, Any]):
    """Pins the end of an agent's system prompt and its tools, so that they are computed once for all its turns.

    It is used as the caching middleware of hosted providers is, so that an agent can change its model and nothing
    else. The marks are put on copies: the agent's own messages and tools stay as they are.
    """

    def __init__(
        self,
        type: str = "ephemeral",  # noqa: A002 - the name that such middleware has elsewhere
        ttl: str = "5m",
        min_messages_to_cache: int = 0,
        unsupported_model_behavior: Literal["warn", "ignore", "raise"] = "warn",
    ) -> None:
        """Settings of the pin.

        Args:
            type: "ephemeral", the one kind there is.
            ttl: how long the pin lasts after its last use, such as "5m" or "1h".
            min_messages_to_cache: pin nothing before the conversation has so many messages, the system's included.
            unsupported_model_behavior: what to do when the agent's model is not a ChatPinfold.

        Raises:
            UnsupportedModeError: another `type`.
            InvalidRequestError: a `ttl` that is no time.
        """
        super().__init__()
        if type != "ephemeral":
            msg = f"type={type!r} is not supported. Use 'ephemeral'."
            raise UnsupportedModeError(msg)
        parse_ttl(ttl)
        self.type = type
        self.ttl = ttl
        self.min_messages_to_cache = min_messages_to_cache
        self.unsupported_model_behavior = unsupported_model_behavior

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelCallResult[Any]:
        """Calls the model with the marks in place."""
        return handler(self._marked(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelCallResult[Any]:
        """Calls the model with the marks in place."""
        return await handler(self._marked(request))

    def _marked(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if not self._applies(request):
            return request
        changed: dict[str, Any] = {}
        if request.system_message is not None:
            changed["system_message"] = self._mark_system(request.system_message)
        if request.tools:
            changed["tools"] = [*request.tools[:-1], self._mark_tool(request.tools[-1])]
        return request.override(**changed) if changed else request

    def _applies(self, request: ModelRequest[Any]) -> bool:
        model = request.model.bound if isinstance(request.model, RunnableBinding) else request.model
        if not isinstance(model, ChatPinfold):
            msg = (
                f"PinfoldPromptCachingMiddleware works with ChatPinfold, and this agent's model is "
                f"{type(model).__name__}. Remove the middleware, or set unsupported_model_behavior='ignore'."
            )
            if self.unsupported_model_behavior == "raise":
                raise UnsupportedModeError(msg)
            if self.unsupported_model_behavior == "warn":
                warnings.warn(msg, stacklevel=3)
            return False
        return len(request.messages) + (request.system_message is not None) >= self.min_messages_to_cache

    def _mark_system(self, message: SystemMessage) -> SystemMessage:
        blocks = [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
        if not blocks:
            return message
        last = {"type": "text", "text": blocks[-1]} if isinstance(blocks[-1], str) else blocks[-1]
        return message.model_copy(update={"content": [*blocks[:-1], {**last, **self._mark()}]})

    def _mark_tool(self, tool: BaseTool | dict[str, Any]) -> BaseTool | dict[str, Any]:
        if isinstance(tool, dict):
            return {**tool, **self._mark()}
        return tool.model_copy(update={"extras": {**(tool.extras or {}), **self._mark()}})

    def _mark(self) -> dict[str, Any]:
        return {"cache_control": {"type": self.type, "ttl": self.ttl}}
