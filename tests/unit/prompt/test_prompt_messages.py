from __future__ import annotations

import copy
from typing import Any

import pytest

from pinfold.errors import InvalidRequestError
from pinfold.prompt.messages import INVALID_ARGUMENTS, CacheMark, normalize

HI = {"role": "user", "content": "Hi"}
EPHEMERAL = {"type": "ephemeral"}


def call(arguments: Any, name: str = "search", call_id: str = "c1") -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("Hi", r"messages is a str; give a list"),
        ({"role": "user", "content": "Hi"}, r"messages is a dict; give a list"),
        ([], r"messages is empty"),
        (["Hi"], r"messages\[0\] is a str"),
        ([HI, {"role": "robot", "content": "x"}], r"messages\[1\] has the role 'robot'. Use one of system, developer"),
        ([HI, {"content": "x"}], r"messages\[1\] has the role None"),
        ([{"role": "user"}], r"messages\[0\] has no content"),
        ([{"role": "assistant", "content": None}], r"messages\[0\] has no content"),
        ([{"role": "user", "content": 3}], r"messages\[0\] has a int as content"),
        ([HI, {"role": "tool", "content": "x"}], r"messages\[1\] is a tool result without a tool_call_id"),
        ([{"role": "user", "content": "x", "tool_calls": [{}]}], r"messages\[0\] has tool_calls in the role 'user'"),
        ([{"role": "assistant", "tool_calls": [{}]}], r"messages\[0\].tool_calls\[0\] is no tool call"),
        ([call({1j})], r"tool_calls\[0\]: the arguments are no JSON"),
        ([call({"x": float("nan")})], r"tool_calls\[0\]: the arguments are no JSON"),
        ([{"role": "user", "content": "\ud800"}], r"messages\[0\].content is no valid Unicode"),
        ([{**HI, "audio": {"id": "a"}}], r"messages\[0\] carries 'audio'"),
        ([{**HI, "cache_control": True}], r"messages\[0\]: cache_control is True"),
        ([{**HI, "cache_control": {"type": "for ever"}}], r"messages\[0\]: cache_control"),
        ([{**HI, "cache_control": {"ttl": "soon"}}], r"messages\[0\]: cache_control: ttl='soon' is no time"),
        ([{**HI, "name": 3}], r"messages\[0\] has a int as its name"),
    ],
)
def test_bad_messages_are_refused_with_their_place(messages: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        normalize(messages)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("image_url", "image input"),
        ("image", "image input"),
        ("input_audio", "audio input"),
        ("video", "video input"),
        ("file", "file input"),
        ("tool_use", "block of type 'tool_use'"),
    ],
)
def test_blocks_that_are_no_text_are_refused_by_name(kind: str, words: str) -> None:
    content = [{"type": "text", "text": "see"}, {"type": kind, kind: {}}]
    with pytest.raises(InvalidRequestError, match=rf"messages\[1\].content\[1\] is .*{words}.*Only text is read"):
        normalize([HI, {"role": "user", "content": content}])


def test_roles_blocks_and_names_take_one_form() -> None:
    conversation = normalize(
        [
            {"role": "developer", "content": [{"type": "text", "text": "A"}, "", "B"]},
            {"role": "user", "content": "Hi", "name": "Ann"},
            call({"q": 1}),
            {"role": "tool", "tool_call_id": "c1", "content": ""},
            {"role": "assistant", "content": "ok", "reasoning_content": "hm"},
        ]
    )
    system, user, asked, result, answer = conversation.messages
    assert (system.role, system.content) == ("system", "A\nB")
    assert user.name == "Ann"
    assert asked.content == ""
    assert (result.name, result.tool_call_id) == ("search", "c1")
    assert answer.reasoning == "hm"


@pytest.mark.parametrize(
    ("arguments", "decoded"),
    [
        ('{"q": "é", "n": 1}', {"q": "é", "n": 1}),
        ({"q": [1, {"x": None}]}, {"q": [1, {"x": None}]}),
        ("", {}),
        (None, {}),
        ('{"q": ', {INVALID_ARGUMENTS: '{"q": '}),
        ("[1, 2]", {INVALID_ARGUMENTS: "[1, 2]"}),
        ('{"q": NaN}', {INVALID_ARGUMENTS: '{"q": NaN}'}),
        ("[" * 100_000, {INVALID_ARGUMENTS: "[" * 100_000}),
    ],
)
def test_arguments_become_an_object_and_none_is_lost(arguments: Any, decoded: dict[str, Any]) -> None:
    assert normalize([HI, call(arguments)]).messages[1].tool_calls[0].arguments == decoded


def test_the_input_is_neither_changed_nor_kept() -> None:
    arguments = {"q": ["a"]}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": EPHEMERAL}]},
        call(arguments),
    ]
    before = copy.deepcopy(messages)
    conversation = normalize(messages)
    assert messages == before
    arguments["q"].append("b")
    assert conversation.messages[1].tool_calls[0].arguments == {"q": ["a"]}


def test_cache_marks_carry_their_end_and_ttl() -> None:
    blocks = [
        {"type": "text", "text": "one", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": "two", "cache_control": EPHEMERAL},
    ]
    conversation = normalize([{"role": "user", "content": blocks}, {**HI, "cache_control": {"ttl": 7}}])
    assert conversation.messages[0].marks == (CacheMark(3600.0, 3, 0), CacheMark(300.0, None, 1))
    assert conversation.messages[1].marks == (CacheMark(7.0, None),)
