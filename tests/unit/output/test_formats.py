"""Every family's calls: read whole, read at every split, with text around them, damaged, and cut off."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.output.parser import OutputParser
from pinfold.output.tool_calls import FORMATS, Parsed, detect_format

BAR = "\uff5c"


def tool(name: str, **kinds: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in kinds.items()}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("weigh", barrel="integer", gate="string"), tool("note", text="string", pages="array", urgent="boolean")]
ONE = ("weigh", {"barrel": 17, "gate": "north"})
TWO = ("note", {"text": 'It\'s <b>"new"</b> {x}', "pages": [1, 2], "urgent": True})

# family -> samples: the answer, and the calls that it holds.
SAMPLES: dict[str, list[tuple[str, list[Any]]]] = {
    "hermes": [
        ('<tool_call>\n{"name": "weigh", "arguments": {"barrel": 17, "gate": "north"}}\n</tool_call>', [ONE]),
    ],
    "qwen3-coder": [
        (
            (
                "<tool_call>\n<function=weigh>\n<parameter=barrel>\n17\n</parameter>\n<parameter=gate>\nnorth\n</parameter>\n"
                "</function>\n</tool_call>"
            ),
            [ONE],
        ),
        (
            (
                "<tool_call>\n<function=weigh>\n<parameter=barrel>\n17\n</parameter>\n<parameter=gate>\nnorth\n</parameter>\n"
                '</function>\n</tool_call>\n<tool_call>\n<function=note>\n<parameter=text>\nIt\'s <b>"new"</b> {x}\n'
                "</parameter>\n<parameter=pages>\n[1, 2]\n</parameter>\n<parameter=urgent>\ntrue\n</parameter>\n"
                "</function>\n</tool_call>"
            ),
            [ONE, TWO],
        ),
        ("<function=weigh>\n<parameter=barrel>17</parameter>\n<parameter=gate>north</parameter>\n</function>", [ONE]),
    ],
    "glm": [
        (
            (
                "<tool_call>weigh\n<arg_key>barrel</arg_key>\n<arg_value>17</arg_value>\n<arg_key>gate</arg_key>\n"
                "<arg_value>north</arg_value>\n</tool_call>"
            ),
            [ONE],
        ),
        (
            (
                '<tool_call>note<arg_key>text</arg_key><arg_value>It\'s <b>"new"</b> {x}</arg_value>'
                "<arg_key>pages</arg_key><arg_value>[1, 2]</arg_value>"
                "<arg_key>urgent</arg_key><arg_value>true</arg_value></tool_call>"
            ),
            [TWO],
        ),
    ],
    "llama3": [
        ('{"name": "weigh", "parameters": {"barrel": 17, "gate": "north"}}', [ONE]),
        ('<|python_tag|>{"name": "weigh", "parameters": {"barrel": 17, "gate": "north"}}', [ONE]),
        (
            (
                '<|python_tag|>{"name": "weigh", "parameters": {"barrel": 17, "gate": "north"}}; {"name": "weigh", '
                '"parameters": {"barrel": 17, "gate": "north"}}'
            ),
            [ONE, ONE],
        ),
        ('functools[{"name": "weigh", "arguments": {"barrel": 17, "gate": "north"}}]', [ONE]),
    ],
    "mistral": [
        ('[TOOL_CALLS][{"name": "weigh", "arguments": {"barrel": 17, "gate": "north"}}]', [ONE]),
        ('[TOOL_CALLS]weigh[ARGS]{"barrel": 17, "gate": "north"}', [ONE]),
        ('[TOOL_CALLS]weigh[CALL_ID]abc123XYZ[ARGS]{"barrel": 17, "gate": "north"}', [ONE]),
        (
            (
                '[TOOL_CALLS]weigh[ARGS]{"barrel": 17, "gate": "north"}[TOOL_CALLS]note[ARGS]{"text": '
                '"It\'s <b>\\"new\\"</b> {x}", "pages": [1, 2], "urgent": true}'
            ),
            [ONE, TWO],
        ),
        ('[TOOL_CALLS]weigh{"barrel": 17, "gate": "north"}weigh{"barrel": 17, "gate": "north"}', [ONE, ONE]),
    ],
    "deepseek": [
        (
            (
                f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>function<{BAR}tool▁sep{BAR}>weigh\n```json\n"
                f'{{"barrel": 17, "gate": "north"}}\n```<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>'
            ),
            [ONE],
        ),
        (
            (
                f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>weigh<{BAR}tool▁sep{BAR}>"
                f'{{"barrel": 17, "gate": "north"}}<{BAR}tool▁call▁end{BAR}><{BAR}tool▁call▁begin{BAR}>'
                f'weigh<{BAR}tool▁sep{BAR}>{{"barrel": 17, "gate": "north"}}<{BAR}tool▁call▁end{BAR}>'
                f"<{BAR}tool▁calls▁end{BAR}>"
            ),
            [ONE, ONE],
        ),
    ],
    "pythonic": [
        ('<|tool_call_start|>[weigh(barrel=17, gate="north")]<|tool_call_end|>', [ONE]),
        (
            (
                "<|tool_call_start|>[weigh(barrel=17, gate='north'), note(text='It\\'s <b>\"new\"</b> {x}', "
                "pages=[1, 2], urgent=True)]<|tool_call_end|>"
            ),
            [ONE, TWO],
        ),
        ('<|python_start|>weigh(barrel=17, gate="north")<|python_end|>', [ONE]),
    ],
    "gemma": [
        ("<start_function_call>call:weigh{barrel:17,gate:<escape>north<escape>}<end_function_call>", [ONE]),
        (
            (
                '<start_function_call>call:note{text:<escape>It\'s <b>"new"</b> {x}<escape>,pages:[1,2],urgent:true}'
                "<end_function_call>"
            ),
            [TWO],
        ),
        ('<|tool_call>call:weigh{barrel:17,gate:<|"|>north<|"|>}<tool_call|>', [ONE]),
    ],
    "harmony": [
        (
            (
                "<|channel|>commentary to=functions.weigh <|constrain|>json"
                '<|message|>{"barrel": 17, "gate": "north"}<|call|>'
            ),
            [ONE],
        ),
        (
            (
                "<|channel|>analysis<|message|>Weigh it.<|end|><|start|>assistant<|channel|>commentary "
                'to=functions.weigh <|constrain|>json<|message|>{"barrel": 17, "gate": "north"}'
            ),
            [ONE],
        ),
        (
            (
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.weigh<|channel|>"
                'commentary json<|message|>{"barrel": 17, "gate": "north"}<|call|>'
            ),
            [ONE],
        ),
    ],
}
ALL = [(family, *sample) for family, samples in SAMPLES.items() for sample in samples]


def read(family: str, pieces: list[str], *, cut: bool = False, **options: Any) -> Parsed:
    parser = OutputParser(tools=TOOLS, family=family, **options)
    out = Parsed()
    for piece in pieces:
        out += parser.feed(piece)
    return out + parser.finish(cut=cut)


def calls(parsed: Parsed) -> list[Any]:
    return [(call.name, call.arguments) for call in parsed.tool_calls]


def alike(one: Parsed, other: Parsed) -> bool:
    """Equal but for the calls' ids."""
    invalid = [[(c.name, c.text, c.error) for c in parsed.invalid_tool_calls] for parsed in (one, other)]
    texts = [(parsed.text, parsed.reasoning) for parsed in (one, other)]
    return calls(one) == calls(other) and invalid[0] == invalid[1] and texts[0] == texts[1]


