"""The router's gate in front of the real engine without the plug-in (R12)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gate import GATE, LPM, PLUG_IN, SGLANG, measure
from tests.sglang.engine import engine_environment

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_gate_is_as_fair_as_the_plug_in_with_a_short_engine_queue(
    tmp_path: Path,
) -> None:
    environment = engine_environment()
    if environment is None:
        pytest.skip("the real engine is not installed: make sglang")
    found = {}
    for name in (PLUG_IN, GATE, LPM):
        folder = tmp_path / name
        folder.mkdir()
        found[name] = measure(
            SGLANG,
            SGLANG.setups[name],
            environment=environment,
            folder=folder,
            warmup_s=8.0,
            seconds=30.0,
            requests=250,  # one more or less of one tenant is then far less than the 5 %
        )
    for name in (GATE, LPM):
        figures = found[name]
        assert figures.light == pytest.approx(0.8, rel=0.05)
        assert figures.queue <= 2
        assert figures.hit_rate == pytest.approx(found[PLUG_IN].hit_rate, abs=0.03)
