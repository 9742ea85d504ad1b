"""The gates of one router: what they publish, and that nobody waits at the gate of a process that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from evenkeel_contract.routerconfig import ReplicaConfig, SchedulingConfig, StateConfig
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.fleet.contract import NOTHING, Usage
from evenkeel_fairshare.ledger import EqualWeights, ReplicaRow
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.fcfs import Fcfs
from evenkeel_router.api.identity import UNPAID, Client, client_of
from evenkeel_router.gate.engine_load import FIRST, QUEUE, EngineLoad
from evenkeel_router.gate.gate import Gate
from evenkeel_router.gate.sharing import ClientAtGate, Sharing
from evenkeel_router.gate.turns import Turn
from evenkeel_router.gate.upkeep import GateUpkeep
from evenkeel_router.gate.window import FIXED_TOKENS, GatedRequest
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


async def test_a_whole_answer_goes_once_a_prompt_before_it_should_be_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evenkeel_router.gate.prompts.MOST_TOKENS", 0)
    rooms = rooms_of("r0")
    attempts = [selected(rooms, A, gated=False) for _ in range(5)]

    def enter(attempt: Attempt, *, streams: bool = False) -> Turn:
        return rooms.gates.enter(
            attempt.ticket, A, streams=streams, max_output_tokens=9, paid=UNPAID
        )

    first = enter(attempts[0], streams=True)
    first.place.gate.streamed.best_pace = 0.0001
    first.leave(NOTHING)
    turns = [enter(attempt) for attempt in attempts[1:]]
    assert [turn.waits for turn in turns] == [False, False, True, True]
    async with asyncio.timeout(20):
        assert await turns[2].admission(20)
        assert await turns[3].admission(20)
    for turn in turns:
        turn.leave(NOTHING)
    assert not rooms.gates.waiting


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
        upkeep = GateUpkeep(
            rooms.settings, rooms.replicas, rooms.gates, session, lending=rooms.lending
        )
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


@pytest.mark.parametrize(("interval_s", "silent_s"), [(1.0, 3.0), (0.2, 3.0), (5.0, 15.0)])
async def test_a_router_that_does_not_answer_frees_its_part_of_a_replica(
    interval_s: float, silent_s: float
) -> None:
    rooms = rooms_of("r0", state=StateConfig(exchange_interval_s=interval_s))
    ledger, contact = rooms.service_ledger.ledger, PeerContact(since_s=0.0, router="other")
    rooms.service_ledger.peer_contacts[Peer("p", "http://p")] = contact
    ledger.members = frozenset({"router", "other"})
    ledger.live_of["other"] = frozenset({"~r0@other#1"})
    own = ("router", "~r0@router#1")
    both = [own, ("other", "~r0@other#1")]

    def gates(now_s: float) -> list[tuple[str, str]]:
        return list(rooms.service_ledger.gates_of("r0", now_s))

    assert gates(silent_s) == both, "it may answer yet"
    assert gates(silent_s + 0.1) == [own]
    contact.answered_s = 9.0
    assert gates(9.0 + silent_s) == both
    assert gates(9.1 + silent_s) == [own]
    contact.answered_s, contact.error = 12.1, "it answered 500"
    assert gates(12.1) == [own]


# What one gate tells its engine's limit and the other routers


def gated(*, count: int, streams: bool = True) -> tuple[Gate, list[GatedRequest]]:
    """A gate of an engine whose first reading allows `FIRST` requests, and those of so many that were sent."""
    gate = Gate(Fcfs(), Sharing("r", EqualWeights()))
    gate.read(EngineLoad(0, 0, 0), 0.0)
    for n in range(count):
        gate.arrive(request(n, streams=streams), 0.0)
    return gate, gate.admit(0.0)


def dlpm_gate() -> Gate:
    """Of a router that is alone."""
    return Gate(Dlpm(rules=DeficitRules(quantum=1000)), Sharing("r", EqualWeights()))


def request(number: int, client: str = "ns/a/c", **fields: Any) -> GatedRequest:
    given: dict[str, Any] = {"input_tokens": 100, "max_output_tokens": 50}
    name = f"{client} {number}"
    return GatedRequest(id=name, client=client, tenant="ns/a", arrival_s=0.0, **(given | fields))


@pytest.mark.parametrize(
    ("count", "streams", "sent", "limit", "unanswered"),
    [
        (2, True, 2, FIRST, QUEUE),  # nothing waits
        (3, True, 2, FIRST, 2 * QUEUE),  # one waits for a stream to begin
        (4, False, 4, FIRST, QUEUE),
        (5, False, 4, 2 * FIRST, QUEUE),  # one waits for a place in the batch
    ],
)
def test_the_limit_grows_that_requests_wait_for(
    count: int, streams: bool, sent: int, limit: float, unanswered: float
) -> None:
    gate, admitted = gated(count=count, streams=streams)
    assert len(admitted) == sent
    gate.read(EngineLoad(sent, 0, 0), 0.0)
    assert (gate.engine.limit, gate.engine.unanswered) == (limit, unanswered)


def test_streams_that_run_count_in_the_first_reading() -> None:
    gate = dlpm_gate()
    sent = [request(n) for n in range(9)]
    for n, one in enumerate(sent):
        assert gate.enter(one, 0.0)
        if n < 8:
            gate.begun(one, 0.1)
    gate.read(EngineLoad(0, 0, 0), 0.0)
    assert gate.engine.limit == 8 + QUEUE


def test_the_window_grows_only_while_a_request_waits() -> None:
    gate = Gate(Fcfs(), Sharing("r", EqualWeights()))
    one, other, last = (request(n) for n in range(3))
    for arriving in (one, other):
        gate.arrive(arriving, 0.0)
    assert gate.admit(0.0) == [one, other]
    gate.begun(one, 0.1)
    assert gate.streamed.limit == 2
    for arriving in (request(9), last):
        gate.arrive(arriving, 0.1)
    assert len(gate.admit(0.1)) == 1
    gate.begun(other, 0.2)
    assert gate.streamed.limit == 3


def test_a_stream_passes_whole_answers_that_wait_for_their_window() -> None:
    gate = dlpm_gate()
    whole = [request(n, streams=False) for n in range(9)]
    stream = request(10)
    for arriving in (*whole, stream):
        gate.arrive(arriving, 0.0)
    assert gate.admit(0.0) == [*whole[:4], stream]


def test_what_a_client_has_is_published_with_the_output_of_all_that_run() -> None:
    gate = dlpm_gate()
    one, other = request(0), request(1, charge_input=False, paid_output_tokens=4)
    stranger = request(2, "ns/b/c")
    for arriving in (one, other):
        assert gate.enter(arriving, 0.0)
    gate.arrive(stranger, 0.0)
    gate.progress(one, 1)
    assert gate.policy.clients()["ns/a/c"].deficit == 1000 - 100 - 2 * 1
    gate.progress(one, 5)
    gate.progress(other, 3)
    cost = LinearCost(1.0, 2.0, 0.0)
    held = gate.held(cost)
    assert held["ns/a/c"].service == 2 * 5
    gate.progress(other, 7)
    held = gate.held(cost)
    assert held["ns/a/c"].service == 2 * 5 + 2 * 3
    assert held["ns/a/c"].state[2:4] == (0.0, 2.0)
    assert held["ns/b/c"].state[2:4] == (1.0, 0.0)
    assert held["ns/a/c"].state[0] == gate.policy.clients()["ns/a/c"].deficit != 0.0


def news(gate: Gate, **rows: tuple[str, float, float]) -> None:
    """One client at the gate of each router: its service so far, and its requests that wait."""
    at = {router: {client: ClientAtGate(*row)} for router, (client, *row) in rows.items()}
    gate.share(at, EqualWeights())


def test_a_client_that_is_ahead_waits_for_those_at_other_routers() -> None:
    gate = Gate(Fcfs(), Sharing("r", EqualWeights()))
    for n in range(7):
        news(gate, r=("ns/a/c", 90.0 * n, 1.0), two=("ns/b/c", 10.0 * n, 1.0))
    ahead = request(0)
    assert not gate.would_send(ahead)
    assert not gate.enter(ahead, 0.0)
    assert gate.admit(0.0) == []
    stranger = request(1, "ns/s/c")
    assert gate.would_send(stranger)
    gate.arrive(stranger, 0.0)
    assert gate.admit(0.0) == [ahead], "for not all that wait here are ahead"


@pytest.mark.parametrize("come", [Gate.enter, Gate.arrive])
def test_the_first_request_at_a_gate_has_its_part_of_the_replica_at_once(
    come: Callable[[Gate, GatedRequest, float], object],
) -> None:
    gate = dlpm_gate()
    news(gate, two=("ns/a/c", 0.0, 3.0))
    assert gate.streamed.part == 0.0
    come(gate, request(0), 0.0)
    assert gate.streamed.part == gate.whole.part == 1 / 4


def test_the_pace_of_a_request_that_did_not_wait_is_known() -> None:
    gate = dlpm_gate()
    one = request(0)
    assert gate.worth_s(one) == 0.0
    assert gate.enter(one, 5.0)
    gate.begun(one, 6.0)
    assert gate.streamed.best_pace == 1.0 / (FIXED_TOKENS + 100)
    assert gate.worth_s(one) == 0.0
    assert gate.worth_s(request(1, matched_tokens=60)) == 60 * gate.streamed.best_pace
