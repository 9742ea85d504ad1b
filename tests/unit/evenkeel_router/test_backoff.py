"""Replicas that say they are ready and fail what others answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx
import pytest
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_router.app import Router, running
from evenkeel_router.fleet.health import HealthMonitor
from evenkeel_router.fleet.probe import ProbeVerdict
from evenkeel_router.fleet.selection import FAILURES, LONGEST_S, Backoff
from evenkeel_router.transport.upstream import BrokenError, Feed, Outgoing

from tests.support.fakes import FakeProber, FakeReply, FakeUpstream, replicas
from tests.support.nasty import DONE, EVENT, OK
from tests.support.router_rooms import client, rooms_of, selected
from tests.support.routers import MODEL, QUICK, config_for, routable, until

BODY = {"model": MODEL, "prompt": "x"}


def failed(backoff: Backoff, times: int, now_s: float) -> float:
    return [backoff.failed(now_s) for _ in range(times)][-1]


def test_rests_double_up_to_a_bound_and_one_answer_ends_them() -> None:
    backoff, now_s = Backoff(1.0), 100.0
    assert failed(backoff, FAILURES - 1, now_s) == 0
    assert not backoff.is_active(now_s)
    for want_s in (1, 2, 4, 8, 16, 30, 30):
        assert backoff.failed(now_s) == want_s
        assert backoff.is_active(now_s + want_s - 0.1)
        now_s += want_s
        assert not backoff.is_active(now_s)
    backoff.answered()
    assert failed(backoff, FAILURES - 1, now_s) == 0
    assert backoff.failed(now_s) == 1


def test_what_fails_during_a_rest_does_not_lengthen_it() -> None:
    backoff = Backoff(1.0)
    failed(backoff, FAILURES, 100.0)
    assert failed(backoff, 50, 100.9) == 0
    assert not backoff.is_active(101.0)
    assert backoff.failed(101.0) == 2


def test_a_replica_that_failed_for_days_rests_no_longer_than_the_bound() -> None:
    backoff = Backoff(1.0)
    assert all(backoff.failed(n * LONGEST_S) <= LONGEST_S for n in range(2000))


def test_one_that_is_needed_does_not_rest() -> None:
    backoff = Backoff(1.0)
    failed(backoff, FAILURES, 100.0)
    backoff.end()
    assert not backoff.is_active(100.0)


@dataclass
class Gated(FakeReply):
    """A stream that begins when it is let."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def relay(self, feed: Feed, *, idle_s: float) -> bool:
        await self.gate.wait()
        return await super().relay(feed, idle_s=idle_s)


class Fleet:
    """Replicas of which some fail; which one a request goes to first is the policy's affair."""

    def __init__(self, failing: set[str]) -> None:
        self.failing = failing
        self.upstream = FakeUpstream(self._answer)
        self.prober = FakeProber()
        self.gate = asyncio.Event()
        """Streams wait for it."""
        self.gate.set()

    def _answer(self, asked: ReplicaConfig, request: Outgoing) -> FakeReply | BrokenError:
        if asked.name in self.failing:
            return FakeReply([b"{}"], status=500)
        if b'"stream":true' in request.body:
            return Gated([EVENT, DONE], content_type="text/event-stream", gate=self.gate)
        return FakeReply([OK])

    def asked(self, name: str) -> int:
        return sum(one == name for one, _ in self.upstream.asked)

    @asynccontextmanager
    async def running(
        self, count: int, backoff_s: float = 60.0
    ) -> AsyncIterator[tuple[Router, httpx.AsyncClient]]:
        config, timing = config_for(*replicas(count)), replace(QUICK, backoff_s=backoff_s)
        async with (
            running(config, upstream=self.upstream, prober=self.prober, timing=timing) as router,
            httpx.AsyncClient(base_url=router.url) as client,
        ):
            await routable(router, count)
            yield router, client


