"""A folder that holds a model in both forms, opened on a machine where MLX comes first."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pinfold import Runtime
from pinfold.engines import probe
from pinfold.errors import UnsupportedModeError
from pinfold.models import resolve


@pytest.fixture
def both(random_mlx: Callable[[str], Path], smollm2: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The embedded model beside the safetensors of another, so that an answer tells which one was opened."""
    gguf = resolve(smollm2).path
    assert gguf is not None
    folder = tmp_path / "both"
    shutil.copytree(random_mlx("llama"), folder)
    os.link(gguf, folder / gguf.name) if gguf.stat().st_dev == folder.stat().st_dev else shutil.copy(gguf, folder)
    monkeypatch.setattr(probe, "_mlx_device", lambda: (True, "on the GPU"))
    return folder


def engine_row(rt: Runtime) -> str:
    return next(mode.reason for mode in rt.capabilities.modes if mode.name == "engine")


def test_mlx_opens_it(both: Path) -> None:
    with Runtime(both, n_ctx=256, store="off") as rt:
        assert rt.capabilities.engine == "mlx"
        assert "both forms" in engine_row(rt)


def test_what_mlx_refuses_opens_on_llama_cpp_and_that_is_said(both: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = json.loads((both / "config.json").read_text())
    (both / "config.json").write_text(json.dumps(config | {"model_type": "no_such_model"}))
    with Runtime(both, n_ctx=256, store="off", draft="off") as rt:
        assert rt.capabilities.engine == "llama.cpp"
        assert engine_row(rt).startswith("llama.cpp: mlx refused it: mlx-lm has no model of the type 'no_such_model'")
        assert rt.chat([{"role": "user", "content": "Hello"}], max_tokens=4).usage.completion_tokens == 4
    assert any("llama.cpp runs both, since mlx does not" in record.getMessage() for record in caplog.records)
    with pytest.raises(UnsupportedModeError, match="no_such_model"):
        Runtime(both, n_ctx=256, store="off", engine="mlx")
