"""Whole output against streamed output, at every split, for what models of the Hermes family write."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.output.parser import OutputParser, Parsed

TOOLS = ("read", "search", "now")
READ = '{"name": "read", "arguments": {"path": "a.py"}}'
SEARCH = '{"name": "search", "arguments": {"query": "x", "limit": 2}}'
OPEN = "<tool_call>"
READ_CALL = ("read", {"path": "a.py"})
SEARCH_CALL = ("search", {"query": "x", "limit": 2})


@dataclass(frozen=True)
class Sample:
    name: str
    output: str
    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    invalid: tuple[str | None, ...] = ()
    cut: bool = False
    reasoning: str = ""
    expect: Any = "auto"


def tagged(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


SAMPLES = [
    Sample("plain text", "Hello there. \n", "Hello there. \n"),
    Sample("white space only", " \n\n", " \n\n"),
    Sample("leading white space", "\n Hello", "\n Hello"),
    Sample("one call", tagged(READ), calls=(READ_CALL,)),
    Sample("compact", f"<tool_call>{READ}</tool_call>", calls=(READ_CALL,)),
    Sample("text before", "Let me look.\n\n" + tagged(READ), "Let me look.", (READ_CALL,)),
    Sample("text after", tagged(READ) + "\nDone. ", "Done. ", (READ_CALL,)),
    Sample("text on both sides", "One.\n" + tagged(READ) + "\n\nTwo.", "One.\nTwo.", (READ_CALL,)),
    Sample("touching text", "One." + tagged(READ) + "Two.", "One.\nTwo.", (READ_CALL,)),
    Sample("two calls", tagged(READ) + "\n" + tagged(SEARCH), calls=(READ_CALL, SEARCH_CALL)),
    Sample("two calls in one tag", tagged(READ + "\n" + SEARCH), calls=(READ_CALL, SEARCH_CALL)),
    Sample("an array in a tag", tagged(f"[{READ}, {SEARCH}]"), calls=(READ_CALL, SEARCH_CALL)),
    Sample("no closing tag", f"<tool_call>\n{READ}", calls=(READ_CALL,)),
    Sample("half a closing tag", f"<tool_call>\n{READ}\n</tool_", calls=(READ_CALL,), cut=True),
    Sample("closing tag left out", f"<tool_call>{READ}<tool_call>{SEARCH}</tool_call>", calls=(READ_CALL, SEARCH_CALL)),
    Sample(
        "tags within a string",
        tagged('{"name": "read", "arguments": {"path": "a </tool_call> \\" <tool_call> b"}}'),
        calls=(("read", {"path": 'a </tool_call> " <tool_call> b'}),),
    ),
    Sample(
        "raw newline in a string",
        tagged('{"name": "read", "arguments": {"path": "a\nb"}}'),
        calls=(("read", {"path": "a\nb"}),),
    ),
    Sample(
        "arguments encoded twice",
        tagged('{"name": "read", "arguments": "{\\"path\\": \\"a.py\\"}"}'),
        calls=(READ_CALL,),
    ),
    Sample("parameters", tagged('{"name": "read", "parameters": {"path": "a.py"}}'), calls=(READ_CALL,)),
    Sample("arguments first", tagged('{"arguments": {"path": "a.py"}, "name": "read"}'), calls=(READ_CALL,)),
    Sample("no arguments", tagged('{"name": "now"}'), calls=(("now", {}),)),
    Sample("null arguments", tagged('{"name": "now", "arguments": null}'), calls=(("now", {}),)),
    Sample(
        "escapes",
        tagged('{"name": "read", "arguments": {"path": "\\u00e9\\ud83d\\ude00\\\\"}}'),
        calls=(("read", {"path": "é😀\\"}),),
    ),
    Sample("unknown tool", tagged('{"name": "rm", "arguments": {}}'), invalid=("rm",)),
    Sample("no name", tagged('{"arguments": {}}'), invalid=(None,)),
    Sample("no JSON", tagged("read a.py"), invalid=(None,)),
    Sample("an empty tag", "<tool_call></tool_call>", invalid=(None,)),
    Sample("not a number", tagged('{"name": "read", "arguments": {"path": NaN}}'), invalid=("read",)),
    Sample("half a surrogate", tagged('{"name": "read", "arguments": {"path": "\\ud800"}}'), invalid=("read",)),
    Sample("too large a number", tagged('{"name": "read", "arguments": {"path": 1e999}}'), invalid=("read",)),
    Sample("arguments are a list", tagged('{"name": "read", "arguments": [1]}'), invalid=("read",)),
    Sample("arguments string is no JSON", tagged('{"name": "read", "arguments": "a.py"}'), invalid=("read",)),
    Sample("too deep", tagged('{"name": "read", "arguments": ' + "[" * 100_000), invalid=("read",)),
    Sample("cut in a call", '<tool_call>\n{"name": "read", "argu', invalid=("read",), cut=True),
    Sample("cut at the tag", "Wait.\n<tool_call>", "Wait.", invalid=(None,), cut=True),
    Sample("cut in the tag", "Wait.\n<tool_c", "Wait.\n<tool_c", cut=True),
    Sample(
        "a broken call, then a good one",
        tagged('{"name": "read", "arguments": {"path": "a}}') + "\n" + tagged(SEARCH),
        calls=(SEARCH_CALL,),
        invalid=("read",),
    ),
    Sample(
        "an odd quotation mark, then text",
        tagged('{"name": "read", "arguments": {"path": "a}}') + '\nI said "no".',
        'I said "no".',
        invalid=("read",),
    ),
    Sample("a good and an unknown one", tagged(f'[{READ}, {{"name": "rm"}}]'), calls=(READ_CALL,), invalid=("rm",)),
    Sample("fence", f"```json\n{READ}\n```", calls=(READ_CALL,)),
    Sample("fence with text", f"Sure:\n```tool_call\n{READ}\n```\nOK", "Sure:\nOK", (READ_CALL,)),
    Sample("bare fence, array", f"```\n[{READ}, {SEARCH}]\n```", calls=(READ_CALL, SEARCH_CALL)),
    Sample("fence never closed", f"```json\n{READ}\n``", calls=(READ_CALL,)),
    Sample(
        "fence within a string",
        '```json\n{"name": "read", "arguments": {"path": "```py\\n```"}}\n```',
        calls=(("read", {"path": "```py\n```"}),),
    ),
    Sample("code fence", "Look:\n```python\nprint({})\n```\nok", "Look:\n```python\nprint({})\n```\nok"),
    Sample(
        "a call after a code fence", f"```python\nx\n```\n\n```json\n{READ}\n```", "```python\nx\n```", (READ_CALL,)
    ),
    Sample("a tag after a fence left open", f"```json\n{tagged(READ)}", "```json", (READ_CALL,)),
    Sample("fenced data", '```json\n{"name": "Ada", "age": 3}\n```', '```json\n{"name": "Ada", "age": 3}\n```'),
    Sample("fenced, no arguments", '```json\n{"name": "now"}\n```', '```json\n{"name": "now"}\n```'),
    Sample(
        "fenced, unknown tool",
        '```json\n{"arguments": {}, "name": "rm"}\n```\n',
        '```json\n{"arguments": {}, "name": "rm"}\n```\n',
    ),
    Sample("fenced and cut", '```json\n{"name": "read", "argum', '```json\n{"name": "read", "argum', cut=True),
    Sample("inline fence", "a ```b``` c ``d`` e", "a ```b``` c ``d`` e"),
    Sample("four marks", f"````\n{READ}\n````", f"````\n{READ}\n````"),
    Sample("bare", READ, calls=(READ_CALL,)),
    Sample("bare array", f" \n[{READ},\n{SEARCH}]\n", calls=(READ_CALL, SEARCH_CALL)),
    Sample("bare, one after another", f"{READ}\n{SEARCH}", calls=(READ_CALL, SEARCH_CALL)),
    Sample("bare, then text", f"{READ}\nis a call", f"{READ}\nis a call"),
    Sample("bare, then a tag", f"{READ}\n{tagged(SEARCH)}", READ, (SEARCH_CALL,)),
    Sample("text, then JSON", f"So: {READ}", f"So: {READ}"),
    Sample("bare data", '{"name": 5}', '{"name": 5}'),
    Sample("bare data with a name", '{"name": "readers", "x": [1, 2]}', '{"name": "readers", "x": [1, 2]}'),
    Sample("brackets", "[1] says so. {x}", "[1] says so. {x}"),
    Sample("empty object", "{}", "{}"),
    Sample("bare and cut", '{"name": "read", "arguments": {', '{"name": "read", "arguments": {', cut=True),
    Sample("reasoning", f"<think>\nhm\n</think>\n\nOK.\n{tagged(READ)}", "OK.", (READ_CALL,), reasoning="hm"),
    Sample(
        "a call within reasoning", f"<think>{READ} {tagged(READ)}</think>OK", "OK", reasoning=f"{READ} {tagged(READ)}"
    ),
    Sample("required", tagged(READ), calls=(READ_CALL,), expect="required"),
    Sample("required, cut in the tag", "<tool_", invalid=(None,), cut=True, expect="required"),
    Sample("required, cut in the call", '<tool_call>\n{"name": "sea', invalid=(None,), cut=True, expect="required"),
    Sample(
        "required, cut in a string that holds a tag",
        '<tool_call>\n{"name": "read", "arguments": {"path": "a}}</tool_call> and so',
        invalid=("read",),
        cut=True,
        expect="required",
    ),
    Sample("required, text only", "I will not.", invalid=(None,), expect="required"),
    Sample("required, beside text", "OK\n" + tagged(READ), "OK", (READ_CALL,), expect="required"),
    Sample("required, nothing", "", expect="required", cut=True),
    Sample("none", tagged(READ), tagged(READ), expect="none"),
    Sample("either, calls", tagged(READ) + "\n" + tagged(SEARCH), calls=(READ_CALL, SEARCH_CALL), expect="either"),
    Sample("either, a document", f'{{"a": "{OPEN}"}}', f'{{"a": "{OPEN}"}}', expect="either"),
    Sample("either, an array", "[1]", "[1]", expect="either"),
    Sample("either, nothing", "", expect="either", cut=True),
    Sample("either, cut in the tag", "<tool_", invalid=(None,), cut=True, expect="either"),
    Sample("either, cut in the call", '<tool_call>\n{"name": "read"', invalid=("read",), cut=True, expect="either"),
    Sample(
        "either, reasoning", f"<think>hm</think>\n{tagged(READ)}", "", (READ_CALL,), reasoning="hm", expect="either"
    ),
    Sample(
        "required, reasoning", f"<think>hm</think>\n{tagged(READ)}", "", (READ_CALL,), reasoning="hm", expect="required"
    ),
]


def parse(sample: Sample, pieces: list[str]) -> Parsed:
    parser = OutputParser(tools=TOOLS, expect=sample.expect)
    parsed = Parsed()
    for piece in pieces:
        parsed += parser.feed(piece)
    return parsed + parser.finish(cut=sample.cut)


def check(sample: Sample, pieces: list[str]) -> None:
    parsed = parse(sample, pieces)
    assert parsed.text == sample.text
    assert parsed.reasoning == sample.reasoning
    assert tuple((call.name, dict(call.arguments)) for call in parsed.tool_calls) == sample.calls
    assert tuple(call.name for call in parsed.invalid_tool_calls) == sample.invalid
    ids = [call.id for call in (*parsed.tool_calls, *parsed.invalid_tool_calls)]
    assert len(set(ids)) == len(ids)
    assert all(call.error and isinstance(call.text, str) for call in parsed.invalid_tool_calls)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_whole_and_every_split_in_two(sample: Sample) -> None:
    output = sample.output
    check(sample, [output])
    if len(output) > 1000:
        return
    check(sample, list(output))
    for at in range(len(output) + 1):
        check(sample, [output[:at], output[at:]])


SHORT = [sample for sample in SAMPLES if len(sample.output) < 1000]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SHORT), st.data())
def test_random_splits(sample: Sample, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(sample.output)), max_size=12).map(sorted))
    edges = [0, *cuts, len(sample.output)]
    check(sample, [sample.output[a:b] for a, b in itertools.pairwise(edges)])


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    "```",
    "json",
    "\n",
    " ",
    READ,
    '{"name": "read"',
    "[",
    "]",
    "{",
    '"',
    "\\",
    "x",
    "<",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join), st.data(), st.booleans())
def test_any_output_is_the_same_at_any_split(output: str, data: st.DataObject, cut: bool) -> None:
    def bare(parsed: Parsed) -> tuple[Any, ...]:
        calls = tuple((call.name, call.arguments) for call in parsed.tool_calls)
        return parsed.text, calls, tuple((bad.name, bad.text, bad.error) for bad in parsed.invalid_tool_calls)

    sample = Sample("drawn", output, cut=cut)
    at = data.draw(st.integers(0, len(output)))
    whole = bare(parse(sample, [output]))
    assert bare(parse(sample, list(output))) == whole
    assert bare(parse(sample, [output[:at], output[at:]])) == whole


@settings(deadline=None)
@given(st.text(max_size=60), st.booleans())
def test_without_tools_text_passes_untouched(text: str, offered: bool) -> None:
    parser = OutputParser(tools=TOOLS if offered else (), expect="none" if offered else "auto")
    shown = parser.feed("." + text)
    assert (shown + parser.finish()).text == "." + text
    assert shown.text == "." + text


def test_text_is_shown_at_once_and_calls_when_they_end() -> None:
    parser = OutputParser(tools=TOOLS)
    assert parser.feed("Let me ").text == "Let me"
    assert parser.feed("look.\n<tool").text == " look."
    assert parser.feed("_call>" + READ) == Parsed()
    assert [call.name for call in parser.feed("</tool_call>").tool_calls] == ["read"]


def test_json_that_is_no_call_streams() -> None:
    parser = OutputParser(tools=TOOLS)
    assert parser.feed('{"title": "A') == Parsed(text='{"title": "A')
    parser = OutputParser(tools=TOOLS)
    assert parser.feed('{"name": "Ad') == Parsed(text='{"name": "Ad')


def test_reasoning_may_be_open_already() -> None:
    parser = OutputParser(tools=TOOLS, reasoning_open=True)
    parsed = parser.feed("hm</think>\n" + tagged(READ)) + parser.finish()
    assert parsed.reasoning == "hm"
    assert [call.name for call in parsed.tool_calls] == ["read"]


def test_tools_may_be_given_as_dicts() -> None:
    parser = OutputParser(tools=[{"type": "function", "function": {"name": "read", "parameters": {}}}])
    assert [call.name for call in parser.feed(tagged(READ)).tool_calls] == ["read"]


def test_errors_say_what_was_wrong() -> None:
    cases = [
        (tagged('{"name": "rm", "arguments": {}}'), False, "now, read, search"),
        (tagged("{x}"), False, "no valid JSON"),
        ("<tool_call>{", True, "max_tokens"),
        (tagged('{"name": "read", "arguments": 3}'), False, "no JSON object"),
    ]
    for output, cut, words in cases:
        (bad,) = parse(Sample("", output, cut=cut), [output]).invalid_tool_calls
        assert words in bad.error


def test_ids_are_unique_and_well_formed() -> None:
    ids = {parse(SAMPLES[0], [tagged(READ)]).tool_calls[0].id for _ in range(200)}
    assert len(ids) == 200
    assert all(len(i) == 29 and i.startswith("call_") and int(i[5:], 16) >= 0 for i in ids)


def test_a_long_call_in_small_pieces_is_read_in_linear_time() -> None:
    content = 'line with "quotes" and \\ marks </tool_call>\n' * 4000
    output = tagged(json.dumps({"name": "read", "arguments": {"path": content}}))
    parsed = parse(Sample("long", output), [output[i : i + 5] for i in range(0, len(output), 5)])
    assert parsed.tool_calls[0].arguments == {"path": content}
