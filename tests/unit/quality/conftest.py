"""What tests of quality share."""

from __future__ import annotations

import pytest

from pinfold.kv.snapshot import Snapshot
from tests.support.kv_samples import Geometry, make_snapshot


@pytest.fixture
def snapshot() -> Snapshot:
    """Of a made-up model with heads of 32 channels, and of 64 tokens."""
    return make_snapshot(Geometry(layers=2), 64)
