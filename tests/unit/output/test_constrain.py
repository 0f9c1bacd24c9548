"""Grammars over a vocabulary of single bytes and a few words: no model is needed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from llguidance import LLTokenizer, TokenizerWrapper

from pinfold.errors import DecodeError, InvalidRequestError, ToolSchemaError
from pinfold.output import constrain
from pinfold.output.constrain import Constraint, held_text_constraint, schema_constraint, tool_call_constraint
from pinfold.output.marked_arguments import arguments_of
from pinfold.output.reasoning import CHANNELS, THINK, LeadingReasoning
from pinfold.output.tool_calls.forms import HERMES, CallForm, call_form
from tests.support.byte_vocabulary import END, N_VOCAB, OPEN, ByteVocabulary


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(ByteVocabulary()))


def tool(name: str, properties: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties or {}, "required": list(properties or {}), **more}
    return {"type": "function", "function": {"name": name, "description": "does it", "parameters": parameters}}


TOOLS = [tool("read", {"path": {"type": "string"}}), tool("add", {"a": {"type": "integer"}, "b": {"type": "integer"}})]


def allowed(constraint: Constraint, size: int = N_VOCAB) -> set[int]:
    row = np.zeros(size, np.float32)
    constraint.apply(row)
    assert set(np.unique(row)) <= {0.0, -np.inf}
    return set(np.flatnonzero(row == 0).tolist())


def walk(constraint: Constraint, text: str) -> bool:
    """Whether the grammar takes `text`, byte by byte, tags as their tokens."""
    for token in ByteVocabulary()(text.encode()):
        if token not in allowed(constraint):
            return False
        constraint.accept(token)
    return True


def call(name: str, arguments: dict[str, Any]) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


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


def deepseek(text: str) -> str:
    """With the wide bars of its marks."""
    return text.replace("|", "\uff5c")


DOCUMENT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize("thinks", [False, True])
def test_either_a_call_or_a_document_and_nothing_else(tokenizer: LLTokenizer, thinks: bool) -> None:
    def grammar() -> Constraint:
        reasoning = LeadingReasoning(THINK) if thinks else None
        return tool_call_constraint(tokenizer, TOOLS, document=DOCUMENT, parallel=True, reasoning=reasoning)

    one = call("read", {"path": "a"})
    for whole in ('{"n": 3}', one, one + "\n" + one):
        constraint = grammar()
        assert walk(constraint, whole)
        assert constraint.allowed_end
    for other in ("Hello", '{"n": "a"}', '{"n": 3} ', call("rm", {}), '{"n": 3}' + one, one + '\n{"n": 3}'):
        assert not walk(grammar(), other)
    assert walk(grammar(), "<think>so {\n</think>\n\n" + one) is thinks


def test_reasoning_may_come_before_and_must_end_where_the_prompt_opened_it(tokenizer: LLTokenizer) -> None:
    schema = {"enum": [1]}
    for output, begun, opened in [
        ("1", True, False),
        ("<think>\nhm </thin</think>\n\n1", True, True),
        ("hm </think>1", False, True),
        ("<think>hm</think>hm", False, False),
        ("hm</think>\n\n\n1", False, False),
    ]:
        for is_open, passes in ((False, begun), (True, opened)):
            constraint = schema_constraint(tokenizer, schema, reasoning=LeadingReasoning(THINK, is_open=is_open))
            assert (walk(constraint, output) and constraint.finished) is passes


MARKED = CallForm("own", mark="<call>", before='<call>\n{"name": ', between=', "arguments": ', after="}\n</call>")


@pytest.mark.parametrize("form", [HERMES, MARKED], ids=["a special token", "text"])
def test_text_in_which_calls_are_held(tokenizer: LLTokenizer, form: CallForm) -> None:
    def held(parallel: bool = True, strict: tuple[str, ...] = ("read",)) -> Constraint:
        return held_text_constraint(tokenizer, TOOLS, strict, form=form, parallel=parallel)

    def text(call: str) -> str:
        return call if form is HERMES else call.replace("tool_call>", "call>")

    good, loose, bad = (text(call(*c)) for c in [("read", {"path": "a"}), ("add", {"x": []}), ("read", {"x": 1})])
    for output in ("Hello.", "", "a < b\n" + good, good + "\n" + good, f"One {loose} two {good} three.", "<tool_"):
        constraint = held()
        assert walk(constraint, output)
        assert constraint.allowed_end
    for output in (bad, good + "\n" + bad, text(call("rm", {})), "so " + form.mark + "x"):
        assert not walk(held(), output)
    assert not walk(held(strict=("add",)), loose)
    once = held(parallel=False)
    assert walk(once, "Well. " + good)
    assert once.finished


def test_a_mark_that_is_a_token_cannot_be_spelt_out(tokenizer: LLTokenizer) -> None:
    constraint = held_text_constraint(tokenizer, TOOLS, ("read",), form=HERMES)
    assert walk(constraint, "so <tool_call"[:-1])
    for char in b"l":
        constraint.accept(char)
    assert ord(">") not in allowed(constraint)


@pytest.mark.parametrize(
    ("family", "template", "output"),
    [
        ("mistral", "[TOOL_CALLS]", '[TOOL_CALLS][{"name": "read", "arguments": {"path": "a"}}, '),
        ("mistral", "[ARGS]", '[TOOL_CALLS]read[ARGS]{"path": "a"}[TOOL_CALLS]add'),
        ("llama3", "", '{"name": "read", "parameters": {"path": "a"}}'),
        ("harmony", "", '<|channel|>commentary to=functions.read <|constrain|>json<|message|>{"path": "a"}'),
        ("deepseek", "", deepseek("<|tool▁calls▁begin|><|tool▁call▁begin|>read<|tool▁sep|>{")),
        (
            "deepseek",
            "```json",
            deepseek("<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>read\n```json\n{"),
        ),
        ("pythonic", "", '<tool_call>\n{"name": "read"'),
    ],
)
def test_each_family_in_its_own_form(tokenizer: LLTokenizer, family: str, template: str, output: str) -> None:
    assert walk(tool_call_constraint(tokenizer, TOOLS, form=call_form(family, template), parallel=True), output)


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


THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
CALLED = '<|channel|>commentary to=functions.read <|constrain|>json<|message|>{"path": "a"}'


def test_channels_are_held_as_the_tokens_that_they_are(tokenizer: LLTokenizer) -> None:
    form, reasoning = call_form("harmony", ""), LeadingReasoning(CHANNELS)

    def passes(output: str, *, held: bool = False) -> bool:
        constraint = (
            held_text_constraint(tokenizer, TOOLS, ("read",), form=form, reasoning=reasoning)
            if held
            else tool_call_constraint(tokenizer, TOOLS, form=form, document=DOCUMENT, reasoning=reasoning)
        )
        return walk(constraint, output) and constraint.allowed_end

    for output in (CALLED, THOUGHT + CALLED, THOUGHT + THOUGHT + '<|channel|>final<|message|>{"n": 1}'):
        assert passes(output)
    for output in (
        THOUGHT,
        CALLED + CALLED,
        "{}",
        '{"n": 1}',
        CALLED.replace('"a"', "1"),
        "<|channel|>final<|message|>Hi",
    ):
        assert not passes(output)
    assert passes(THOUGHT + "<|channel|>final<|message|>Hi.", held=True)
    assert passes(THOUGHT + CALLED, held=True)
    assert not passes(CALLED.replace("path", "past"), held=True)
    assert len(allowed(tool_call_constraint(tokenizer, TOOLS, form=form))) == 1


QWEN = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>"
GLM = "<tool_call>{}\n{}</tool_call>"


def marked(family: str, name: str, **values: str) -> str:
    if family == "glm":
        return GLM.format(
            name, "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in values.items())
        )
    return QWEN.format(name, "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items()))


@pytest.mark.parametrize("family", ["qwen3-coder", "glm"])
def test_arguments_one_by_one(tokenizer: LLTokenizer, family: str) -> None:
    properties = {
        "path": {"type": "string"},
        "mode": {"enum": ["all", "any", 3]},
        "lines": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "note": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        "deep": {"$ref": "#/$defs/d"},
    }
    tools = [tool("look", properties, required=["path", "lines"], **{"$defs": {"d": {"type": "array"}}}), tool("now")]

    def passes(*calls: str) -> bool:
        constraint = tool_call_constraint(tokenizer, tools, form=call_form(family, ""), parallel=True)
        return walk(constraint, "\n".join(calls)) and constraint.allowed_end

    assert passes(marked(family, "look", path='a "b"\n<x> é', mode="any", lines="17", note="abc", deep='[1, "x"]'))
    assert passes(marked(family, "look", path="", lines="null"), marked(family, "now"))
    for values in (
        {"path": "a"},
        {"lines": "1", "path": "a"},
        {"path": "a", "lines": "1.5"},
        {"path": "a", "mode": "some", "lines": "1"},
        {"path": "a", "mode": "3", "lines": "1"},
        {"path": "a", "lines": "1", "note": "abcd"},
        {"path": "a", "lines": "1", "more": "1"},
        {"path": "a<tool_call>", "lines": "1"},
    ):
        assert not passes(marked(family, "look", **values)), values
    loose = held_text_constraint(tokenizer, tools, (), form=call_form(family, ""))
    assert walk(loose, "Well. " + marked(family, "look", more="x y", path="1"))
    assert loose.allowed_end


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a b": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}},
        {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}},
        {"type": "object", "properties": {"a": {"enum": ["</parameter>"]}}},
        {"type": "object", "properties": {"a": {"enum": ["x\n"]}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}]},
    ],
)
def test_parameters_that_cannot_be_held_one_by_one(parameters: dict[str, Any]) -> None:
    marks = call_form("qwen3-coder", "").arguments
    assert marks is not None
    assert arguments_of(parameters, marks) is None


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


def test_a_forbidden_token_is_a_typed_error(tokenizer: LLTokenizer) -> None:
    constraint = tool_call_constraint(tokenizer, TOOLS)
    with pytest.raises(DecodeError, match="grammar"):
        constraint.accept(ord("x"))
    with pytest.raises(DecodeError, match="grammar"):
        constraint.apply(np.zeros(N_VOCAB, np.float32))
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
