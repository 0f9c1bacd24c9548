"""`pinfold lint`, over the scripted engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from pinfold import PromptCheck, Runtime, Script
from pinfold.cli import opening

Run = Callable[..., Result]

RULES = {"role": "system", "content": "You mend code, and you are careful with it. " * 3}
DATED = {**RULES, "content": f"Today is 2026-12-01. {RULES['content']}"}
ASK = {"role": "user", "content": "Mend it."}
TOOLS = [{"name": "write", "description": "Writes."}, {"name": "read", "description": "Reads."}]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a request to a file; commands open a scripted model."""

    def scripted(model: str, *, engine: str, progress: Any = None, **options: Any) -> Runtime:
        return Runtime(Script(), **options)

    monkeypatch.setattr(opening, "new_runtime", scripted)

    def write(name: str, *messages: Any, **more: Any) -> str:
        file = tmp_path / name
        file.write_text(json.dumps({"messages": messages, **more}), encoding="utf-8")
        return str(file)

    return write


def test_a_good_prompt(run: Run, write: Callable[..., str]) -> None:
    result = run("lint", write("a.json", RULES, ASK, tools=TOOLS, model="m", temperature=0))
    assert result.exit_code == 0
    assert "are meant to last" in result.stdout
    assert "Nothing was found" in result.stderr


def test_a_date_is_shown_with_its_place_cost_and_remedy(run: Run, write: Callable[..., str]) -> None:
    result = run("lint", write("a.json", DATED, ASK))
    assert result.exit_code == 1
    assert "message 0 (system), token" in result.stdout
    assert "'2026-12-01'" in result.stdout
    assert "--fix with --move-volatile does it" in result.stdout


def test_json_from_stdin(run: Run, write: Callable[..., str]) -> None:
    result = run("lint", "-", "--json", stdin=json.dumps([DATED, ASK]))
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [finding["kind"] for finding in report["findings"]] == ["volatile"]
    assert 0 < report["lost_tokens"] < report["stable_tokens"] < report["prompt_tokens"]


def test_two_runs_fixed_both_are_one_prompt(run: Run, write: Callable[..., str], tmp_path: Path) -> None:
    one = write("a.json", DATED, ASK, tools=TOOLS, model="m")
    two = write("b.json", {**DATED, "content": DATED["content"].replace("12-01", "12-02")}, ASK, tools=TOOLS[::-1])
    outs = [tmp_path / "one.json", tmp_path / "two.json"]
    for files, out in zip(([one, two], [two, one]), outs, strict=True):
        result = run("lint", *files, "--json", "--fix", str(out), "--move-volatile")
        assert result.exit_code == 1
        assert {finding["kind"] for finding in json.loads(result.stdout)["findings"]} == {"volatile", "tool_order"}
    first = json.loads(outs[0].read_text(encoding="utf-8"))
    assert [tool["name"] for tool in first["tools"]] == ["read", "write"]
    assert first["messages"][1]["content"] == "Mend it.\nToday is 2026-12-01."
    assert first["model"] == "m"
    assert run("lint", *map(str, outs)).exit_code == 0


def test_fix_alone_moves_nothing(run: Run, write: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run("lint", write("a.json", DATED, ASK), "--fix", str(out))
    assert json.loads(out.read_text(encoding="utf-8")) == {"messages": [DATED, ASK]}


def test_move_volatile_needs_fix(run: Run, write: Callable[..., str]) -> None:
    result = run("lint", write("a.json", ASK), "--move-volatile")
    assert result.exit_code == 2
    assert "--fix OUT" in result.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "cannot be read as JSON"), ('{"messages": 3}', "no list of objects"), ('{"messages": []}', "is empty")],
)
def test_what_is_no_request(run: Run, write: Callable[..., str], tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content, encoding="utf-8")
    good = write("a.json", ASK)
    for args in ([str(file)], [good, str(file)]):
        result = run("lint", *args)
        assert result.exit_code == 1
        assert words in result.stderr
        assert result.stdout == ""


def test_a_file_that_cannot_be_written(run: Run, write: Callable[..., str], tmp_path: Path) -> None:
    result = run("lint", write("a.json", ASK), "--fix", str(tmp_path / "none" / "out.json"))
    assert result.exit_code == 1
    assert "Name another file" in result.stderr


def test_check_prompt_on_a_runtime() -> None:
    with Runtime(Script()) as runtime:
        check = runtime.check_prompt([DATED, ASK], TOOLS, other=([RULES, ASK], TOOLS))
    assert isinstance(check, PromptCheck)
    assert {finding.kind for finding in check.findings} == {"volatile", "text"}
