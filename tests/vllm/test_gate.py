"""The router's gate in front of a real vLLM without a plug-in (R12)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gate_vllm import SETUPS, measure

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
_, GATE, _ = SETUPS


def test_the_gate_gives_shares_by_weight_and_keeps_the_engines_queue_short(
    environment: Path, tmp_path: Path
) -> None:
    figures = measure(GATE, vllm=environment, folder=tmp_path, warmup_s=8.0, seconds=30.0)
    assert figures.light == pytest.approx(0.8, rel=0.05)
    assert figures.queue <= 2
    assert figures.hit_rate > 0.7, "cached tokens are read"