@pytest.mark.parametrize(("family", "answer", "expected"), ALL)
def test_samples_are_read(family: str, answer: str, expected: list[Any]) -> None:
    found = read(family, [answer])
    assert calls(found) == expected
    assert found.invalid_tool_calls == ()
    assert found.text.strip() == ""
    assert len({call.id for call in found.tool_calls}) == len(expected)


@pytest.mark.parametrize(("family", "answer", "expected"), ALL)
def test_every_split_reads_the_same(family: str, answer: str, expected: list[Any]) -> None:
    whole = read(family, [answer])
    for at in range(1, len(answer)):
        assert alike(read(family, [answer[:at], answer[at:]]), whole), answer[:at]
    assert alike(read(family, list(answer)), whole)


@pytest.mark.parametrize(("family", "answer", "expected"), ALL)
def test_every_cut_loses_nothing_silently(family: str, answer: str, expected: list[Any]) -> None:
    """Cut anywhere, an answer's characters come out as text, reasoning, a call or an invalid call."""
    for at in range(len(answer)):
        found = read(family, [answer[:at]], cut=True)
        begun = [call for call in found.tool_calls if (call.name, call.arguments) not in expected]
        assert begun == [], answer[:at]
        shown = found.text + found.reasoning
        assert shown or found.tool_calls or found.invalid_tool_calls or at < 64 or "<|channel|>" in answer[:at]


WORDS = st.lists(st.sampled_from(["I will look. ", "Then: ", "\n", "a < b ", "[1] ", "{x} "]), max_size=4).map("".join)
TAGGED = [
    (family, answer, expected)
    for family, answer, expected in ALL
    if family not in ("harmony", "llama3", "mistral") and not answer.startswith("{")
]


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(TAGGED), WORDS, WORDS, st.data())
def test_text_around_calls_stays(sample: Any, before: str, after: str, data: st.DataObject) -> None:
    family, answer, expected = sample
    text = before + answer + after
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = read(family, pieces)
    assert calls(found) == expected
    assert found.text.split() == (before + " " + after).split()


