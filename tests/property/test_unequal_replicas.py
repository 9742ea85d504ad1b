"""Two replicas of unequal speed, such as SGLang beside vLLM, and clients that keep a number of requests open."""

from __future__ import annotations

from random import Random

import pytest

from tests.property.test_fleet_theorems import Client, Setting, build

SPEED = 4
"""Steps of the fast replica for each step of the slow one."""
OPEN = 60
"""Requests of each client that are open at any time."""
STEPS = 600


def closed_loop(
    worker_quantum: float | None, speeds: tuple[float, ...] = ()
) -> tuple[float, float]:
    """The part of the client with three times the weight, and how often the fast replica had a request of each client waiting."""
    setting = Setting(
        replicas=2,
        memory_tokens=60,
        quantum=40.0,
        worker_quantum=worker_quantum,
        speeds=speeds,
        clients=[
            Client("heavy", "one", (10, 16), (6, 8), shared=0.8, tenant_weight=3.0),
            Client("light", "other", (10, 16), (6, 8), shared=0.8),
        ],
        seed=3,
        estimate_factor=1.0,
        refused=0.0,
    )
    fleet = build(setting)
    rng = Random(setting.seed)
    fast = fleet.engines[0]
    fast_waits = 0
    for _ in range(STEPS):
        for client in setting.clients:
            open_now = sum(job.client == client.name for job in fleet.sent)
            for _ in range(OPEN - open_now):
                fleet.send(client.job(rng))
        fast_waits += {job.client for job in fast.queue} == {"heavy", "light"}
        for _ in range(SPEED - 1):
            fast.step()
        fleet.step()
    heavy, light = fleet.service("heavy"), fleet.service("light")
    return heavy / (heavy + light), fast_waits / STEPS


@pytest.mark.parametrize("speeds", [(), (SPEED, 1.0), (1.0, SPEED)])
def test_auto_keeps_all_clients_waiting_at_both_and_shares_equal_weights(
    speeds: tuple[float, ...],
) -> None:
    """With the speeds measured, without, and with wrong ones."""
    part, fast_waits = closed_loop(None, speeds)
    assert fast_waits > 0.95
    assert part == pytest.approx(0.75, abs=0.02)


def test_with_a_constant_worker_quantum_the_fast_replica_runs_empty() -> None:
    _, fast_waits = closed_loop(160.0)
    assert fast_waits < 0.5
