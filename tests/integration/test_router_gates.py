"""Gates of several routers and replicas, and of replicas that come and go, over real sockets (R12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from evenkeel_contract.routerconfig import PeerConfig, StateConfig
from evenkeel_fairshare.ledger import ReplicaRow
from evenkeel_router.app import Router, running
from evenkeel_simulator.server.app import RunningServer, running_server

from tests.support.gated import (
    FLOOD,
    IN_BATCH,
    ORDERED,
    TENANCY,
    ask,
    cut_off,
    flood,
    gated,
    is_idle,
    served,
    unfair,
)
from tests.support.ports import free_ports
from tests.support.reporting import report, reporter
from tests.support.routers import (
    PATIENCE_S,
    QUICK,
    applied,
    config_for,
    replica_of,
    routable,
    until,
)

EXCHANGE_S = 0.05


@asynccontextmanager
async def routers(
    count: int, server: RunningServer
) -> AsyncIterator[list[tuple[Router, httpx.AsyncClient]]]:
    """Routers of one replica that know one another, and a client of each."""
    async with AsyncExitStack() as stack:
        config = config_for(
            replica_of(server),
            tenancy=TENANCY,
            scheduling=ORDERED,
            state=StateConfig(exchange_interval_s=EXCHANGE_S),
        )
        opened = [
            await stack.enter_async_context(running(config, timing=QUICK)) for _ in range(count)
        ]
        for router in opened:
            peers = tuple(
                PeerConfig(name=f"peer{n}", url=f"http://127.0.0.1:{other.admin_port}")
                for n, other in enumerate(opened)
                if other is not router
            )
            state = StateConfig(peers=peers, exchange_interval_s=EXCHANGE_S)
            applied(router.rooms, replace(config, state=state))
            await routable(router, 1)
        limits = httpx.Limits(max_connections=None)
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=router.url, timeout=5 * PATIENCE_S, limits=limits)
            )
            for router in opened
        ]
        yield list(zip(opened, clients, strict=True))


async def share_of_light(
    server: RunningServer, loads: Sequence[asyncio.Task[None]], service: float
) -> float:
    """The part that light gets of the next `service` weighted tokens, after a while."""
    try:
        await until(lambda: sum(served(server).values()) > 4_000, "the flood")
        before = served(server)
        while sum(served(server).values()) - sum(before.values()) < service:
            assert not any(load.done() for load in loads)
            await asyncio.sleep(0.01)
        after = served(server)
    finally:
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
    gained = {name: after[name] - before.get(name, 0.0) for name in after}
    return gained["light"] / sum(gained.values())


@pytest.mark.parametrize(
    ("light", "heavy"),
    [
        ((FLOOD, 0), (FLOOD, FLOOD)),  # one tenant through one router, another through two
        ((38, 2), (38, 2)),  # 95 % of the requests at one router
        ((30, 2, 2), (30, 2, 2)),
    ],
)
async def test_weights_hold_over_routers(light: tuple[int, ...], heavy: tuple[int, ...]) -> None:
    async with running_server(unfair()) as server, routers(len(light), server) as opened:
        loads = [
            asyncio.create_task(flood(client, tenant, 1000 * place + n))
            for place, (_, client) in enumerate(opened)
            for tenant, counts in (("light", light), ("heavy", heavy))
            for n in range(counts[place])
        ]
        assert await share_of_light(server, loads, 24_000) == pytest.approx(0.8, rel=0.05)
        for router, _ in opened:
            await until(lambda router=router: is_idle(router), "all requests to be over")


async def test_clients_that_wait_at_a_gate_count_as_backlogged_at_every_router() -> None:
    async with running_server(unfair()) as server, routers(2, server) as ((one, client), (two, _)):
        tasks = [
            asyncio.create_task(ask(client, "heavy", n, max_tokens=4000))
            for n in range(4 * IN_BATCH)
        ]
        for router in (one, two):
            fairness = router.rooms.service_ledger.fairness
            await until(
                lambda fairness=fairness: (
                    fairness.now.clients.get("ns/heavy/c") is not None
                    and fairness.now.clients["ns/heavy/c"].backlogged
                ),
                "the client to be backlogged",
            )
            ledger = router.rooms.service_ledger.ledger
            await until(
                lambda ledger=ledger: (
                    sum(page.row("ns/heavy/c").requests for _, page in ledger.open_accounts())
                    >= IN_BATCH
                ),
                "the requests that it has at the engine",
            )
        await cut_off(tasks)


async def test_requests_that_wait_go_to_an_idle_replica() -> None:
    scheduling = replace(ORDERED, worker_quantum=10**9)  # credit that keeps them at one replica
    async with gated(2, scheduling=scheduling) as (router, _, client):
        prompt = "the same long prompt for all of them " * 20
        assert (await ask(client, "heavy", 0, prompt=prompt)).status_code == 200
        answers = await asyncio.gather(
            *(ask(client, "heavy", n, prompt=prompt, max_tokens=100) for n in range(4 * IN_BATCH))
        )
        assert {answer.status_code for answer in answers} == {200}
        requests = [router.rooms.replicas.totals[name].requests for name in ("r0", "r1")]
        assert router.rooms.gates.moved > 0
        assert min(requests) >= IN_BATCH
        assert sum(requests) == 4 * IN_BATCH + 1
        await until(lambda: is_idle(router), "all requests to be over")


async def test_waiting_requests_outlive_the_replica_whose_successor_has_a_new_gate() -> None:
    (port,) = free_ports(1)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        server = await first.enter_async_context(running_server(unfair(port=port)))
        ((router, client),) = await stack.enter_async_context(routers(1, server))
        tasks = [
            asyncio.create_task(ask(client, "heavy", n, max_tokens=200))
            for n in range(4 * IN_BATCH)
        ]
        gates, totals = router.rooms.gates, router.rooms.replicas.totals["r0"]
        await until(lambda: len(gates) >= 2 * IN_BATCH, "requests that wait")
        await until(lambda: totals.requests >= IN_BATCH, "requests at the replica")
        before, sent = gates.gate("r0"), totals.requests
        await first.aclose()
        await until(lambda: len(gates) == 0, "no request at the gate of the lost replica")
        await stack.enter_async_context(running_server(unfair(port=port)))
        answers = await asyncio.gather(*tasks)
        assert {answer.status_code for answer in answers} == {200}
        assert sum('"error"' in answer.text for answer in answers) <= sent
        assert gates.gate("r0") is not before
        await until(lambda: is_idle(router), "all requests to be over")


async def test_a_gate_starts_from_what_clients_owe_elsewhere() -> None:
    async with gated() as (router, _, client):
        owes = ReplicaRow("ns/heavy/c", service=500.0, deficit=-300.0, tenant_deficit=-200.0)
        ledger = router.rooms.service_ledger.ledger
        ledger.observe("departed", since=0, sequence=1, rows=[owes])
        assert (await ask(client, "heavy", 0)).status_code == 200
        gate = router.rooms.gates.gate("r0")
        assert gate is not None
        state = gate.policy.clients()["ns/heavy/c"]
        assert (state.seed, state.tenant_seed) == (-300.0, -200.0)


async def test_auto_orders_the_queue_of_an_engine_until_it_reports_that_it_does() -> None:
    async with AsyncExitStack() as stack:
        told = await stack.enter_async_context(reporter())
        server = await stack.enter_async_context(running_server(unfair()))
        config = config_for(
            replace(replica_of(server), reports=told.address),
            tenancy=TENANCY,
            scheduling=ORDERED,
        )
        router = await stack.enter_async_context(running(config, timing=QUICK))
        await routable(router, 1)
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=router.url,
                timeout=PATIENCE_S,
                limits=httpx.Limits(max_connections=None),
            )
        )
        tasks = [
            asyncio.create_task(ask(client, "heavy", n, max_tokens=4000))
            for n in range(4 * IN_BATCH)
        ]
        gates, totals = router.rooms.gates, router.rooms.replicas.totals["r0"]
        await until(lambda: len(gates) > IN_BATCH, "requests that wait at the gate")
        told.answer = report("with the plug-in", 1, 0)
        await until(lambda: totals.requests == len(tasks), "all requests at the engine")
        assert len(gates) == 0
        await cut_off(tasks)
        await until(lambda: is_idle(router), "all requests to be over")
