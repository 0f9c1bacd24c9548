"""Models in MLX format, made once for all tests of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from pinfold.models import resolve


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
