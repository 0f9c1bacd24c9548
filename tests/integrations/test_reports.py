"""What users of other local models ran into, replayed: each ends well here, or with an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

from langchain_pinfold import ChatPinfold
from pinfold import Runtime

HI = [{"role": "user", "content": "How high is the tide at three?"}]


@tool
def tide(hour: int) -> str:
    """The height of the tide at an hour."""
    return f"{hour % 6} m"


@tool
def wind(hour: int) -> str:
    """The strength of the wind at an hour."""
    return f"{hour} knots"


class Place(BaseModel):
    name: str = Field(max_length=12)


class Cargo(BaseModel):
    what: str = Field(max_length=12)
    origin: Place
    weighed_at: Place | None


class Ship(BaseModel):
    """A ship and what it carries."""

    name: str = Field(max_length=12)
    home: Place
    cargo: list[Cargo] = Field(max_length=2)


@pytest.fixture(scope="module")
def rt(smollm2: str) -> Iterator[Runtime]:
    with Runtime(smollm2, n_ctx=1024, store="off") as opened:
        yield opened


@pytest.mark.parametrize("choice", ["auto", "none", "any"])
def test_a_stream_with_tools_ends_whatever_the_choice(rt: Runtime, choice: str) -> None:
    model = ChatPinfold(runtime=rt, max_tokens=40).bind_tools([tide, wind], tool_choice=choice)
    first, *rest = model.stream(HI)
    whole = sum(rest, first)
    assert whole.usage_metadata is not None
    assert bool(whole.tool_calls) or choice != "any"


def test_any_of_two_tools_is_called(rt: Runtime) -> None:
    model = ChatPinfold(runtime=rt, max_tokens=40).bind_tools([tide, wind], tool_choice="any")
    (call,) = model.invoke(HI).tool_calls
    assert call["name"] in ("tide", "wind")
    assert isinstance(call["args"]["hour"], int)


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_nested_classes_with_several_references(rt: Runtime, method: Any) -> None:
    model = ChatPinfold(runtime=rt, max_tokens=300, frequency_penalty=1.0)
    taken = model.with_structured_output(Ship, method=method).invoke(
        [HumanMessage("The Dawn of Port Ann brings salt.")]
    )
    assert isinstance(taken, Ship)


def test_the_same_prompt_again_gives_the_same_answer_and_not_an_empty_one(rt: Runtime) -> None:
    rt.chat(HI, max_tokens=1, draft="off")  # so that both below begin on the same prefix, and round alike
    first = rt.chat(HI, max_tokens=8, draft="off")
    again = rt.chat(HI, max_tokens=8, draft="off")
    assert again.text
    assert again.text == first.text
    assert again.usage.cached_tokens == again.usage.prompt_tokens - 1


def test_a_prefix_that_a_hybrid_model_computes_again_is_reported(random_mlx: Callable[[str], Path]) -> None:
    system = {"role": "system", "content": "The river runs past the mill. " * 6}
    with Runtime(random_mlx("falcon_h1"), n_ctx=512, store="off", draft="off") as rt:
        chats = [[system, {"role": "user", "content": question}] for question in ("One?", "Two?", "Three?")]
        assert rt.chat(chats[0], max_tokens=2).cache.notes == ()
        second = rt.chat(chats[1], max_tokens=2)
        rt.pin([system], name="mill")
        third = rt.chat(chats[2], max_tokens=2)
    assert second.usage.cached_tokens == 0
    assert "cannot be cut back to them. Pin what prompts have in common" in second.cache.notes[0]
    assert third.usage.cached_tokens > 150
    assert third.cache.notes == ()
