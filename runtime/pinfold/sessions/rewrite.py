"""What is kept, in another form: folded by another preset, or in cells of other types. On the engine's thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pinfold.errors import SessionNotFoundError
from pinfold.sessions.folder import Folder
from pinfold.sessions.manager import SessionManager
from pinfold.sessions.shelf import Entry, Kind, Parked

__all__ = ["NOT_CALIBRATED", "FoldReport", "refold", "requantize"]

NOT_CALIBRATED = "this model is not calibrated yet, which idle time does: until then nothing is folded with loss"


@dataclass(frozen=True, slots=True)
class FoldReport:
    """What a fold came to: the codec, bytes before and after, and what was kept without loss, and why."""

    codec: str
    raw_bytes: int
    folded_bytes: int
    notes: tuple[str, ...] = ()


def refold(manager: SessionManager, name: str, salt: str | None, preset: str) -> FoldReport:
    """Folds a session or pin anew by `preset` and moves it to memory.

    Raises:
        SessionNotFoundError: there is none of that name, or its KV is lost.
        EngineError, SessionError, StoreError: its copy could not be brought back.
    """
    entry = manager.library.entry_named(name, salt)
    manager.space.bring_back(entry)
    if entry.seq is None or manager.library.folder is None:
        msg = f"{entry.label} is lost: there is nothing to fold. Its next request computes it again."
        raise SessionNotFoundError(msg)
    folder = manager.library.folder
    folded = folder.fold(manager.engine.snapshot(entry.seq), len(entry.tokens), preset)
    entry.parked = Parked(len(entry.tokens), None, folded)
    entry.stored = None  # what is on disk is of another preset: it is replaced
    manager.space.leave_cells(entry)
    notes = (*folded.notes, *_why_exact(folder, preset)) if folded.codec == "exact" else folded.notes
    return FoldReport(folded.codec, folded.raw_bytes, len(folded.data), notes)


def _why_exact(folder: Folder, preset: str) -> Iterator[str]:
    """Why a fold that may lose came to none that does."""
    if preset != "exact" and folder.recipe is None:
        yield NOT_CALIBRATED
    elif preset != "exact" and folder.recipe is not None and folder.recipe.rungs.get(preset, -1) < 0:
        yield "no step of the ladder passes its gate on this model"


def requantize(manager: SessionManager, name: str, salt: str | None, kv_types: str) -> str:
    """Moves a session into cells of other types; returns those, "" for the engine's own.

    Raises:
        SessionNotFoundError: there is none of that name, or its KV is lost.
        UnsupportedModeError: the engine has no such cells.
        CacheFullError: there is no memory for them, or no sequence id.
    """
    entry = manager.library.session(name, salt)
    if entry in manager.space.shelf:
        manager.space.bring_back(entry)
    if entry.seq is None:
        msg = f"{entry.label} holds no KV now. Its next request computes it; change its cells after that."
        raise SessionNotFoundError(msg)
    length = len(entry.tokens)
    data = manager.engine.transcode(manager.engine.snapshot(entry.seq), length, kv_types)
    seq = manager.space.new_seq(keep=entry)
    try:
        manager.engine.restore(seq, data, length)
    except BaseException:
        manager.space.abandon(seq)
        raise
    moved = Entry(Kind.SESSION, name, salt, entry.tokens, seq, cells=manager.engine.kv_types(seq))
    manager.keep_session(moved)
    if entry in manager.space.shelf:
        manager.space.forget(entry)
    return moved.cells
