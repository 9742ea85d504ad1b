"""What an attempt holds, and that each of its endings gives all of it back and settles the charge."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.routerconfig import SchedulingConfig
from evenkeel_fairshare.fleet.contract import NOTHING, ReplicaSet, Usage
from evenkeel_router.api.errors import rejected_by_replica
from evenkeel_router.api.identity import Paid
from evenkeel_router.ledger.held_work import HeldWork, TakenBack
from evenkeel_router.request.attempt import Attempt, PendingVerdict
from evenkeel_router.request.failures import Cause, FailedAttempt
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.transport.upstream import BrokenError, TooLargeError

from tests.support.fakes import FakeReply, FakeUpstream
from tests.support.router_rooms import (
    client,
    dispatched,
    held,
    is_empty,
    reports,
    rooms_of,
    selected,
)

ESTIMATE = Usage(100)
WORKER_QUANTUM = 20_000
ORDERED = SchedulingConfig(
    queue=QueueOwner.ROUTER, client_quantum=1000, worker_quantum=WORKER_QUANTUM
)
A = client()


def upstream() -> FakeUpstream:
    return FakeUpstream(lambda *_: FakeReply([]))


async def fails(attempt: Attempt) -> None:
    attempt.failed(ESTIMATE)


async def is_taken_back(attempt: Attempt) -> None:
    await attempt.relocated(ESTIMATE)


async def is_cut_off_while_it_is_taken_back(attempt: Attempt) -> None:
    assert attempt.booking is not None
    attempt.taken_back = PendingVerdict(
        TakenBack(HeldWork(0, 0, 1), 1.0, (attempt.booking.number,))
    )
    moving = asyncio.create_task(attempt.relocated(ESTIMATE))
    await asyncio.sleep(0)
    moving.cancel()
    await asyncio.gather(moving, return_exceptions=True)
    attempt.finished(None)


def over(usage: Usage | None) -> Callable[[Attempt], Awaitable[None]]:
    async def ends(attempt: Attempt) -> None:
        attempt.finished(usage)

    return ends


ENDINGS = [fails, is_taken_back, is_cut_off_while_it_is_taken_back]


@pytest.mark.parametrize("end", [*ENDINGS, over(None), over(NOTHING), over(ESTIMATE)])
async def test_every_ending_gives_back_all_once(end: Callable[[Attempt], Awaitable[None]]) -> None:
    rooms, way = rooms_of("r0"), upstream()
    attempt = await dispatched(rooms, A, way)
    assert not is_empty(rooms)
    for _ in range(2):
        await end(attempt)
        assert is_empty(rooms)
        assert way.closed == 1
        end = over(None)


@pytest.mark.parametrize(
    ("begun_s", "breaks_off", "probe", "tried", "proof"),
    [
        (0.0, False, False, 0, 2), (5.0, False, False, 0, 0), (5.0, False, True, 0, 8), (5.0, True, False, 0, 2),
        (5.0, True, True, 0, 8), (0.0, False, False, 1, 0), (5.0, False, True, 1, 0), (5.0, True, False, 1, 0),
    ],
)  # fmt: skip
async def test_who_proves_itself_and_with_how_many_tokens(
    begun_s: float, breaks_off: bool, probe: bool, tried: int, proof: int
) -> None:
    """R20: a process that has answered nothing, broke off an answer, or is suspect, while another replica could take the request."""
    rooms = rooms_of("r0", "r1")
    attempt = selected(rooms, A, gated=False)
    ticket = msgspec.structs.replace(attempt.ticket, probe=probe)
    ticket.member.standing.begun_s = begun_s
    ticket.member.standing.breaks_off = breaks_off
    tried = (1 << (1 - ticket.slot)) if tried else 0
    proving = Attempt(
        rooms.replicas.fleet, rooms.service_ledger.accounting, ticket, ReplicaSet(tried)
    )
    assert (proving.proof_tokens if proving.is_unproved else 0) == proof
    attempt.refused()


@pytest.mark.parametrize("end", [Attempt.refused, lambda attempt: attempt.finished(None)])
async def test_a_request_that_was_only_selected_leaves_its_gate(
    end: Callable[[Attempt], None],
) -> None:
    rooms = rooms_of("r0", scheduling=ORDERED)
    running = [selected(rooms, A) for _ in range(3)]
    for attempt in running:
        end(attempt)
        attempt.finished(None)  # does nothing
    assert is_empty(rooms)
    assert credit(rooms) == WORKER_QUANTUM
    gate = rooms.gates.gate("r0")
    assert gate is not None
    assert gate.policy.clients() == {}


def credit(rooms: Rooms) -> float:
    """What the client has left at r0 for the fleet's policy."""
    left: dict[int, float] = rooms.replicas.fleet.policy.credit(A.identity)
    return left.get(0, WORKER_QUANTUM)