async def test_a_replica_that_fails_what_another_answers_gets_nothing_for_a_while() -> None:
    fleet = Fleet({"r0"})
    async with fleet.running(2) as (router, client):
        for n in range(10):
            response = await client.post("/v1/completions", json=BODY | {"stream": n % 2 == 0})
            assert response.status_code == 200
        assert fleet.asked("r0") == FAILURES
        assert router.rooms.replicas.fleet.routable.bit_count() == 1  # whatever probes say
        url = f"http://127.0.0.1:{router.probe_port}/metrics"
        labels = f'{{model_name="{MODEL}",replica="r0"}}'
        assert f"evenkeel_router_replica_backoff_total{labels} 1.0" in (await client.get(url)).text


async def test_a_replica_that_rested_is_tried_again_and_stays_if_it_answers() -> None:
    fleet = Fleet({"r0"})
    async with fleet.running(2, backoff_s=0.1) as (router, client):
        for _ in range(FAILURES):
            await client.post("/v1/completions", json=BODY)
        fleet.failing.clear()
        await routable(router, 2)
        for n in range(20):
            await client.post("/v1/completions", json=BODY | {"prompt": f"{n}"})
        assert fleet.asked("r0") > FAILURES
        assert router.rooms.replicas.totals["r0"].backoffs == 1


async def test_a_process_is_not_blamed_for_the_one_before_it() -> None:
    """`kill -9`: what it failed is answered elsewhere when it has been started again already."""
    fleet = Fleet({"r0"})
    async with fleet.running(2) as (router, client):
        fleet.gate.clear()
        asking = [
            asyncio.create_task(client.post("/v1/completions", json=BODY | {"stream": True}))
            for _ in range(4 * FAILURES)
        ]
        await until(lambda: fleet.asked("r1") == len(asking), "all to be asked of the other one")
        assert fleet.asked("r0") >= FAILURES
        dead = next(iter(router.rooms.replicas.fleet))
        fleet.prober.verdicts["r0"] = ProbeVerdict.GONE
        await until(lambda: not dead.joined, "it to be lost")
        fleet.prober.verdicts["r0"] = ProbeVerdict.READY
        await routable(router, 2)
        fleet.gate.set()
        for answer in asking:
            assert (await answer).content == EVENT + DONE
        assert dead.routable
        assert router.rooms.replicas.totals["r0"].backoffs == 0


async def test_a_request_that_fails_everywhere_counts_against_no_replica() -> None:
    fleet = Fleet({"r0", "r1", "r2"})
    async with fleet.running(3) as (router, client):
        for _ in range(3 * FAILURES):
            assert (await client.post("/v1/completions", json=BODY)).status_code == 502
        assert router.rooms.replicas.fleet.routable.bit_count() == 3
        assert not any(totals.backoffs for _, totals in router.rooms.replicas.totals.items())


async def test_a_replica_in_backoff_returns_if_it_is_the_only_one() -> None:
    fleet = Fleet({"r0"})
    async with fleet.running(2) as (router, client):
        for _ in range(FAILURES):
            await client.post("/v1/completions", json=BODY)
        await routable(router, 1)
        fleet.failing.clear()
        fleet.prober.verdicts["r1"] = ProbeVerdict.NOT_READY
        member = router.rooms.replicas.fleet.member("r0")
        assert member is not None
        await until(lambda: member.routable, "it to be back")
        assert (await client.post("/v1/completions", json=BODY)).content == OK


@pytest.mark.parametrize("others", [True, False])
async def test_the_last_replica_that_takes_requests_keeps_them(others: bool) -> None:
    rooms = rooms_of("r0", "r1")
    fleet = rooms.replicas.fleet
    monitor = HealthMonitor(rooms.settings, rooms.replicas, rooms.service_ledger, FakeProber())
    ticket = selected(rooms, client(), gated=False).ticket
    (answers,) = (member for member in fleet if member is not ticket.member)
    if not others:
        fleet.unready(answers)
    for _ in range(FAILURES):
        assert ticket.member.routable
        monitor.failed((ticket,), answered_by=answers.name)
    assert ticket.member.routable is not others
