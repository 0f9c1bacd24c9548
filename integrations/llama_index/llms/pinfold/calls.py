"""One request, ready to go: the four ways of asking the runtime, behind two forms of prompt."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinfold import Completion, Delta, Runtime

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """A prompt and its arguments. A list of messages goes through the chat template; a string is evaluated as it is."""

    prompt: list[dict[str, Any]] | str
    arguments: dict[str, Any]
    one_tool_call: bool = False

    def whole(self, runtime: Runtime) -> Completion:
        """The whole answer."""
        if isinstance(self.prompt, str):
            return runtime.complete(self.prompt, **self.arguments)
        return runtime.chat(self.prompt, **self.arguments)

    async def awhole(self, runtime: Runtime) -> Completion:
        """The whole answer, without blocking the event loop."""
        if isinstance(self.prompt, str):
            return await runtime.acomplete(self.prompt, **self.arguments)
        return await runtime.achat(self.prompt, **self.arguments)

    def deltas(self, runtime: Runtime) -> Generator[Delta, None, None]:
        """The answer as it grows; to be closed."""
        if isinstance(self.prompt, str):
            return runtime.stream_complete(self.prompt, **self.arguments)
        return runtime.stream(self.prompt, **self.arguments)

    def adeltas(self, runtime: Runtime) -> AsyncGenerator[Delta, None]:
        """The answer as it grows, without blocking the event loop; to be closed."""
        if isinstance(self.prompt, str):
            return runtime.astream_complete(self.prompt, **self.arguments)
        return runtime.astream(self.prompt, **self.arguments)
