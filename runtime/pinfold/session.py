"""A named session: a handle on KV that outlives a request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pinfold.results import Completion, Delta
    from pinfold.runtime import Runtime
    from pinfold.sessions.rewrite import FoldReport

__all__ = ["Session"]

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None


class Session:
    """Requests made through it leave their KV under its name, where the next one finds it.

    The messages are the whole conversation each time, as with every chat API. A session opened on a pin puts the pin's
    messages in front of them, unless they begin with those already, and offers the pin's tools where none are given.
    Leaving the ``with`` block keeps the session; `drop` forgets it.
    """

    def __init__(self, runtime: Runtime, name: str, salt: str | None, pinned: Messages, tools: Tools) -> None:
        self.name = name
        self.salt = salt
        self._runtime = runtime
        self._pinned = list(pinned)
        self._tools = tools

    def chat(self, messages: Messages, *, tools: Tools = None, **options: Any) -> Completion:
        """As `Runtime.chat`."""
        return self._runtime.chat(self._whole(messages), **self._options(tools, options))

    def stream(self, messages: Messages, *, tools: Tools = None, **options: Any) -> Generator[Delta, None, None]:
        """As `Runtime.stream`."""
        return self._runtime.stream(self._whole(messages), **self._options(tools, options))

    async def achat(self, messages: Messages, *, tools: Tools = None, **options: Any) -> Completion:
        """As `Runtime.achat`."""
        return await self._runtime.achat(self._whole(messages), **self._options(tools, options))

    def astream(self, messages: Messages, *, tools: Tools = None, **options: Any) -> AsyncGenerator[Delta, None]:
        """As `Runtime.astream`."""
        return self._runtime.astream(self._whole(messages), **self._options(tools, options))

    def fork(self, name: str) -> Session:
        """A new session that begins with all this one holds; no KV is copied.

        Raises:
            InvalidRequestError: a session of that name exists.
        """
        self._runtime.fork_session(self.name, name, salt=self.salt)
        return Session(self._runtime, name, self.salt, self._pinned, self._tools)

    def refold(self, preset: str) -> FoldReport:
        """As `Runtime.refold` for this session."""
        return self._runtime.refold(self.name, preset, salt=self.salt)

    def requantize(self, kv_resident: str) -> str:
        """As `Runtime.requantize` for this session."""
        return self._runtime.requantize(self.name, kv_resident, salt=self.salt)

    def drop(self) -> None:
        """Forgets the session and its KV."""
        self._runtime.drop_session(self.name, salt=self.salt)

    def close(self) -> None:
        """Ends the use of this handle; the session stays under its name until room is needed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _whole(self, messages: Messages) -> list[Mapping[str, Any]]:
        given = list(messages)
        return given if given[: len(self._pinned)] == self._pinned else [*self._pinned, *given]

    def _options(self, tools: Tools, options: Mapping[str, Any]) -> dict[str, Any]:
        return {**options, "tools": self._tools if tools is None else tools, "salt": self.salt, "session": self.name}
