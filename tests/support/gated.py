"""A router's gate in front of simulated replicas that serve first come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    SchedulingConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_router.app import Router
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.server.app import RunningServer
from evenkeel_simulator.server.settings import Settings

from tests.support.routers import MODEL, PATIENCE_S, fleet, sha256, simulated

WEIGHTS = {"heavy": 1, "light": 4}
IN_BATCH = 8
FLOOD = 24
"""Open requests of each client: three batches."""
ORDERED = SchedulingConfig(queue=QueueOwner.AUTO, client_quantum=100)


def tenant(name: str, weight: int) -> TenantConfig:
    return TenantConfig(
        namespace="ns",
        name=name,
        weight=weight,
        clients=(ClientConfig(name="c"),),
        api_keys=(ApiKeyConfig(name="k", client="c", sha256=sha256(name)),),
    )


TENANCY = TenancyConfig(tenants=tuple(tenant(name, weight) for name, weight in WEIGHTS.items()))


def unfair(**changes: Any) -> Settings:
    """A replica without reports, whose own queue has no order but that of arrival."""
    given: dict[str, Any] = {
        "replica_policy": "FCFS",
        "reports_port": None,
        "engine": EngineConfig(max_running=IN_BATCH),
        "speed": 2.0,
    }
    return simulated(**(given | changes))


@asynccontextmanager
async def gated(
    replicas: int = 1, *, settings: Settings | None = None, **changes: Any
) -> AsyncIterator[tuple[Router, list[RunningServer], httpx.AsyncClient]]:
    limits = httpx.Limits(max_connections=None)
    given: dict[str, Any] = {"tenancy": TENANCY, "scheduling": ORDERED}
    async with (
        fleet(replicas, settings=settings or unfair(), **(given | changes)) as (router, servers),
        httpx.AsyncClient(base_url=router.url, timeout=5 * PATIENCE_S, limits=limits) as client,
    ):
        yield router, servers, client


async def ask(
    client: httpx.AsyncClient, tenant_name: str, number: int, **changes: Any
) -> httpx.Response:
    body = {
        "model": MODEL,
        "prompt": f"{tenant_name} {number} " * 8,
        "max_tokens": 32,
        "stream": True,
        "ignore_eos": True,
    }
    headers = {"Authorization": f"Bearer {tenant_name}"}
    return await client.post("/v1/completions", json=body | changes, headers=headers)


async def flood(client: httpx.AsyncClient, tenant_name: str, first: int, **changes: Any) -> None:
    """One request after the other, until cancelled."""
    number = first
    while True:
        response = await ask(client, tenant_name, number, **changes)
        assert response.status_code == 200, response.text
        number += FLOOD


def served(server: RunningServer) -> dict[str, float]:
    """Service by tenant, as the replica counts it."""
    return {
        client.split("/")[1]: totals.service
        for client, totals in server.replica.engine.accounts.clients.items()
    }


def is_idle(router: Router) -> bool:
    """Whether no request holds anything."""
    rooms = router.rooms
    gates = [rooms.gates.gate(member.name) for member in rooms.replicas.fleet]
    return (
        rooms.intake.admission.running == 0
        and len(rooms.gates) == 0
        and not any(rooms.replicas.fleet.load(member) for member in rooms.replicas.fleet)
        and not any(gate.sent or gate.unanswered for gate in gates if gate is not None)
    )


async def cut_off(tasks: list[asyncio.Task[httpx.Response]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
