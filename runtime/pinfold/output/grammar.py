"""The rules of an answer in llguidance's form of Lark: reasoning, then calls, a document, or text with calls in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinfold.output.marked_arguments import arguments_of
from pinfold.output.reasoning import LeadingReasoning
from pinfold.output.tool_calls.forms import ArgumentMarks, CallForm

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = ["Offered", "calls_rules", "document_rules", "grammar_of", "literal", "text_rules"]

Offered = Sequence[tuple[str, str]]
"""The tools that may be called: their names, and the JSON schemas of their arguments as text."""

# Of one answer that is calls and nothing else: a small model may not find an end.
_MOST_CALLS = 16
_COMMON = ("ANY: /(?s:.*)/", r"BREAKS: /\n\n?/")


def grammar_of(
    tokenizer: LLTokenizer, answer: str, *rules: Sequence[str], reasoning: LeadingReasoning | None = None
) -> str:
    """A grammar of `answer`, a choice of rules as Lark writes it, after the reasoning if there may be some."""
    before = ""
    if reasoning is not None:
        before = "reasoning" if reasoning.is_open else "reasoning?"
        rules = (*rules, _reasoning_rules(tokenizer, reasoning))
    return "\n".join([f"start: {before} ({answer})", *(rule for part in rules for rule in part), *_COMMON])


def calls_rules(tokenizer: LLTokenizer, form: CallForm, tools: Offered, *, parallel: bool) -> list[str]:
    """``calls``: one call of one of `tools`, or with `parallel` one or more where the form knows several."""
    first = literal(tokenizer, form.opening + form.before)
    more = ""
    if parallel and form.separator is not None:
        more = f"({literal(tokenizer, form.separator + form.before)} called){{0,{_MOST_CALLS - 1}}}"
    return [f"calls: {first} called {more} {literal(tokenizer, form.closing)}", *_called_rules(tokenizer, form, tools)]


def text_rules(tokenizer: LLTokenizer, form: CallForm, tools: Offered, *, parallel: bool) -> list[str]:
    """``text``: text in which calls of `tools` may stand, or at whose end one may where they are not `parallel`.

    The form has a mark: where that is written a call must follow.
    """
    if form.document:  # text has a mark of its own
        text = f"text: calls | {literal(tokenizer, form.document)} ANY"
        return [text, *calls_rules(tokenizer, form, tools, parallel=parallel)]
    more = ""
    if parallel and form.opening:
        more = f"({literal(tokenizer, (form.separator or '') + form.before)} called)*"
    rest = literal(tokenizer, (form.opening + form.before)[len(form.mark) :])
    # A mark that is a token of its own can be spelt out too, and would be read the same.
    plain = f"ANY & ~(ANY {_quoted(form.mark)} ANY)"
    return [
        "text: (lead marked)* PLAIN" if parallel else "text: PLAIN | lead marked",
        *_until(tokenizer, "lead", form.mark, plain),
        f"PLAIN: {plain}",
        f"marked: {rest} called {more} {literal(tokenizer, form.closing)}",
        *_called_rules(tokenizer, form, tools),
    ]


def document_rules(tokenizer: LLTokenizer, schema: str, before: str = "") -> list[str]:
    """``document``: JSON that satisfies `schema`, after `before`."""
    return [f"document: {literal(tokenizer, before)} %json {schema}"]


def literal(tokenizer: LLTokenizer, text: str) -> str:
    """`text` as terms of the grammar. What is one special token to the model must be that token, not its characters."""
    terms = []
    for special, piece in _special_pieces(tokenizer, text):
        before, _, text = text.partition(piece)
        terms += [_quoted(before)] if before else []
        terms.append(f"<[{special}]>")
    return " ".join([*terms, _quoted(text)] if text else terms)


def _called_rules(tokenizer: LLTokenizer, form: CallForm, tools: Offered) -> list[str]:
    """``called``: a call from the tool's name on."""
    rules = [f"called: {' | '.join(f'called_{i}' for i in range(len(tools)))}"]
    after = literal(tokenizer, form.after)
    for i, (name, schema) in enumerate(tools):
        head = literal(tokenizer, form.name(name) + form.between)
        rules.append(f"called_{i}: {head} arguments_{i} {after}")
        if form.arguments is None:
            rules.append(f"arguments_{i}: %json {schema}")
        else:
            rules += _marked_rules(tokenizer, form.arguments, f"arguments_{i}", json.loads(schema))
    return rules


