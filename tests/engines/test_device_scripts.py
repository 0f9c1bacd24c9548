"""The scripts for a Mac and a CUDA machine, run on the CPU with a small model: they are known to work."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pinfold.bench.workloads import Turn

pytest.importorskip("mlx.core")
FOLDER = Path(__file__).parents[1] / "device"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"device_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_is_there(random_mlx: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    measure = script("measure")
    monkeypatch.setattr(measure, "CALIBRATION_S", 0.0)
    text = measure.run(None, [str(random_mlx("llama_64")), "--prompt", "96", "--tokens", "4", "--workloads", "0"])
    _, speeds, kernels, folds, drafts = text.split("\n\n")
    rows = [line.split(" | ") for line in speeds.splitlines()]
    assert [len(row) for row in rows] == [7] * 7
    names = [row[0].removeprefix("| ").partition(":")[0] for row in rows[2:]]
    assert names == ["pinfold f16", "pinfold q8/q4", "pinfold q6/q3", "mlx-lm", "mlx-lm, 8 bits"]
    assert all(float(cell) > 0 for row in rows[2:] for cell in row[1:4])
    assert [line.split(" | ")[0] for line in kernels.splitlines()[2:]] == ["| q8/q4", "| q6/q3"]
    assert [line.split(" | ")[0] for line in folds.splitlines()[2:]] == ["| exact", "| balanced", "| compact"]
    assert drafts.splitlines()[0].startswith("| drafting | plain tok/s | drafted tok/s")


def test_workloads_of_drafting_have_a_row_each(
    random_mlx: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = script("measure")
    one = replace(measure.WORKLOADS[0], name="one", turns=[Turn([{"role": "user", "content": "Hi"}], 6)], n_ctx=256)
    monkeypatch.setattr(measure, "WORKLOADS", [one])
    (row,) = measure.drafted(SimpleNamespace(folder=random_mlx("llama_64"), workloads=1))
    assert (row[0], row[5]) == ("one", "yes")
    assert float(row[1]) > 0


@pytest.mark.parametrize("name", ["cuda", "metal"])
def test_another_device_is_refused(random_mlx: Callable[[str], Path], name: str) -> None:
    import mlx.core as mx

    if getattr(mx, name).is_available():
        pytest.skip(f"this machine has {name}")
    with pytest.raises(SystemExit, match=f"no {name}"):
        script("measure").run(name, [str(random_mlx("llama_64"))])
