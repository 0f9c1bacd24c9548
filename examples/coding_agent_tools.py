"""The tools of `coding_agent.py`: files of one workspace and its tests, and nothing outside it."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from coding_agent_prompt import PASSED
from langchain_core.tools import BaseTool, ToolException, tool

__all__ = ["FILE_FOLLOWS", "Workspace"]

FILE_FOLLOWS = "\n\nThe file is now:\n"

MAX_FILE_BYTES = 20_000
MAX_MATCHES = 20
MAX_TEST_OUTPUT = 1_200
TEST_COMMAND = [sys.executable, "-I", "-B", "-m", "unittest", "discover", "-s", "tests", "-t", "."]


class Workspace:
    """A folder that an agent may read and change. Its tests are read-only, so that they cannot be made to pass."""

    def __init__(self, root: Path, *, test_seconds: float = 20.0) -> None:
        self.root = root.resolve()
        self.test_seconds = test_seconds

    def resolve(self, path: str) -> Path:
        """The file that `path` names in the workspace.

        Raises:
            ToolException: it lies outside, by ``..``, as an absolute path or behind a link.
        """
        target = (self.root / path).resolve()
        if not target.is_relative_to(self.root):
            msg = f"{path!r} is outside the workspace. Use a path that list_files shows."
            raise ToolException(msg)
        return target

    def files(self) -> list[str]:
        """Every text file, as paths relative to the workspace."""
        found = (path for path in sorted(self.root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
        return [path.relative_to(self.root).as_posix() for path in found if path.resolve().is_relative_to(self.root)]

    def read(self, path: str) -> str:
        """The text of a file."""
        target = self.resolve(path)
        if not target.is_file():
            msg = f"There is no file {path!r}. The files are: {', '.join(self.files())}"
            raise ToolException(msg)
        if target.stat().st_size > MAX_FILE_BYTES:
            msg = f"{path!r} is larger than {MAX_FILE_BYTES} bytes. Use search to find the lines you need."
            raise ToolException(msg)
        return target.read_text(encoding="utf-8", errors="replace")

    def write(self, path: str, content: str) -> str:
        """Replaces a file by `content`. Python must be valid and keep every function that was there."""
        target = self.resolve(path)
        if target.relative_to(self.root).parts[:1] == ("tests",):
            msg = "The tests are read-only: they say what is right. Change the file that they test."
            raise ToolException(msg)
        if not target.is_file():
            msg = f"There is no file {path!r} to replace. The files are: {', '.join(self.files())}"
            raise ToolException(msg)
        content = _without_fence(content)
        before = target.read_text(encoding="utf-8")
        if len(content) > MAX_FILE_BYTES:
            msg = f"The content is longer than {MAX_FILE_BYTES} characters. Nothing was written."
            raise ToolException(msg)
        if target.suffix == ".py":
            _check_python(content, before)
        target.write_text(content, encoding="utf-8")
        return f"Wrote {path}."

    def search(self, text: str) -> str:
        """Lines that contain `text`, with file and line number."""
        hits = [
            f"{path}:{number}: {line.strip()}"
            for path in self.files()
            for number, line in enumerate(self.read(path).splitlines(), start=1)
            if text in line
        ]
        more = f"\n... and {len(hits) - MAX_MATCHES} more" if len(hits) > MAX_MATCHES else ""
        return "\n".join(hits[:MAX_MATCHES]) + more if hits else f"No line contains {text!r}."

    def run_tests(self) -> tuple[bool, str]:
        """Whether all tests pass, and what the test run printed. Runs for `test_seconds` at most."""
        with subprocess.Popen(  # noqa: S603 - the command is fixed
            TEST_COMMAND,
            cwd=self.root,
            env={"PATH": os.defpath, "PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=self.test_seconds)
            except subprocess.TimeoutExpired:
                # The whole group: a test may have started processes of its own.
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return False, f"The tests did not end within {self.test_seconds:.0f} seconds and were stopped."
        output = re.sub(r"(Ran \d+ tests?) in .*", r"\1", output)  # the time would make each run's prompt another one
        output = output.replace(str(self.root) + os.sep, "").strip()
        return process.returncode == 0, output[-MAX_TEST_OUTPUT:]

    def tools(self) -> list[BaseTool]:
        """The tools for one agent. A refusal comes back to it as the tool's answer."""
        known: set[str] = set()

        @tool
        def list_files() -> str:
            """List the files of the workspace."""
            return "\n".join(self.files())

        @tool
        def read_file(path: str) -> str:
            """Read one file of the workspace, for example stock/labels.py."""
            text = self.read(path)
            known.add(path)
            return f"The file {path}:\n\n{text}"

        @tool
        def search(text: str) -> str:
            """Find the lines of all files that contain a text, for example the name of a function."""
            return self.search(text)

        @tool
        def write_file(path: str, content: str) -> str:
            """Replace one file by new code. The content is the whole new file, from its first line to its last."""
            written = self.write(path, content)
            known.add(path)
            return written

        @tool
        def run_tests() -> str:
            """Run the tests of the workspace and show which fail and why."""
            passed, output = self.run_tests()
            return f"{PASSED if passed else 'TESTS FAIL'}\n{output}"

        @tool
        def report(path: str, text: str) -> str:
            """Finish your work and tell the next agent what you found or did in a file that you have read."""
            if path not in known:
                msg = f"Not yet: you have not read {path!r}. Call read_file first."
                raise ToolException(msg)
            return f"{path}: {text}{FILE_FOLLOWS}```python\n{self.read(path)}```"

        tools: list[BaseTool] = [list_files, read_file, search, write_file, run_tests, report]
        for each in tools:
            each.handle_tool_error = True
        return tools


def _without_fence(content: str) -> str:
    """Without the Markdown fence that models like to put around code."""
    lines = content.strip().splitlines()
    if len(lines) > 1 and lines[0].startswith("```") and lines[-1] == "```":
        return "\n".join(lines[1:-1]) + "\n"
    return content if content.endswith("\n") else content + "\n"


def _check_python(content: str, before: str) -> None:
    try:
        lost = _defined(before) - _defined(content)
    except (SyntaxError, ValueError) as e:
        msg = (
            f"Nothing was written, because the content is not Python: {e}. Send the whole file again, beginning with "
            f"its first line: {before.partition(chr(10))[0]}"
        )
        raise ToolException(msg) from e
    if ast.dump(ast.parse(before)) == ast.dump(ast.parse(content)):
        msg = "Nothing was written, because the code is the same as before. Change the line that is wrong."
        raise ToolException(msg)
    if lost:
        msg = f"Nothing was written, because {', '.join(sorted(lost))} would be lost. Send the whole file again."
        raise ToolException(msg)


def _defined(source: str) -> set[str]:
    """Names of the functions and classes of a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(source).body if isinstance(node, kinds)}
