"""The figures that README quotes, measured and held to their targets. Run by `make bench`; some minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("script", ["decoding.py", "agents.py", "loop.py", "fold.py"])
def test_the_figures_meet_their_targets(script: str, smollm2: str) -> None:
    run = subprocess.run(
        [sys.executable, str(HERE / script), "--model", smollm2, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report = json.loads(run.stdout)
    print(f"\n{report['markdown']}")
    missed = [f"{f['name']}: {f['value']:.3f}, target {f['target']}" for f in report["figures"] if not f["met"]]
    assert not missed