def _marked_rules(tokenizer: LLTokenizer, marks: ArgumentMarks, rule: str, parameters: Mapping[str, Any]) -> list[str]:
    """`rule`: arguments one by one. Where `parameters` asks for nothing that can be held, any names and texts."""
    arguments = arguments_of(parameters, marks)
    closing = literal(tokenizer, marks.after)
    text = " & ".join(["ANY", *(f"~(ANY {_quoted(mark)} ANY)" for mark in marks.marks)])
    if arguments is None:
        start, middle = literal(tokenizer, marks.before_name), literal(tokenizer, marks.before_value)
        return [
            f"{rule}: ({start} /[^<>\\s]+/ {middle} {rule}_text {closing})*",
            *_until(tokenizer, f"{rule}_text", marks.closing, text),
        ]
    rules, sequence = [], []
    for j, argument in enumerate(arguments):
        part = f"{rule}_{j}"
        head = literal(tokenizer, marks.before_name + argument.name + marks.before_value)
        sequence.append(part if argument.required else f"{part}?")
        if argument.lengths is not None:
            least, most = argument.lengths
            sized = f"{text} & /(?s:.{{{least},{'' if most is None else most}}})/"
            rules += [f"{part}: {head} {part}_text {closing}", *_until(tokenizer, f"{part}_text", marks.closing, sized)]
            continue
        value = f"%json {argument.schema}" if argument.schema else f"({' | '.join(map(_quoted, argument.words))})"
        rules += [
            f"{part}: {head} {part}_value {closing}",
            f"{part}_value: {part}_bare {literal(tokenizer, marks.closing)}",
        ]
        rules.append(f"{part}_bare: {value}")
    return [f"{rule}: {' '.join(sequence)}", *rules]


def _until(tokenizer: LLTokenizer, rule: str, mark: str, text: str = "ANY") -> list[str]:
    """`rule`: `text`, a terminal or several as Lark combines them, up to the first `mark` and with it."""
    terminal = rule.upper()
    special = _one_special(tokenizer, mark)
    end = f"{rule}: {terminal} {special}" if special else f"{rule}[suffix={_quoted(mark)}]: {terminal}"
    return [end, f"{terminal}: {text}"]


def _reasoning_rules(tokenizer: LLTokenizer, reasoning: LeadingReasoning) -> list[str]:
    """``reasoning``: a block, or the rest of one that is open; more blocks where the family has several."""
    marks = reasoning.marks
    end = f"{literal(tokenizer, marks.resume)} {'BREAKS?' if marks.spaced else ''}"
    first, more = "" if reasoning.is_open else literal(tokenizer, marks.opening), "block*" if marks.again else ""
    rules = [f"reasoning: {first} thoughts {end} {more}", *_until(tokenizer, "thoughts", marks.closing)]
    return [*rules, f"block: {literal(tokenizer, marks.opening)} thoughts {end}"] if marks.again else rules


def _one_special(tokenizer: LLTokenizer, mark: str) -> str:
    """The term for a mark that is one special token; "" where it is text."""
    return next((f"<[{special}]>" for special, piece in _special_pieces(tokenizer, mark) if piece == mark), "")


def _special_pieces(tokenizer: LLTokenizer, text: str) -> Iterator[tuple[int, str]]:
    for token in tokenizer.tokenize_str(text, parse_special=True):
        piece = tokenizer.decode_str([token])
        if tokenizer.is_special_token(token) and piece in text:
            yield token, piece


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
