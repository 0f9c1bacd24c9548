"""Calls in the form that a grammar holds them to are read back as they were meant, at every split."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from pinfold.output.parser import OutputParser, Parsed
from pinfold.output.tool_calls import FORMATS
from pinfold.output.tool_calls.forms import HERMES, CallForm, call_form

CALLS = [("read", {"path": 'a "b"\n</tool_call> é'}), ("find-all_2", {"words": [], "deep": {"n": None}})]
FORMS = [
    HERMES,
    call_form("mistral", "[TOOL_CALLS]"),
    call_form("mistral", "[TOOL_CALLS][ARGS]"),
    call_form("deepseek", ""),
    call_form("deepseek", "```json"),
    call_form("llama3", ""),
    call_form("harmony", ""),
]


def written(form: CallForm, calls: Sequence[tuple[str, Any]]) -> str:
    each = [form.before + form.name(name) + form.between + json.dumps(a) + form.after for name, a in calls]
    return form.opening + (form.separator or "").join(each) + form.closing


def read(form: CallForm, pieces: Sequence[str], expect: Any) -> Parsed:
    parser = OutputParser(tools=[name for name, _ in CALLS], family=form.family, form=form, expect=expect)
    return sum((parser.feed(piece) for piece in pieces), Parsed()) + parser.finish()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.family} {form.before[:12]}")
def test_what_is_written_is_read(form: CallForm) -> None:
    calls = CALLS if form.separator is not None else CALLS[:1]
    output = written(form, calls)
    assert output.startswith(form.mark)
    for expect, at in itertools.product(
        ["required", "either", "auto"][: 3 if form.mark else 1], range(len(output) + 1)
    ):
        parsed = read(form, [output[:at], output[at:]], expect)
        assert [(call.name, call.arguments) for call in parsed.tool_calls] == calls
        assert (parsed.text, parsed.invalid_tool_calls) == ("", ())


@pytest.mark.parametrize("form", [form for form in FORMS if form.mark], ids=lambda form: form.before[:12])
def test_a_document_stays_a_document(form: CallForm) -> None:
    document = json.dumps({"a": written(HERMES, CALLS[:1])})
    parsed = read(form, [*(form.document + document)], "either")
    assert (parsed.text, parsed.tool_calls) == (document, ())


def test_every_family_has_a_form() -> None:
    assert {call_form(family, "").family for family in FORMATS} <= {*FORMATS}
    assert call_form("gemma", "") is HERMES
