"""The router's gate in front of a real vLLM without a plug-in, and of one that does not fit it (R12)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from evenkeel_contract.adminstate import decode_state
from evenkeel_contract.queueorder import QueueOwner

from bench.gate import GATE, VLLM, measure, running
from bench.gate_load import Setup, observe
from tests.vllm.conftest import UNTESTED

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
REQUESTS = 250
"""One request more or less of one tenant is then far less than the 5 %."""
MISMATCH = Setup("DLPM", QueueOwner.AUTO, has_plug_in=True)


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
    with running(
        VLLM, MISMATCH, environment=environment, folder=tmp_path, settings=UNTESTED
    ) as site:
        figures = asyncio.run(
            observe(
                [site.router.url],
                site.engine,
                warmup_s=8.0,
                seconds=20.0,
                requests=REQUESTS,
                queue=VLLM.queue,
            )
        )
        state = decode_state(
            httpx.get(f"{site.router.admin_url}/v1/state").raise_for_status().content
        )
        metrics = httpx.get(f"{site.engine}/metrics").raise_for_status().text
    assert figures.light == pytest.approx(0.8, rel=0.05)
    assert figures.queue <= 2
    reason = "version 0.32.0 is not tested with this plug-in"
    (replica,) = state.replicas
    assert replica.inactive_reason == reason
    assert replica.gate_limit > 0
    assert f'evenkeel_engine_plugin_inactive{{reason="{reason}"}} 1.0' in metrics
    assert 'evenkeel_engine_policy_active{policy="none"} 0.0' in metrics
