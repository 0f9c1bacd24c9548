"""`pinfold bench draft`: a table for people, one JSON object for programs, a picture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinfold import Runtime, Script
from pinfold.bench import workloads
from pinfold.bench.workloads import Turn, Workload
from pinfold.cli import bench

COPY = "the clerk weighs the barrel, and the clerk weighs the barrel, and the clerk weighs the barrel."


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def opened(_model: str, **options: Any) -> Iterator[Runtime]:
        assert options["n_ctx"] == 4096
        with Runtime(Script([COPY]), n_ctx=1024) as rt:
            yield rt

    def turn(text: str) -> Turn:
        return Turn([{"role": "user", "content": text}], 80)

    made = (Workload("copy", [turn(COPY), turn("And again.")]), Workload("too long", [turn("x" * 2000)]))
    monkeypatch.setattr(bench, "opened", opened)
    monkeypatch.setattr(workloads, "WORKLOADS", made)


def test_json_is_all_that_is_on_stdout(run) -> None:
    result = run("bench", "draft", "scripted", "--repeats", "2", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert set(found) == {"model", "ceiling", "rows"}
    (row,) = found["rows"]
    names = {"workload", "plain_tps", "draft_tps", "ratio", "limit", "effective", "drafted", "accepted", "same_text"}
    assert set(row) == names
    assert row["workload"] == "copy"
    assert row["same_text"] is True
    assert row["plain_tps"] > 0
    assert row["accepted"] <= row["drafted"]


def test_a_table_and_what_was_left_out(run) -> None:
    result = run("bench", "draft", "scripted", "--repeats", "1")
    assert result.exit_code == 0
    assert "copy" in result.stdout
    assert "'too long' does not fit" in result.stderr


def test_a_plot(run, tmp_path: Path) -> None:
    picture = tmp_path / "draft.svg"
    assert run("bench", "draft", "scripted", "--repeats", "1", "--plot", str(picture)).exit_code == 0
    text = picture.read_text()
    assert text.startswith("<svg")
    assert "copy" in text


@pytest.mark.parametrize("name", ["picture.png", "nowhere/picture.svg"])
def test_a_plot_that_cannot_be_written_is_refused_before_anything_runs(run, tmp_path: Path, name: str) -> None:
    result = run("bench", "draft", "scripted", "--plot", str(tmp_path / name))
    assert result.exit_code == 1
    assert "give the name of an .svg file" in result.stderr
