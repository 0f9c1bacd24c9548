from __future__ import annotations

import copy
from typing import Any

import pytest

from pinfold.errors import InvalidRequestError, ToolSchemaError
from pinfold.prompt.tools import ToolChoice, canonical_tools, parse_tool_choice

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "required": ["b"]}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Søk", "parameters": SCHEMA}}


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "t", **function}}


def test_every_shape_gives_the_same_canonical_json() -> None:
    anthropic = {"input_schema": SCHEMA, "description": "Søk", "name": "search", "cache_control": {"type": "ephemeral"}}
    openai = {"function": {**SEARCH["function"], "strict": True}, "type": "function"}
    forms = [SEARCH, SEARCH["function"], anthropic, openai]
    assert {canonical_tools([form])[0].json for form in forms} == {
        (
            '{"type": "function", "function": {"name": "search", "description": "Søk", "parameters": {"type": '
            '"object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "required": ["b"]}}}'
        )
    }
    assert canonical_tools([anthropic])[0].cache_ttl == 300.0
    assert canonical_tools([SEARCH])[0].cache_ttl is None


def test_tools_are_copied_and_left_as_they_were() -> None:
    given = copy.deepcopy(SEARCH)
    canonical = canonical_tools([given])[0]
    assert given == SEARCH
    given["function"]["parameters"]["required"].append("a")
    assert canonical.parameters["required"] == ["b"]


def test_a_tool_without_parameters_takes_none() -> None:
    assert canonical_tools([{"name": "now"}])[0].parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ({"name": "t"}, r"tools is a dict; give a list"),
        (["t"], r"tools\[0\] is a str"),
        ([{"type": "function", "function": "t"}], r'tools\[0\]: "function" is a str'),
        ([{"type": "web_search_20250305", "name": "web_search"}], r"tools\[0\] has type 'web_search_20250305'"),
        ([tool(name="two words")], r"tools\[0\]: the name 'two words'"),
        ([tool(name="x" * 129)], r"tools\[0\]: the name"),
        ([tool(name=None)], r"tools\[0\]: the name None"),
        ([SEARCH, SEARCH], r'Tool "search" is defined twice'),
        ([tool(description=3)], r'Tool "t": description is a int'),
        ([tool(parameters={"type": "string"})], r'Tool "t": parameters must be a JSON schema with "type": "object"'),
        ([tool(parameters=[])], r'Tool "t": parameters must be'),
        ([tool(parameters={"type": "object", "properties": []})], r"parameters.properties must be an object"),
        ([tool(parameters={"type": "object", "properties": {"x": 1}})], r"parameters.properties.x must be a schema"),
        ([tool(parameters={"type": "object", "required": "x"})], r"parameters.required must be a list"),
        ([tool(parameters={"type": "object", "x": {1}})], r'Tool "t" cannot be written as JSON'),
        ([tool(parameters={"type": "object", "x": float("inf")})], r'Tool "t" cannot be written as JSON'),
    ],
)
def test_what_is_no_tool_is_refused_by_name(tools: Any, words: str) -> None:
    with pytest.raises(ToolSchemaError, match=words):
        canonical_tools(tools)


@pytest.mark.parametrize(
    ("choice", "parsed"),
    [
        (None, ToolChoice("auto")),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ("search", ToolChoice("named", "search")),
        ({"type": "function", "function": {"name": "search"}}, ToolChoice("named", "search")),
        ({"type": "tool", "name": "search"}, ToolChoice("named", "search")),
    ],
)
def test_tool_choices(choice: Any, parsed: ToolChoice) -> None:
    assert parse_tool_choice(choice, canonical_tools([SEARCH])) == parsed


@pytest.mark.parametrize("choice", ["serach", True, 3, {}, {"function": {"name": "x"}}, ["search"]])
def test_a_choice_that_names_no_tool_lists_the_known_ones(choice: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"tool_choice=.*Known tools: search"):
        parse_tool_choice(choice, canonical_tools([SEARCH]))


def test_required_needs_a_tool() -> None:
    with pytest.raises(InvalidRequestError, match="needs at least one tool"):
        parse_tool_choice("required", ())
