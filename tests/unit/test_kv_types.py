"""Names of the types of resident cells on llama.cpp."""

from __future__ import annotations

import pytest

from pinfold.engines.llama_cpp.kv_types import parse_kv_types
from pinfold.errors import UnsupportedModeError


def test_auto_is_whole_cells() -> None:
    assert str(parse_kv_types("auto", head_size=64, on_gpu=False)) == "f16/f16"
    with pytest.raises(UnsupportedModeError, match="no pair"):
        parse_kv_types("auto/q4_0", head_size=64, on_gpu=False)
