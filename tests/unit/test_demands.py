"""What a chat may demand of its answer, over the scripted engine: what the script says is held to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinfold import Completion, Runtime, Script
from pinfold.errors import ToolSchemaError, UnsupportedModeError
from tests.support import chat_templates

SEVERAL = {"parallel_tool_calls": True}
HELLO = [{"role": "user", "content": "Hello"}]
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
DOCUMENT = {"type": "json_schema", "json_schema": {"name": "number", "schema": NUMBER}}
LLAMA3 = """\
{%- if tools %}{{ '<|start_header_id|>parameters' ~ tools | tojson }}{% endif %}
{%- for m in messages %}{{ m.content }}
{%- for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}
{%- endfor %}"""


def tool(name: str, strict: Any = None) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


TOOLS = [tool("add"), tool("drop")]


def call(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def answer(reply: str, **options: Any) -> Completion:
    with Runtime(Script([reply]), draft="off") as rt:
        done = rt.chat(HELLO, max_tokens=400, **options)
        streamed = [*rt.stream(HELLO, max_tokens=400, **options)]
    last = streamed[-1].done
    assert last is not None
    assert "".join(delta.text for delta in streamed) == last.text == done.text
    assert calls_of(last) == calls_of(done)
    return done


def calls_of(done: Completion) -> list[tuple[str, Any]]:
    assert not done.invalid_tool_calls
    return [(call.name, call.arguments) for call in done.tool_calls]


def test_tools_beside_a_response_format_give_a_document_or_calls() -> None:
    done = answer('{"n": 12}', tools=TOOLS, response_format=DOCUMENT)
    assert (done.text, calls_of(done), done.finish_reason) == ('{"n": 12}', [], "stop")
    done = answer(
        call("add", {"n": 1}) + "\n" + call("drop", {"n": 2}), tools=TOOLS, response_format=DOCUMENT, **SEVERAL
    )
    assert (done.text, calls_of(done)) == ("", [("add", {"n": 1}), ("drop", {"n": 2})])
    done = answer(call("add", {"n": 1}), tools=TOOLS, response_format=DOCUMENT, tool_choice="none")
    assert not done.tool_calls
    assert answer('{"n": 12}', tools=TOOLS, response_format=DOCUMENT, tool_choice="required").tool_calls


def test_a_document_may_hold_what_looks_like_a_call() -> None:
    text = json.dumps({"s": "<tool_call>\n{}"})
    done = answer(text, tools=TOOLS, response_format={"type": "json_object"})
    assert (done.text, calls_of(done)) == (text, [])


def test_an_answer_that_is_cut_before_its_call_is_reported() -> None:
    with Runtime(Script([call("add", {"n": 1})]), draft="off") as rt:
        done = rt.chat(HELLO, tools=TOOLS, response_format=DOCUMENT, max_tokens=4)
    assert (done.text, done.finish_reason) == ("", "length")
    assert "max_tokens" in done.invalid_tool_calls[0].error


TWO = call("add", {"n": 1}) + "\n" + call("drop", {"n": 2})
BOTH = [("add", {"n": 1}), ("drop", {"n": 2})]


@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("parallel", [None, True, False])
def test_calls_are_several_unless_that_is_ruled_out(choice: str, parallel: bool | None) -> None:
    done = answer(TWO, tools=TOOLS, tool_choice=choice, parallel_tool_calls=parallel)
    several = parallel or (parallel is None and choice == "auto")
    assert calls_of(done) == (BOTH if several else BOTH[:1])


def test_a_named_tool_is_called_once() -> None:
    assert calls_of(answer(TWO, tools=TOOLS, tool_choice="add", parallel_tool_calls=True)) == BOTH[:1]


def test_strict_holds_the_arguments_where_the_model_decides() -> None:
    tools = [tool("add", strict=True), tool("drop")]
    wild = "So.\n" + call("add", {"m": "x"})
    assert calls_of(answer(wild, tools=[tool("add")])) == [("add", {"m": "x"})]
    done = answer(wild, tools=tools)
    assert [(c.name, list(c.arguments)) for c in done.tool_calls] == [("add", ["n"])]
    assert done.text.startswith("So.")
    assert calls_of(answer(call("drop", {"m": "x"}), tools=tools)) == [("drop", {"m": "x"})]
    assert answer("Just text.", tools=tools).text == "Just text."


@pytest.mark.parametrize("options", [{"tool_choice": "required"}, {}])
def test_a_family_writes_its_own_form_where_that_can_be_held(options: Any) -> None:
    own = "<tool_call>\n<function=add>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"
    day = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"]}
    dated = [{"name": "log", "parameters": day, "strict": True}]
    with Runtime(Script([own, own]), chat_template=chat_templates.TOOLS, tool_format="qwen3-coder") as rt:
        assert calls_of(rt.chat(HELLO, tools=[tool("add", strict=True)], **options)) == BOTH[:1]
        if options:
            (call,) = rt.chat(HELLO, tools=dated, tool_choice="log").tool_calls
            assert len(call.arguments["day"]) == len("2026-01-31")
        else:
            with pytest.raises(UnsupportedModeError, match=r"strict.*qwen3-coder.*log"):
                rt.chat(HELLO, tools=dated)


def test_strict_is_refused_where_it_cannot_be_held() -> None:
    with Runtime(Script(), chat_template=LLAMA3, tool_format="llama3") as rt:
        for options, name in (
            ({"tools": [tool("add", strict=True)]}, "strict"),
            ({"tools": TOOLS, "parallel_tool_calls": False}, "parallel"),
        ):
            with pytest.raises(UnsupportedModeError, match=f"{name}.*llama3"):
                rt.chat(HELLO, **options)
        assert rt.chat(HELLO, tools=[tool("add", strict=True)], tool_choice="add", max_tokens=60).tool_calls
        with pytest.raises(ToolSchemaError, match="strict"):
            rt.chat(HELLO, tools=[tool("add", strict="yes")])
