"""The gates of one router: what they publish, and that nobody waits at the gate of a process that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from evenkeel_contract.routerconfig import ReplicaConfig, SchedulingConfig
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_fairshare.ledger import ReplicaRow
from evenkeel_router.api.identity import Client, client_of
from evenkeel_router.gate.engine_load import EngineLoad
from evenkeel_router.gate.upkeep import GateUpkeep
from evenkeel_router.ledger.contacts import Peer, PeerContact
from evenkeel_router.request.attempt import Attempt
from evenkeel_router.telemetry.rooms import Rooms

from tests.support.fakes import FakeReply, FakeUpstream
from tests.support.router_rooms import (
    client,
    dispatched,
    ends,
    is_empty,
    joins,
    rooms_of,
    selected,
)
from tests.support.routers import QUICK, tenancy

A = client()
CHAT = client_of(tenancy().tenants[0], "chat")
"""Its weight within its tenant is 3."""


def upstream() -> FakeUpstream:
    return FakeUpstream(lambda *_: FakeReply([]))


def row(rooms: Rooms, of: Client) -> ReplicaRow:
    """What the ledger has of a client at r0."""
    account = rooms.service_ledger.account("r0")
    assert account is not None
    return account.row(of.identity)


async def test_service_is_published_by_weight_and_only_once() -> None:
    rooms = rooms_of("r0")
    for served in (120.0, 240.0):
        attempt = await dispatched(rooms, CHAT, upstream())
        rooms.gates.publish("r0")
        attempt.finished(Usage(100, 0, 10))
        for _ in range(2):
            rooms.gates.publish("r0")
            published = row(rooms, CHAT)
            assert (published.service, published.normalised) == (served, served / 3)
            assert published.requests == served / 120


async def test_who_waits_and_runs_is_published_until_it_has_left() -> None:
    rooms = rooms_of("r0")
    attempts = [selected(rooms, A) for _ in range(5)]
    rooms.gates.publish("r0")
    assert (row(rooms, A).running, row(rooms, A).waiting, row(rooms, A).requests) == (2, 3, 2)
    for attempt in attempts:
        attempt.refused()
    rooms.gates.publish("r0")
    assert (row(rooms, A).running, row(rooms, A).waiting) == (0, 0)


async def left(attempts: list[Attempt]) -> list[bool | None]:
    """By request whether it was admitted; None for those that still wait."""
    await asyncio.sleep(0)
    turns = [attempt.turn for attempt in attempts if attempt.turn is not None]
    assert len(turns) == len(attempts)
    return [None if turn.waits else await turn.admission(0) for turn in turns]


async def test_who_waits_for_a_process_that_is_gone_selects_again() -> None:
    rooms = rooms_of("r0")
    attempts = [selected(rooms, A) for _ in range(4)]
    assert await left(attempts) == [True, True, None, None]
    ends(rooms, "r0")
    assert await left(attempts) == [True, True, False, False]


async def test_who_waits_at_a_gate_that_is_replaced_selects_again() -> None:
    """Another process may be known before the one before it is found to be gone."""
    rooms = rooms_of("r0")
    attempts = [selected(rooms, A) for _ in range(3)]
    rooms.service_ledger.accounting.meets_unreported("r0", 1.0)
    assert rooms.gates.in_use() == [], "the gate is of the process before"
    successor = selected(rooms, A)
    assert await left([*attempts, successor]) == [True, True, False, True]
    assert rooms.gates.in_use() == ["r0"]
    for attempt in (*attempts, successor):
        attempt.refused()
    assert is_empty(rooms)


async def test_a_changed_policy_sends_away_who_waits_and_forgets_who_runs() -> None:
    rooms = rooms_of("r0")
    attempts = [selected(rooms, A) for _ in range(3)]
    before = rooms.settings.config
    rooms.gates.apply(
        rooms_of(scheduling=SchedulingConfig(client_quantum=7)).settings.config, before
    )
    assert await left(attempts) == [True, True, False]
    for attempt in attempts:
        attempt.refused()
    assert rooms.gates.gate("r0") is None
    assert is_empty(rooms)


async def test_a_mixed_queue_is_empty_once_all_have_left() -> None:
    rooms = rooms_of("r0")
    attempts = [selected(rooms, one) for one in (A, CHAT, A, CHAT, A, CHAT)]
    for attempt in reversed(attempts):
        attempt.finished(None)
    gate = rooms.gates.gate("r0")
    assert gate is not None
    assert (len(gate), gate.unanswered, gate.has_work, gate._waiting_streamed) == (0, 0, False, 0)


@asynccontextmanager
async def engine(page: bytes) -> AsyncIterator[tuple[ReplicaConfig, asyncio.Event, asyncio.Event]]:
    """An engine with this page of metrics: it sets the first event when it is asked, and waits for the second one."""
    asked, answers = asyncio.Event(), asyncio.Event()

    async def metrics(request: web.Request) -> web.Response:
        asked.set()
        await answers.wait()
        return web.Response(body=page)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    server = TestServer(app)
    await server.start_server()
    try:
        yield ReplicaConfig(name="r0", url=str(server.make_url(""))), asked, answers
    finally:
        await server.close()


@pytest.mark.parametrize("replaced", [False, True])
async def test_what_an_engine_said_of_itself_is_not_taken_for_its_successor(replaced: bool) -> None:
    page = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 7\n"
    rooms = rooms_of("r0")
    rooms.settings.timing = QUICK
    selected(rooms, A)
    async with engine(page) as (replica, asked, answers), aiohttp.ClientSession() as session:
        rooms.replicas.configured["r0"] = replica
        upkeep = GateUpkeep(rooms.settings, rooms.replicas, rooms.gates, session)
        running = asyncio.create_task(upkeep.run())
        await asked.wait()
        if replaced:
            ends(rooms, "r0")
            joins(rooms, "r0")
            selected(rooms, A)
        reading = upkeep._reading["r0"]
        answers.set()
        await reading
        gate = rooms.gates.gate("r0")
        assert gate is not None
        assert gate.engine.load == (None if replaced else EngineLoad(7, 0, 0))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_router_that_does_not_answer_frees_its_part_of_a_replica() -> None:
    rooms = rooms_of("r0")
    ledger, contact = rooms.service_ledger.ledger, PeerContact(since_s=0.0, router="other")
    rooms.service_ledger.peer_contacts[Peer("p", "http://p")] = contact
    ledger.members = frozenset({"router", "other"})
    ledger.live_of["other"] = frozenset({"~r0@other#1"})
    own = ("router", "~r0@router#1")
    both = [own, ("other", "~r0@other#1")]

    def gates(now_s: float) -> list[tuple[str, str]]:
        return list(rooms.service_ledger.gates_of("r0", now_s))

    assert gates(3.0) == both, "it may answer yet"
    assert gates(3.1) == [own]
    contact.answered_s = 9.0
    assert gates(12.0) == both
    assert gates(12.1) == [own]
    contact.answered_s, contact.error = 12.1, "it answered 500"
    assert gates(12.1) == [own]
