"""Pins on disk, unfolded while the engine loads: what a first turn after a restart would wait for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from pinfold.errors import PinfoldError, SessionCorruptError
from pinfold.kv.codec import FoldedKV, codec_of, unfold
from pinfold.kv.snapshot import Snapshot
from pinfold.sessions.model_recipes import ModelRecipes
from pinfold.store import SessionStore, StoredEntry, salt_digest
from pinfold.store.recipes import RecipeFiles

__all__ = ["Early", "EarlyPins"]

log = logging.getLogger("pinfold.sessions")


@dataclass(frozen=True, slots=True)
class Early:
    """A pin as the disk has it, and what that unfolds to in no engine's own form."""

    tokens: list[int]
    folded: FoldedKV
    snapshot: Snapshot


class EarlyPins:
    """Opens the store and unfolds live pins without a salt, the most recently used first, on a thread of its own.

    Which of them the engine can use is known once it is open: `keep_only` says so then. Nothing here is needed for a
    right answer; what failed is read again when it is wanted. Safe from any thread.

    Args:
        open_store: opens the store, which is its caller's from `store` on.
        files: the recipes beside it.
        weights: digest of the model's file, as in the facet of that name.
        most_bytes: that the unfolded pins may take together.
    """

    def __init__(
        self, open_store: Callable[[], SessionStore], files: RecipeFiles, weights: str, most_bytes: int
    ) -> None:
        self._open_store = open_store
        self._files = files
        self._weights = weights
        self._most_bytes = most_bytes
        self._opened: Future[SessionStore] = Future()
        self._pins: dict[str, Future[Early]] = {}
        self._lost: list[tuple[StoredEntry, list[int]]] = []
        self._lock = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="pinfold-early", daemon=True)
        self._thread.start()

    def store(self) -> SessionStore:
        """The store. Raises what opening it raised."""
        return self._opened.result()

    def keep_only(self, keys: Collection[str]) -> None:
        """The engine is open: no other pin is begun, and those that are not among `keys` are dropped."""
        with self._lock:
            self._ended = True
            self._pins = {key: pin for key, pin in self._pins.items() if key in keys}

    def take(self, key: str, tokens: Sequence[int]) -> Early | None:
        """The pin of that key if it holds `tokens`, once: waits where it is being unfolded now."""
        with self._lock:
            pin = self._pins.pop(key, None)
        if pin is None or pin.exception() is not None:
            return None
        early = pin.result()
        return early if early.tokens == list(tokens) else None

    def lost(self) -> list[tuple[StoredEntry, list[int]]]:
        """Pins that turned out to be damaged, and are no longer in the store, with their tokens."""
        with self._lock:
            return list(self._lost)

    def give_up(self) -> None:
        """The engine did not open: drops everything and closes the store."""
        self.keep_only(())
        self._thread.join()
        if self._opened.exception() is None:
            self._opened.result().close()

    # --- on the thread

    def _work(self) -> None:
        try:
            store = self._open_store()
        except BaseException as e:  # noqa: BLE001 - it belongs to the one who asks for the store
            self._opened.set_exception(e)
            return
        self._opened.set_result(store)
        try:
            for entry in self._worth_it(store):
                pin = self._begin(entry)
                if pin is None:
                    return
                self._unfold(store, entry, pin)
        except PinfoldError as e:
            log.info("no pins were read while the engine loads: %s", e)

    def _worth_it(self, store: SessionStore) -> list[StoredEntry]:
        now, plain, left = time.time(), salt_digest(None), self._most_bytes
        chosen = []
        for entry in store.entries():
            if entry.live_pin(now) and entry.salt == plain and entry.facets.get("weights") == self._weights:
                left -= 2 * entry.raw_bytes  # folded and unfolded, with something over
                if left < 0:
                    break
                chosen.append(entry)
        return chosen

    def _begin(self, entry: StoredEntry) -> Future[Early] | None:
        with self._lock:
            return None if self._ended else self._pins.setdefault(entry.key, Future())

    def _unfold(self, store: SessionStore, entry: StoredEntry, pin: Future[Early]) -> None:
        tokens: list[int] = []
        try:
            tokens = store.tokens(entry.key).tolist()
            session = store.get(entry.key)
            codec, recipe = codec_of(session.payload)
            find = ModelRecipes(self._files, entry.fingerprint).get
            snapshot = unfold(session.payload, find, most_bytes=self._most_bytes)
            folded = FoldedKV(session.payload, codec, recipe, entry.raw_bytes)
            pin.set_result(Early(tokens, folded, snapshot))
        except Exception as e:  # noqa: BLE001 - whatever it is, nobody waits for it but `take`
            log.info("pin %r was not unfolded early: %s", entry.name, e)
            if isinstance(e, SessionCorruptError) and tokens:
                with self._lock:
                    self._lost.append((entry, tokens))
            pin.set_exception(e)
