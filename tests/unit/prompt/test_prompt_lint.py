"""What ends the reuse of a prompt is found, priced and put right."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold import Runtime, Script
from pinfold.errors import InvalidRequestError, TemplateError
from pinfold.prompt import ChatTemplate, PromptRenderer, check_prompt
from pinfold.prompt.continuations import common_length
from pinfold.prompt_check import PromptCheck, PromptFinding
from tests.support import chat_templates
from tests.support.byte_tokenizer import ByteTokenizer

RULES = "You mend code, and you are careful with it. "
SYSTEM = {"role": "system", "content": RULES * 3}
DATED = {"role": "system", "content": f"{RULES}Today is 2026-12-01. {RULES}"}
ASK = {"role": "user", "content": "Mend it."}
ANSWER = {"role": "assistant", "content": "Done."}


def tool(name: str, description: str = "Does it well.", **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [tool("search", words={"type": "string", "description": "What for."}), tool("read"), tool("write")]


def renderer(source: str | None) -> PromptRenderer:
    return PromptRenderer(ChatTemplate(source), ByteTokenizer())


NATIVE = renderer(chat_templates.TOOLS)
RENDERERS = {"native": NATIVE, "chatml": renderer(chat_templates.CHATML), "strict": renderer(chat_templates.STRICT)}


def kinds(check: PromptCheck) -> list[str]:
    return [finding.kind for finding in check.findings]


def only(check: PromptCheck) -> PromptFinding:
    (finding,) = check.findings
    return finding


def in_common(rendering: PromptRenderer, one: tuple[Any, Any], other: tuple[Any, Any]) -> int:
    return common_length(rendering.render(*one).tokens, rendering.render(*other).tokens)


def other_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: other_keys(value[key]) for key in reversed(value)}
    return value


@pytest.mark.parametrize("rendering", RENDERERS.values(), ids=RENDERERS)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_nothing_in_a_good_prompt(rendering: PromptRenderer, tools: Any) -> None:
    messages = [SYSTEM, {"role": "user", "content": "It is 2026-12-01, pid 4821."}, ANSWER, ASK]
    check = check_prompt(rendering, messages, tools, other=([SYSTEM, ASK], tools))
    assert check.findings == ()
    assert check.lost_tokens == 0
    assert 0 < check.stable_tokens < check.prompt_tokens == len(rendering.render(messages, tools).tokens)


class TestVolatile:
    @pytest.mark.parametrize("rendering", RENDERERS.values(), ids=RENDERERS)
    def test_a_date_in_the_system_message_costs_what_comes_after_it(self, rendering: PromptRenderer) -> None:
        check = check_prompt(rendering, [DATED, ASK])
        finding = only(check)
        tomorrow = {**DATED, "content": DATED["content"].replace("2026", "3026")}
        assert (finding.kind, finding.where, finding.excerpt) == ("volatile", "message 0 (system)", "2026-12-01")
        assert finding.token == in_common(rendering, ([DATED, ASK], None), ([tomorrow, ASK], None))
        assert finding.lost_tokens == check.stable_tokens - finding.token == check.lost_tokens > len(RULES)
        assert finding.movable
        assert not finding.fixable

    def test_in_a_tool(self) -> None:
        tools = [tool("read", "Reads in /tmp/tmpab12.", day={"type": "string", "default": "2026-12-01"}), tool("write")]
        path, default = check_prompt(NATIVE, [SYSTEM, ASK], tools).findings
        assert path.where == default.where == 'tool "read"'
        assert (path.movable, default.movable) == (True, False)
        assert path.lost_tokens > default.lost_tokens > 0

    def test_in_a_block_and_in_a_turn_before_the_question(self) -> None:
        blocks = {"role": "system", "content": [{"type": "text", "text": RULES}, {"type": "text", "text": "pid 4821"}]}
        context = {"role": "user", "content": "Session id: ab12cd"}
        first, second = check_prompt(NATIVE, [blocks, context, ASK]).findings
        assert (first.where, second.where) == ("message 0 (system)", "message 1 (user)")

    def test_what_the_template_leaves_out_costs_nothing(self) -> None:
        tools = [tool("read", day={"type": "string", "description": "As of 2026-12-01"})]
        silent = chat_templates.TOOLS.replace("tool | tojson", "tool.function.name")
        assert check_prompt(renderer(silent), [SYSTEM, ASK], tools).findings == ()

    def test_moved_last_only_when_asked(self) -> None:
        messages, tools = [DATED, ASK], [tool("read", "Reads well. It reads in /tmp/tmpab12. No more.")]
        kept = copy.deepcopy((messages, tools))
        check = check_prompt(NATIVE, messages, tools)
        assert check.fixed() == (messages, tools)
        fixed, fixed_tools = check.fixed(move_volatile=True)
        assert fixed[0]["content"] == RULES + RULES
        assert fixed[1]["content"] == ('Mend it.\nToday is 2026-12-01.\nOf the tool "read": It reads in /tmp/tmpab12.')
        assert fixed_tools is not None
        assert fixed_tools[0]["function"]["description"] == "Reads well. No more."
        assert check_prompt(NATIVE, fixed, fixed_tools).findings == ()
        assert (messages, tools) == kept

    def test_two_in_one_sentence_and_a_line_of_its_own(self) -> None:
        system = {"role": "system", "content": "Be kind.\nToday is 2026-12-01, 10:32:07.\nBe brief. PID: 4821"}
        check = check_prompt(NATIVE, [system, {"role": "user", "content": [{"type": "text", "text": "Go."}]}])
        fixed, _ = check.fixed(move_volatile=True)
        assert len(check.findings) == 3
        assert fixed[0]["content"] == "Be kind.\nBe brief."
        assert [block["text"] for block in fixed[1]["content"]] == ["Go.", "Today is 2026-12-01, 10:32:07.\nPID: 4821"]

    def test_what_cannot_be_changed_is_copied(self) -> None:
        frozen = MappingProxyType({"name": "read", "description": "In /tmp/tmpab12."})
        blocks = ({"type": "text", "text": "PID: 4821"}, "Be kind.")
        messages = ({"role": "system", "content": blocks}, MappingProxyType(ASK))
        messages, tools = check_prompt(NATIVE, messages, (frozen,)).fixed(move_volatile=True)
        assert messages[0]["content"] == [{"type": "text", "text": ""}, "Be kind."]
        assert messages[1]["content"] == 'Mend it.\nPID: 4821\nOf the tool "read": In /tmp/tmpab12.'
        assert tools == [{"name": "read", "description": ""}]

    def test_without_a_user_message_nothing_is_moved(self) -> None:
        check = check_prompt(NATIVE, [DATED])
        assert not only(check).movable
        assert check.fixed(move_volatile=True)[0] == [DATED]


class TestTemplate:
    def test_its_own_date(self) -> None:
        clock = renderer(chat_templates.CLOCK)
        check = check_prompt(clock, [SYSTEM, ASK])
        finding = only(check)
        assert (finding.kind, finding.where) == ("template_date", "template (before the first message)")
        assert len("Today is ") <= finding.token < 30
        assert finding.lost_tokens == check.stable_tokens - finding.token
        assert not finding.fixable

    def test_tools_that_move(self) -> None:
        finding = only(check_prompt(renderer(chat_templates.LATE_TOOLS), [SYSTEM, ASK], TOOLS))
        assert finding.kind == "growth"
        assert "moves the tools" in finding.reason
        assert finding.lost_tokens > len(json.dumps(TOOLS))

    def test_reasoning_that_is_dropped(self) -> None:
        thought = {**ANSWER, "reasoning_content": "Hm. " * 5}
        finding = only(check_prompt(renderer(chat_templates.THINKING), [SYSTEM, ASK, thought, ASK]))
        assert "drops the reasoning" in finding.reason
        assert finding.where == "message 2 (assistant)"

    def test_an_answer_that_is_all_reasoning(self) -> None:
        thought = {"role": "assistant", "content": None, "reasoning_content": "Hm. " * 5}
        finding = only(check_prompt(renderer(chat_templates.THINKING), [SYSTEM, ASK, thought, ASK]))
        assert "drops the reasoning" in finding.reason

    def test_one_finding_however_often_it_happens(self) -> None:
        thought = {**ANSWER, "reasoning_content": "Hm. " * 5}
        turns = [ASK, thought, ASK, {**thought, "reasoning_content": "Hm. " * 9}, ASK]
        finding = only(check_prompt(renderer(chat_templates.THINKING), [SYSTEM, *turns]))
        assert finding.lost_tokens >= len("Hm. " * 9)

    def test_another_change(self) -> None:
        counted = "{{ messages | length }} messages.\n" + chat_templates.CHATML
        finding = only(check_prompt(renderer(counted), [SYSTEM, ASK]))
        assert "changes earlier turns" in finding.reason
        assert finding.token == 0


class TestAnotherRun:
    def test_tools_in_another_order(self) -> None:
        other = [TOOLS[2], TOOLS[0], TOOLS[1]]
        check = check_prompt(NATIVE, [SYSTEM, ASK], TOOLS, other=([SYSTEM, ASK], other))
        finding = only(check)
        assert (finding.kind, finding.where, finding.fixable) == ("tool_order", 'tool "search"', True)
        assert finding.token == in_common(NATIVE, ([SYSTEM, ASK], TOOLS), ([SYSTEM, ASK], other))
        _, fixed = check.fixed()
        assert [item["function"]["name"] for item in fixed or ()] == ["read", "search", "write"]

    def test_one_tool_less_is_no_other_order(self) -> None:
        check = check_prompt(NATIVE, [SYSTEM, ASK], TOOLS, other=([SYSTEM, ASK], [TOOLS[0], TOOLS[2]]))
        assert (only(check).kind, only(check).where) == ("tools", 'tool "read"')

    def test_keys_in_another_order(self) -> None:
        other = [other_keys(TOOLS[0]), *TOOLS[1:]]
        finding = only(check_prompt(NATIVE, [SYSTEM, ASK], TOOLS, other=([SYSTEM, ASK], other)))
        assert (finding.kind, finding.where, finding.fixable) == ("key_order", 'tool "search"', True)
        parameters = check_prompt(NATIVE, [SYSTEM, ASK], other, other=([SYSTEM, ASK], TOOLS)).fixed()[1]
        assert parameters == other
        assert [*(parameters or ())[0]] == ["function", "type"]

    @pytest.mark.parametrize(
        ("one", "two", "fixable"),
        [("Be kind. \nAlways.", "Be kind.\r\nAlways.\n", True), ("Be  kind.", "Be kind.", False)],
    )
    def test_white_space(self, one: str, two: str, fixable: bool) -> None:
        first, second = ([{"role": "system", "content": text}, ASK] for text in (one, two))
        finding = only(check_prompt(NATIVE, first, other=(second, None)))
        assert (finding.kind, finding.where, finding.fixable) == ("white_space", "message 0 (system)", fixable)

    def test_white_space_in_a_tool(self) -> None:
        one, two = [tool("read", "Reads.\n\n")], [tool("read", "Reads.")]
        check = check_prompt(NATIVE, [SYSTEM, ASK], one, other=([SYSTEM, ASK], two))
        assert only(check).kind == "white_space"
        assert check.fixed() == ([SYSTEM, ASK], two)

    def test_volatile_text_is_named_once(self) -> None:
        tomorrow = {**DATED, "content": DATED["content"].replace("12-01", "12-02")}
        assert kinds(check_prompt(NATIVE, [DATED, ASK], other=([tomorrow, ASK], None))) == ["volatile"]

    def test_what_differs_besides_volatile_text_has_a_price_of_its_own(self) -> None:
        tomorrow = {**DATED, "content": DATED["content"].replace("12-01", "12-02") + "\n"}
        volatile, space = check_prompt(NATIVE, [DATED, ASK], other=([tomorrow, ASK], None)).findings
        assert (volatile.kind, space.kind) == ("volatile", "white_space")
        assert volatile.lost_tokens > len(RULES) > space.lost_tokens > 0

    def test_other_words_and_other_tools(self) -> None:
        other = [{"role": "system", "content": RULES + "Be brief."}, ASK]
        check = check_prompt(NATIVE, [SYSTEM, ASK], TOOLS, other=(other, TOOLS[:2]))
        assert kinds(check) == ["text", "tools"]
        assert not any(finding.fixable for finding in check.findings)

    def test_another_number_of_messages(self) -> None:
        check = check_prompt(NATIVE, [SYSTEM, ASK, ASK], other=([SYSTEM, SYSTEM, ASK], None))
        assert kinds(check) == ["text"]

    def test_all_at_once_and_all_put_right(self) -> None:
        system = {**SYSTEM, "content": f"{SYSTEM['content']} \n"}
        one = ([SYSTEM, ASK], TOOLS)
        two = ([system, ASK], [TOOLS[1], other_keys(TOOLS[0]), TOOLS[2]])
        assert sorted(kinds(check_prompt(NATIVE, *one, other=two))) == ["key_order", "tool_order", "white_space"]
        fixed_one = check_prompt(NATIVE, *one, other=two).fixed()
        fixed_two = check_prompt(NATIVE, *two, other=one).fixed()
        assert NATIVE.render(*fixed_one).tokens == NATIVE.render(*fixed_two).tokens

    def test_what_differs_after_the_question_is_no_finding(self) -> None:
        other = [SYSTEM, {"role": "user", "content": "Break it."}, ANSWER, ASK]
        assert check_prompt(NATIVE, [SYSTEM, ASK], TOOLS, other=(other, TOOLS)).findings == ()


class TestErrors:
    def test_no_request(self) -> None:
        with pytest.raises(InvalidRequestError, match="messages is empty"):
            check_prompt(NATIVE, [])
        with pytest.raises(InvalidRequestError, match=r"messages\[0\]"):
            check_prompt(NATIVE, [ASK], other=([{"role": "chorus"}], None))
        with pytest.raises(InvalidRequestError, match="tuple"):
            check_prompt(NATIVE, [ASK], other=[ASK])  # type: ignore[arg-type]

    def test_a_template_that_refuses(self) -> None:
        picky = renderer("{{ raise_exception('No.') }}")
        with pytest.raises(TemplateError, match="No"):
            check_prompt(picky, [ASK])


def test_the_price_is_what_the_cache_then_says() -> None:
    later = {**DATED, "content": DATED["content"].replace("2026", "3026")}
    with Runtime(Script()) as rt:
        check = rt.check_prompt([DATED, ASK], TOOLS)
        rt.chat([DATED, ASK], tools=TOOLS)
        again = rt.chat([DATED, ASK], tools=TOOLS)
        changed = rt.chat([later, ASK], tools=TOOLS)
    finding = only(check)
    assert again.usage.prompt_tokens == changed.usage.prompt_tokens == check.prompt_tokens
    assert again.usage.cached_tokens == check.prompt_tokens - 1  # the last one gives the answer's first
    assert changed.usage.cached_tokens == finding.token == check.stable_tokens - finding.lost_tokens


def test_the_report_is_json_and_has_no_message() -> None:
    check = check_prompt(NATIVE, [DATED, ASK], TOOLS)
    report = json.loads(json.dumps(check.report()))
    assert report["lost_tokens"] == check.lost_tokens
    assert report["findings"][0]["kind"] == "volatile"
    assert "Mend it." not in json.dumps(report)


pieces = st.sampled_from(
    ["Be kind.", " ", "  ", "\n", "\r\n", "\n\n", "Today is 2026-12-01.", "PID: 4821", "- One", "\t", "Use v1.2.", "é"]
)
written = st.lists(pieces, max_size=8).map("".join)
schemas = st.dictionaries(
    st.sampled_from(["path", "words", "example", "default"]),
    st.fixed_dictionaries({"type": st.just("string"), "description": written}),
    max_size=3,
)
tool_lists = st.lists(
    st.builds(lambda name, text, more: tool(name, text, **more), st.sampled_from("abcd"), written, schemas),
    max_size=4,
    unique_by=lambda item: item["function"]["name"],
)
blocks = st.lists(written.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=3)
requests = st.tuples(
    st.builds(
        lambda content, user: [{"role": "system", "content": content}, {**ASK, "content": user}],
        st.one_of(written, blocks),
        st.one_of(written, blocks),
    ),
    tool_lists,
)


def words(request: tuple[Any, Any]) -> list[str]:
    """All words that people wrote, whatever their order."""
    return sorted(" ".join(strings(request)).split())


def strings(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in strings(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in strings(item)]
    return [str(value)]


def rendered_words(request: tuple[Any, Any]) -> list[str]:
    """The words that the model reads; JSON's commas and braces stand elsewhere once keys are sorted."""
    return sorted(
        re.findall(r"[\w.-]+", NATIVE.render(*request).text.replace("\\n", " ").replace("\\r", " ").replace("\\t", " "))
    )


@given(requests, st.randoms(use_true_random=False))
def test_what_is_fixed_needs_no_more_fixing_and_says_the_same(request: tuple[Any, Any], chance: random.Random) -> None:
    messages, tools = request
    shuffled = [other_keys(item) if chance.random() < 0.5 else item for item in chance.sample(tools, len(tools))]
    other = ([{**messages[0], "content": messages[0]["content"]}, ASK], shuffled)
    before = copy.deepcopy(request)
    fixed = check_prompt(NATIVE, *request, other=other).fixed()
    again = check_prompt(NATIVE, *fixed, other=other)
    assert request == before
    assert not any(finding.fixable for finding in again.findings)
    assert again.fixed() == fixed
    assert words(fixed) == words(request)
    assert rendered_words(fixed) == rendered_words(request)


@given(requests)
def test_what_was_moved_is_all_said_last(request: tuple[Any, Any]) -> None:
    check = check_prompt(NATIVE, *request)
    fixed = check.fixed(move_volatile=True)
    assert "volatile" not in kinds(check_prompt(NATIVE, *fixed))
    said = words(fixed)
    for word in words(request):
        assert word in said or any(word in longer for longer in said)
