"""Pins unfolded while the engine loads: which ones, that they are used once, and that no fault of theirs is felt."""

from __future__ import annotations

import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pinfold import Runtime
from pinfold.errors import EngineError, ModelError, StoreError
from pinfold.sessions.early import EarlyPins
from pinfold.store import SessionStore
from pinfold.store.recipes import RecipeFiles
from tests.support.processes import WEIGHTS, Process

PROMPT = list(range(150))
OTHER = list(range(200, 350))


def early(folder: Path, *, weights: str = WEIGHTS, most_bytes: int = 1 << 20) -> EarlyPins:
    """What has been unfolded by the time that an engine is open which takes its time."""
    opens = partial(SessionStore, folder / "sessions", budget=1 << 24)
    pins = EarlyPins(opens, RecipeFiles(folder / "models"), weights, most_bytes)
    pins._thread.join(10)
    assert not pins._thread.is_alive()
    return pins


def pinned(folder: Path, **prompts: list[int]) -> None:
    process = Process(folder)
    for name, tokens in prompts.items():
        process.pin(name, tokens)
    process.stop()


def lose_payloads(folder: Path) -> None:
    shutil.rmtree(folder / "sessions" / "payload")
    (folder / "sessions" / "payload").mkdir(mode=0o700)


def reused(process: Process, tokens: list[int]) -> int:
    return process.manager.start([*tokens, 7, 8], None).length


def test_a_pin_is_restored_from_what_was_unfolded_and_not_from_its_file(tmp_path: Path) -> None:
    pinned(tmp_path, coder=PROMPT)
    process = Process(tmp_path, early=early(tmp_path))
    lose_payloads(tmp_path)
    assert reused(process, PROMPT) == 150
    process.stop()


def test_upkeep_puts_it_in_memory_ahead_of_the_first_request(tmp_path: Path) -> None:
    pinned(tmp_path, coder=PROMPT)
    process = Process(tmp_path, early=early(tmp_path))
    lose_payloads(tmp_path)
    process.settle()
    assert process.manager.pin_named("coder").tier == "memory"
    assert process.run([*PROMPT, 7]) == "memory"
    process.stop()


def test_in_short_memory_it_is_kept_folded_only(tmp_path: Path) -> None:
    pinned(tmp_path, coder=PROMPT)
    raw_bytes = 150 * Process(None).engine.capabilities.bytes_per_token
    process = Process(tmp_path, early=early(tmp_path), memory=int(1.5 * raw_bytes))
    process.settle()
    (entry,) = process.manager.space.shelf
    assert entry.parked is not None
    assert entry.parked.raw is None
    assert entry.parked.folded is not None
    assert process.run([*PROMPT, 7]) == "memory"
    process.stop()


def test_what_is_there_for_others_is_left_alone(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.pin("mine", PROMPT)
    process.pin("salted", OTHER, salt="a")
    process.run([*PROMPT, *OTHER], session="task")
    process.stop()
    assert len(early(tmp_path)._pins) == 1
    assert not early(tmp_path, weights="of another model")._pins


def test_the_most_recently_used_go_first_within_the_budget(tmp_path: Path) -> None:
    pinned(tmp_path, first=PROMPT)
    pinned(tmp_path, second=OTHER)
    with SessionStore(tmp_path / "sessions", budget=1 << 24) as store:
        newest, _ = store.entries()
    assert newest.name == "second"
    pins = early(tmp_path, most_bytes=3 * newest.raw_bytes)
    assert list(pins._pins) == [newest.key]
    assert not early(tmp_path, most_bytes=newest.raw_bytes)._pins


def test_it_is_given_once_and_only_for_its_tokens(tmp_path: Path) -> None:
    pinned(tmp_path, coder=PROMPT)
    pins, others = early(tmp_path), early(tmp_path)
    (key,) = pins._pins
    found = pins.take(key, PROMPT)
    assert found is not None
    assert found.tokens == PROMPT
    assert pins.take(key, PROMPT) is None
    assert others.take(key, OTHER) is None


def test_what_the_engine_cannot_use_is_dropped(tmp_path: Path) -> None:
    pinned(tmp_path, coder=PROMPT, tester=OTHER)
    pins = early(tmp_path)
    tokens = {key: pin.result().tokens for key, pin in pins._pins.items()}
    kept, dropped = tokens
    pins.keep_only({kept})
    assert pins.take(dropped, tokens[dropped]) is None
    assert pins.take(kept, tokens[kept]) is not None


def test_a_damaged_file_costs_a_prefill_and_no_more(tmp_path: Path) -> None:
    pinned(tmp_path, coder=PROMPT)
    for file in (tmp_path / "sessions" / "payload").rglob("*"):
        if file.is_file():
            data = bytearray(file.read_bytes())
            data[-40] ^= 4
            file.write_bytes(data)
    process = Process(tmp_path, early=early(tmp_path))
    assert [(pin.name, pin.tier) for pin in process.manager.pins()] == [("coder", "lost")]
    start = process.manager.start([*PROMPT, 7], None)
    assert (start.hit, start.length) == ("miss", 0)
    process.stop()


def test_a_store_that_does_not_open_says_so_to_the_one_who_needs_it(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("no folder")
    pins = early(tmp_path)
    with pytest.raises(StoreError):
        pins.store()
    pins.give_up()


def test_giving_up_closes_the_store(tmp_path: Path) -> None:
    pinned(tmp_path, coder=PROMPT)
    pins = early(tmp_path)
    pins.give_up()
    assert not pins._pins
    assert pins.store()._index._connection is None


def test_an_engine_that_does_not_open_leaves_nothing_behind(smollm2: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_ctx": 512, "store": tmp_path / "store"}
    with Runtime(smollm2, **options) as rt:
        path = rt.capabilities.model.path
        rt.pin([{"role": "system", "content": "You keep the books of a harbour. " * 20}], name="books")
    assert path is not None
    with pytest.raises((EngineError, ModelError)):
        Runtime(path, **options, draft="model:/nowhere/small.gguf")
    assert "pinfold-early" not in {thread.name for thread in threading.enumerate()}
