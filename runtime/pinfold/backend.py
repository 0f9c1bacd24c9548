"""What stands behind a Runtime: a model in this process, or a server. The adapters and the Runtime know only this."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pinfold.engines.base import Capabilities
    from pinfold.options import ChatKeywords, CompleteKeywords
    from pinfold.prompt_check import PromptCheck
    from pinfold.results import Delta
    from pinfold.sessions.manager import SessionInfo
    from pinfold.sessions.pins import Pin
    from pinfold.sessions.rewrite import FoldReport

__all__ = ["Backend", "Call", "Messages", "Tools"]

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None


class Call(Protocol):
    """A request that was checked and not yet begun. It runs once; closing the iterator stops the work behind it."""

    def deltas(self, *, streams: bool) -> Generator[Delta, None, None]:
        """The answer: piece by piece, or as one delta where it is not streamed. The last one has `done`."""

    def adeltas(self, *, streams: bool) -> AsyncGenerator[Delta, None]:
        """As `deltas`, for the running event loop."""


class Backend(Protocol):
    """See `runtime.Runtime` for what each method promises and raises. Safe from any thread."""

    model: str
    n_ctx: int

    @property
    def capabilities(self) -> Capabilities: ...

    def chat(self, messages: Messages, keywords: ChatKeywords) -> Call: ...

    def complete(self, prompt: str, keywords: CompleteKeywords) -> Call: ...

    def pin(self, messages: Messages, tools: Tools, *, name: str, ttl: float | None, salt: str | None) -> Pin:
        """`ttl` is in seconds, None for no end."""

    def pins(self) -> list[Pin]: ...

    def pin_prompt(self, name: str) -> tuple[Mapping[str, Any], str | None]:
        """The messages and tools of a live pin, and its salt."""

    def unpin(self, name: str) -> None: ...

    def open_session(self, name: str, salt: str | None) -> None:
        """Makes sure that there is a session of that name."""

    def sessions(self) -> list[SessionInfo]: ...

    def fork_session(self, name: str, new_name: str, salt: str | None) -> None: ...

    def drop_session(self, name: str, salt: str | None) -> None: ...

    def refold(self, name: str, preset: str, salt: str | None) -> FoldReport: ...

    def requantize(self, name: str, kv_resident: str, salt: str | None) -> str: ...

    def tokenize(self, text: str) -> list[int]: ...

    def detokenize(self, tokens: Sequence[int]) -> str: ...

    def count_tokens(self, messages: Messages, tools: Tools) -> int: ...

    def check_prompt(self, messages: Messages, tools: Tools, other: tuple[Messages, Tools] | None) -> PromptCheck: ...

    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...
