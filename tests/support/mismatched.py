"""A real engine that the plug-in does not fit, under load behind a router (R12)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from evenkeel_contract.adminstate import ReplicaState, decode_state
from evenkeel_contract.queueorder import QueueOwner

from bench.gate import Kind, running
from bench.gate_load import Setup, observe

REQUESTS = 250
"""One request more or less of one tenant is then far less than the 5 %."""


def serve_by_weight(
    kind: Kind, *, policy: str, environment: Path, folder: Path, settings: Mapping[str, str]
) -> tuple[ReplicaState, str]:
    """Check that the router's gate serves two tenants by weight; the replica's state, and the engine's metrics."""
    setup = Setup(policy, QueueOwner.AUTO, has_plug_in=True)
    with running(kind, setup, environment=environment, folder=folder, settings=settings) as site:
        figures = asyncio.run(
            observe(
                [site.router.url],
                site.engine,
                warmup_s=8.0,
                seconds=20.0,
                requests=REQUESTS,
                ask=kind.ask,
            )
        )
        state = decode_state(
            httpx.get(f"{site.router.admin_url}/v1/state").raise_for_status().content
        )
        metrics = httpx.get(f"{site.engine}/metrics").raise_for_status().text
    assert figures.light == pytest.approx(0.8, rel=0.05)
    assert figures.queue <= 2
    (replica,) = state.replicas
    assert replica.gate_limit > 0
    return replica, metrics
