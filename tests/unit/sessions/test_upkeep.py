"""Tiers, the disk and their upkeep over the scripted engine: what moves where, and what a fault costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinfold.errors import SessionNotFoundError
from pinfold.sessions.idle import IdleTimes
from pinfold.sessions.rewrite import NOT_CALIBRATED, refold
from pinfold.sessions.vault import Vault
from pinfold.store import SessionStore
from pinfold.store.recipes import RecipeFiles
from tests.support.processes import Process

PROMPT = list(range(200))


def test_pins_and_sessions_are_there_after_a_restart_and_requests_are_not(tmp_path: Path) -> None:
    first = Process(tmp_path)
    first.pin("coder", PROMPT[:150])
    first.run([*PROMPT, 7], session="task")
    first.run([9] * 100)
    first.stop()
    second = Process(tmp_path)
    assert [(p.name, p.tokens, p.tier) for p in second.manager.pins()] == [("coder", 150, "disk")]
    assert second.manager.pin_prompt("coder")[0]["messages"] == [{"role": "user"}]
    assert second.run([*PROMPT[:150], 1, 2, 3]) == "disk"
    assert second.run([9] * 100) == "miss"
    second.manager.open_session("task", None)
    assert second.tier("task") == "disk"
    assert second.run([*PROMPT, 7, 8]) == "disk"
    assert second.tier("task") == "resident"
    second.stop()


def test_a_first_request_finds_a_stored_session_that_nobody_named(tmp_path: Path) -> None:
    first = Process(tmp_path)
    first.run(PROMPT, session="task")
    first.stop()
    second = Process(tmp_path)
    assert second.run([*PROMPT, 1]) == "disk"
    assert second.engine.evaluated == 1
    second.stop()


def test_another_salt_never_finds_it(tmp_path: Path) -> None:
    first = Process(tmp_path)
    first.pin("secret", PROMPT, salt="a")
    first.run(PROMPT, salt="a", session="task")
    first.stop()
    second = Process(tmp_path)
    assert second.run([*PROMPT, 1], salt="b") == "miss"
    assert second.run([*PROMPT, 1]) == "miss"
    with pytest.raises(SessionNotFoundError):
        second.manager.drop_session("task", "b")
    assert second.run([*PROMPT, 1], salt="a") == "disk"
    second.stop()


def test_idle_entries_are_saved_and_leave_cells_and_memory_pins_stay_in_memory(tmp_path: Path) -> None:
    process = Process(tmp_path, times=IdleTimes(fold=0, save=0, resident=0, memory=0, calibrate=1e9))
    process.pin("coder", PROMPT[:100])
    process.run(PROMPT, session="task")
    process.settle()
    assert process.tier("task") == "disk"
    assert process.manager.pin_named("coder").tier == "memory"
    assert process.engine.free_cells() == process.engine.capabilities.n_cells
    assert process.run([*PROMPT, 1]) == "disk"
    assert process.run([*PROMPT[:100], 1]) in ("resident", "memory")
    process.stop()


def test_a_dropped_session_and_an_ended_pin_are_gone_from_the_disk(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.pin("coder", PROMPT[:100])
    process.run(PROMPT, session="task")
    process.settle()
    store = process.manager.library.vault.store  # type: ignore[union-attr]
    assert {e.name for e in store.entries()} == {"coder", "task"}
    process.manager.drop_session("task", None)
    process.manager.unpin("coder")
    process.settle()
    assert store.entries() == []
    process.stop()


def test_a_session_dropped_while_it_is_written_does_not_stay_on_disk(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.run(PROMPT, session="task")
    process.upkeep.step()  # the write is on its way
    process.manager.drop_session("task", None)
    process.settle()
    assert process.manager.library.vault.store.entries() == []  # type: ignore[union-attr]
    process.stop()


def test_a_longer_turn_replaces_what_the_disk_has(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.run(PROMPT[:100], session="task")
    process.settle()
    process.run(PROMPT, session="task")
    process.settle()
    (entry,) = process.manager.library.vault.store.entries()  # type: ignore[union-attr]
    assert entry.n_tokens == len(PROMPT)
    process.stop()


def test_a_damaged_file_is_a_cold_start_with_a_note_and_is_set_aside(tmp_path: Path) -> None:
    first = Process(tmp_path)
    first.run(PROMPT, session="task")
    first.stop()
    (payload,) = (p for p in (tmp_path / "sessions" / "payload").rglob("*") if p.is_file())
    data = bytearray(payload.read_bytes())
    data[-5] ^= 1
    payload.write_bytes(data)
    second = Process(tmp_path)
    start = second.manager.start([*PROMPT, 1], None)
    assert (start.hit, start.length) == ("miss", 0)
    assert "computed anew" in start.note
    assert "damaged" in start.note
    assert second.manager.library.vault.store.entries() == []  # type: ignore[union-attr]
    second.stop()


def test_a_full_disk_leaves_the_session_in_memory(tmp_path: Path) -> None:
    process = Process(tmp_path)
    vault = process.manager.library.vault
    assert vault is not None
    vault.store.close()
    vault.store = SessionStore(tmp_path / "small", budget=1 << 20, min_free=1 << 62)
    process.run(PROMPT, session="task")
    process.settle()
    assert process.tier("task") == "resident"
    assert process.run([*PROMPT, 1]) == "resident"
    process.stop()


def test_what_memory_has_no_room_for_stays_on_disk(tmp_path: Path) -> None:
    process = Process(tmp_path, times=IdleTimes(fold=0, save=0, resident=0, memory=1e9, calibrate=1e9), memory=10)
    process.run(PROMPT, session="task")
    process.settle()
    assert process.tier("task") == "disk"
    assert process.run([*PROMPT, 1]) == "disk"
    process.stop()


def test_a_refold_says_why_it_lost_nothing() -> None:
    process = Process(None)
    process.run(PROMPT, session="task")
    report = refold(process.manager, "task", None, "balanced")
    assert (report.codec, report.notes) == ("exact", (NOT_CALIBRATED,))
    process.stop()


def test_refolding_moves_a_session_to_memory_and_it_goes_on(tmp_path: Path) -> None:
    process = Process(None)
    process.run(PROMPT, session="task")
    report = refold(process.manager, "task", None, "exact")
    assert report.notes == ()
    assert (report.codec, process.tier("task")) == ("exact", "memory")
    assert process.run([*PROMPT, 1]) == "memory"
    with pytest.raises(SessionNotFoundError):
        refold(process.manager, "nobody", None, "exact")
    process.stop()


def test_two_processes_share_a_store(tmp_path: Path) -> None:
    one, two = Process(tmp_path), Process(tmp_path)
    one.pin("coder", PROMPT)
    one.settle()
    assert two.run([*PROMPT, 1]) == "disk"
    assert two.manager.pin_named("coder").name == "coder"
    one.stop()
    two.stop()


def test_what_another_version_stored_is_a_miss_with_the_reason(tmp_path: Path) -> None:
    first = Process(tmp_path)
    first.run(PROMPT, session="task")
    first.stop()
    second = Process(None)
    store = SessionStore(tmp_path / "sessions", budget=1 << 24)
    vault = Vault(store, RecipeFiles(tmp_path / "models"), "scripted", {"engine": "scripted", "weights": "changed"})
    second.manager.library.attach(vault)
    start = second.manager.start([*PROMPT, 1], None)
    assert (start.hit, start.length) == ("miss", 0)
    assert (
        "200 tokens are on disk as session 'task', but stored with another weights (w there, changed here)"
        in start.note
    )
    second.stop()
