"""Objects of a pydantic class, in all four forms."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from llama_index.core import PromptTemplate
from llama_index.core.instrumentation.events.llm import LLMStructuredPredictEndEvent, LLMStructuredPredictStartEvent
from llama_index.core.llms import ChatMessage
from llama_index.core.types import PydanticProgramMode
from pydantic import BaseModel, Field, field_validator

from llama_index.llms.pinfold import Pinfold, StructuredOutputError

PROMPT = PromptTemplate("Describe {what}.")
TEXT = '{"name": "Ada", "tags": ["x", "y"], "age": 36}'


class Person(BaseModel):
    name: str
    tags: list[str] = Field(max_length=3)
    age: int

    @field_validator("age")
    @classmethod
    def _positive(cls, age: int) -> int:
        if age < 0:
            msg = "an age is positive"
            raise ValueError(msg)
        return age


ADA = Person(name="Ada", tags=["x", "y"], age=36)


async def test_the_four_forms_give_the_object(llm, runtime, answer) -> None:
    runtime.answers = [answer.text(TEXT)] * 4
    assert llm.structured_predict(Person, PROMPT, what="Ada") == ADA
    assert await llm.astructured_predict(Person, PROMPT, what="Ada") == ADA
    assert list(llm.stream_structured_predict(Person, PROMPT, what="Ada"))[-1] == ADA
    stream = await llm.astream_structured_predict(Person, PROMPT, what="Ada")
    assert [item async for item in stream][-1] == ADA
    for request in runtime.requests:
        assert request.arguments["response_format"]["type"] == "json_schema"
        assert request.arguments["response_format"]["json_schema"]["schema"] == Person.model_json_schema()
        assert request.prompt == [{"role": "user", "content": "Describe Ada."}]


def test_a_stream_grows_field_by_field(llm, runtime, answer) -> None:
    runtime.answers = [answer.text(TEXT)]
    grown = [item.model_dump(exclude_none=True) for item in llm.stream_structured_predict(Person, PROMPT, what="Ada")]
    assert {"name": "Ada"} in grown
    assert any(item.get("tags") == ["x"] for item in grown)
    assert all(earlier != later for earlier, later in pairwise(grown[:-1]))
    assert json.loads(TEXT) == grown[-1]


def test_llm_kwargs_and_the_system_prompt_are_kept(runtime, answer) -> None:
    runtime.answers = [answer.text(TEXT)]
    llm = Pinfold(runtime=runtime, system_prompt="Be exact.")
    kwargs = {"max_tokens": 50}
    llm.structured_predict(Person, PROMPT, llm_kwargs=kwargs, what="Ada")
    assert runtime.requests[0].arguments["max_tokens"] == 50
    assert runtime.requests[0].prompt[0] == {"role": "system", "content": "Be exact."}
    assert kwargs == {"max_tokens": 50}


async def test_an_answer_that_was_cut_off_is_named_so(llm, runtime, answer) -> None:
    runtime.answers = [answer.text(TEXT[:20], finish_reason="length")] * 4
    with pytest.raises(StructuredOutputError, match="max_tokens"):
        llm.structured_predict(Person, PROMPT, what="Ada")
    with pytest.raises(StructuredOutputError, match="max_tokens"):
        await llm.astructured_predict(Person, PROMPT, what="Ada")
    with pytest.raises(StructuredOutputError, match="max_tokens"):
        list(llm.stream_structured_predict(Person, PROMPT, what="Ada"))
    with pytest.raises(StructuredOutputError, match="max_tokens"):
        [item async for item in await llm.astream_structured_predict(Person, PROMPT, what="Ada")]


def test_what_a_validator_refuses_is_an_error(llm, runtime, answer) -> None:
    runtime.answers = [answer.text('{"name": "Ada", "tags": [], "age": -1}')]
    with pytest.raises(StructuredOutputError, match="an age is positive"):
        llm.structured_predict(Person, PROMPT, what="Ada")


def test_closing_the_stream_stops_the_engine(llm, runtime, answer) -> None:
    runtime.answers = [answer.text(TEXT)]
    stream = llm.stream_structured_predict(Person, PROMPT, what="Ada")
    next(stream)
    stream.close()
    assert runtime.stopped == 1


def test_the_events_are_sent_once(llm, runtime, answer, events) -> None:
    runtime.answers = [answer.text(TEXT)]
    llm.structured_predict(Person, PROMPT, what="Ada")
    kinds = [type(event) for event in events]
    assert kinds.count(LLMStructuredPredictStartEvent) == kinds.count(LLMStructuredPredictEndEvent) == 1


def test_a_structured_llm_answers_with_the_object(llm, runtime, answer) -> None:
    runtime.answers = [answer.text(TEXT)]
    response = llm.as_structured_llm(Person).chat([ChatMessage(content="Ada?")])
    assert response.raw == ADA


async def test_another_program_mode_goes_its_own_way(runtime, answer) -> None:
    runtime.answers = [answer.call("Person", **json.loads(TEXT))] * 4
    llm = Pinfold(runtime=runtime, pydantic_program_mode=PydanticProgramMode.FUNCTION)
    assert llm.structured_predict(Person, PROMPT, what="Ada") == ADA
    assert await llm.astructured_predict(Person, PROMPT, what="Ada") == ADA
    assert list(llm.stream_structured_predict(Person, PROMPT, what="Ada"))[-1] == ADA
    assert [item async for item in await llm.astream_structured_predict(Person, PROMPT, what="Ada")][-1] == ADA
    assert runtime.requests[0].arguments["tool_choice"] == "required"
    assert all("response_format" not in request.arguments for request in runtime.requests)
