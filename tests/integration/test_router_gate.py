"""The router's gate in front of replicas that serve first come, first served, over real sockets (R12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import httpx
import pytest
from evenkeel_contract.adminstate import decode_state
from evenkeel_contract.heldpages import HeldPages
from evenkeel_contract.promptfacts import facts_of
from evenkeel_contract.reportbook import ReportBook
from evenkeel_contract.reportsport import Answers
from evenkeel_contract.routerconfig import LimitsConfig, SchedulingConfig
from evenkeel_router.app import Router, running
from evenkeel_simulator.server.app import RunningServer, running_server
from evenkeel_simulator.server.reports import ReportServer

from tests.support.gated import (
    FLOOD,
    IN_BATCH,
    ORDERED,
    TENANCY,
    WEIGHTS,
    ask,
    cut_off,
    flood,
    gated,
    is_idle,
    served,
    unfair,
)
from tests.support.routers import QUICK, applied, config_for, replica_of, routable, until


async def share_under_flood(service: float, **changes: Any) -> tuple[float, float]:
    """(part of the service that light gets, median length of the replica's own queue)."""
    async with gated(**changes) as (router, (server,), client):
        loads = [
            asyncio.create_task(flood(client, name, first))
            for first in range(FLOOD)
            for name in WEIGHTS
        ]
        queue = []
        try:
            await until(lambda: sum(served(server).values()) > 4_000, "the flood")
            before = served(server)
            while sum(served(server).values()) - sum(before.values()) < service:
                queue.append(len(server.replica.engine.policy))
                await asyncio.sleep(0.01)
            after = served(server)
        finally:
            for load in loads:
                load.cancel()
            ended = await asyncio.gather(*loads, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
        await until(lambda: is_idle(router), "all requests to be over")
    gained = {name: after[name] - before[name] for name in WEIGHTS}
    return gained["light"] / sum(gained.values()), median(queue)


async def test_weights_hold_under_flood_within_five_percent() -> None:
    share, queue = await share_under_flood(24_000)
    assert share == pytest.approx(0.8, rel=0.05)
    assert (
        queue <= IN_BATCH
    )  # in real time, on a machine that may be busy; tests/property/test_gate.py asserts at most 2


async def test_without_the_gate_clients_get_what_they_send() -> None:
    share, queue = await share_under_flood(8_000, scheduling=SchedulingConfig())
    assert share == pytest.approx(0.5, abs=0.1)
    assert queue > 2


async def test_whole_answers_are_ordered_too() -> None:
    async with gated() as (router, _, client):
        answers = await asyncio.gather(
            *(ask(client, name, n, stream=False) for n in range(10) for name in WEIGHTS)
        )
        assert {answer.status_code for answer in answers} == {200}
        await until(lambda: is_idle(router), "all requests to be over")
        assert router.rooms.replicas.totals["r0"].requests == 20


@asynccontextmanager
async def blocked(
    router: Router, server: RunningServer, client: httpx.AsyncClient
) -> AsyncIterator[list[asyncio.Task[httpx.Response]]]:
    """More long requests of heavy than the replica's batch and the window have room for."""
    tasks = [
        asyncio.create_task(ask(client, "heavy", n, max_tokens=4000)) for n in range(4 * IN_BATCH)
    ]

    def is_full() -> bool:
        gate = router.rooms.gates.gate("r0")
        running = len(list(server.replica.engine.running()))
        if gate is None or running < IN_BATCH or gate.has_work or not len(gate):
            return False
        load = gate.engine.load  # once it shows the queue, no more is sent
        shown = load is not None and load.waiting == gate.unanswered > 0
        return shown and len(gate.sent) == IN_BATCH + gate.unanswered

    try:
        await until(is_full, "a full batch and requests that wait at the gate")
        yield tasks
    finally:
        await cut_off(tasks)


async def test_a_waiting_request_shows_and_leaves_with_its_client() -> None:
    async with (
        gated() as (router, (server,), client),
        blocked(router, server, client) as tasks,
    ):
        waiting = len(router.rooms.gates)
        url = f"http://127.0.0.1:{router.admin_port}/v1/state"
        state = decode_state((await client.get(url)).content)
        assert state.replicas[0].gate_waiting == state.gate_waiting == waiting
        text = (await client.get(f"http://127.0.0.1:{router.probe_port}/metrics")).text
        labels = 'model_name="llama",replica="r0"'
        assert f"evenkeel_router_replica_gate_waiting{{{labels}}} {waiting}.0" in text
        assert f"evenkeel_router_replica_gate_engine_limit{{{labels}}} 0.0" not in text
        await cut_off(tasks)
        await until(lambda: is_idle(router), "all requests to be over")
        totals = next(router.rooms.totals.clients())
        assert sum(totals.errors.values()) == len(tasks)
        await until(lambda: not server.replica.engine.has_work, "the replica to notice")
        assert (await ask(client, "light", 0)).status_code == 200


async def test_a_request_waits_for_its_turn_no_longer_than_the_queue_timeout() -> None:
    async with gated(limits=LimitsConfig(queue_timeout_s=1.0)) as (router, _, client):
        tasks = [
            asyncio.create_task(ask(client, "heavy", n, max_tokens=4000))
            for n in range(4 * IN_BATCH)
        ]
        at_replica = router.rooms.replicas.totals["r0"]

        def is_over() -> bool:
            return sum(task.done() for task in tasks) + at_replica.requests == len(tasks)

        await until(is_over, "every request to be refused or at the replica")
        refused = [task.result() for task in tasks if task.done()]
        assert {answer.status_code for answer in refused} == {503}
        assert {answer.json()["error"]["code"] for answer in refused} == {"queue_timeout"}
        assert all(answer.headers["retry-after"] for answer in refused)
        await cut_off(tasks)
        await until(lambda: is_idle(router), "all requests to be over")


async def test_requests_that_wait_for_a_lost_replica_go_to_another() -> None:
    async with gated(2) as (router, _, client):
        tasks = [
            asyncio.create_task(ask(client, name, n, max_tokens=100))
            for n in range(16)
            for name in WEIGHTS
        ]
        await until(
            lambda: router.rooms.intake.admission.running == 32 and len(router.rooms.gates) >= 8,
            "requests that wait at both gates",
        )
        fleet_ = router.rooms.replicas.fleet
        gates = {name: router.rooms.gates.gate(name) for name in ("r0", "r1")}
        assert all(gate is not None and len(gate) for gate in gates.values())
        at_lost = router.rooms.replicas.totals["r0"].requests
        lost = fleet_.member("r0")
        assert lost is not None
        lost.unschedulable = "draining"  # as discovery does when its pod is marked
        fleet_.unready(lost)
        await until(lambda: not gates["r0"], "the gate of the lost replica to be empty")
        answers = await asyncio.gather(*tasks)
        assert {answer.status_code for answer in answers} == {200}
        assert router.rooms.replicas.totals["r0"].requests <= at_lost + 2
        await until(lambda: is_idle(router), "all requests to be over")


async def test_a_changed_setting_lets_waiting_requests_go() -> None:
    async with (
        gated() as (router, (server,), client),
        blocked(router, server, client) as tasks,
    ):
        rooms = router.rooms
        applied(rooms, replace(rooms.settings.config, scheduling=SchedulingConfig()))
        await until(lambda: len(rooms.gates) == 0, "no request at a gate")
        await until(
            lambda: rooms.replicas.totals["r0"].requests == len(tasks), "all at the replica"
        )
        await cut_off(tasks)
        await until(lambda: is_idle(router), "all requests to be over")


async def test_auto_leaves_the_queue_to_engines_that_report() -> None:
    reporting = unfair(replica_policy="DLPM", reports_port=0)
    async with gated(settings=reporting) as (router, _, client):
        assert (await ask(client, "light", 0)).status_code == 200
        assert router.rooms.gates.gate("r0") is None


def reporting(book: ReportBook, *, port: int = 0) -> ReportServer:
    """The reports port of an engine without clients."""
    answers = Answers(
        book=book,
        refresh=lambda: None,
        prompts=lambda: facts_of({}, page_tokens=1),
        pages=HeldPages(),
    )
    return ReportServer(answers, refused=lambda: None, host="127.0.0.1", port=port)


async def test_a_replica_with_an_inactive_plug_in_is_gated_until_another_reports() -> None:
    """Its engine serves in its own order and says so on the reports port (`onMismatch: Gate`)."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(unfair()))
        first = reporting(ReportBook(incarnation="1", policy="", inactive="calc_priority moved"))
        replica = replace(replica_of(server, "r0"), reports=f"tcp://127.0.0.1:{first.port}")
        config = config_for(replica, tenancy=TENANCY, scheduling=ORDERED)
        router = await stack.enter_async_context(running(config, timing=QUICK))
        await routable(router, 1)
        gates, accounting = router.rooms.gates, router.rooms.service_ledger.accounting
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=router.url))
        assert (await ask(client, "light", 0)).status_code == 200
        assert gates.gate("r0") is not None
        assert accounting.unreported("r0")
        assert list(router.rooms.uncounted()) == []
        url = f"http://127.0.0.1:{router.admin_port}/v1/state"
        (shown,) = decode_state((await client.get(url)).content).replicas
        assert shown.inactive_reason == "calc_priority moved"
        await first.close()
        second = reporting(ReportBook(incarnation="2", policy="DLPM"), port=first.port)
        stack.push_async_callback(second.close)
        await until(lambda: not accounting.unreported("r0"), "a report of the new process")
        (shown,) = decode_state((await client.get(url)).content).replicas
        assert (shown.inactive_reason, shown.policy) == ("", "DLPM")
