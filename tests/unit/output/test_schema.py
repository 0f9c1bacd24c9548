from __future__ import annotations

from typing import Any

import pytest

from pinfold.output.schema import narrowed, unheld

TEXT = {"type": "string"}


def test_an_object_that_lists_its_properties_is_closed_at_every_depth() -> None:
    inner = {"type": "object", "properties": {"a": TEXT}}
    schema = {
        "type": "object",
        "properties": {"one": inner, "many": {"type": "array", "items": inner}, "ref": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [inner, {"type": "null"}]}}}},
    }
    closed = narrowed(schema)
    shut = {**inner, "additionalProperties": False}
    assert closed["additionalProperties"] is False
    assert closed["properties"]["one"] == shut
    assert closed["properties"]["many"]["items"] == shut
    assert closed["$defs"]["n"]["additionalProperties"] is False
    assert closed["$defs"]["n"]["properties"]["next"]["anyOf"][0] == shut
    assert "additionalProperties" not in schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": TEXT}, "additionalProperties": TEXT},
        {"type": "object", "properties": {"a": TEXT}, "patternProperties": {"^x": TEXT}},
        {"type": "object", "properties": {"a": TEXT}, "required": ["a", "b"]},
        {"type": "object", "properties": {"a": TEXT}, "minProperties": 2},
        {"allOf": [{"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}]},
        {"properties": {"a": TEXT}, "anyOf": [{"properties": {"b": TEXT}}]},
        {"$ref": "#/$defs/a", "properties": {"b": TEXT}, "$defs": {"a": {"properties": {"a": TEXT}}}},
        {"properties": {"x": {"const": {"properties": {}}}}, "additionalProperties": False},
        {"enum": [{"properties": {"a": 1}}], "default": {"properties": {}}},
    ],
)
def test_where_more_may_be_meant_it_stays(schema: dict[str, Any]) -> None:
    assert narrowed(schema) == schema


def test_an_integer_without_bounds_gets_those_of_exact_json() -> None:
    assert narrowed({"type": "integer"}) == {"type": "integer", "minimum": 1 - 2**53, "maximum": 2**53 - 1}
    for bounded in ({"minimum": 0}, {"exclusiveMaximum": 9}, {"multipleOf": 5}, {"enum": [2**60]}, {"const": 1}):
        assert narrowed({"type": "integer", **bounded}) == {"type": "integer", **bounded}
    assert narrowed({"type": "number"}) == {"type": "number"}


def test_a_format_that_no_grammar_knows_is_left_out() -> None:
    schema = {"properties": {"format": {"type": "string", "format": "path"}, "when": {"format": "date-time"}}}
    properties = narrowed(schema)["properties"]
    assert properties == {"format": {"type": "string"}, "when": {"format": "date-time"}}


def test_parts_that_are_no_schemas_are_left_to_the_compiler() -> None:
    schema = {"properties": [1], "items": 3, "anyOf": "x", "$defs": {"a": 1}, "format": 5, "required": "a"}
    assert narrowed(schema) == schema


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": TEXT}, "'not' at its top"),
        ({"properties": {"a": {"items": {"uniqueItems": True}}}}, "'uniqueItems' at /properties/a/items"),
        ({"$defs": {"x": {"anyOf": [{}, {"if": TEXT}]}}}, "'if' at /$defs/x/anyOf/1"),
        ({"properties": {"a": {"minProperties": 2}}}, "'minProperties' at /properties/a"),
        ({"properties": {"not": TEXT, "if": {"enum": [{"contains": 1}]}}, "default": {"not": 1}}, None),
        ({"uniqueItems": False, "minProperties": 1}, None),
        ({"minProperties": 2, "required": ["a", "b"]}, None),
    ],
)
def test_a_keyword_that_cannot_be_held_is_named_with_its_place(schema: dict[str, Any], named: str | None) -> None:
    assert unheld(schema) == named


def test_a_keyword_that_asks_for_nothing_is_left_out() -> None:
    assert narrowed({"type": "array", "uniqueItems": False}) == {"type": "array"}
