from __future__ import annotations

from typing import Any

import pytest

from pinfold.prompt.renderer import Prompt, PromptRenderer
from pinfold.prompt.template import ChatTemplate
from tests.support import chat_templates
from tests.support.byte_tokenizer import ByteTokenizer

TOOLS = [
    {"name": name, "description": f"To {name}.", "parameters": {"type": "object", "properties": {}}}
    for name in ("search", "read")
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": {"q": "zebra"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "grün"},
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "Be brief. a"},
]


def renderer(source: str | None, bos: str = "") -> PromptRenderer:
    return PromptRenderer(ChatTemplate(source, bos_token=bos), ByteTokenizer(bos=bos))


def place_of(prompt: Prompt, tokenizer: ByteTokenizer, needle: str, nth: int = 0) -> str:
    """What stands at the first character of the nth `needle`."""
    start = -1
    for _ in range(nth + 1):
        start = prompt.text.index(needle, start + 1)
    whole = tokenizer.encode(prompt.text[:start], bos=True)
    return prompt.place(len(whole)).where


@pytest.mark.parametrize("source", [chat_templates.CHATML, chat_templates.TOOLS])
@pytest.mark.parametrize("bos", ["", "<bos>"])
def test_places_in_templates_with_and_without_tools(source: str, bos: str) -> None:
    r = renderer(source, bos)
    assert isinstance(r.tokenizer, ByteTokenizer)
    prompt = r.render(MESSAGES, TOOLS)

    def at(needle: str, nth: int = 0) -> str:
        return place_of(prompt, r.tokenizer, needle, nth)

    assert at("<|im_start|>system") == "template (before the first message)"
    assert at("Be brief.") == "message 0 (system)"
    assert at("Tools") == "template (start of the tools section)"
    assert at('"search"') == 'tool "search"'
    assert at("To search.") == 'tool "search"'
    assert at('\n{"type": "function", "function": {"name": "read"') == 'tool "read"'
    assert at("To read.") == 'tool "read"'
    assert at("<|im_end|>") == "template (end of the tools section)"
    assert at("<|im_start|>user") == "message 1 (user)"
    assert at("<|im_start|>assistant") == "message 2 (assistant)"
    assert at("zebra") == "message 2 (assistant)"
    assert at("<|im_start|>user", 1) == "message 3 (tool)"
    assert at("ün") == "message 3 (tool)"
    assert at("<|im_start|>assistant", 1) == "message 4 (assistant)"
    assert at("<|im_start|>user", 2) == "message 5 (user)"
    assert at("Be brief. a") == "message 5 (user)"
    assert at("<|im_start|>assistant", 2) == "template (start of the answer)"
    assert prompt.place(len(prompt.tokens)).where == "template (start of the answer)"


def test_every_message_and_tool_has_a_place_in_order() -> None:
    prompt = renderer(chat_templates.TOOLS).render(MESSAGES, TOOLS)
    seen = list(dict.fromkeys(prompt.place(index).where for index in range(len(prompt.tokens))))
    assert [where for where in seen if not where.startswith("template")] == [
        "message 0 (system)",
        'tool "search"',
        'tool "read"',
        *(f"message {index} ({MESSAGES[index]['role']})" for index in range(1, 6)),
    ]


def test_places_survive_folding_and_merging() -> None:
    r = renderer(chat_templates.STRICT, "<bos>")
    prompt = r.render(
        [{"role": "system", "content": "S1"}, {"role": "user", "content": "U1"}, {"role": "user", "content": "U2"}]
    )
    wheres = {needle: place_of(prompt, r.tokenizer, needle) for needle in ("S1", "U1", "U2", "<end>")}
    assert wheres == {
        "S1": "message 0 (system)",
        "U1": "message 1 (user)",
        "U2": "message 2 (user)",
        "<end>": "message 2 (user)",
    }


def test_places_are_found_where_a_template_looks_at_the_content() -> None:
    peeking = (
        "{% for m in messages %}{% if m.content.startswith('U') %}<u>{% else %}<x>{% endif %}"
        "{{ m.content }}\n{% endfor %}"
    )
    r = renderer(peeking)
    prompt = r.render([{"role": "user", "content": "U one"}, {"role": "assistant", "content": "two"}])
    assert place_of(prompt, r.tokenizer, "one") == "message 0 (user)"
    assert place_of(prompt, r.tokenizer, "two") == "message 1 (assistant)"


def test_places_are_found_where_tools_are_written_otherwise() -> None:
    signatures = (
        "{% for t in tools or [] %}def {{ t.function.name }}(): {{ t.function.description }}\n{% endfor %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
    )
    r = renderer(signatures)
    prompt = r.render([{"role": "user", "content": "Hi"}], TOOLS)
    assert place_of(prompt, r.tokenizer, "search") == 'tool "search"'
    assert place_of(prompt, r.tokenizer, "read") == 'tool "read"'
    assert place_of(prompt, r.tokenizer, "Hi") == "message 0 (user)"


def test_a_tool_that_was_taken_away_shows_as_the_one_in_its_place() -> None:
    r = renderer(chat_templates.TOOLS)
    both, one = r.render(MESSAGES, TOOLS), r.render(MESSAGES, TOOLS[1:])
    parted = next(i for i, (a, b) in enumerate(zip(both.tokens, one.tokens, strict=False)) if a != b)
    assert one.place(parted).where == 'tool "read"'
    assert both.place(parted).where == 'tool "search"'


@pytest.mark.parametrize("source", [chat_templates.CHATML, chat_templates.TOOLS])
def test_tools_are_found_whatever_they_are_called(source: str) -> None:
    r = renderer(source)
    prompt = r.render([{"role": "system", "content": "type name function"}], [{"name": "name"}, {"name": "function"}])
    for tool in prompt.tools:
        assert place_of(prompt, r.tokenizer, tool.json) == f'tool "{tool.name}"'


def test_a_shorter_message_shows_as_itself() -> None:
    r = renderer(chat_templates.CHATML)
    longer = r.render([{"role": "system", "content": "Be brief. Be kind."}, {"role": "user", "content": "Hi"}])
    shorter = r.render([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    parted = next(i for i, (a, b) in enumerate(zip(longer.tokens, shorter.tokens, strict=False)) if a != b)
    assert longer.place(parted).where == shorter.place(parted).where == "message 0 (system)"


def test_another_role_shows_as_the_message_that_has_it() -> None:
    r = renderer(chat_templates.CHATML)
    prompt = r.render([{"role": "user", "content": "Hi"}, {"role": "user", "content": "Hi"}])
    other = r.render([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi"}])
    parted = next(i for i, (a, b) in enumerate(zip(prompt.tokens, other.tokens, strict=False)) if a != b)
    assert prompt.place(parted).where == "message 1 (user)"
