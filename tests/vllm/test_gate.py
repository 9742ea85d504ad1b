"""The router's gate in front of a real vLLM without a plug-in, and of one that does not fit it (R12)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gate import GATE, VLLM, measure
from tests.support.mismatched import REQUESTS, serve_by_weight
from tests.vllm.conftest import UNTESTED

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def test_the_gate_gives_shares_by_weight_and_keeps_the_engines_queue_short(
    environment: Path, tmp_path: Path
) -> None:
    figures = measure(
        VLLM,
        VLLM.setups[GATE],
        environment=environment,
        folder=tmp_path,
        warmup_s=8.0,
        seconds=30.0,
        requests=REQUESTS,
    )
    assert figures.light == pytest.approx(0.8, rel=0.05)
    assert figures.queue <= 2
    assert figures.hit_rate > 0.7, "cached tokens are read"


def test_an_engine_that_does_not_fit_is_gated_says_so_and_is_fair(
    environment: Path, tmp_path: Path
) -> None:
    replica, metrics = serve_by_weight(
        VLLM, policy="DLPM", environment=environment, folder=tmp_path, settings=UNTESTED
    )
    reason = "version 0.32.0 is not tested with this plug-in"
    assert replica.inactive_reason == reason
    assert f'evenkeel_engine_plugin_inactive{{reason="{reason}"}} 1.0' in metrics
    assert 'evenkeel_engine_policy_active{policy="none"} 0.0' in metrics
