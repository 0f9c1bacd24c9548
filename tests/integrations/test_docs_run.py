"""The Python blocks of README and docs/ that are marked to be run do run, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs_check import Block, Page, runnable

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("page", "block"), [pytest.param(page, block, id=f"{page.name}:{block.line}") for page, block in runnable(ROOT)]
)
def test_block_runs(page: Page, block: Block) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block.code], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{page.name}:{block.line}\n{done.stdout}\n{done.stderr}"
