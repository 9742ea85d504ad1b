"""Replicas that say they are ready and fail what others answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx
import pytest
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_fairshare.fleet.contract import NOTHING, ReplicaSet
from evenkeel_router.app import Router, running
from evenkeel_router.fleet.health import NEW_LOOKS, HealthMonitor
from evenkeel_router.fleet.probe import ProbeVerdict
from evenkeel_router.fleet.selection import ALL
from evenkeel_router.fleet.suspicion import NEW, Evidence
from evenkeel_router.transport.upstream import BrokenError, Feed, Outgoing

from tests.support.fakes import FakeProber, FakeReply, FakeUpstream, replicas
from tests.support.nasty import DONE, EVENT, OK
from tests.support.router_rooms import client, rooms_of, selected
from tests.support.routers import MODEL, PATIENCE_S, QUICK, config_for, routable, until

BODY = {"model": MODEL, "prompt": "x"}
FAILS = Evidence("lost", "it fails")
FAILURES = 2  # in a row, where other replicas fail hardly ever


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
        self, count: int, first_rest_s: float = 60.0, avoid_s: float = 0.01
    ) -> AsyncIterator[tuple[Router, httpx.AsyncClient]]:
        config, timing = (
            config_for(*replicas(count)),
            replace(QUICK, first_rest_s=first_rest_s, avoid_s=avoid_s),
        )
        async with (
            running(config, upstream=self.upstream, prober=self.prober, timing=timing) as router,
            httpx.AsyncClient(base_url=router.url) as client,
        ):
            await routable(router, count)
            yield router, client


async def failing(client: httpx.AsyncClient, fleet: Fleet, failures: int) -> None:
    """Requests that r0 fails and another replica answers; each prompt is new, so that no cache attracts it."""
    n = 0
    while fleet.asked("r0") < failures:
        response = await client.post(
            "/v1/completions", json=BODY | {"prompt": f"{n}", "stream": n % 2 == 0}
        )
        assert response.status_code == 200
        n += 1
        await asyncio.sleep(0.02)


async def test_a_replica_that_fails_what_another_answers_is_suspect() -> None:
    fleet = Fleet({"r0"})
    async with fleet.running(2) as (router, client):
        await failing(client, fleet, FAILURES)
        for n in range(10):
            response = await client.post("/v1/completions", json=BODY | {"prompt": f"later {n}"})
            assert response.status_code == 200
        assert fleet.asked("r0") == FAILURES
        assert router.rooms.replicas.fleet.routable.bit_count() == 1  # whatever probes say
        url = f"http://127.0.0.1:{router.probe_port}/metrics"
        labels = f'{{model_name="{MODEL}",replica="r0"}}'
        metrics = (await client.get(url)).text
        assert f"evenkeel_router_replica_backoff_total{labels} 1.0" in metrics
        labels = f'{{model_name="{MODEL}",replica="r0",reason="lost"}}'
        assert f"evenkeel_router_replica_suspect{labels} 1.0" in metrics
        member = router.rooms.replicas.fleet.member("r0")
        assert member is not None
        why = "the replica answered 500 with application/json"
        assert member.standing.suspicion == f"suspect: {why}"


async def test_a_client_that_a_replica_failed_goes_elsewhere_for_a_while() -> None:
    fleet = Fleet({"r0"})
    async with fleet.running(3, avoid_s=60.0) as (router, client):
        for n in range(20):
            response = await client.post("/v1/completions", json=BODY | {"prompt": f"{n}"})
            assert response.status_code == 200
        assert fleet.asked("r0") == 1
        assert router.rooms.replicas.fleet.routable.bit_count() == 3  # one failure is no evidence


async def test_a_suspect_gets_one_probe_at_a_time_and_no_client_notices() -> None:
    fleet = Fleet({"r0"})
    async with fleet.running(2, first_rest_s=0.05) as (router, client):
        await failing(client, fleet, FAILURES)
        member = router.rooms.replicas.fleet.member("r0")
        assert member is not None
        await until(lambda: bool(router.rooms.replicas.fleet.rested), "the rest to end")
        fleet.upstream.takes_s = 0.05
        asking = [client.post("/v1/completions", json=BODY | {"prompt": f"{n}"}) for n in range(8)]
        assert {one.status_code for one in await asyncio.gather(*asking)} == {200}
        assert fleet.asked("r0") == FAILURES + 1
        assert member.suspect


async def test_a_cured_replica_returns_by_its_answers() -> None:
    fleet = Fleet({"r0"})
    async with fleet.running(2, first_rest_s=0.05) as (router, client):
        await failing(client, fleet, FAILURES)
        fleet.failing.clear()
        member = router.rooms.replicas.fleet.member("r0")
        assert member is not None

        async def asks_until_it_is_trusted() -> None:
            n = 0
            while member.standing.allowed is not None:
                n += 1
                asking = [
                    client.post("/v1/completions", json=BODY | {"prompt": f"{n} {m}"})
                    for m in range(4)
                ]
                assert {one.status_code for one in await asyncio.gather(*asking)} == {200}
                await asyncio.sleep(0.02)

        await asyncio.wait_for(asks_until_it_is_trusted(), PATIENCE_S)
        assert router.rooms.replicas.fleet.routable.bit_count() == 2
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
        for _ in range(9):
            assert (await client.post("/v1/completions", json=BODY)).status_code == 502
        assert router.rooms.replicas.fleet.routable.bit_count() == 3
        assert not any(totals.backoffs for _, totals in router.rooms.replicas.totals.items())


async def test_a_suspect_returns_if_it_is_the_only_one() -> None:
    fleet = Fleet({"r0"})
    async with fleet.running(2) as (router, client):
        await failing(client, fleet, FAILURES)
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
    for n in range(FAILURES):
        assert ticket.member.routable
        monitor.failed([(ticket, FAILS)], f"client {n}", answered_by=answers.name)
    assert ticket.member.routable is not others


async def test_one_client_alone_makes_no_replica_suspect_by_streams_that_break_off() -> None:
    rooms = rooms_of("r0", "r1", "r2")
    monitor = HealthMonitor(rooms.settings, rooms.replicas, rooms.service_ledger, FakeProber())
    tickets = [selected(rooms, client(), gated=False).ticket for _ in range(6)]
    for ticket in tickets:
        monitor.broke_off(ticket, "mean", FAILS)
    assert rooms.replicas.fleet.routable.bit_count() == 3
    first = tickets[0]
    monitor.broke_off(first, "another", FAILS)
    assert first.member.suspect


async def test_a_replica_that_broke_off_an_answer_is_to_show_more_of_the_next_one() -> None:
    rooms = rooms_of("r0", "r1", "r2")
    monitor = HealthMonitor(rooms.settings, rooms.replicas, rooms.service_ledger, FakeProber())
    first, second, third = (selected(rooms, client(), gated=False).ticket for _ in range(3))
    assert len({one.member for one in (first, second, third)}) == 3
    monitor.broke_off(first, "one", FAILS)
    monitor.broke_off(second, "one", FAILS)
    marks = [one.member.standing.breaks_off for one in (first, second, third)]
    assert marks == [True, False, False], "the second one may be the fault of the client"


@pytest.mark.parametrize("marked", [False, True])
async def test_what_a_process_broke_off_marks_no_process_after_it(marked: bool) -> None:
    rooms = rooms_of("r0", "r1")
    monitor = HealthMonitor(rooms.settings, rooms.replicas, rooms.service_ledger, FakeProber())
    ticket = selected(rooms, client(), gated=False).ticket
    ticket.member.lives += 1
    ticket.member.standing.breaks_off = marked
    monitor.broke_off(ticket, "one", FAILS)
    assert ticket.member.standing.breaks_off is marked


async def test_a_replica_that_returned_is_trusted_after_a_while_without_requests() -> None:
    """Else an alert would name it for as long as caches attract all requests to others."""
    fleet = Fleet({"r0"})
    async with fleet.running(2, first_rest_s=0.05) as (router, client):
        await failing(client, fleet, FAILURES)
        member = router.rooms.replicas.fleet.member("r0")
        assert member is not None
        fleet.failing.clear()
        await until(lambda: bool(router.rooms.replicas.fleet.rested), "the rest to end")
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        assert member.standing.suspicion
        await until(lambda: member.standing.allowed is None, "the while to end")
        assert not member.standing.suspicion
        assert member.routable
        assert router.rooms.replicas.fleet.routable.bit_count() == 2


async def test_a_replica_that_returned_is_not_trusted_while_it_has_not_answered() -> None:
    fleet = Fleet({"r0"})
    async with fleet.running(2, first_rest_s=0.05) as (router, client):
        await failing(client, fleet, FAILURES)
        replicas_ = router.rooms.replicas.fleet
        member = replicas_.member("r0")
        assert member is not None
        fleet.failing.clear()
        await until(lambda: bool(replicas_.rested), "the rest to end")
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        await until(lambda: member.routable, "it to return")
        ticket = replicas_.select(
            replicas_.match("ns/a/c", weight=1.0, text=b"x", input_tokens=1),
            ReplicaSet(replicas_.routable & ~(1 << (member.slot or 0))),
        )
        assert ticket is not None
        assert ticket.member is member
        probes = fleet.prober.probes
        await until(lambda: fleet.prober.probes > probes + 6 * NEW_LOOKS, "many probes")
        assert member.standing.allowed == 2
        replicas_.finished(ticket, None)
        await until(lambda: member.standing.allowed is None, "the while to end")


async def test_a_replica_on_its_way_back_takes_all_requests_if_it_is_the_last() -> None:
    rooms = rooms_of("r0", "r1")
    fleet = rooms.replicas.fleet
    returning, other = fleet
    returning.standing.suspect(FAILS, 0.0)
    returning.standing.begun()
    fleet.ready(returning)
    tickets = [selected(rooms, client(), gated=False).ticket for _ in range(12)]
    assert fleet.load(returning) == returning.standing.allowed == 2
    fleet.unready(other)
    assert fleet.routable.bit_count() == 1
    tickets += [selected(rooms, client(), gated=False).ticket for _ in range(3)]
    assert fleet.load(returning) == 5
    fleet.ready(other)
    for ticket in tickets:
        fleet.finished(ticket, None)
    assert fleet.routable.bit_count() == 2


async def test_a_replica_on_its_way_back_holds_few_sequences() -> None:
    fleet = rooms_of("r0", "r1").replicas.fleet
    returning, other = fleet
    returning.standing.suspect(FAILS, 0.0)
    returning.standing.begun()
    fleet.ready(returning)
    for sequences, is_full in ((1, False), (2, True)):
        match = fleet.match("ns/a/c", weight=1.0, text=b"x", input_tokens=1, sequences=sequences)
        assert returning.slot is not None
        assert other.slot is not None
        ticket = fleet.select(match, ReplicaSet(1 << other.slot))
        assert ticket is not None
        assert (fleet.routable >> returning.slot & 1 == 0) == is_full
        fleet.finished(ticket, NOTHING)
        assert fleet.routable >> returning.slot & 1


async def test_a_replica_that_lost_its_probe_with_the_client_gets_another_one() -> None:
    rooms = rooms_of("r0", "r1")
    fleet = rooms.replicas.fleet
    suspect, _ = fleet
    suspect.standing.suspect(FAILS, 0.0)
    fleet.unready(suspect)
    for _ in range(2):
        assert suspect.standing.wants_probe(10.0)
        fleet.offer(suspect)
        probe = selected(rooms, client(), gated=False).ticket
        assert (probe.member, probe.probe) == (suspect, True)
        assert not suspect.standing.wants_probe(10.0)
        assert selected(rooms, client(), gated=False).ticket.member is not suspect
        fleet.finished(probe, None)


async def test_a_burst_meets_few_new_processes_at_once() -> None:
    """All prompts begin alike, so the first process that got one attracts the others."""
    fleet = Fleet({"r0"})
    async with fleet.running(3) as (router, client):
        fleet.upstream.takes_s = 0.05
        asking = [client.post("/v1/completions", json=BODY) for _ in range(12)]
        assert {one.status_code for one in await asyncio.gather(*asking)} == {200}
        assert fleet.asked("r0") == NEW
        assert not router.rooms.replicas.fleet.avoided.keys() & {ALL}


async def test_a_new_process_that_failed_gets_nothing_until_it_is_known_why() -> None:
    fleet = Fleet({"r0"})
    fleet.gate.clear()
    async with fleet.running(2) as (router, client):
        first = asyncio.create_task(client.post("/v1/completions", json=BODY | {"stream": True}))
        await until(lambda: fleet.asked("r1") == 1, "the other one to be asked")
        assert fleet.asked("r0") == 1
        replicas_ = router.rooms.replicas.fleet
        assert ALL in replicas_.avoided
        other = await client.post("/v1/completions", json=BODY | {"prompt": "another"})
        assert (other.status_code, fleet.asked("r0")) == (200, 1)
        fleet.gate.set()
        assert (await first).status_code == 200
        await until(lambda: ALL not in replicas_.avoided, "the doubt to end")


async def test_a_process_that_gets_no_request_is_new_for_a_while_only() -> None:
    fleet = Fleet(set())
    async with fleet.running(2) as (router, _):
        members = list(router.rooms.replicas.fleet)
        await until(lambda: not any(one.standing.is_new for one in members), "the while to end")
        assert router.rooms.replicas.fleet.routable.bit_count() == 2
