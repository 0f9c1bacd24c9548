"""The `pinfold` command and the query-engine example on a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pinfold.cli.app import app
from tests.servers.conftest import Served

EXAMPLE = Path(__file__).parents[2] / "examples" / "rag_query_engine.py"


def run(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == exit_code, result.output
    return result.output


def test_doctor_says_what_the_server_can_do(llama: Served, tmp_path: Path) -> None:
    told = run("doctor", llama.address, "--store", str(tmp_path))
    assert "llama-server" in told
    assert llama.address in told
    assert "prefix caching" in told
    assert "0 layers" not in told
    facts = json.loads(run("doctor", llama.address, "--json", "--store", str(tmp_path)))["model"]
    assert facts["n_ctx"] == 2048
    assert (facts["bytes_per_token"], facts["model"]["n_layer"], facts["model"]["size_bytes"]) == (None, None, None)


@pytest.mark.parametrize("command", [("bench", "draft"), ("quality",)])
def test_what_measures_a_model_of_this_process_refuses_a_server(llama: Served, command: tuple[str, ...]) -> None:
    told = run(*command, llama.address, exit_code=1)
    assert f"{llama.address} is a server" in told
    assert "of this process" in told


def test_the_example_query_engine_runs_on_it(llama: Served, tmp_path: Path) -> None:
    (tmp_path / "bees.md").write_text("# Bees\n\nIn winter the bees stay in the hive and eat honey.\n")
    question = ["--question", "What do bees eat?"]
    command = [sys.executable, str(EXAMPLE), "--model", llama.address, "--docs", str(tmp_path), *question, *question]
    ended = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=250, check=False)
    assert ended.returncode == 0, ended.stderr
    answers = json.loads(ended.stdout)
    assert [answer["sources"][0]["file"] for answer in answers] == ["bees.md", "bees.md"]
    call = answers[1]["calls"][0]
    assert call["cache"]["hit_kind"] == "server"
    assert call["usage"]["cached_tokens"] > 300
