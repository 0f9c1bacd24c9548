"""Reuse, commit, eviction, pins and sessions, over the scripted engine's cells."""

from __future__ import annotations

import pytest

from pinfold.engines.base import Span
from pinfold.errors import (
    CacheFullError,
    EngineError,
    InvalidRequestError,
    PinExpiredError,
    PinNotFoundError,
    SessionNotFoundError,
    TrimError,
)
from pinfold.sessions.manager import SessionManager
from pinfold.sessions.pins import PinRecord
from tests.support.scripted import WatchedEngine

PROMPT = list(range(100))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(*, memory: int = 0, **options: int) -> tuple[WatchedEngine, SessionManager, Clock]:
    engine, clock = WatchedEngine(**{"n_ctx": 64 * 8, **options}), Clock()
    return engine, SessionManager(engine, memory, clock), clock


def run(engine: WatchedEngine, manager: SessionManager, tokens: list[int], **keep: str | None) -> int:
    """A request for `tokens`, as the loop would run it; returns the tokens it found computed."""
    salt, session = keep.get("salt"), keep.get("session")
    start = manager.start(tokens, salt)
    engine.forward([Span(start.seq, start.length, tokens[start.length :])])
    manager.finish(start.seq, tokens, salt, session)
    return start.length


def pin(
    engine: WatchedEngine, manager: SessionManager, tokens: list[int], name: str = "p", **more: object
) -> PinRecord:
    start = manager.start(tokens, None)
    engine.forward([Span(start.seq, start.length, tokens[start.length :])])
    record = PinRecord(name, tokens, None, 60.0, **more)  # type: ignore[arg-type]
    manager.pin(start.seq, record)
    manager.space.abandon(start.seq)
    return record


def test_a_longer_a_shorter_and_an_equal_prompt_reuse_all_but_one_token() -> None:
    engine, manager, _ = make()
    assert run(engine, manager, PROMPT) == 0
    assert run(engine, manager, [*PROMPT, 200, 201]) == 100
    assert run(engine, manager, PROMPT[:50]) == 49
    assert run(engine, manager, PROMPT) == 99
    assert run(engine, manager, [*PROMPT[:60], 7, 7]) == 60


def test_less_than_a_few_tokens_are_not_reused() -> None:
    engine, manager, _ = make()
    run(engine, manager, PROMPT)
    assert run(engine, manager, [*PROMPT[:7], 250]) == 0


def test_salts_share_nothing() -> None:
    engine, manager, _ = make()
    run(engine, manager, PROMPT, salt="a")
    assert run(engine, manager, PROMPT, salt="b") == 0
    assert run(engine, manager, PROMPT, salt="a") == 99


def test_a_request_that_another_covers_is_not_kept_twice() -> None:
    engine, manager, _ = make()
    for end in (40, 60, 100, 80):
        run(engine, manager, PROMPT[:end])
    assert len(manager.space.shelf) == 1
    assert len(next(iter(manager.space.shelf)).tokens) == 100


def test_room_is_made_by_recency_sessions_later_and_pins_last() -> None:
    engine, manager, _ = make(kv_cells=512)
    record = pin(engine, manager, [1] * 100)
    run(engine, manager, [2] * 100, session="s")
    run(engine, manager, [3] * 100)
    run(engine, manager, [4] * 100)
    run(engine, manager, [3] * 100)  # used again: now [4] is the oldest
    assert manager.space.make_room(engine.free_cells() + 1)
    assert manager.start([4] * 100, None).length == 0
    assert manager.space.make_room(engine.free_cells() + 1)
    assert manager.start([3] * 100, None).length == 0
    assert [s.tier for s in manager.sessions()] == ["resident"]
    assert manager.space.make_room(engine.free_cells() + 1)
    assert [(s.tokens, s.tier) for s in manager.sessions()] == [(100, "lost")]
    assert manager.holds(record)
    assert manager.space.make_room(512)
    assert not manager.holds(record)
    assert [p.tier for p in manager.pins()] == ["lost"]
    assert not manager.space.make_room(513)


def test_an_automatic_pin_goes_before_a_named_one() -> None:
    engine, manager, _ = make(kv_cells=512)
    named = pin(engine, manager, [1] * 100, "named")
    automatic = pin(engine, manager, [2] * 100, "auto:x", automatic=True)
    manager.space.make_room(engine.free_cells() + 1)
    assert manager.holds(named)
    assert not manager.holds(automatic)


