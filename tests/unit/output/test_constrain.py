"""Grammars over a vocabulary of single bytes and a few words: no model is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llguidance import LLTokenizer

from pinfold.errors import DecodeError, InvalidRequestError, ToolSchemaError
from pinfold.output import constrain
from pinfold.output.constrain import held_text_constraint, schema_constraint, tool_call_constraint
from pinfold.output.tool_calls.forms import HERMES, CallForm
from tests.support.byte_vocabulary import END, N_VOCAB, OPEN, ByteVocabulary
from tests.support.grammar_walk import TOOLS, allowed, call, tool, walk


def test_a_call_of_an_offered_tool_passes_in_the_form_of_json_dumps(tokenizer: LLTokenizer) -> None:
    constraint = tool_call_constraint(tokenizer, TOOLS, "required")
    assert not constraint.allowed_end
    assert walk(constraint, call("add", {"a": 1, "b": -20}))
    assert constraint.finished
    assert constraint.allowed_end
    assert allowed(constraint) == {END}
    constraint.accept(END)


@pytest.mark.parametrize(
    "output",
    [
        "Hello",
        '<tool_call>{"name"',
        '<tool_call>\n{"name":"read"',
        call("rm", {}),
        call("read", {"path": 3}),
        call("read", {"path": "a", "more": 1}),
        call("add", {"b": 1, "a": 2}),
        call("add", {"a": 1}),
        call("read", {"path": "a"}) + "\n<tool_call>",
    ],
)
def test_nothing_else_passes(tokenizer: LLTokenizer, output: str) -> None:
    assert not walk(tool_call_constraint(tokenizer, TOOLS), output)


def test_tags_are_the_special_tokens_where_the_vocabulary_has_them(tokenizer: LLTokenizer) -> None:
    assert allowed(tool_call_constraint(tokenizer, TOOLS)) == {OPEN}
    form = CallForm(
        "own", mark="<call>", before='<call>{"name": ', between=', "arguments": ', after="}", separator=None
    )
    plain = tool_call_constraint(tokenizer, TOOLS, form=form, parallel=True)
    assert allowed(plain) == {ord("<")}
    assert walk(plain, '<call>{"name": "read", "arguments": {"path": "é"}}')
    assert plain.finished


def test_parallel_allows_more_calls_and_the_end(tokenizer: LLTokenizer) -> None:
    constraint = tool_call_constraint(tokenizer, TOOLS, parallel=True)
    one = call("read", {"path": "a"})
    assert walk(constraint, one)
    assert constraint.allowed_end
    assert not constraint.finished
    assert allowed(constraint) == {END, ord("\n")}
    assert walk(constraint, "\n" + one)
    constraint.accept(END)
    assert constraint.finished


@pytest.mark.parametrize("choice", ["read", {"type": "function", "function": {"name": "read"}}])
def test_a_named_tool_is_the_only_one(tokenizer: LLTokenizer, choice: Any) -> None:
    assert walk(tool_call_constraint(tokenizer, TOOLS, choice), call("read", {"path": "a"}))
    assert not walk(tool_call_constraint(tokenizer, TOOLS, choice), call("add", {"a": 1, "b": 2}))


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_tool_without_parameters_takes_none(tokenizer: LLTokenizer, parameters: Any) -> None:
    tools = [{"type": "function", "function": {"name": "now", "parameters": parameters}}]
    assert walk(tool_call_constraint(tokenizer, tools), call("now", {}))
    assert not walk(tool_call_constraint(tokenizer, tools), call("now", {"a": 1}))


def test_references_stay_within_their_own_tool(tokenizer: LLTokenizer) -> None:
    tools = [
        tool("a", {"x": {"$ref": "#/$defs/X"}}, **{"$defs": {"X": {"type": "integer"}}}),
        tool("b", {"x": {"$ref": "#/$defs/X"}}, **{"$defs": {"X": {"type": "boolean"}}}),
    ]
    assert walk(tool_call_constraint(tokenizer, tools), call("a", {"x": 1}))
    assert walk(tool_call_constraint(tokenizer, tools), call("b", {"x": True}))
    assert not walk(tool_call_constraint(tokenizer, tools), call("b", {"x": 1}))


def test_names_that_begin_alike_and_odd_names(tokenizer: LLTokenizer) -> None:
    tools = [tool("get"), tool("get_all"), tool('say "é"')]
    for name in ("get", "get_all"):
        assert walk(tool_call_constraint(tokenizer, tools), call(name, {}))
    odd = '<tool_call>\n{"name": "say \\"é\\"", "arguments": {}}\n</tool_call>'
    assert walk(tool_call_constraint(tokenizer, tools), odd)


def test_no_tool_or_an_unknown_one(tokenizer: LLTokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="no tool was offered"):
        tool_call_constraint(tokenizer, [])
    with pytest.raises(InvalidRequestError, match=r"'rm'.*read, add"):
        tool_call_constraint(tokenizer, TOOLS, "rm")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, "not"),
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "strin"),
        ({"type": "object", "properties": [1]}, "properties"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "/\\$defs/none"),
        (
            {"type": "object", "properties": {"a": {"minimum": 5, "maximum": 3, "type": "integer"}}, "required": ["a"]},
            "'a' is unsatisfiable",
        ),
        ({"type": "string"}, "object"),
        ("x", "object"),
        ({"type": "object", "properties": {"a": {"enum": [object()]}}}, "JSON"),
        ({"type": "object", "properties": {"a": {"const": float("nan")}}}, "JSON"),
    ],
)
def test_an_unfit_schema_is_named_before_anything_is_computed(
    tokenizer: LLTokenizer, parameters: Any, words: str
) -> None:
    bad = {"type": "function", "function": {"name": "broken", "parameters": parameters}}
    with pytest.raises(ToolSchemaError, match=f"(?s)'broken'.*{words}"):
        tool_call_constraint(tokenizer, [*TOOLS, bad])


def test_a_schema_that_nests_without_end_is_refused(tokenizer: LLTokenizer) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ToolSchemaError):
        schema_constraint(tokenizer, schema)
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ToolSchemaError):
        schema_constraint(tokenizer, schema)


def test_an_answer_held_to_a_schema(tokenizer: LLTokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    constraint = schema_constraint(tokenizer, schema)
    assert walk(constraint, '{"a": [1, 2]}')
    assert constraint.finished
    assert not walk(schema_constraint(tokenizer, schema), '{"a":[')
    with pytest.raises(ToolSchemaError, match=r"response schema.*contains"):
        schema_constraint(tokenizer, {"contains": {"type": "string"}})
    with pytest.raises(ToolSchemaError, match="list"):
        schema_constraint(tokenizer, [1])


def test_an_answer_that_is_any_object(tokenizer: LLTokenizer) -> None:
    constraint = schema_constraint(tokenizer, {"type": "object"})
    assert walk(constraint, '{"x": {"y": [null, 1.5, "é"]}}')
    assert constraint.finished
    assert not walk(schema_constraint(tokenizer, {"type": "object"}), "[")


def test_a_row_longer_than_the_vocabulary_and_its_values(tokenizer: LLTokenizer) -> None:
    assert allowed(tool_call_constraint(tokenizer, TOOLS), N_VOCAB + 40) == {OPEN}
    row = np.arange(N_VOCAB, dtype=np.float32)
    schema_constraint(tokenizer, {"enum": ["a", "b"]}).apply(row)
    assert row[ord('"')] == ord('"')
    assert np.isneginf(row).sum() == N_VOCAB - 1


@pytest.mark.parametrize(
    ("make", "output"),
    [
        (lambda t: tool_call_constraint(t, TOOLS, parallel=True), call("add", {"a": 1, "b": -20}) + "\n"),
        (lambda t: tool_call_constraint(t, TOOLS), call("read", {"path": 'the "cache"\n'})),
        (lambda t: schema_constraint(t, {"enum": ["the", "then", 3, None]}), '"then"'),
        (lambda t: schema_constraint(t, {"type": "array", "items": {"type": "number"}}), "[1.5, -2e3, 0]"),
        (lambda t: held_text_constraint(t, TOOLS, {"add"}, form=HERMES), "See: " + call("add", {"a": 1, "b": 2})),
    ],
)
def test_one_token_is_judged_as_by_the_mask(tokenizer: LLTokenizer, make: Any, output: str) -> None:
    constraint = make(tokenizer)
    for token in ByteVocabulary()(output.encode()):
        assert {n for n in range(N_VOCAB) if constraint.allows(n)} == allowed(constraint)
        constraint.accept(token)
    assert {n for n in range(N_VOCAB) if constraint.allows(n)} == allowed(constraint)


def test_a_forbidden_token_is_a_typed_error(tokenizer: LLTokenizer) -> None:
    constraint = tool_call_constraint(tokenizer, TOOLS)
    with pytest.raises(DecodeError, match="grammar"):
        constraint.accept(ord("x"))
    with pytest.raises(DecodeError, match="grammar"):
        constraint.apply(np.zeros(N_VOCAB, np.float32))
    with pytest.raises(DecodeError, match="grammar"):
        constraint.allows(OPEN)
    with pytest.raises(DecodeError, match="go back"):
        constraint.rollback(1)
    assert walk(tool_call_constraint(tokenizer, TOOLS), call("read", {"path": "the cache is clean"}))


def test_rollback_also_from_past_the_end(tokenizer: LLTokenizer) -> None:
    constraint = schema_constraint(tokenizer, {"enum": ["ab", "ac"]})
    assert walk(constraint, '"ab"')
    for _ in range(2):
        constraint.accept(END)
    twin = constraint.copy()
    constraint.rollback(1)
    assert constraint.finished
    constraint.rollback(3)
    assert not constraint.finished
    assert allowed(constraint) == {ord("b"), ord("c")}
    constraint.rollback(0)
    assert walk(constraint, 'c"')
    assert constraint.finished
    with pytest.raises(DecodeError, match="5 tokens"):
        constraint.rollback(5)
    twin.rollback(5)
    assert walk(twin, 'ac"')


def test_rollback_of_an_end_that_was_one_choice_of_several(tokenizer: LLTokenizer) -> None:
    constraint = tool_call_constraint(tokenizer, TOOLS, parallel=True)
    assert walk(constraint, call("read", {"path": "a"}))
    for _ in range(2):
        constraint.accept(END)
    constraint.rollback(2)
    assert allowed(constraint) == {END, ord("\n")}


def test_a_copy_goes_its_own_way(tokenizer: LLTokenizer) -> None:
    first = schema_constraint(tokenizer, {"enum": ["ab", "cd"]})
    assert walk(first, '"')
    second = first.copy()
    assert walk(first, 'ab"')
    assert walk(second, 'cd"')


def test_grammars_are_compiled_once_and_the_cache_is_bounded(tokenizer: LLTokenizer) -> None:
    constrain.forget_grammars()
    for _ in range(3):
        tool_call_constraint(tokenizer, TOOLS)
    info = constrain._compiled.cache_info()
    assert (info.misses, info.hits) == (1, 2)
    for i in range(100):
        schema_constraint(tokenizer, {"const": i})
    assert constrain._compiled.cache_info().currsize == info.maxsize
    constrain.forget_grammars()
    assert constrain._compiled.cache_info().currsize == 0


def test_how_much_of_a_guess_may_come(tokenizer: LLTokenizer) -> None:
    constraint = tool_call_constraint(tokenizer, TOOLS)
    whole = [OPEN, *call("read", {"path": "a"}).removeprefix("<tool_call>").encode()]
    wrong = [*whole[:12], ord("!"), *whole[12:]]
    assert constraint.first_valid(wrong) == 12
    assert constraint.first_valid(whole[1:]) == 0
    assert walk(constraint, call("read", {"path": "a"}))
    assert (constraint.finished, constraint.first_valid([END])) == (True, 0)
