from __future__ import annotations

import threading

import pytest

from pinfold.errors import TemplateError
from pinfold.prompt import sandbox
from pinfold.prompt.template import ChatTemplate
from tests.support import chat_templates

BIG = '1764536532000{"t": 1000000000000}'
HI = [{"role": "user", "content": "Hi"}]


def render(source: str) -> str:
    return ChatTemplate(source).render(HI)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}", "Hi\n"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'b': 'é<', 'a': [1, none]} | tojson }}", '{"b": "é<", "a": [1, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":2,"b":1}'),
        ("{% generation %}{{ 'x' ~ 1 }}{% endgeneration %}y", "x1y"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') ~ m('b') }}", "<a><b>"),
        ("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '{:>3}'.format('b') }}{{ 'ab' * 2 }}{{ 2 ** 3 }}", "a-007  babab8"),
        ("{{ 'a.b' | replace('.', '-') }}{{ ['x', 'y'] | join(',') }}{{ 'aa'.replace('a', 'b') }}", "a-bx,ybb"),
        ("{% macro m(x) %}{{ x | string }}{% endmacro %}{{ m(1764536532000) ~ {'t': 10**12} | tojson }}", BIG),
        ("{{ bos_token }}{{ documents is none }}{{ tools is none }}", "<s>TrueTrue"),
    ],
)
def test_the_environment_is_the_one_that_templates_expect(source: str, text: str) -> None:
    assert ChatTemplate(source, bos_token="<s>").render(HI) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__']['__base__'] }}",
        "{{ (''|attr('__class__')).__subclasses__() }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{% include 'x' %}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_templates_do_not_leave_the_sandbox(source: str) -> None:
    with pytest.raises(TemplateError, match="chat_template"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 10**9 }}",
        "{{ 10**9 * 'x' }}",
        "{{ 10**(10**10) }}",
        "{% set ns = namespace(n=9) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set s = 'x' * 99999 %}{{ s.replace('x', s) }}",
        "{% set s = 'x' * 99999 %}{{ s | replace('x', s) }}",
        "{% set s = 'x' * 99999 %}{{ s.join(range(99999)) }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ 'x' | center(10**9) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ (1).to_bytes(10**9, 'big') }}",
        "{{ [1] | slice(10**9) | list }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ [1] | tojson(indent=10**9) }}",
        "{% for i in range(999) %}{{ 'x' * 999999 }}{% endfor %}",
    ],
)
def test_work_without_bound_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_STEPS", 5_000)
    monkeypatch.setattr(sandbox, "MAX_OUTPUT", 1_000_000)
    monkeypatch.setattr("pinfold.prompt.template.MAX_OUTPUT", 1_000_000)
    with pytest.raises(TemplateError, match="chat_template"):
        render(source)


def test_the_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinfold.prompt.template.MAX_OUTPUT", 1000)
    with pytest.raises(TemplateError, match="more than 1,000 characters of output"):
        render("{% for i in range(2000) %}x{% endfor %}")


def test_a_count_starts_anew_with_each_rendering_and_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_STEPS", 150)
    template = ChatTemplate("{% for i in range(100) %}x{% endfor %}")
    results: list[str] = []

    def repeat() -> None:
        results.extend(template.render(HI) for _ in range(20))

    threads = [threading.Thread(target=repeat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["x" * 100] * 80


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for %}", r"no valid Jinja: line 1"),
        ("\n{{ x | nosuchfilter }}", r"no valid Jinja: line 2: No filter named 'nosuchfilter'"),
        ("x" * (sandbox.MAX_SOURCE + 1), r"more than 524,288"),
        ("{{" + "(" * 5000, r"no valid Jinja|cannot be compiled"),
    ],
)
def test_a_template_that_is_none_is_refused_when_opened(source: str, words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        ChatTemplate(source)


def test_a_refusal_has_the_templates_own_words() -> None:
    with pytest.raises(TemplateError, match=r"refuses these messages: No jokes, please\. Change the messages"):
        render("{{ raise_exception('No jokes, please') }}")


def test_a_failing_expression_is_a_template_error() -> None:
    with pytest.raises(TemplateError, match=r"failed on these messages: TypeError"):
        ChatTemplate(chat_templates.CHATML).render([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])


@pytest.mark.parametrize(
    ("source", "differing"),
    [
        (chat_templates.CHATML, {"tools": False, "tool_calls": False, "tool_role": False}),
        (chat_templates.TOOLS, {}),
        (
            chat_templates.STRICT,
            {"system": False, "late_system": False, "alternation": True}
            | {"tools": False, "tool_calls": False, "tool_role": False},
        ),
        (chat_templates.LATE_TOOLS, {"short_ids": True}),
        (chat_templates.TEXT_ARGUMENTS, {"text_arguments": True}),
        (
            chat_templates.BLOCKS,
            {"content_blocks": True, "tools": False, "tool_calls": False, "tool_role": False},
        ),
        (
            chat_templates.THINKING,
            {"reasoning": True, "tools": False, "tool_calls": False, "tool_role": False},
        ),
        (
            chat_templates.ONE_SYSTEM,
            {"late_system": False, "tools": False, "tool_calls": False, "tool_role": False},
        ),
        (chat_templates.CLOCK, {"clock": True, "tools": False, "tool_calls": False, "tool_role": False}),
    ],
)
def test_traits_are_what_the_rendering_shows(source: str, differing: dict[str, bool]) -> None:
    traits = ChatTemplate(source).traits
    plain = ChatTemplate(chat_templates.TOOLS).traits
    assert {
        name: getattr(traits, name) for name in traits.__slots__ if getattr(traits, name) != getattr(plain, name)
    } == differing


@pytest.mark.parametrize(
    ("source", "opened"),
    [
        (chat_templates.CHATML, "<|im_start|>assistant\n"),
        (chat_templates.THINKING, "<|im_start|>assistant\n<think>\n"),
        (chat_templates.BLOCKS, "<assistant>"),
        (chat_templates.LATE_TOOLS, ""),
        ("{{ raise_exception('no') }}", ""),
        (None, "Assistant:"),
    ],
)
def test_the_generation_prefix_opens_the_answer(source: str | None, opened: str) -> None:
    assert ChatTemplate(source).generation_prefix == opened