def test_ids_run_out_only_when_requests_hold_them_all() -> None:
    engine, manager, _ = make(max_sequences=4)
    for i in range(6):
        run(engine, manager, [i] * 50)
    held = [manager.start([99] * 50, None).seq for _ in range(4)]
    with pytest.raises(CacheFullError, match="max_sequences"):
        manager.start([99] * 50, None)
    manager.space.abandon(held[0])
    manager.start([99] * 50, None)


def test_a_prefix_that_cannot_be_forked_is_given_up_and_the_request_starts_cold() -> None:
    engine, manager, _ = make()
    run(engine, manager, PROMPT)

    def refuse(src: int, dst: int, length: int) -> None:
        msg = "no"
        raise TrimError(msg)

    engine.fork = refuse  # type: ignore[method-assign]
    start = manager.start(PROMPT, None)
    assert start.length == 0
    assert "could not be reused" in start.note
    assert len(manager.space.shelf) == 0


def test_pins_expire_and_say_so() -> None:
    engine, manager, clock = make()
    record = pin(engine, manager, PROMPT, "coder")
    clock.now += 59
    manager.touch_pin(record, hit=True)
    clock.now += 59
    manager.expire_pins()
    assert manager.pin_book.get("coder").hits == 1
    clock.now += 2
    assert manager.pins() == []
    with pytest.raises(PinExpiredError, match="Pin it again"):
        manager.pin_book.get("coder")
    with pytest.raises(PinNotFoundError, match=r"no pin 'other'"):
        manager.unpin("other")
    assert run(engine, manager, PROMPT) == 99  # its KV may be used until room is needed


def test_a_pin_replaces_one_of_its_name() -> None:
    engine, manager, _ = make()
    pin(engine, manager, PROMPT, "p")
    pin(engine, manager, [*PROMPT[:50], 200], "p")
    assert [p.tokens for p in manager.pins()] == [51]
    manager.unpin("p")
    assert manager.pins() == []


def test_an_evicted_pin_comes_back_from_a_request_that_covers_it() -> None:
    engine, manager, _ = make(kv_cells=512)
    record = pin(engine, manager, PROMPT)
    manager.space.make_room(512)
    start = manager.start([*PROMPT, 1], None)
    engine.forward([Span(start.seq, 0, [*PROMPT, 1])])
    manager.recover_pin(start.seq, record)
    assert manager.holds(record)
    manager.space.abandon(start.seq)
    assert run(engine, manager, [*PROMPT, 2]) == 100


def test_sessions_fork_and_are_dropped() -> None:
    engine, manager, _ = make()
    manager.open_session("empty", None)
    manager.fork_session("empty", "also empty", None)
    run(engine, manager, PROMPT, session="a")
    manager.fork_session("a", "b", None)
    assert {(s.name, s.tokens) for s in manager.sessions()} == {
        ("empty", 0),
        ("also empty", 0),
        ("a", 100),
        ("b", 100),
    }
    with pytest.raises(InvalidRequestError, match="exists already"):
        manager.fork_session("a", "b", None)
    manager.drop_session("a", None)
    with pytest.raises(SessionNotFoundError, match="no session 'a'"):
        manager.drop_session("a", None)
    assert run(engine, manager, [*PROMPT, 5]) == 100  # b still holds it


def test_a_session_goes_on_and_its_former_branch_is_still_found() -> None:
    engine, manager, _ = make()
    run(engine, manager, [*PROMPT, 1, 2, 3], session="a")
    assert run(engine, manager, [*PROMPT, 4, 5], session="a") == 100
    assert [s.tokens for s in manager.sessions()] == [102]
    assert run(engine, manager, [*PROMPT, 1, 2, 3, 9]) == 103


def test_a_model_that_cannot_be_cut_reuses_whole_sequences_only() -> None:
    engine, _, _ = make()
    object.__setattr__(engine.capabilities, "trim", "never")
    manager = SessionManager(engine)
    run(engine, manager, PROMPT)
    assert run(engine, manager, [*PROMPT[:60], 9]) == 0
    assert run(engine, manager, PROMPT) == 0  # an exact hit would leave no token to evaluate
    assert run(engine, manager, [*PROMPT, 9]) == 100


