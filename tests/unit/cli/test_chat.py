"""`pinfold chat`: the answer on stdout, what was reused on stderr, a conversation that survives its errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.cli import chat as chat_module
from pinfold.cli import opening
from pinfold.errors import ContextOverflowError
from pinfold.results import Delta, InvalidToolCall, ToolCall


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch, run):
    """Types lines at the prompt; an exception among them is raised there, and the end is Ctrl-D."""

    def type_in(*lines: str | BaseException, args: tuple[str, ...] = ()):
        rest: Iterator[str | BaseException] = iter([*lines, EOFError()])

        def typed(prompt: str) -> str:
            line = next(rest)
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", typed)
        monkeypatch.setattr(chat_module, "sys", TerminalIn())
        return run("chat", *args)

    return type_in


class TerminalIn:
    """The module sys, with a terminal on stdin."""

    class stdin:  # noqa: N801
        @staticmethod
        def isatty() -> bool:
            return True

    @property
    def stdout(self):
        return sys.stdout


class TestOnce:
    def test_the_answer_is_on_stdout_and_the_report_on_stderr(self, run, runtime) -> None:
        result = run("chat", "--once", "Hi")
        assert result.exit_code == 0
        assert result.stdout == "Hello.\n"
        assert result.stderr == (
            "resident: 30 of 40 prompt tokens cached (75%) · first token after 0.25 s · 2 tokens at 31.4 a second\n"
        )
        assert runtime.closed

    def test_options_reach_the_runtime(self, run, runtime) -> None:
        args = "--max-tokens 5 --temperature 0.7 --seed 3 --engine scripted --n-ctx 512 --system Terse. --once Hi"
        assert run("chat", "some.gguf", *args.split()).exit_code == 0
        assert runtime.opened == [("some.gguf", {"engine": "scripted", "n_ctx": 512, "progress": None})]
        [(messages, generation)] = runtime.asked
        assert messages == [{"role": "system", "content": "Terse."}, {"role": "user", "content": "Hi"}]
        assert generation == {"max_tokens": 5, "temperature": 0.7, "seed": 3}

    def test_stdin_is_the_prompt_when_it_is_no_terminal(self, run, runtime) -> None:
        assert run("chat", stdin="two\nlines\n").exit_code == 0
        assert runtime.asked[0][0] == [{"role": "user", "content": "two\nlines\n"}]

    @pytest.mark.parametrize("args", [[], ["--once", " "]])
    def test_an_empty_prompt_is_wrong_usage(self, run, runtime, args: list[str]) -> None:
        assert run("chat", *args).exit_code == 2
        assert runtime.opened == []

    def test_json(self, run, runtime) -> None:
        result = run("chat", "--once", "Hi", "--json")
        data = json.loads(result.stdout)
        assert (data["text"], data["finish_reason"]) == ("Hello.", "stop")
        assert data["cache"]["hit_kind"] == "resident"
        assert data["usage"]["cached_tokens"] == 30
        assert result.stderr == ""

    def test_a_miss_says_why(self, run, runtime, missed) -> None:
        runtime.cache = missed
        assert run("chat", "--once", "Hi").stderr.splitlines()[1:] == ["Message 1 differs from the pin 'coder'."]

    def test_ctrl_c_ends_the_command(self, run, runtime) -> None:
        runtime.pieces = ["Hel", KeyboardInterrupt()]
        result = run("chat", "--once", "Hi")
        assert result.exit_code != 0
        assert result.stdout == "Hel"
        assert runtime.closed


WEIGH = {"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}
CALL = ToolCall("call_1", "weigh", {"barrel": 3, "gate": "north"})


@pytest.fixture
def tools_file(tmp_path: Path) -> str:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([WEIGH]))
    return str(path)


class TestToolsAndThoughts:
    def test_each_has_its_place(self, run, runtime) -> None:
        invalid = InvalidToolCall("call_2", None, '{"name": ', "cut off")
        runtime.pieces = [
            Delta(reasoning="They want "),
            Delta(reasoning="a weight."),
            "I weigh ",
            "it.",
            Delta(tool_calls=(CALL,), invalid_tool_calls=(invalid,)),
        ]
        result = run("chat", "--once", "Hi")
        assert result.stdout == 'I weigh it.\n-> weigh(barrel=3, gate="north")\n'
        assert result.stderr.splitlines()[:2] == ["They want a weight.", 'no valid call (cut off): {"name": ']

    def test_tools_from_a_file_are_offered_and_pinned(self, run, runtime, tools_file: str) -> None:
        assert run("chat", "--tools", tools_file, "--system", "S", "--pin", "p", "--once", "Hi").exit_code == 0
        assert runtime.asked[0][1]["tools"] == [WEIGH]
        assert runtime.pinned[0][2] == [WEIGH]

    @pytest.mark.parametrize("text", ["{", '{"messages": []}', "[1]"])
    def test_a_file_without_tools(self, run, runtime, tmp_path: Path, text: str) -> None:
        (tmp_path / "t.json").write_text(text)
        result = run("chat", "--tools", str(tmp_path / "t.json"), "--once", "Hi")
        assert result.exit_code == 1
        assert "t.json" in result.stderr
        assert runtime.opened == []

    def test_json_has_the_calls(self, run, runtime) -> None:
        runtime.pieces = [Delta(tool_calls=(CALL,))]
        data = json.loads(run("chat", "--once", "Hi", "--json").stdout)
        assert data["tool_calls"] == [{"id": "call_1", "name": "weigh", "arguments": {"barrel": 3, "gate": "north"}}]

    def test_the_user_says_what_a_tool_gives(self, type_in, runtime, tools_file: str) -> None:
        def then_answer() -> None:
            if len(runtime.asked) == 2:
                runtime.pieces = ["Nine."]

        runtime.pieces, runtime.on_prefill = [Delta(tool_calls=(CALL,))], then_answer
        result = type_in("How heavy?", "9 kg", "Thanks", args=("--tools", tools_file))
        assert result.stdout.endswith("Nine.\nNine.\n\n")
        messages = runtime.asked[2][0]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "user"]
        assert messages[1]["tool_calls"][0]["function"] == {
            "name": "weigh",
            "arguments": '{"barrel": 3, "gate": "north"}',
        }
        assert messages[2] == {"role": "tool", "tool_call_id": "call_1", "content": "9 kg"}

    def test_calls_without_results_are_forgotten(self, type_in, runtime, tools_file: str) -> None:
        runtime.pieces = [Delta(tool_calls=(CALL,))]
        result = type_in("How heavy?", KeyboardInterrupt(), "Never mind", args=("--tools", tools_file))
        assert "(stopped)" in result.stderr
        assert [message["role"] for message in runtime.asked[1][0]] == ["user", "user"]


class TestSystem:
    def test_from_a_file(self, run, runtime, tmp_path: Path) -> None:
        (tmp_path / "s.md").write_text("Be brief. é", encoding="utf-8")
        assert run("chat", "--system", f"@{tmp_path / 's.md'}", "--once", "Hi").exit_code == 0
        assert runtime.asked[0][0][0] == {"role": "system", "content": "Be brief. é"}

    def test_a_file_that_cannot_be_read_is_wrong_usage(self, run, runtime, tmp_path: Path) -> None:
        (tmp_path / "latin").write_bytes(b"\xff\xfe\xff")
        for name in ("none", "latin"):
            result = run("chat", "--system", f"@{tmp_path / name}", "--once", "Hi")
            assert result.exit_code == 2
            assert "cannot be read as text" in result.stderr.replace("\n", " ")

    def test_pinned_by_name(self, run, runtime) -> None:
        runtime.warning = "the pin is short"
        result = run("chat", "--system", "S", "--pin", "coder", "--once", "Hi")
        assert runtime.pinned == [("coder", [{"role": "system", "content": "S"}], None)]
        assert result.stderr.splitlines()[0] == "pinned 'coder': 40 tokens; the pin is short"

    def test_a_pin_without_a_system_prompt_is_wrong_usage(self, run, runtime) -> None:
        assert run("chat", "--pin", "coder", "--once", "Hi").exit_code == 2


class TestConversation:
    def test_every_turn_sends_the_turns_before(self, type_in, runtime) -> None:
        result = type_in("one", "", "two")
        assert result.exit_code == 0
        assert [len(messages) for messages, _ in runtime.asked] == [1, 3]
        assert runtime.asked[1][0][1] == {"role": "assistant", "content": "Hello."}
        assert result.stdout == "Hello.\nHello.\n\n"

    def test_ctrl_c_stops_the_answer_and_keeps_what_came(self, type_in, runtime) -> None:
        pieces = runtime.pieces
        runtime.pieces = ["Hel", KeyboardInterrupt()]
        runtime.on_prefill = lambda: setattr(runtime, "pieces", pieces) if len(runtime.asked) > 1 else None
        result = type_in("one", "two")
        assert result.exit_code == 0
        assert "(stopped)" in result.stderr
        assert runtime.asked[1][0] == [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "Hel"},
            {"role": "user", "content": "two"},
        ]

    def test_ctrl_c_before_the_first_word_forgets_the_question(self, type_in, runtime) -> None:
        runtime.pieces = [KeyboardInterrupt()]
        type_in("one", "two")
        assert runtime.asked[1][0] == [{"role": "user", "content": "two"}]

    def test_ctrl_c_at_the_prompt_says_how_to_leave(self, type_in, runtime) -> None:
        result = type_in(KeyboardInterrupt(), "one")
        assert result.stderr.count("Ctrl-D leaves") == 2
        assert len(runtime.asked) == 1

    def test_an_error_ends_the_turn_only(self, type_in, runtime) -> None:
        runtime.pieces = [ContextOverflowError(9000, 8192)]
        result = type_in("one", "two")
        assert result.exit_code == 0
        assert result.stderr.count("error: The prompt has 9000 tokens") == 2
        assert [len(messages) for messages, _ in runtime.asked] == [1, 1]


class TestProgress:
    def test_no_bar_without_a_terminal(self, run, runtime) -> None:
        run("chat", "--once", "Hi")
        assert runtime.opened[0][1]["progress"] is None

    def test_a_bar_on_a_terminal_is_gone_afterwards(self, run, runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(opening, "is_terminal", lambda: True)
        shown: list[bool] = []

        def prefill() -> None:
            bar = runtime.opened[0][1]["progress"]
            for done in (10, 20, 30):
                bar(done, 30)
                shown.append(bar._task is not None)

        runtime.on_prefill = prefill
        assert run("chat", "--once", "Hi").exit_code == 0
        assert shown == [True, True, False]

    def test_a_bar_of_a_prefill_that_was_stopped_is_taken_away(self, run, runtime, monkeypatch) -> None:
        monkeypatch.setattr(opening, "is_terminal", lambda: True)
        runtime.on_prefill = lambda: runtime.opened[0][1]["progress"](1, 30)
        runtime.pieces = [ContextOverflowError(9000, 8192)]
        assert run("chat", "--once", "Hi").exit_code == 1
        assert runtime.opened[0][1]["progress"]._task is None
