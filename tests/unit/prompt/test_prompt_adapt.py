from __future__ import annotations

from typing import Any

import pytest

from pinfold.errors import TemplateError
from pinfold.prompt.renderer import PromptRenderer
from pinfold.prompt.template import ChatTemplate
from tests.support import chat_templates
from tests.support.byte_tokenizer import ByteTokenizer

TOOL = {"name": "search", "description": "Finds.", "parameters": {"type": "object", "properties": {}}}
SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "Hi"}
CALLS = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"q":"é"}'}},
        {"id": "call_2", "type": "function", "function": {"name": "search", "arguments": {"q": 2}}},
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
    {"role": "tool", "tool_call_id": "call_2", "content": "two"},
]


def renderer(source: str | None) -> PromptRenderer:
    return PromptRenderer(ChatTemplate(source, bos_token="<bos>"), ByteTokenizer(bos="<bos>"))


def text(source: str | None, messages: list[dict[str, Any]], tools: Any = None, **kwargs: Any) -> str:
    return renderer(source).render(messages, tools, **kwargs).text


def test_a_template_without_tools_gets_a_section_of_ours() -> None:
    prompt = renderer(chat_templates.CHATML).render([SYSTEM, ASK, CALLS, *RESULTS], [TOOL])
    system, rest = prompt.text.split("<|im_end|>", 1)
    assert system.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert prompt.tools[0].json in system
    assert rest == (
        "\n<|im_start|>user\nHi<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "search", "arguments": {"q": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "search", "arguments": {"q": 2}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert any("no place for tools" in note for note in prompt.notes)


def test_the_section_makes_a_system_message_where_there_is_none() -> None:
    assert text(chat_templates.CHATML, [ASK], [TOOL]).startswith("<|im_start|>system\n# Tools\n")


def test_a_template_with_tools_is_given_them_as_they_are() -> None:
    prompt = renderer(chat_templates.TOOLS).render([SYSTEM, ASK, CALLS, *RESULTS], [TOOL])
    assert f"Be brief.\n\nTools:\n{prompt.tools[0].json}\nEnd.<|im_end|>" in prompt.text
    assert '{"name": "search", "arguments": {"q": "é"}}' in prompt.text
    assert prompt.notes == ()


@pytest.mark.parametrize("choice", ["none", "required", "search"])
@pytest.mark.parametrize("source", [chat_templates.CHATML, chat_templates.TOOLS])
def test_the_tool_choice_never_changes_the_prompt(source: str, choice: str) -> None:
    chosen = renderer(source).render([ASK], [TOOL], tool_choice=choice)
    assert chosen.tokens == renderer(source).render([ASK], [TOOL]).tokens
    assert chosen.tool_choice.mode == ("named" if choice == "search" else choice)


def test_system_is_folded_and_roles_are_merged_where_the_template_demands_it() -> None:
    prompt = renderer(chat_templates.STRICT).render([SYSTEM, ASK, {"role": "user", "content": "There?"}])
    assert prompt.text == "<bos><turn>user\nBe brief.\n\nHi\n\nThere?<end>\n<turn>model\n"
    assert len(prompt.notes) == 2


def test_tool_results_alternate_too() -> None:
    ask_again = {"role": "user", "content": "And?"}
    rendered = text(chat_templates.STRICT, [ASK, CALLS, *RESULTS, ask_again], [TOOL])
    assert rendered.count("<turn>user") == 2
    assert rendered.endswith("two\n</tool_response>\n\nAnd?<end>\n<turn>model\n")


def test_a_system_message_alone_becomes_a_user_turn() -> None:
    assert text(chat_templates.STRICT, [SYSTEM]) == "<bos><turn>user\nBe brief.<end>\n<turn>model\n"


def test_what_no_adaptation_helps_is_refused_in_the_templates_words() -> None:
    with pytest.raises(TemplateError, match="must alternate"):
        text(chat_templates.STRICT, [{"role": "assistant", "content": "I begin"}])


def test_later_system_messages_become_user_turns_where_one_is_taken() -> None:
    late = {"role": "system", "content": "Now in French."}
    assert text(chat_templates.ONE_SYSTEM, [SYSTEM, late, ASK]) == "<system>Be brief.\n\nNow in French.\n<user>Hi\n"
    assert text(chat_templates.ONE_SYSTEM, [SYSTEM, ASK, late]).endswith("<user>Hi\n<user>Now in French.\n")


def test_content_call_ids_and_arguments_take_the_templates_form() -> None:
    assert text(chat_templates.BLOCKS, [SYSTEM, ASK]) == "<system>Be brief.<user>Hi<assistant>"
    called = text(chat_templates.TEXT_ARGUMENTS, [ASK, CALLS], [TOOL])
    assert '[search {"q": "é"}][search {"q": 2}]' in called
    short = text(chat_templates.LATE_TOOLS, [ASK, CALLS], [TOOL])
    ids = [part.split(" ")[0] for part in short.split("[CALL]")[1:]]
    assert [len(call_id) for call_id in ids] == [9, 9]
    assert ids[0] != ids[1]
    long = chat_templates.LATE_TOOLS.replace("!= 9", "< 9")
    shortest = [{**CALLS, "tool_calls": [{**CALLS["tool_calls"][0], "id": "c"}]}]
    assert "[CALL]" in text(long, [ASK, *shortest], [TOOL])


def test_reasoning_reaches_the_template_and_its_loss_is_told() -> None:
    thought = {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}
    newest = renderer(chat_templates.THINKING).render([ASK, thought], generation=False)
    assert "<think>\n2 + 2\n</think>\n\n4" in newest.text
    later = renderer(chat_templates.THINKING).render([ASK, thought, ASK])
    assert "2 + 2" not in later.text
    assert any("reasoning of earlier turns" in note for note in later.notes)


def test_a_date_in_the_prompt_is_told() -> None:
    assert any("writes the date" in note for note in renderer(chat_templates.CLOCK).render([ASK]).notes)
    pinned = renderer(chat_templates.CLOCK).prefix([SYSTEM, ASK])
    assert pinned.warning is not None
    assert "writes the date" in pinned.warning


def test_a_date_that_a_system_message_replaces_is_not_told() -> None:
    default = (
        "{% set day = strftime_now('%d %B %Y') %}{% if messages[0].role != 'system' %}Today: {{ day }}\n{% endif %}"
    )
    r = renderer(default + chat_templates.CHATML)
    assert r.template.traits.clock
    assert any("writes the date" in note for note in r.render([ASK]).notes)
    assert r.render([SYSTEM, ASK]).notes == ()
    assert r.prefix([SYSTEM, ASK]).warning is None


def test_a_model_without_a_template_gets_a_plain_one() -> None:
    plain = renderer(None)
    prompt = plain.render([SYSTEM, ASK])
    assert prompt.text == "System: Be brief.\n\nUser: Hi\n\nAssistant:"
    assert any("no chat template" in note for note in prompt.notes)
    assert "\n\nUser:" in plain.stop
    assert renderer(chat_templates.CHATML).stop == ()


@pytest.mark.parametrize("source", [chat_templates.STRICT, chat_templates.CHATML])
def test_the_first_token_is_there_once(source: str) -> None:
    bos = ByteTokenizer(bos="<bos>").encode("<bos>")[0]
    prompt = renderer(source).render([ASK])
    assert prompt.tokens[0] == bos
    assert prompt.tokens.count(bos) == 1


def test_a_raw_prompt_is_taken_as_it_is() -> None:
    prompt = renderer(chat_templates.CHATML).raw("Once <|im_end|>")
    assert prompt.text == "Once <|im_end|>"
    assert prompt.place(3).where == "the prompt's text"
    with pytest.raises(ValueError, match="no valid text"):
        renderer(None).raw("\ud800")
