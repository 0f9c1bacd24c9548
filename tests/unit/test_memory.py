"""The largest context that fits: what bounds it, and that it says so."""

from __future__ import annotations

import pytest

from pinfold.engines.memory import fit_context, free_memory
from pinfold.errors import UnsupportedModeError

GIB = 1 << 30


def test_half_of_the_free_memory_is_for_two_requests() -> None:
    fitted = fit_context(8 * GIB, 100_000, 1 << 20, None)
    assert fitted.n_ctx == 4 * GIB // 200_000 // 256 * 256
    assert "half of the free memory" in fitted.reason
    assert "8192 MiB free" in fitted.reason


def test_what_the_model_was_trained_for_is_the_most() -> None:
    fitted = fit_context(64 * GIB, 20_000, 8192, None)
    assert fitted.n_ctx == 8192
    assert "trained for" in fitted.reason


def test_cells_that_were_set_are_the_most() -> None:
    fitted = fit_context(64 * GIB, 20_000, 1 << 17, 4096)
    assert (fitted.n_ctx, "kv_cells" in fitted.reason) == (4096, True)


def test_too_little_memory_is_refused_with_both_numbers() -> None:
    with pytest.raises(UnsupportedModeError, match=r"16 MiB.*100000 bytes"):
        fit_context(32 << 20, 100_000, 8192, None)


def test_this_machine_says_how_much_is_free() -> None:
    assert free_memory() > 1 << 20