@pytest.mark.parametrize("family", ["llama3", "mistral"])
def test_text_before_a_call_that_ends_the_answer_stays(family: str) -> None:
    for answer, expected in SAMPLES[family]:
        if not answer.startswith("{"):
            found = read(family, ["I will look.\n", answer])
            assert (calls(found), found.text) == (expected, "I will look.")


DAMAGED = {
    "qwen3-coder": "<tool_call>\nweigh 17\n</tool_call>",
    "glm": "<tool_call>weigh\n<arg_key>barrel</arg_key>\n</tool_call>",
    "llama3": '<|python_tag|>{"name": "weigh", "parameters": {"barrel": ',
    "mistral": '[TOOL_CALLS]weigh[ARGS]{"barrel": 17',
    "deepseek": f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>weigh<{BAR}tool▁sep{BAR}>{{17"
    f"<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>",
    "pythonic": "<|tool_call_start|>[weigh(17)]<|tool_call_end|>",
    "gemma": "<start_function_call>call:weigh{barrel:<escape>17}<end_function_call>",
    "harmony": '<|channel|>commentary to=functions.weigh<|message|>{"barrel": 17<|call|>',
}


@pytest.mark.parametrize("family", DAMAGED)
def test_a_malformed_call_is_reported_never_raised_never_dropped(family: str) -> None:
    found = read(family, [DAMAGED[family]])
    assert found.tool_calls == ()
    assert len(found.invalid_tool_calls) == 1
    assert found.invalid_tool_calls[0].error
    assert "17" in found.invalid_tool_calls[0].text or family in ("glm", "llama3")


@pytest.mark.parametrize(("family", "answer", "expected"), ALL)
def test_an_unknown_tool_is_an_invalid_call(family: str, answer: str, expected: list[Any]) -> None:
    found = read(family, [answer.replace("weigh", "sink").replace("note", "sink")])
    assert found.tool_calls == ()
    if not answer.startswith("{"):  # bare JSON that names no tool is text
        assert all("'sink'" in call.error for call in found.invalid_tool_calls)
        assert len(found.invalid_tool_calls) == len(expected)


@settings(deadline=None, max_examples=500)
@given(st.sampled_from(sorted(FORMATS)), st.text(max_size=60), st.sampled_from([a for _, a, _ in ALL]), st.data())
def test_nothing_raises(family: str, noise: str, answer: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(answer)))
    text = answer[:at] + noise + answer[at:]
    cut = data.draw(st.integers(0, len(text)))
    assert alike(read(family, [text]), read(family, [text[:cut], text[cut:]]))


def test_channels_are_text_and_reasoning() -> None:
    answer = (
        "<|channel|>analysis<|message|>They greet me.<|end|><|start|>assistant<|channel|>final<|message|>Good morning."
        "<|return|>"
    )
    for pieces in ([answer], list(answer)):
        for options in ({}, {"expect": "none"}):
            found = read("harmony", pieces, **options)
            assert (found.text, found.reasoning, calls(found)) == ("Good morning.", "They greet me.", [])


def test_values_follow_the_schema() -> None:
    answer = (
        "<tool_call><function=note><parameter=text>17</parameter><parameter=urgent>False</parameter>"
        "<parameter=pages>seven</parameter></function></tool_call>"
    )
    assert calls(read("qwen3-coder", [answer])) == [("note", {"text": "17", "urgent": False, "pages": "seven"})]


TEMPLATES = {
    "hermes": "{{ '<tool_call>' }} {\"name\": <function-name>}",
    "qwen3-coder": "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>",
    "glm": "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>",
    "llama3": "<|start_header_id|>assistant<|end_header_id|> {{ '<|python_tag|>' }}",
    "mistral": "{{ '[TOOL_CALLS]' }}",
    "deepseek": f"<{BAR}tool▁calls▁begin{BAR}>",
    "pythonic": "<|tool_call_start|>",
    "gemma": "<start_function_call>call:",
    "harmony": "<|start|>assistant<|channel|>analysis<|message|>",
}


def test_a_hermes_model_on_another_familys_template_is_one() -> None:
    assert detect_format("<|start_header_id|> parameters {{ '<tool_call>' }}") == "hermes"


@pytest.mark.parametrize("family", FORMATS)
def test_a_family_is_known_by_its_template(family: str) -> None:
    assert detect_format(TEMPLATES[family]) == family
    assert detect_format(None) == detect_format("{{ messages }}") == "hermes"