# --- the memory tier: 4 bytes a token with this engine


def test_what_leaves_the_cells_comes_back_from_memory() -> None:
    engine, manager, _ = make(memory=4000, kv_cells=512)
    record = pin(engine, manager, PROMPT)
    run(engine, manager, [7] * 100, session="s")
    assert manager.space.make_room(512)
    assert [p.tier for p in manager.pins()] == ["memory"]
    assert [s.tier for s in manager.sessions()] == ["memory"]
    start = manager.start([*PROMPT, 1], None)
    assert (start.length, start.hit, start.source) == (100, "memory", "pin 'p'")
    assert engine._sequences[start.seq].tokens == PROMPT
    manager.space.abandon(start.seq)
    assert manager.view(record).resident
    assert manager.start([*PROMPT, 1], None).hit == "resident"
    manager.fork_session("s", "t", None)
    assert {s.name: s.tier for s in manager.sessions()} == {"s": "resident", "t": "resident"}


def test_a_prefix_of_another_shares_its_copy() -> None:
    engine, manager, _ = make(memory=500, kv_cells=512)
    pin(engine, manager, PROMPT)
    run(engine, manager, [*PROMPT, *range(200, 220)], session="s")
    manager.space.clear_for([9] * 10, 0, None)  # this engine is no CPU, where idle cells cost time
    assert manager.space.memory_used() == 0
    for entry in sorted(manager.space.shelf, key=lambda e: -len(e.tokens)):
        manager.space.give_up(entry)
    assert manager.space.memory_used() == 480
    start = manager.start([*PROMPT, 1], None)
    assert (start.length, start.hit) == (100, "memory")
    assert engine._sequences[start.seq].tokens == PROMPT


def test_memory_is_made_by_rank_and_never_over_its_budget() -> None:
    engine, manager, _ = make(memory=900, kv_cells=512)
    run(engine, manager, [1] * 100)
    run(engine, manager, [2] * 100)
    record = pin(engine, manager, [3] * 100)
    assert manager.space.make_room(512)
    assert manager.space.memory_used() == 800  # the oldest gave way to the pin
    assert manager.view(record).tier == "memory"
    assert manager.start([1] * 100, None).length == 0
    assert manager.start([2] * 100, None).length == 99


def test_a_pin_never_gives_way_to_less() -> None:
    engine, manager, _ = make(memory=500, kv_cells=512)
    record = pin(engine, manager, [3] * 100)
    assert manager.space.make_room(512)
    run(engine, manager, [1] * 100)
    run(engine, manager, [2] * 300)
    assert manager.space.make_room(512)
    assert manager.view(record).tier == "memory"
    assert manager.space.memory_used() == 400


def test_before_a_request_on_a_cpu_what_it_does_not_need_is_parked() -> None:
    engine, manager, _ = make(memory=1 << 20, kv_cells=4096, n_ctx=2048)
    object.__setattr__(engine.capabilities, "device", "cpu")
    run(engine, manager, [1] * 1500)
    run(engine, manager, [2] * 300)
    assert all(e.seq is not None for e in manager.space.shelf)
    start = manager.start([*[2] * 300, 5], None, alone=True)
    assert (start.length, start.hit) == (300, "resident")
    assert [(e.tokens[0], e.seq is None) for e in manager.space.shelf] == [(1, True), (2, False)]
    start = manager.start([*[1] * 1500, 5], None, alone=False)
    assert (start.length, start.hit) == (1500, "memory")


def test_a_copy_that_cannot_be_restored_is_forgotten_and_the_request_starts_cold() -> None:
    engine, manager, _ = make(memory=4000, kv_cells=512)
    record = pin(engine, manager, PROMPT)
    manager.space.make_room(512)

    def refuse(seq: int, data: object, length: int) -> None:
        msg = "no snapshot"
        raise EngineError(msg)

    engine.restore = refuse  # type: ignore[method-assign]
    start = manager.start([*PROMPT, 1], None)
    assert (start.length, start.hit) == (0, "miss")
    assert "no snapshot" in start.note
    assert manager.view(record).tier == "lost"
