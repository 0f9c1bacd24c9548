"""One process ends and another begins, on the embedded model: pins go on, and answers are those of a cold start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinfold import Runtime
from tests.support.near_ties import assert_same_or_tie

SYSTEM = {"role": "system", "content": "You keep the books of a harbour. Every barrel is counted twice. " * 12}
TASK = [{"role": "user", "content": "A barrel is missing. What do you do first?"}]
OPTIONS: dict[str, Any] = {"n_ctx": 1024, "kv": "exact"}
SALTS = ("a", "b")
# A pin is read ahead: a new process has it in memory as soon as that is done.
FROM_DISK = ("disk", "memory")


def ask(rt: Runtime, **more: Any) -> Any:
    return rt.chat([SYSTEM, *TASK], max_tokens=12, **more)


def test_a_pin_goes_on_after_a_restart_and_answers_as_a_cold_start(smollm2: str, tmp_path: Path) -> None:
    with Runtime(smollm2, store=tmp_path / "store", **OPTIONS) as rt:
        cold = ask(rt)
        rt.pin([SYSTEM], name="books")
        rt.session("task", pin="books").chat(TASK, max_tokens=4)
    with Runtime(smollm2, store=tmp_path / "store", **OPTIONS) as rt:
        assert [(p.name, p.tier in FROM_DISK) for p in rt.pins()] == [("books", True)]
        warm = ask(rt)
        assert warm.cache.hit_kind in FROM_DISK
        assert warm.usage.cached_tokens > 150
        assert warm.timings.restore_s > 0
        prompt = list(rt._backend._prepare.chat([SYSTEM, *TASK], {})._fields["tokens"])
        assert_same_or_tie(rt, prompt, cold.text, warm.text)
        done = rt.session("task", pin="books").chat(TASK, max_tokens=4)
        assert done.usage.cached_tokens > 150


def test_damage_on_disk_is_a_cold_start_with_the_same_answer(smollm2: str, tmp_path: Path) -> None:
    with Runtime(smollm2, store=tmp_path / "store", **OPTIONS) as rt:
        cold = ask(rt)
        rt.pin([SYSTEM], name="books")
    for file in (tmp_path / "store" / "sessions" / "payload").rglob("*"):
        if file.is_file():
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 4
            file.write_bytes(data)
    with Runtime(smollm2, store=tmp_path / "store", **OPTIONS) as rt:
        again = ask(rt)
        assert again.cache.hit_kind == "miss"
        lost = again.cache.miss is not None and again.cache.miss.kind == "evicted"
        assert lost or any("damaged" in note for note in again.cache.notes)  # whoever read it first
        assert again.text == cold.text


def test_tenants_do_not_share_across_a_restart(smollm2: str, tmp_path: Path) -> None:
    with Runtime(smollm2, store=tmp_path / "store", **OPTIONS) as rt:
        rt.pin([SYSTEM], name="books", salt=SALTS[0])
    with Runtime(smollm2, store=tmp_path / "store", **OPTIONS) as rt:
        assert ask(rt, salt=SALTS[1]).cache.hit_kind == "miss"
        assert ask(rt, salt=SALTS[0]).cache.hit_kind == "disk"


@pytest.mark.parametrize("changed", [{"kv_resident": "q8_0"}])
def test_other_cell_types_are_a_miss_with_the_reason(smollm2: str, tmp_path: Path, changed: dict[str, Any]) -> None:
    with Runtime(smollm2, store=tmp_path / "store", **OPTIONS) as rt:
        rt.pin([SYSTEM], name="books")
    with Runtime(smollm2, store=tmp_path / "store", **{**OPTIONS, **changed}) as rt:
        done = ask(rt)
        assert done.cache.hit_kind == "miss"
        assert any("kv types (f16/f16 there, q8_0/q8_0 here)" in note for note in done.cache.notes)
