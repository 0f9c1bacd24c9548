"""`with_structured_output`: what is asked of the runtime, and answers that are not what was asked for."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from langchain_core.exceptions import OutputParserException
from pydantic import BaseModel
from pydantic.v1 import BaseModel as BaseModelV1

from langchain_pinfold import ChatPinfold
from pinfold.errors import InvalidRequestError, ToolSchemaError
from pinfold.results import Completion, ToolCall


class Point(BaseModel):
    """A point."""

    x: int
    y: int


class PointV1(BaseModelV1):
    """A point."""

    x: int
    y: int


class PointDict(TypedDict):
    """A point."""

    x: int
    y: int


SCHEMA = Point.model_json_schema()
CUT_OFF = Completion(text='{"x": 1, "y":', finish_reason="length", model="fake")


def called(name: str) -> Completion:
    return Completion(text="", tool_calls=(ToolCall("c1", name, {"x": 1, "y": 2}),), model="fake")


def written() -> Completion:
    return Completion(text='{"x": 1, "y": 2}', model="fake")


@pytest.mark.parametrize("schema", [Point, PointV1, PointDict, SCHEMA], ids=["v2", "v1", "typeddict", "json"])
@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_each_schema_and_method(fake: Any, schema: Any, method: Any) -> None:
    name = schema["title"] if isinstance(schema, dict) else schema.__name__
    done = called(name) if method == "function_calling" else written()
    runtime = fake(done, done)
    model = ChatPinfold(runtime=runtime).with_structured_output(schema, method=method)
    expected = schema(x=1, y=2) if isinstance(schema, type) else {"x": 1, "y": 2}
    assert model.invoke("Where?") == expected
    assert list(model.stream("Where?"))[-1] == expected
    request = runtime.requests[0]
    if method == "function_calling":
        assert request["tool_choice"] == name
    else:
        assert request["response_format"]["type"] == ("json_schema" if method == "json_schema" else "json_object")


def test_the_schema_reaches_the_grammar(fake: Any) -> None:
    runtime = fake(written())
    ChatPinfold(runtime=runtime).with_structured_output(Point, method="json_schema").invoke("Where?")
    wanted = runtime.requests[0]["response_format"]["json_schema"]
    assert wanted["name"] == "Point"
    assert wanted["schema"]["required"] == ["x", "y"]


@pytest.mark.parametrize("schema", [Point, SCHEMA])
@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_an_answer_that_was_cut_off_is_an_error(fake: Any, schema: Any, method: Any) -> None:
    model = ChatPinfold(runtime=fake(CUT_OFF, CUT_OFF)).with_structured_output(schema, method=method)
    with pytest.raises(OutputParserException, match="max_tokens"):
        model.invoke("Where?")
    with pytest.raises(OutputParserException, match="max_tokens"):
        list(model.stream("Where?"))


def test_include_raw_returns_the_error(fake: Any) -> None:
    model = ChatPinfold(runtime=fake(CUT_OFF, called("Point"))).with_structured_output(Point, include_raw=True)
    failed, fine = model.invoke("Where?"), model.invoke("Where?")
    assert failed["parsed"] is None
    assert isinstance(failed["parsing_error"], OutputParserException)
    assert failed["raw"].text == CUT_OFF.text
    assert (fine["parsed"], fine["parsing_error"]) == (Point(x=1, y=2), None)


def test_bad_requests_are_refused_at_once(fake: Any) -> None:
    model = ChatPinfold(runtime=fake())
    with pytest.raises(InvalidRequestError, match="'yaml'"):
        model.with_structured_output(Point, method="yaml")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="json_schema"):
        model.with_structured_output(Point, method="json_mode", strict=True)
    for method in ("function_calling", "json_schema"):
        with pytest.raises(InvalidRequestError, match="needs a schema"):
            model.with_structured_output(None, method=method)  # type: ignore[arg-type]
        with pytest.raises(ToolSchemaError):
            model.with_structured_output({"properties": {}}, method=method)  # type: ignore[arg-type]
