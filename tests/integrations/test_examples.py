"""The examples beside the coding agent and the query engine, on the embedded model: what it prints holds its form."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_index.core
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.usefixtures("smollm2")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """An example as a module, imported as a script's neighbours are."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(llama_index.core, "global_tokenizer", None)
    return importlib.import_module


@pytest.mark.filterwarnings(  # of LlamaIndex's workflows about themselves
    "ignore::pydantic.warnings.PydanticDeprecationWarning",
    "ignore:is_running called from within a step:DeprecationWarning",
)
@pytest.mark.parametrize("name", ["langgraph_agents", "llama_index_agents"])
def test_the_team_in_other_frameworks(
    example: Callable[[str], Any], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, shared = example(name), example("coding_agent")
    monkeypatch.setattr(sys, "argv", [name, "--max-steps", "2", "--json"])
    assert shared.run_on_a_copy("A team.", module.main) == 0
    *turns, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert turns[0]["call"] == "run_tests"
    assert len(turns) >= 6
    assert all(turn["hit"] == "resident" for turn in turns[1:])
    assert all(turn["cached_tokens"] > 0.75 * turn["prompt_tokens"] for turn in turns[1:])
    assert end["pins"]


def test_what_comes_next_in_a_plan(example: Callable[[str], Any]) -> None:
    prompt = example("coding_agent_prompt")
    plan, think = prompt.PLANS["fixer"], prompt.THINK
    done: list[tuple[str, str]] = []
    seen = []
    for answer in ("TESTS FAIL", "", "Wrote it.", "TESTS FAIL", "", "Wrote it.", prompt.PASSED):
        seen.append(prompt.next_step(plan, done))
        done.append((seen[-1], answer))
    assert seen == ["run_tests", think, "write_file", "run_tests", think, "write_file", "run_tests"]
    assert prompt.next_step(plan, done) == "report"
    refused = [("run_tests", "TESTS FAIL"), (think, ""), *[(prompt.REFUSED, "no")] * 2]
    assert prompt.next_step(plan, refused[:3]) == "write_file"
    assert prompt.next_step(plan, refused) == think


def test_a_chat_cites_passages_that_were_shown(
    example: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bees.md").write_text("# Bees\n\nIn winter the bees stay in the hive and eat honey.\n")
    asked = ["--question", "What do bees eat in winter?", "--question", "Where do they stay?"]
    assert example("rag_chat").main(["--docs", str(tmp_path), "--json", *asked]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert set(first["sources"]) <= {"bees.md: Bees"}
    assert second["report"]["usage"]["cached_tokens"] > 100
    assert example("rag_chat").answer_schema(0)["json_schema"]["schema"]["properties"]["passages"]["maxItems"] == 0
    assert example("rag_chat").main(["--docs", str(tmp_path / "none")]) == 1


def test_what_is_taken_out_of_a_note_has_its_form(
    example: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extraction = example("extraction")
    notes = []
    for number, text in enumerate(extraction.NOTES[:2]):
        (tmp_path / f"{number}.txt").write_text(text)
        notes += ["--file", str(tmp_path / f"{number}.txt")]
    assert extraction.main(notes) == 0
    printed = capsys.readouterr()
    for line in printed.out.splitlines():
        found = json.loads(line)
        assert found.pop("note") in extraction.NOTES
        extraction.Delivery.model_validate(found)
    assert len(printed.out.splitlines()) + printed.err.count("not taken") == 2
    assert extraction.main(["--file", str(tmp_path / "none.txt")]) == 1
