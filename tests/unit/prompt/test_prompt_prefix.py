from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.prompt.renderer import PromptRenderer
from pinfold.prompt.stability import explain_growth
from pinfold.prompt.template import ChatTemplate
from tests.support import chat_templates
from tests.support.byte_tokenizer import ByteTokenizer

EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
SYSTEM = {"role": "system", "content": "You mend code, and you are careful with it."}
ASK = {"role": "user", "content": "Mend it."}
TOOLS: list[dict[str, Any]] = [
    {"name": name, "description": "d" * 40, "parameters": {"type": "object", "properties": {}}}
    for name in ("search", "read", "write")
]
CALL = {
    "role": "assistant",
    "content": "I look.",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": {"path": "a.py"}}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x = 1"}


def renderer(source: str | None) -> PromptRenderer:
    return PromptRenderer(ChatTemplate(source), ByteTokenizer())


RENDERERS = {
    "chatml": renderer(chat_templates.CHATML),
    "tools": renderer(chat_templates.TOOLS),
    "plain": renderer(None),
}

texts = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x2FFF), max_size=12)
turns = st.one_of(
    st.builds(lambda t: [{"role": "user", "content": t}], texts),
    st.builds(lambda t: [{"role": "assistant", "content": t}], texts),
    st.builds(
        lambda t, q, r: [
            {
                **CALL,
                "content": t,
                "tool_calls": [{**CALL["tool_calls"][0], "function": {"name": "read", "arguments": {"q": q}}}],
            },
            {**RESULT, "content": r},
        ],
        texts,
        texts,
        texts,
    ),
)


@settings(max_examples=60, deadline=None)
@given(
    which=st.sampled_from(sorted(RENDERERS)),
    system=texts,
    more=st.lists(turns, max_size=4),
    tools=st.integers(0, 3),
)
def test_a_growing_conversation_is_a_prefix_of_itself(which: str, system: str, more: list[Any], tools: int) -> None:
    messages = [{"role": "system", "content": system}]
    for turn in more:
        messages += turn
    # The turns drawn never have two results in a row, which some templates close as one turn.
    assert explain_growth(RENDERERS[which], messages, TOOLS[:tools]) == ()


@settings(max_examples=60, deadline=None)
@given(which=st.sampled_from(sorted(RENDERERS)), system=texts, more=st.lists(turns, max_size=3), following=texts)
def test_a_pinned_prefix_begins_every_continuation(which: str, system: str, more: list[Any], following: str) -> None:
    messages = [{"role": "system", "content": system}]
    for turn in more:
        messages += turn
    pinned = RENDERERS[which].prefix(messages, TOOLS)
    role = "assistant" if messages[-1]["role"] in ("user", "tool") else "user"
    continued = RENDERERS[which].render([*messages, {"role": role, "content": following}], TOOLS)
    assert continued.tokens[: len(pinned.tokens)] == pinned.tokens
    assert pinned.warning is None
    own = RENDERERS[which].render(messages, TOOLS, generation=False).tokens
    assert pinned.tokens[: len(own)] == own


def test_a_prefix_that_ends_with_a_user_turn_serves_its_answer() -> None:
    r = renderer(chat_templates.THINKING)
    pinned = r.prefix([SYSTEM, ASK])
    assert r.render([SYSTEM, ASK]).tokens[: len(pinned.tokens)] == pinned.tokens
    assert pinned.prompt.text.endswith("Mend it.<|im_end|>\n<|im_start|>assistant\n")


def test_a_prefix_that_the_template_breaks_is_reported_with_the_place() -> None:
    pinned = renderer(chat_templates.LATE_TOOLS).prefix([SYSTEM, ASK], TOOLS)
    assert pinned.prompt.text == "[SYS]You mend code, and you are careful with it.[/SYS]["
    assert pinned.warning is not None
    assert "start of the tools section" in pinned.warning
    assert pinned.prompt.place(8).where == "message 0 (system)"


