"""Ten minutes of contention: identities and bounds of DLPM on the real engine's own counters (`bench/engine/bounds.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.engine import bounds
from tests.sglang.engine import engine_environment

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_identities_and_bounds_hold_through_ten_minutes_of_contention(tmp_path: Path) -> None:
    if engine_environment() is None:
        pytest.skip("the real engine is not installed: make sglang")
    found = bounds.run(10, tmp_path)  # raises if an identity or a bound is broken
    assert found.identities > 1000
    assert set(found.service) == set(bounds.CLIENTS)
