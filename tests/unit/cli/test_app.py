"""The command as a whole: help, version, and how errors are shown."""

from __future__ import annotations

import re

import pytest

from pinfold.cli import terminal
from pinfold.errors import ModelNotFoundError


def test_help_names_every_command_and_opens_no_runtime(run, runtime) -> None:
    result = run("--help")
    assert result.exit_code == 0
    commands = {"doctor", "chat", "pins", "lint", "models", "ls", "show", "rm", "warm", "spill", "export", "import"}
    assert commands <= set(re.findall(r"\w+", result.output))
    assert runtime.opened == []


@pytest.mark.parametrize(
    "command",
    [
        ["doctor"],
        ["chat"],
        ["pins"],
        ["pins", "check"],
        ["lint"],
        ["models"],
        ["ls"],
        ["show"],
        ["rm"],
        ["warm"],
        ["spill"],
        ["export"],
        ["import"],
    ],
)
def test_every_command_has_help(run, command: list[str]) -> None:
    result = run(*command, "-h")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_version(run) -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert re.fullmatch(r"pinfold \d+\.\d+\.\d+\n", result.output)


def test_an_error_is_one_line_on_stderr_and_exit_code_1(run, runtime) -> None:
    result = run("chat", "gone", "--once", "Hi")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "error: There is no model 'gone'. Pass the path of a [file].\n"


def test_debug_shows_the_traceback(run, runtime) -> None:
    result = run("--debug", "chat", "gone", "--once", "Hi")
    assert isinstance(result.exception, ModelNotFoundError)


@pytest.mark.parametrize(
    "args",
    [["chatt"], ["chat", "--no-such"], ["chat", "--max-tokens", "0"], ["chat", "--n-ctx", "1"], ["pins", "check"]],
)
def test_wrong_usage_is_exit_code_2(run, runtime, args: list[str]) -> None:
    assert run(*args).exit_code == 2
    assert runtime.opened == []


def test_control_characters_never_reach_a_terminal() -> None:
    assert terminal.safe("a\x1b[31mb\x07\x9b\x7fc\td\n") == "a[31mbc\td\n"