@pytest.mark.parametrize("source", [chat_templates.CHATML, chat_templates.TOOLS])
def test_breakpoints_end_where_their_marks_do(source: str) -> None:
    r = renderer(source)
    blocks = [
        {"type": "text", "text": "Part one.", "cache_control": {"type": "ephemeral", "ttl": "2h"}},
        {"type": "text", "text": "Part two."},
    ]
    messages = [
        SYSTEM,
        {"role": "user", "content": blocks},
        {**CALL, "cache_control": EPHEMERAL},
        {**RESULT, "cache_control": HOUR},
    ]
    tools = [TOOLS[0], {**TOOLS[1], "cache_control": HOUR}, TOOLS[2]]
    prompt = r.render(messages, tools)
    found = {
        point.where: (r.tokenizer.decode(prompt.tokens[: point.tokens]), point.ttl) for point in prompt.breakpoints
    }
    assert list(found) == ['tool "read"', "message 1 (user), block 0", "message 2 (assistant)", "message 3 (tool)"]
    assert [ttl for _, ttl in found.values()] == [3600.0, 7200.0, 300.0, 3600.0]
    ends = [text for text, _ in found.values()]
    assert prompt.tools[1].json in ends[0]
    assert prompt.tools[2].json not in ends[0]
    assert ends[1].endswith("Part one.")
    assert ends[2].endswith("<|im_start|>user\n<tool_response>\n")
    assert ends[3].endswith("x = 1\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


def test_a_mark_on_the_last_tool_covers_system_and_tools_alone() -> None:
    r = renderer(chat_templates.TOOLS)
    prompt = r.render([SYSTEM, ASK], [TOOLS[0], {**TOOLS[1], "cache_control": HOUR}])
    (point,) = prompt.breakpoints
    assert r.tokenizer.decode(prompt.tokens[: point.tokens]).endswith("End.<|im_end|>\n<|im_start|>user\n")


def test_marks_at_one_place_keep_the_longer_time() -> None:
    r = renderer(chat_templates.TOOLS)
    prompt = r.render([{**SYSTEM, "cache_control": EPHEMERAL}, ASK], [{**TOOLS[0], "cache_control": HOUR}])
    assert [(point.ttl, point.where) for point in prompt.breakpoints] == [(3600.0, 'tool "search"')]


def test_a_prompt_without_marks_has_no_breakpoints() -> None:
    assert renderer(chat_templates.TOOLS).render([SYSTEM, ASK], TOOLS).breakpoints == ()


def test_growth_that_drops_reasoning_is_explained() -> None:
    thought = {"role": "assistant", "content": "Done.", "reasoning_content": "It is simple."}
    (found,) = explain_growth(renderer(chat_templates.THINKING), [SYSTEM, ASK, thought, ASK])
    assert (found.messages, found.place.where) == (3, "message 2 (assistant)")
    assert found.before.startswith("<think>\nIt is simple.")
    assert found.after.startswith("Done.")
    assert found.lost_tokens > 20


def test_growth_that_merges_turns_is_explained() -> None:
    (found,) = explain_growth(renderer(chat_templates.STRICT), [ASK, ASK])
    assert (found.messages, found.place.where) == (1, "message 1 (user)")


def test_growth_skips_beginnings_that_the_template_refuses() -> None:
    answered = "messages[-1].role == 'user'"
    picky = f"{{% if {answered} %}}{{{{ raise_exception('no answer') }}}}{{% endif %}}{chat_templates.CHATML}"
    assert explain_growth(renderer(picky), [SYSTEM, ASK, CALL, RESULT, CALL]) == ()


def test_growth_begins_where_there_is_something_to_answer() -> None:
    assert explain_growth(renderer(chat_templates.STRICT), [SYSTEM]) == ()
    assert (
        explain_growth(renderer(chat_templates.STRICT), [SYSTEM, ASK, {"role": "assistant", "content": "Yes."}]) == ()
    )