@pytest.mark.parametrize(
    ("end", "charge", "service"),
    [
        (fails, 0.0, 0.0),  # no report shows that it was computed: the attempt that succeeds pays
        (is_taken_back, 0.0, 100.0),
        (over(None), 100.0, 0.0),
        (over(NOTHING), 0.0, 0.0),
        (over(Usage(100, 60, 5)), 100.0 + 2 * 5, 40.0 + 2 * 5),
    ],
)
async def test_an_ending_settles_the_fleets_charge_and_the_service(
    end: Callable[[Attempt], Awaitable[None]], charge: float, service: float
) -> None:
    rooms = rooms_of("r0", scheduling=ORDERED)
    attempt = await dispatched(rooms, A, upstream())
    assert credit(rooms) == WORKER_QUANTUM - 100
    booking = attempt.booking
    assert booking is not None
    await end(attempt)
    assert credit(rooms) == WORKER_QUANTUM - charge
    received = rooms.service_ledger.accounting.received(booking.incarnation, A.identity)
    assert received == service


def charged(rooms: Rooms) -> float:
    """What the client was charged at the gate; another request keeps its account."""
    gate = rooms.gates.gate("r0")
    assert gate is not None
    return 1000 - gate.policy.clients()[A.identity].deficit


@pytest.mark.parametrize(
    ("end", "want"),
    [
        (fails, 100.0),  # it counts as paid, and the next attempt says so
        (is_taken_back, 100.0),
        (over(None), 100.0),
        (over(NOTHING), 0.0),
        (over(Usage(100, 60, 5)), 40.0 + 2 * 5),
    ],
)
async def test_the_charge_at_the_gate_stands_unless_it_is_known_to_be_wrong(
    end: Callable[[Attempt], Awaitable[None]], want: float
) -> None:
    rooms, way = rooms_of("r0", scheduling=ORDERED), upstream()
    attempt = await dispatched(rooms, A, way)
    await dispatched(rooms, A, way, paid=Paid(True))
    assert charged(rooms) == 100.0
    await end(attempt)
    assert charged(rooms) == want


@pytest.mark.parametrize(("admitted", "paid", "want"), [(0, False, 0.0), (1, True, 100.0)])
async def test_what_had_not_begun_by_the_report_is_refunded_at_the_gate(
    admitted: int, paid: bool, want: float
) -> None:
    rooms, way = rooms_of("r0", scheduling=ORDERED), upstream()
    reports(rooms, "r0", "process", held(A, waiting=2))
    failing, moving = await dispatched(rooms, A, way), await dispatched(rooms, A, way)
    await dispatched(rooms, A, way, paid=Paid(True))
    assert charged(rooms) == 200.0
    reports(rooms, "r0", "process", held(A, running=admitted, admitted=admitted), sequence=2)
    assert failing.failed(ESTIMATE) == (bool(admitted), Paid(paid))
    assert charged(rooms) == 100.0 + want
    assert moving.booking is not None
    pending = PendingVerdict(TakenBack(HeldWork(0, 0, 1), 1.0, (moving.booking.number,)))
    pending.reported(HeldWork(admitted, 0, 0))
    moving.taken_back = pending
    assert (await moving.relocated(ESTIMATE)).input is paid
    assert charged(rooms) == 2 * want


@pytest.mark.parametrize("began", [True, False])
async def test_content_that_no_client_got_shows_that_the_input_was_computed(began: bool) -> None:
    """R11: whatever the last report says, which may be older. The ledger has the input once, and the next attempt does not pay it."""
    rooms, way = rooms_of("r0"), upstream()
    reports(rooms, "r0", "process", held(A, waiting=1))
    attempt = await dispatched(rooms, A, way)
    booking = attempt.booking
    assert booking is not None
    assert attempt.failed(ESTIMATE, began=began) == (began, Paid(began))
    received = rooms.service_ledger.accounting.received(booking.incarnation, A.identity)
    assert received == (100.0 if began else 0.0)


def test_only_a_refusal_shows_that_nothing_was_computed() -> None:
    def of_status(status: int, code: str = "") -> FailedAttempt:
        body = b'{"error":{"message":"no","code":"%b"}}' % code.encode()
        return FailedAttempt.of_refusal(rejected_by_replica(status, body))

    refused = [
        of_status(400),
        of_status(400, "context_length_exceeded"),
        of_status(429),
        of_status(503),
    ]
    failed = [
        of_status(500),
        of_status(401),
        FailedAttempt.of_break(BrokenError("it broke")),
        FailedAttempt.of_break(TooLargeError("all of it was computed")),
        FailedAttempt("nothing came", cause=Cause.SILENT),
        FailedAttempt("no JSON", cause=Cause.UNREADABLE),
    ]
    assert [one.computed for one in refused + failed] == [False] * 4 + [True] * 6
