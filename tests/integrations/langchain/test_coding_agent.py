"""examples/coding_agent.py: its tools stay inside the workspace, and its agents work without a model too."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langchain_pinfold import ChatPinfold
from pinfold.results import Completion, ToolCall

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MENDED = (EXAMPLES / "workspace/stock/pages.py").read_text().replace("total // size", "-(-total // size)")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module, imported as a script's neighbours are."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import coding_agent

    return coding_agent


@pytest.fixture
def workspace(example: ModuleType, tmp_path: Path) -> Any:
    shutil.copytree(EXAMPLES / "workspace", tmp_path / "copy")
    return example.Workspace(tmp_path / "copy")


def use(workspace: Any, *calls: tuple[str, dict[str, Any]]) -> ToolMessage:
    """The last answer of one agent's tools."""
    tools = {each.name: each for each in workspace.tools()}
    for number, (name, arguments) in enumerate(calls):
        answer = tools[name].invoke({"type": "tool_call", "id": str(number), "name": name, "args": arguments})
    return answer  # type: ignore[no-any-return]


def write(workspace: Any, path: str, content: str) -> ToolMessage:
    return use(workspace, ("write_file", {"path": path, "content": content}))


def test_exactly_one_test_fails_and_the_right_change_mends_it(workspace: Any) -> None:
    passed, output = workspace.run_tests()
    assert not passed
    assert "FAILED (failures=1)" in output
    assert write(workspace, "stock/pages.py", MENDED).status == "success"
    assert workspace.run_tests()[0]


def test_a_markdown_fence_is_taken_off(workspace: Any) -> None:
    assert write(workspace, "stock/pages.py", f"```python\n{MENDED}```").status == "success"
    assert workspace.read("stock/pages.py") == MENDED


@pytest.mark.parametrize("path", ["../secret.txt", "stock/../../secret.txt", "/etc/passwd", "link/secret.txt"])
@pytest.mark.parametrize("tool", ["read_file", "write_file"])
def test_nothing_outside_is_read_or_written(workspace: Any, tool: str, path: str) -> None:
    outside = workspace.root.parent
    (outside / "secret.txt").write_text("secret")
    (workspace.root / "link").symlink_to(outside)
    arguments = {"path": path, "content": "x = 1"} if tool == "write_file" else {"path": path}
    answer = use(workspace, (tool, arguments))
    assert answer.status == "error"
    assert "outside the workspace" in answer.text
    assert (outside / "secret.txt").read_text() == "secret"
    assert "secret" not in use(workspace, ("search", {"text": "secret"})).text.replace("'secret'", "")


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("tests/test_pages.py", "", "read-only"),
        ("stock/new.py", "x = 1", "no file"),
        ("stock/pages.py", "def page_count(", "not Python"),
        ("stock/pages.py", "def page_count(total, size):\n    return 4", "page_items would be lost"),
        ("stock/pages.py", "# again\n" + (EXAMPLES / "workspace/stock/pages.py").read_text(), "same as before"),
        ("stock/pages.py", "x = 1\n" * 9000, "longer than"),
    ],
)
def test_bad_writes_are_refused_and_change_nothing(workspace: Any, path: str, content: str, reason: str) -> None:
    before = {name: workspace.read(name) for name in workspace.files()}
    answer = write(workspace, path, content)
    assert answer.status == "error"
    assert reason in answer.text
    assert {name: workspace.read(name) for name in workspace.files()} == before


def test_a_report_is_about_a_file_that_was_read(workspace: Any) -> None:
    report = ("report", {"path": "stock/pages.py", "text": "It rounds down."})
    assert use(workspace, report).status == "error"
    accepted = use(workspace, ("read_file", {"path": "stock/pages.py"}), report)
    assert accepted.status == "success"
    assert "It rounds down." in accepted.text


def test_tests_that_do_not_end_are_stopped(example: ModuleType, workspace: Any) -> None:
    write(workspace, "stock/pages.py", MENDED + "\nwhile True:\n    pass\n")
    passed, output = example.Workspace(workspace.root, test_seconds=0.5).run_tests()
    assert not passed
    assert "were stopped" in output


def called(name: str, **arguments: Any) -> Completion:
    return Completion(text="", tool_calls=(ToolCall(name, name, arguments),), finish_reason="tool_calls", model="fake")


def test_the_team_follows_its_plan_and_mends_the_project(
    example: ModuleType, workspace: Any, fake: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    page = {"path": "stock/pages.py"}
    worse = MENDED.replace("-(-total // size)", "7")
    runtime = fake(
        called("run_tests"),
        called("read_file", **page),
        called("report", **page, text="It rounds down."),
        called("run_tests"),
        Completion(text="It must be 7.", model="fake"),
        called("write_file", **page, content=worse),
        called("run_tests"),
        Completion(text="It must round up.", model="fake"),
        called("write_file", **page, content=MENDED),
        called("run_tests"),
        called("report", **page, text="It rounds up now."),
        called("run_tests"),
        called("read_file", **page),
        called("report", **page, text="Good."),
    )
    example.run_team(ChatPinfold(runtime=runtime), workspace, example.Console(as_json=True), 8)
    assert [request["tool_choice"] for request in runtime.requests] == [
        *("run_tests", "read_file", "report"),
        *("run_tests", "none", "write_file", "run_tests", "none", "write_file", "run_tests", "report"),
        *("run_tests", "read_file", "report"),
    ]
    assert "It rounds down." in json.dumps(runtime.requests[3]["messages"])
    assert "It rounds up now." in json.dumps(runtime.requests[-3]["messages"])
    assert len({json.dumps(request["messages"][0]) for request in runtime.requests}) == 1
    assert workspace.run_tests()[0]
    turns = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [turn["agent"] for turn in turns] == ["finder"] * 3 + ["fixer"] * 8 + ["reviewer"] * 3


def test_a_refused_call_is_made_again(example: ModuleType) -> None:
    plan = example.FollowThePlan(("run_tests", "read_file", "report"))
    task, asked = HumanMessage("Go."), AIMessage("")
    fine = ToolMessage("TESTS FAIL", name="run_tests", tool_call_id="1")
    refused = ToolMessage("no file", name="read_file", tool_call_id="2", status="error")
    assert plan.next_step([task]) == "run_tests"
    assert plan.next_step([task, asked, fine]) == "read_file"
    assert plan.next_step([task, asked, fine, asked, refused]) == "read_file"


def test_bad_options_end_with_a_message_and_code_2() -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(EXAMPLES / "coding_agent.py"), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    for options, word in (
        (("--workspace", "/nowhere"), "/nowhere"),
        (("--max-steps", "0"), "--max-steps"),
        (("--model", "/nowhere/model.gguf"), "/nowhere/model.gguf"),
    ):
        done = run(*options)
        assert done.returncode == 2
        assert word in done.stderr
        assert "Traceback" not in done.stderr
