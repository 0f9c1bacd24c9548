"""A lossy fold and an agent's calls: of a hundred greedy tool calls at most one may come out another way."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pinfold import Runtime

SYSTEM = (
    "You are the harbour's clerk. Every request is answered with exactly one call of one tool. Read it, choose "
    "the tool that does what it asks, and fill in its arguments from the words of the request, with names and numbers "
    "as they were given. Weights are whole kilograms. Dates are written as year, month and day with dashes. "
)
RULES = "Rule {n}: barrels of class {n} go to gate {gate} and are weighed {times} times before they are sealed. "


def tool(name: str, what: str, **fields: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in fields.items()}
    schema = {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": what, "parameters": schema}}


TOOLS = [
    tool("weigh_barrel", "Weigh one barrel at a gate.", barrel="integer", gate="string"),
    tool(
        "move_barrel", "Move a barrel from one gate to another.", barrel="integer", from_gate="string", to_gate="string"
    ),
    tool("write_note", "Write a note into the book.", page="integer", text="string"),
    tool("find_ship", "Look up when a ship arrives.", ship="string", day="string"),
    tool("set_price", "Set the price of a good per kilogram.", good="string", price="integer"),
]
GATES = ("north", "mill", "bridge", "customs")
SHIPS = ("Amity", "Brigid", "Cormorant", "Dawn", "Esperance")
GOODS = ("salt", "rye", "copper", "wax")


def questions() -> list[str]:
    asked = []
    for n in range(20):
        gate, other = GATES[n % 4], GATES[(n + 1) % 4]
        asked += [
            f"Please weigh barrel {100 + 7 * n} at the {gate} gate.",
            f"Barrel {210 + 3 * n} stands at the {gate} gate and belongs at the {other} gate. Move it.",
            f"Note on page {n + 1}: the seal of barrel {300 + n} was broken when it came in.",
            f"When does the {SHIPS[n % 5]} come in? I need to know for 2031-0{1 + n % 9}-{10 + n}.",
            f"From today {GOODS[n % 4]} costs {12 + n} a kilogram.",
        ]
    return asked


def calls(rt: Runtime, system: dict[str, str], salt: str) -> list[Any]:
    found = []
    for question in questions():
        messages = [system, {"role": "user", "content": question}]
        done = rt.chat(messages, tools=TOOLS, tool_choice="required", max_tokens=96, salt=salt, draft="off")
        assert done.usage.cached_tokens > 500
        found.append([(call.name, call.arguments) for call in done.tool_calls])
    return found


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_of_a_hundred_calls_ninety_nine_stay(qwen15: str, tmp_path: Path) -> None:
    text = SYSTEM + "".join(RULES.format(n=n, gate=GATES[n % 4], times=2 + n % 3) for n in range(30))
    system = {"role": "system", "content": text}
    with Runtime(qwen15, n_ctx=4096, store=tmp_path / "store", kv="balanced") as rt:
        rt.pin([system], TOOLS, name="exact", salt="exact", ttl=None)
        rt.pin([system], TOOLS, name="folded", salt="folded", ttl=None)
        end = time.monotonic() + 1800
        while rt._backend.worker.call(lambda manager: manager.library.folder.recipe) is None:
            assert time.monotonic() < end, "the model was not calibrated"
            time.sleep(1.0)
        report = rt.refold("folded", "balanced", salt="folded")
        assert report.codec != "exact"
        before, after = calls(rt, system, "exact"), calls(rt, system, "folded")
    assert all(len(each) == 1 for each in before)
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert len(changed) <= 1, changed
