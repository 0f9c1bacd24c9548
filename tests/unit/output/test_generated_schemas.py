"""Whatever the schema, a document that its grammar lets through satisfies it. The walks need no model."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLTokenizer

from pinfold.errors import ToolSchemaError
from pinfold.output.constrain import schema_constraint, tool_call_constraint
from pinfold.output.constraint import Constraint
from pinfold.output.marked_arguments import arguments_of
from pinfold.output.parser import OutputParser
from pinfold.output.tool_calls.forms import CallForm, call_form
from tests.support.byte_vocabulary import END, N_VOCAB, ByteVocabulary

_MOST = 4000
NAMES = st.sampled_from(["a", "b", "next", "é", "with space", 'q"uote', "snake_case"])

small = st.integers(0, 3)
strings = st.one_of(
    st.builds(lambda a, b: {"type": "string", "minLength": a, "maxLength": a + b}, small, small),
    st.sampled_from(
        [
            {"enum": ["x", "yes", 1, None]},
            {"const": {"k": ["v"]}},
            {"type": "string", "pattern": "^[a-c]{1,3}-[0-9]$"},
            {"type": "string", "format": "date"},
            {"type": "string", "format": "uuid"},
            {"type": "string", "format": "nickname", "maxLength": 3},
        ]
    ),
)
numbers = st.one_of(
    st.builds(lambda a, b: {"type": "integer", "minimum": a, "maximum": a + 99 * b}, st.integers(-9, 9), small),
    st.sampled_from(
        [
            {"type": "integer"},
            {"type": "integer", "multipleOf": 5, "exclusiveMinimum": 0, "maximum": 500},
            {"type": "number", "minimum": -2.5, "maximum": 7.25},
        ]
    ),
)
leaves = st.one_of(
    strings, numbers, st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["null", "boolean"]}])
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema["required"] = [name for name in properties if draw(st.booleans())]
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.sampled_from([False, {"type": "boolean"}]))
    return schema


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.builds(
        lambda items, a, b: {"type": "array", "items": items, "minItems": a, "maxItems": a + b},
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    tuples = st.builds(
        lambda items: {"type": "array", "prefixItems": items, "items": False}, st.lists(inner, min_size=1, max_size=3)
    )
    unions = st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=3))
    optional = st.builds(lambda part: {"anyOf": [part, {"type": "null"}]}, inner)
    return st.one_of(objects(inner), arrays, tuples, unions, optional)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A schema with definitions that refer to each other, one of them to itself."""
    refs = st.sampled_from([{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/list"}, {"$ref": "#/$defs/pair"}])
    root = draw(st.recursive(leaves | refs, nested, max_leaves=6).filter(lambda schema: "$ref" not in schema))
    leaf = draw(leaves)
    again = {"anyOf": [{"type": "null"}, {"type": "null"}, {"type": "null"}, {"$ref": "#/$defs/list"}]}
    definitions = {
        "leaf": leaf,
        "list": {
            "type": "object",
            "properties": {"value": {"$ref": "#/$defs/leaf"}, "next": again},
            "required": ["next"],
        },
        "pair": {
            "type": "array",
            "prefixItems": [{"$ref": "#/$defs/leaf"}, {"type": "boolean"}],
            "minItems": 2,
            "maxItems": 2,
        },
    }
    return {**root, "$defs": definitions}


def walked(constraint: Constraint, seed: int) -> str:
    """One of the answers that the grammar allows, each next byte drawn at random."""
    choose, data = random.Random(seed), b""  # noqa: S311 - no secret
    for _ in range(_MOST):
        row = np.zeros(N_VOCAB, np.float32)
        constraint.apply(row)
        token = choose.choice(np.flatnonzero(row == 0).tolist())
        if token == END:
            break
        data += ByteVocabulary.tokens[token]
        constraint.accept(token)
        if constraint.finished:
            break
    assert constraint.allowed_end
    return data.decode()


EXAMPLES = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@EXAMPLES
@given(schema=documents(), seed=st.integers(0, 2**32))
def test_a_document_satisfies_its_schema(tokenizer: LLTokenizer, schema: dict[str, Any], seed: int) -> None:
    Draft202012Validator.check_schema(schema)
    document = json.loads(walked(schema_constraint(tokenizer, schema), seed))
    Draft202012Validator(schema).validate(document)


@EXAMPLES
@given(parameters=objects(st.recursive(leaves, nested, max_leaves=4)), seed=st.integers(0, 2**32))
def test_a_forced_call_satisfies_its_tool(tokenizer: LLTokenizer, parameters: dict[str, Any], seed: int) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    parser = OutputParser(tools=[tool], expect="required")
    parsed = parser.feed(walked(tool_call_constraint(tokenizer, [tool]), seed)) + parser.finish()
    (call,) = parsed.tool_calls
    Draft202012Validator(parameters).validate(call.arguments)


@pytest.mark.parametrize("form", [call_form("qwen3-coder", ""), call_form("glm", "")], ids=lambda form: form.family)
@EXAMPLES
@given(parameters=objects(st.recursive(leaves, nested, max_leaves=4)), seed=st.integers(0, 2**32))
def test_arguments_one_by_one_satisfy_it_too(
    tokenizer: LLTokenizer, form: CallForm, parameters: dict[str, Any], seed: int
) -> None:
    assume(arguments_of(parameters, form.arguments) is not None)
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    parser = OutputParser(tools=[tool], expect="required", form=form)
    output = walked(tool_call_constraint(tokenizer, [tool], form=form), seed)
    parsed = parser.feed(output) + parser.finish()
    (call,) = parsed.tool_calls
    Draft202012Validator(parameters).validate(call.arguments)


def test_a_schema_that_nothing_satisfies_is_refused(tokenizer: LLTokenizer) -> None:
    for schema in (
        {"enum": []},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"allOf": [{"const": 1}, {"const": 2}]},
    ):
        with pytest.raises(ToolSchemaError, match=r"nsatisfiable|empty"):
            schema_constraint(tokenizer, schema)
