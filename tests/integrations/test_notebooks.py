"""The notebooks run from their first cell to their last, on the embedded model."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=200, kernel_name="python3").execute()
for cell in book.cells:
    for output in cell.get("outputs", ()):
        print(output.get("text", ""))
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["agent", "rag"])
def test_a_notebook_runs(name: str, smollm2: str, tmp_path: Path) -> None:
    assert smollm2
    for package in ("nbclient", "ipykernel"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    path = NOTEBOOKS / f"{name}.ipynb"
    run = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert any(int(times) for times in re.findall(r"tokens, used (\d+) times", run.stdout))
