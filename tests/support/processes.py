"""What one process keeps over the scripted engine, without the process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pinfold.engines.base import Span
from pinfold.sessions.early import EarlyPins
from pinfold.sessions.folder import Folder
from pinfold.sessions.idle import IdleTimes
from pinfold.sessions.manager import SessionManager
from pinfold.sessions.pins import PinRecord
from pinfold.sessions.upkeep import Upkeep
from pinfold.sessions.vault import Vault
from pinfold.store import SessionStore
from pinfold.store.recipes import RecipeFiles
from tests.support.scripted import WatchedEngine

WEIGHTS = "w"
AT_ONCE = IdleTimes(fold=0, save=0, resident=1e9, memory=1e9, calibrate=1e9)


class Process:
    """One process's engine, sessions and disk; `settle` runs upkeep and its thread until nothing is left to do."""

    def __init__(
        self, folder: Path | None, *, times: IdleTimes = AT_ONCE, memory: int = 1 << 20, early: EarlyPins | None = None
    ) -> None:
        self.engine = WatchedEngine(n_ctx=512)
        self.folder = Folder(self.engine, "exact")
        self.manager = SessionManager(self.engine, memory, folder=self.folder)
        self.posted: list[Callable[[], None]] = []
        self.upkeep = Upkeep(self.engine, self.manager, self.folder, times, self.posted.append)
        if folder is not None:
            store = SessionStore(folder / "sessions", budget=1 << 24) if early is None else early.store()
            vault = Vault(store, RecipeFiles(folder / "models"), "scripted", {"engine": "scripted", "weights": WEIGHTS})
            self.manager.library.attach(vault, early)

    def settle(self) -> None:
        for _ in range(4):
            self.upkeep.step()
            self.folder.close()
            while self.posted:
                self.posted.pop(0)()

    def run(self, tokens: list[int], salt: str | None = None, session: str | None = None) -> str:
        """A request; returns its hit kind."""
        start = self.manager.start(tokens, salt)
        self.engine.forward([Span(start.seq, start.length, tokens[start.length :])])
        self.manager.finish(start.seq, tokens, salt, session)
        return start.hit

    def pin(self, name: str, tokens: list[int], salt: str | None = None) -> None:
        start = self.manager.start(tokens, salt)
        self.engine.forward([Span(start.seq, start.length, tokens[start.length :])])
        record = PinRecord(name, tokens, salt, 60.0, prompt={"messages": [{"role": "user"}], "tools": None})
        self.manager.pin(start.seq, record)
        self.manager.space.abandon(start.seq)

    def tier(self, name: str) -> str:
        return {s.name: s.tier for s in self.manager.sessions()}.get(name, "lost")

    def stop(self) -> None:
        self.upkeep.settle()
        while self.posted:
            self.posted.pop(0)()
        self.upkeep.flush()
        vault = self.manager.library.vault
        if vault is not None:
            vault.store.close()
