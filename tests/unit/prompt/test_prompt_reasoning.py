"""What reasoning does to a prompt that grows: where it stays a prefix of the next, and where it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from pinfold.errors import UnsupportedModeError
from pinfold.prompt.renderer import PromptRenderer
from pinfold.prompt.stability import explain_growth
from pinfold.prompt.switch import reasoning_variables
from pinfold.prompt.template import ChatTemplate
from tests.support import chat_templates
from tests.support.byte_tokenizer import ByteTokenizer

TOOLS: list[dict[str, Any]] = [{"name": "read", "parameters": {"type": "object", "properties": {}}}]
SYSTEM = {"role": "system", "content": "Mend code."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def step(number: int, thought: str) -> list[dict[str, Any]]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": {"n": number}}}
    asked = {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": thought}
    return [asked, {"role": "tool", "tool_call_id": f"c{number}", "content": "x"}]


def renderer(reasoning: str = "auto") -> PromptRenderer:
    return PromptRenderer(ChatTemplate(chat_templates.SWITCHED, reasoning=reasoning), ByteTokenizer())


def turn(thought: str) -> list[dict[str, Any]]:
    answer = {"role": "assistant", "content": "Done.", "reasoning_content": thought}
    return [user("Mend it."), *step(1, thought), *step(2, thought), answer]


@pytest.mark.parametrize("reasoning", ["auto", "on", "off"])
def test_within_a_turn_every_prompt_begins_with_the_one_before(reasoning: str) -> None:
    assert explain_growth(renderer(reasoning), [SYSTEM, *turn("I look.")], TOOLS) == ()


def test_a_new_turn_breaks_once_at_the_first_reasoning_that_is_dropped() -> None:
    messages = [SYSTEM, *turn("I look."), *turn("Again.")]
    (found,) = explain_growth(renderer(), messages, TOOLS)
    assert (found.messages, found.place.where) == (7, "message 2 (assistant)")
    assert any("reasoning" in note for note in renderer().render(messages, TOOLS).notes)


def test_without_earlier_reasoning_nothing_ever_breaks() -> None:
    messages = [SYSTEM, *turn(""), *turn(""), user("And now?")]
    assert explain_growth(renderer(), messages, TOOLS) == ()
    assert not renderer().render(messages, TOOLS).notes


def test_the_switch_changes_nothing_but_how_the_answer_is_opened() -> None:
    messages = [SYSTEM, *turn("I look."), user("And now?")]
    on, off = (renderer(mode).render(messages, TOOLS).text for mode in ("on", "off"))
    assert off == on + "<think>\n\n</think>\n\n"
    pinned = [renderer(mode).prefix([SYSTEM], TOOLS).tokens for mode in ("on", "off")]
    assert pinned[0] == pinned[1]


def test_a_switched_renderer_is_made_once_and_starts_from_the_template() -> None:
    base = renderer("off")
    assert base.with_reasoning("on") is base.with_reasoning("on")
    assert base.with_reasoning("auto").generation_prefix == "<|im_start|>assistant\n"
    assert base.generation_prefix.endswith("</think>\n\n")


@pytest.mark.parametrize(
    ("mode", "read", "variables"),
    [
        ("auto", (), {}),
        ("on", ("thinking",), {"thinking": True}),
        ("off", ("thinking", "enable_thinking"), {"enable_thinking": False}),
        ("low", ("reasoning_effort",), {"reasoning_effort": "low"}),
        ("off", ("reasoning_effort",), None),
        ("high", ("enable_thinking",), None),
        ("on", (), None),
    ],
)
def test_variables(mode: str, read: tuple[str, ...], variables: Any) -> None:
    if variables is not None:
        assert reasoning_variables(mode, read) == variables
        return
    with pytest.raises(UnsupportedModeError, match=f"'{mode}'.*'auto'"):
        reasoning_variables(mode, read)
