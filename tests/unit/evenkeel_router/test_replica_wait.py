"""What a wait costs a request of its time: for a first replica nothing, for everything else the limit's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from evenkeel_contract.routerconfig import AtZero, LimitsConfig, ReplicaConfig
from evenkeel_router.api.errors import Refusal
from evenkeel_router.fleet.health import HealthMonitor
from evenkeel_router.request.forward import Forwarder
from evenkeel_router.request.large_bodies import LargeBodies
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.transport.upstream import ConnectError, Exchange, Outgoing, RelocatedError

from tests.support.fakes import FakeProber, FakeReply, FakeUpstream
from tests.support.nasty import OK
from tests.support.router_rooms import admitted, asked, client, ends, is_empty, joins, rooms_of
from tests.support.virtual_time import run_virtually

QUEUE_S, ANSWER_S, ACTIVATION_S = 30.0, 110.0, 600.0
LIMITS = LimitsConfig(
    queue_timeout_s=QUEUE_S,
    activation_timeout_s=ACTIVATION_S,
    first_token_timeout_s=10.0,
    answer_timeout_s=110.0,
)


@dataclass(slots=True)
class Refusing(FakeUpstream):
    """No process listens where nobody has said that one does."""

    rooms: Rooms | None = None
    listening: set[str] = field(default_factory=set)

    async def connect(self, replica: ReplicaConfig) -> Exchange:
        if replica.name in self.listening:
            return await FakeUpstream.connect(self, replica)
        assert self.rooms is not None
        ends(self.rooms, replica.name)
        raise ConnectError("refused")


def fine(replica: ReplicaConfig, request: Outgoing) -> FakeReply:
    return FakeReply([OK])


async def forwarded(rooms: Rooms, upstream: FakeUpstream) -> int:
    """The status of one request."""
    health = HealthMonitor(rooms.settings, rooms.replicas, rooms.service_ledger, FakeProber())
    forwarder = Forwarder(
        rooms.settings,
        rooms.replicas,
        rooms.service_ledger.accounting,
        rooms.gates,
        upstream=upstream,
        health=health,
        large_bodies=LargeBodies(),
        unanswered=rooms.intake.unanswered,
        is_draining=lambda: False,
    )
    state, request = asked()
    try:
        await forwarder.forward(state, admitted(rooms, client()), request)
    except Refusal as refusal:
        return refusal.outcome.status
    finally:
        assert is_empty(rooms)
        assert not rooms.intake.unanswered
    return state.status


def rooms_at_zero() -> Rooms:
    return rooms_of(limits=LIMITS, at_zero=AtZero.ACTIVATE)


def test_the_wait_for_a_first_replica_counts_towards_no_other_limit() -> None:
    async def scene() -> None:
        rooms, upstream = rooms_at_zero(), FakeUpstream(fine)
        asking = asyncio.create_task(forwarded(rooms, upstream))
        await asyncio.sleep(ACTIVATION_S - 1)
        joins(rooms, "r0")
        assert await asking == 200
        assert upstream.silences_s == [ANSWER_S]

    run_virtually(scene())


@pytest.mark.parametrize(("returns_after_s", "want"), [(QUEUE_S - 1, 200), (QUEUE_S + 1, 503)])
def test_after_the_wait_for_a_first_replica_all_of_the_queue_timeout_is_left(
    returns_after_s: float, want: int
) -> None:
    """The first replica is lost before the request reaches it."""

    async def scene() -> None:
        rooms = rooms_at_zero()
        upstream = Refusing(fine, rooms=rooms)
        asking = asyncio.create_task(forwarded(rooms, upstream))
        await asyncio.sleep(ACTIVATION_S - 1)
        joins(rooms, "r0")
        await asyncio.sleep(returns_after_s)
        upstream.listening.add("r0")
        joins(rooms, "r0")
        assert await asking == want

    run_virtually(scene())


def test_a_request_that_is_taken_back_has_no_more_time_in_all() -> None:
    async def scene() -> None:
        left = iter([RelocatedError("drains"), FakeReply([OK])])
        rooms, upstream = rooms_of("r0", "r1", limits=LIMITS), FakeUpstream(lambda *_: next(left))
        upstream.takes_s = 100.0
        assert await forwarded(rooms, upstream) == 200
        assert upstream.silences_s == [ANSWER_S, pytest.approx(QUEUE_S + ANSWER_S - 100.0)]

    run_virtually(scene())


@pytest.mark.parametrize(("at_zero", "waits_s"), [(AtZero.REFUSE, 0.0), (AtZero.WAIT, QUEUE_S)])
def test_without_activation_a_request_waits_as_long_as_for_any_replica(
    at_zero: AtZero, waits_s: float
) -> None:
    async def scene() -> None:
        rooms, now = rooms_of(limits=LIMITS, at_zero=at_zero), asyncio.get_running_loop().time
        began_s = now()
        assert await forwarded(rooms, FakeUpstream(fine)) == 503
        assert now() - began_s == pytest.approx(waits_s, abs=0.01)
        assert not len(rooms.replicas.wait_queue)

    run_virtually(scene())


def test_a_short_activation_timeout_leaves_the_queue_timeout() -> None:
    async def scene() -> None:
        limits = replace(LIMITS, activation_timeout_s=QUEUE_S / 3)
        rooms = rooms_of(limits=limits, at_zero=AtZero.ACTIVATE)
        asking = asyncio.create_task(forwarded(rooms, FakeUpstream(fine)))
        await asyncio.sleep(QUEUE_S - 1.0)
        joins(rooms, "r0")
        assert await asking == 200

    run_virtually(scene())


def test_a_first_replica_may_follow_one_that_leaves_meanwhile() -> None:
    async def scene() -> None:
        rooms, upstream = rooms_at_zero(), FakeUpstream(fine)
        joins(rooms, "r0")
        rooms.replicas.activation.look()
        ends(rooms, "r0")
        asking = asyncio.create_task(forwarded(rooms, upstream))
        await asyncio.sleep(1.0)
        member = rooms.replicas.fleet.member("r0")
        assert member is not None
        rooms.replicas.fleet.remove(member)
        rooms.replicas.activation.look()
        await asyncio.sleep(QUEUE_S + 10.0)
        joins(rooms, "r1")
        assert await asking == 200

    run_virtually(scene())
