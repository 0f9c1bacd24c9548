"""What must hold whenever an engine has come to rest."""

from __future__ import annotations

from pinfold import Runtime
from pinfold.sessions.manager import SessionManager


def assert_tokens_and_kv_agree(rt: Runtime) -> None:
    """Every kept sequence holds exactly its tokens, every id is kept or free, and cells and memory add up."""

    def agree(manager: SessionManager) -> None:
        engine, space = manager.engine, manager.space
        resident = [entry for entry in space.shelf if entry.seq is not None]
        for entry in resident:
            assert engine.length(entry.seq) == len(entry.tokens)  # type: ignore[arg-type]
        assert {entry.seq for entry in resident}.isdisjoint(space._free_seqs)
        assert len(resident) + len(space._free_seqs) == engine.capabilities.n_seq
        assert all(engine.length(seq) == 0 for seq in space._free_seqs)
        assert all(entry.seq is not None or entry.parked is not None for entry in space.shelf)
        assert space.memory_used() <= space._budget
        for tree in space.shelf._trees.values():
            tree.check()

    rt._backend.worker.call(agree)


def idle(rt: Runtime) -> bool:
    """Whether nothing runs, once the commands that were sent have been seen."""
    for _ in range(3):  # a cancellation is a command of its own, and the step that ends it follows
        rt._backend.worker.call(lambda manager: None)
    return not rt._backend.worker._loop.busy
