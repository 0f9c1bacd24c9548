"""The packages that this engine needs, imported at its first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pinfold.errors import EngineUnavailableError

__all__ = ["INSTALL", "load_library"]

INSTALL = "pip install 'pinfold[mlx]' on a Mac or a CPU, 'pinfold[mlx-cuda]' for an NVIDIA GPU"


def load_library() -> Any:
    """The module `mlx.core`, after a check that mlx-lm is there too.

    Raises:
        EngineUnavailableError: either is missing or does not load.
    """
    try:
        core = import_module("mlx.core")
        import_module("mlx_lm.utils")
    except (ImportError, OSError) as e:
        msg = f"The MLX engine cannot run: {e}. Run: {INSTALL}."
        raise EngineUnavailableError(msg) from e
    return core
