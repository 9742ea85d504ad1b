"""The ledger with real parts: seeds that replicas apply, and what departed replicas leave behind."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import httpx
import pytest
from evenkeel_contract.adminstate import decode_state
from evenkeel_contract.key import ClientKey
from evenkeel_contract.names import CLIENT_KEY_HEADER
from evenkeel_contract.routerconfig import SchedulingConfig
from evenkeel_fairshare.ledger.replica_rows import DEFICIT, NORMALISED, RUNNING, SEED, SERVICE
from evenkeel_router.app import Router, running
from evenkeel_simulator.server.app import running_server

from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    QUICK,
    applied,
    config_for,
    replica_of,
    routable,
    simulated,
    until,
)

CHAT, ANONYMOUS = "ns/acme/chat", "ns/anonymous/anonymous"
TIMING = replace(QUICK, settle_s=0.1, return_s=0.1, compact_interval_s=0.2)


async def ask(
    router: Router, *, key: str | None = KEY, tokens: int = 40, prompt: str = "x"
) -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(timeout=PATIENCE_S, headers=headers) as client:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        response = await client.post(f"{router.url}/v1/completions", json=body)
        assert response.status_code == 200, response.text


def cell(router: Router, replica: str, client: str, column: int) -> float:
    page = router.rooms.service_ledger.ledger.replica_accounts.get(
        router.rooms.service_ledger.accounting.incarnation(replica)
    )
    return page.clients.cell(client, column) if page is not None else 0.0


async def test_a_client_keeps_the_debt_of_a_replica_that_left_at_the_next_one() -> None:
    async with AsyncExitStack() as stack:
        # So small a quantum that a request of 40 tokens leaves a debt.
        old = await stack.enter_async_context(running_server(simulated(client_quantum=10)))
        config = config_for(replica_of(old, "old"), scheduling=SchedulingConfig(client_quantum=10))
        router = await stack.enter_async_context(running(config, timing=TIMING))
        await routable(router, 1)
        await ask(router)
        await until(
            lambda: cell(router, "old", CHAT, DEFICIT) < 0 == cell(router, "old", CHAT, RUNNING),
            "a report of the debt, when the request was over",
        )
        deficit = cell(router, "old", CHAT, DEFICIT)
        served = router.rooms.service_ledger.ledger.served(CHAT)
        new = await stack.enter_async_context(running_server(simulated(client_quantum=10)))
        router.services.only.discovery.update(replace(config, replicas=(replica_of(new, "new"),)))
        await until(
            lambda: router.rooms.service_ledger.accounting.incarnation("new") != "",
            "its first report",
        )
        await routable(router, 1)
        await ask(router, tokens=1)
        await until(lambda: cell(router, "new", CHAT, SEED) != 0, "a report of the seed")
        assert cell(router, "new", CHAT, SEED) == deficit
        assert router.rooms.service_ledger.ledger.served(CHAT) > served
        await until(
            lambda: len(router.rooms.service_ledger.ledger.replica_accounts) == 1,
            "the old page to be folded",
        )
        assert router.rooms.service_ledger.ledger.closed_totals.client(CHAT).service == served
        assert router.rooms.service_ledger.ledger.served(CHAT) > served


async def test_a_crashed_incarnation_counts_the_larger_of_reported_and_received() -> None:
    slow = replace(TIMING, report_interval_s=0.1, settle_s=3600.0)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(AsyncExitStack())
        first = await server.enter_async_context(running_server(simulated()))
        router = await stack.enter_async_context(
            running(config_for(replica_of(first)), timing=slow)
        )
        await routable(router, 1)
        ledger = router.rooms.service_ledger.ledger
        await ask(router)
        incarnation = router.rooms.service_ledger.accounting.incarnation("r0")
        await until(lambda: ledger.replica_accounts[incarnation].head > 0, "a report")
        reported = ledger.served(CHAT)
        # The replica ends before it can say what this one cost; the router received it.
        await ask(router, tokens=60)
        page = ledger.replica_accounts[incarnation]
        received = sum(account.clients.cell(CHAT, SERVICE) for account in page.accounts.values())
        assert ledger.served(CHAT) == max(page.clients.cell(CHAT, SERVICE), received)
        assert received > reported
        await server.aclose()
        router.services.only.discovery.update(config_for())
        await until(lambda: bool(page.closed_by), "it to be closed")
        assert ledger.served(CHAT) == max(page.clients.cell(CHAT, SERVICE), received)


async def test_what_a_replica_finishes_after_it_left_the_configuration_counts() -> None:
    # So slow that the request ends long after the routers were told.
    async with (
        running_server(simulated(speed=0.5)) as server,
        running(config_for(replica_of(server)), timing=replace(TIMING, return_s=3600)) as router,
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        await routable(router, 1)
        ledger = router.rooms.service_ledger.ledger
        # Of another router, as far as this one can tell.
        body = {"model": MODEL, "prompt": "x", "max_tokens": 40, "ignore_eos": True}
        headers = {CLIENT_KEY_HEADER: ClientKey("ns", "acme", "chat").encode()}
        asking = client.post(f"{server.url}/v1/completions", json=body, headers=headers)
        answer = asyncio.create_task(asking)
        router.services.only.discovery.update(config_for())
        await until(lambda: "r0" not in router.rooms.replicas.configured, "the router to forget it")
        usage = (await answer).json()["usage"]
        cost = usage["prompt_tokens"] + 2 * usage["completion_tokens"]
        await until(lambda: ledger.served(CHAT) == cost, "the replica's last report")


async def test_a_new_weight_counts_from_now_on_and_rewrites_nothing() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(simulated()))
        router = await stack.enter_async_context(
            running(config_for(replica_of(server)), timing=TIMING)
        )
        await routable(router, 1)
        ledger = router.rooms.service_ledger.ledger
        reported = partial(cell, router, "r0", CHAT, SERVICE)
        await ask(router)
        await until(lambda: not router.rooms.intake.active_requests, "the request to end")
        await until(lambda: 0 < ledger.served(CHAT) == reported(), "a report of all of it")
        before = ledger.served(CHAT)
        assert cell(router, "r0", CHAT, NORMALISED) == pytest.approx(before / 3)
        (acme,) = router.rooms.settings.config.tenancy.tenants
        chat, *others = acme.clients
        heavier = replace(acme, clients=(replace(chat, weight=6), *others))
        tenancy = replace(router.rooms.settings.config.tenancy, tenants=(heavier,))
        applied(router.rooms, replace(router.rooms.settings.config, tenancy=tenancy))
        assert ledger.served(CHAT) == before
        assert ledger.weights.client(CHAT) == 6
        await ask(router, tokens=60, prompt="another prompt altogether")
        await until(lambda: not router.rooms.intake.active_requests, "the request to end")
        await until(lambda: before < ledger.served(CHAT) == reported(), "a report of the next one")
        after = ledger.served(CHAT)
        normalised = cell(router, "r0", CHAT, NORMALISED)
        assert abs(normalised - before / 3 - (after - before) / 6) < 1e-6


async def test_what_the_fleet_served_is_in_the_metrics_and_on_the_admin_port() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(simulated()))
        router = await stack.enter_async_context(
            running(config_for(replica_of(server)), timing=TIMING)
        )
        await routable(router, 1)
        await ask(router)
        truth = router.rooms.service_ledger.fairness
        want = (
            1 + 2.0 * 40
        )  # a token of input and forty of output, of weight two; reports come while it runs
        await until(
            lambda: CHAT in truth.now.clients and truth.now.clients[CHAT].service == want,
            "all service of the client",
        )
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://127.0.0.1:{router.probe_port}/metrics")).text
            state = decode_state(
                (await client.get(f"http://127.0.0.1:{router.admin_port}/v1/state")).content
            )
        labels = 'client="chat",model_name="llama",tenant="acme"'
        for name, value in (("service_total", want), ("service_owed_total", want)):
            assert f"evenkeel_router_{name}{{{labels}}} {value}" in text
        for name in ("fleet_share_error_ratio", "fleet_bound_ratio", "ledger_incarnations"):
            assert f'evenkeel_router_{name}{{model_name="llama"}}' in text
        assert 'evenkeel_router_tenant_service_total{model_name="llama",tenant="acme"}' in text
        (acme,) = state.tenants
        assert {one.name: one.service for one in acme.clients}["chat"] == want
        assert acme.service == want
        assert (state.ledger.router, state.ledger.store) == (
            router.rooms.service_ledger.ledger.router,
            "Peers",
        )
