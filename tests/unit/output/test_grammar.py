"""Grammars of whole answers: reasoning, calls in the form of a family, documents, and text with calls in it."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLTokenizer

from pinfold.output.constrain import held_text_constraint, schema_constraint, tool_call_constraint
from pinfold.output.constraint import Constraint
from pinfold.output.marked_arguments import arguments_of
from pinfold.output.reasoning import CHANNELS, THINK, LeadingReasoning
from pinfold.output.tool_calls.forms import HERMES, CallForm, call_form
from tests.support.grammar_walk import DOCUMENT, TOOLS, allowed, call, tool, walk


def deepseek(text: str) -> str:
    """With the wide bars of its marks."""
    return text.replace("|", "\uff5c")


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
