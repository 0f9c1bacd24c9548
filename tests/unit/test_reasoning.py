"""Reasoning through the public surface, over the scripted engine: one token is one byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinfold import Completion, Runtime, Script
from pinfold.errors import InvalidRequestError, UnsupportedModeError
from tests.support import chat_templates

HELLO = [{"role": "user", "content": "Hello"}]
PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]
CALL = f"<tool_call>\n{json.dumps({'name': 'add', 'arguments': {'n': 1}})}\n</tool_call>"
DOCUMENT = {"type": "json_schema", "json_schema": {"name": "n", "schema": PARAMETERS}}
OPENED, SWITCHED = chat_templates.THINKING, chat_templates.SWITCHED


def answer(reply: str, template: str = SWITCHED, **options: Any) -> Completion:
    with Runtime(Script([reply]), chat_template=template) as rt:
        done = rt.chat(HELLO, max_tokens=400, **options)
        last = [*rt.stream(HELLO, max_tokens=400, **options)][-1].done
    assert last is not None
    assert (last.text, last.reasoning, last.usage) == (
        done.text,
        done.reasoning,
        done.usage.__class__(**vars_of(last.usage)),
    )
    return done


def vars_of(usage: Any) -> dict[str, int]:
    return {name: getattr(usage, name) for name in usage.__dataclass_fields__}


@pytest.mark.parametrize(
    ("reply", "template", "tokens"),
    [
        ("<think>\nhm\n</think>\n\nYes.", SWITCHED, len("<think>\nhm\n</think>")),
        ("hm\n</think>\n\nYes.", OPENED, len("hm\n</think>")),
        ("Yes.", SWITCHED, 0),
        ("I <think>no</think>", SWITCHED, 0),
        ("<think>hm", SWITCHED, len("<think>hm")),
    ],
)
def test_tokens_of_reasoning_are_counted_as_they_come(reply: str, template: str, tokens: int) -> None:
    assert answer(reply, template).usage.reasoning_tokens == tokens


def test_channels_are_counted_too() -> None:
    thought = "<|channel|>analysis<|message|>hm<|end|>"
    with Runtime(Script([f"{thought}<|start|>assistant<|channel|>final<|message|>Yes."]), tool_format="harmony") as rt:
        done = rt.chat(HELLO)
    assert (done.reasoning, done.text, done.usage.reasoning_tokens) == ("hm", "Yes.", len(thought))


@pytest.mark.parametrize("template", [SWITCHED, OPENED])
@pytest.mark.parametrize("budget", [0, 9, 12])
def test_a_budget_ends_the_reasoning_and_the_answer_goes_on(template: str, budget: int) -> None:
    opening = "" if template is OPENED else "<think>"
    thought = opening + "x" * 300 + "</think>"
    with Runtime(Script([thought]), chat_template=template) as rt:
        done = rt.chat(HELLO, reasoning_budget=budget, max_tokens=60)
    kept = max(budget, len(opening))
    assert done.reasoning == "x" * (kept - len(opening))
    assert done.usage.reasoning_tokens == kept + len("\n</think>")
    assert done.text.startswith("x")  # the script goes on where it was


def test_a_budget_that_is_not_reached_changes_nothing() -> None:
    done = answer("<think>hm</think>Yes.", reasoning_budget=300)
    assert (done.reasoning, done.text) == ("hm", "Yes.")


@pytest.mark.parametrize("template", [SWITCHED, OPENED])
@pytest.mark.parametrize(
    ("reply", "options"),
    [
        (CALL, {"tools": TOOLS, "tool_choice": "required"}),
        (CALL, {"tools": TOOLS, "tool_choice": "add"}),
        (CALL, {"tools": TOOLS, "response_format": DOCUMENT}),
        ('{"n": 2}', {"tools": TOOLS, "response_format": DOCUMENT}),
        ('{"n": 2}', {"response_format": DOCUMENT}),
    ],
)
def test_a_grammar_holds_after_the_reasoning(template: str, reply: str, options: Any) -> None:
    opening = "" if template is OPENED else "<think>"
    done = answer(f"{opening}\nsome {{thought\n</think>\n\n{reply}", template, **options)
    assert done.reasoning == "some {thought"
    assert (len(done.tool_calls), done.text) == ((1, "") if reply is CALL else (0, reply))
    ended = answer(f"{opening}{'x' * 20}</think>{reply}", template, reasoning_budget=len(opening) + 4, **options)
    assert ended.reasoning == "xxxx"
    assert ended.tool_calls or json.loads(ended.text)


def test_the_switch_is_the_templates_own() -> None:
    with Runtime(Script(["hm"]), chat_template=SWITCHED) as rt:
        on, off = (rt.chat(HELLO, reasoning=mode).usage.prompt_tokens for mode in ("on", "off"))
        assert off - on == len("<think>\n\n</think>\n\n")
        assert rt.chat(HELLO).usage.prompt_tokens == on
        for mode in ("low", "high"):
            with pytest.raises(UnsupportedModeError, match=rf"'{mode}'.*'on', 'off'"):
                rt.chat(HELLO, reasoning=mode)
        with pytest.raises(InvalidRequestError, match="reasoning"):
            rt.chat(HELLO, reasoning="loud")
    with Runtime(Script(["hm"]), chat_template=SWITCHED, reasoning="off") as rt:
        assert rt.chat(HELLO).usage.prompt_tokens == off == rt.chat(HELLO, reasoning="off").usage.prompt_tokens
        assert rt.chat(HELLO, reasoning="on").usage.prompt_tokens == on
    with pytest.raises(UnsupportedModeError, match=r"no such switch.*reasoning_budget"):
        Runtime(Script(), reasoning="off")


def test_a_level_reaches_the_template_and_a_pin_of_the_same_level_is_reused() -> None:
    template = "{{ 'Effort: ' ~ reasoning_effort | default('medium') ~ '.' }}" + chat_templates.CHATML
    system = {"role": "system", "content": "You are careful."}
    with Runtime(Script(), chat_template=template, reasoning="high") as rt:
        pin = rt.pin([system], name="careful")
        assert rt.chat([system, *HELLO]).usage.cached_tokens >= pin.tokens
        assert rt.chat([system, *HELLO], reasoning="low").cache.miss is not None
        with pytest.raises(UnsupportedModeError, match=r"'off'.*'low', 'medium', 'high'"):
            rt.chat(HELLO, reasoning="off")


def test_with_reasoning_off_a_forced_call_comes_at_once() -> None:
    with Runtime(Script([CALL]), chat_template=SWITCHED) as rt:
        done = rt.chat(HELLO, tools=TOOLS, tool_choice="add", reasoning="off")
    assert (done.reasoning, len(done.tool_calls)) == ("", 1)
