"""What waits at a replica that drains, and what of it began all the same, from what a report can say."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import pytest
from evenkeel_contract.reports import ClientReport
from evenkeel_fairshare.fleet.contract import EMPTY, ReplicaSet
from evenkeel_router.api.identity import WHOLE, Paid
from evenkeel_router.fleet.selection import ALL
from evenkeel_router.fleet.suspicion import Standing
from evenkeel_router.ledger.held_work import HeldWork, RelocationVerdict, TakenBack
from evenkeel_router.request.attempt import NOTICE_S, Attempt
from evenkeel_router.request.relocation import CATCH_UP_S, Relocation
from evenkeel_router.telemetry.rooms import Rooms
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fakes import FakeReply, FakeUpstream
from tests.support.router_rooms import client, dispatched, held, joins, reports, rooms_of
from tests.support.virtual_time import run_virtually


@pytest.mark.parametrize(
    ("held", "open_here", "unanswered", "want"),
    [
        (HeldWork(0, 0, 0), 5, 5, 0),  # the report is from before they came
        (HeldWork(9, 4, 0), 4, 2, 0),  # everything runs
        (HeldWork(4, 4, 6), 10, 6, 6),  # all that run have answered
        (HeldWork(4, 4, 6), 10, 7, 6),  # one of those without an answer computes its input
        (HeldWork(4, 4, 6), 10, 10, 6),  # nobody is answered before the end
        (HeldWork(4, 4, 6), 5, 5, 3),  # half of it is another router's
        (HeldWork(4, 4, 6), 12, 8, 8),  # two came after the report
    ],
)
def test_what_waits_is_what_neither_answered_nor_runs(
    held: HeldWork, open_here: int, unanswered: int, want: int
) -> None:
    assert held.waiting_here(open_here, unanswered) == want


def test_a_replica_has_noticed_once_so_many_fewer_wait() -> None:
    taken = TakenBack(HeldWork(4, 4, 6), 1.0, (7, 8, 9))
    assert not taken.is_noticed(HeldWork(4, 4, 6))
    assert not taken.is_noticed(HeldWork(5, 5, 4))
    assert taken.is_noticed(HeldWork(4, 4, 3))
    assert TakenBack(HeldWork(4, 4, 1), 1.0, (7, 8, 9)).is_noticed(HeldWork(4, 4, 0))


def test_where_others_have_some_too_fewer_that_wait_may_be_fewer_of_theirs() -> None:
    """Two routers took three each of six: that three are gone says nothing of whose they were."""
    taken = TakenBack(HeldWork(4, 4, 6), 0.5, (7, 8, 9))
    assert not taken.is_noticed(HeldWork(4, 4, 3))
    assert taken.is_noticed(HeldWork(4, 4, 0))
    assert TakenBack(HeldWork(4, 4, 6), 1.0, (7, 8, 9)).is_noticed(HeldWork(4, 4, 3))


def test_half_of_what_began_is_this_routers_where_half_of_what_was_open_is() -> None:
    taken = TakenBack(HeldWork(4, 4, 6), 0.5, (7, 8, 9))
    assert taken.verdict(HeldWork(4, 4, 0)).never == {7, 8, 9}
    assert taken.verdict(HeldWork(6, 4, 0)).never == {8, 9}
    assert taken.verdict(HeldWork(99, 4, 0)).never == set()


def test_requests_that_may_have_begun_count_as_begun() -> None:
    taken = TakenBack(HeldWork(4, 4, 6), 0.4, (7, 8, 9))
    assert taken.verdict(HeldWork(5, 4, 0)).never == {8, 9}
    assert taken.verdict(HeldWork(6, 4, 6)).never == set()


def test_output_that_was_charged_for_what_was_broken_off_is_spread_over_it() -> None:
    taken = TakenBack(HeldWork(4, 4, 6, 1, 100), 1.0, (7, 8, 9))
    told = taken.verdict(HeldWork(6, 4, 3, 3, 111))  # eleven tokens, of two
    assert told == RelocationVerdict({7: Paid(True, 5), 8: Paid(True, 6)}, frozenset({9}))
    assert taken.verdict(HeldWork(4, 4, 3, 1, 100)) == RelocationVerdict({}, frozenset({7, 8, 9}))
    of_two_routers = TakenBack(HeldWork(4, 4, 6, 1, 100), 0.5, (7, 8, 9))
    told = of_two_routers.verdict(HeldWork(6, 4, 0, 3, 111))
    assert told == RelocationVerdict({7: Paid(True, 6)}, frozenset({8, 9}))


def test_a_request_that_finished_before_the_notice_has_paid_all_its_output() -> None:
    taken = TakenBack(HeldWork(4, 4, 6, 1, 100), 1.0, (7, 8, 9))
    told = taken.verdict(HeldWork(6, 4, 3, 2, 111))
    assert told == RelocationVerdict({7: Paid(True, WHOLE), 8: Paid(True, 11)}, frozenset({9}))


def test_what_began_where_others_have_some_too_is_not_known_to_be_finished() -> None:
    """One of two that were admitted is ours. It may be the one of the two that goes on, for the other router."""
    taken = TakenBack(HeldWork(4, 4, 6, 1, 100), 0.5, (7, 8, 9))
    told = taken.verdict(HeldWork(6, 4, 0, 1, 100))
    assert told == RelocationVerdict({7: Paid(True, 0)}, frozenset({8, 9}))


def test_one_that_ran_unseen_in_the_place_of_another_began_too() -> None:
    """Taken for waiting, since an older one that waits was taken for running: that one still waits."""
    taken = TakenBack(HeldWork(4, 4, 6), 1.0, (7, 8, 9))
    assert taken.verdict(HeldWork(4, 3, 3, 1, 50)) == RelocationVerdict(
        {7: Paid(True, 50)}, frozenset({8, 9})
    )


def test_a_move_is_settled_once_the_replica_let_go_of_what_had_begun_too() -> None:
    taken = TakenBack(HeldWork(4, 4, 6), 1.0, (7, 8, 9))
    assert not taken.is_settled(HeldWork(6, 6, 3, 1, 9))
    assert taken.is_settled(HeldWork(6, 4, 3, 2, 18))
    assert taken.is_settled(HeldWork(4, 4, 3))
    assert not taken.is_settled(HeldWork(6, 4, 4, 2, 18))
    assert taken.is_settled(HeldWork(6, 0, 0))  # nothing is left there that could be


@given(st.data())
def test_what_began_is_counted_exactly_whatever_the_replica_chose_and_when(
    data: st.DataObject,
) -> None:
    """One router; a replica that admits in any order, before and after the report and before it notices."""
    requests = data.draw(st.permutations(range(data.draw(st.integers(1, 12)))))
    run = data.draw(st.integers(0, len(requests)))
    before = HeldWork(run, run, len(requests) - run)
    unanswered = sorted(data.draw(st.sets(st.sampled_from(requests[:run]))) if run else ())
    unanswered = sorted({*unanswered, *requests[run:]})
    waiting = before.waiting_here(len(requests), len(unanswered))
    count = data.draw(st.integers(0, waiting))
    numbers = tuple(unanswered[len(unanswered) - count :])
    later = requests[run : run + data.draw(st.integers(0, len(requests) - run))]
    began = {*requests[:run], *later}
    # It notices; then only those that it kept are left, of which some enter.
    kept = sorted({*requests} - {*numbers} - began)
    left = data.draw(st.integers(0, len(kept)))
    now = HeldWork(len(began) + len(kept) - left, 0, left)
    taken = TakenBack(before, 1.0, numbers)
    want = len({*numbers} - began) if taken.is_noticed(now) else 0
    assert len(taken.verdict(now).never) == want


def test_requests_that_stay_and_enter_are_not_taken_for_those_that_left() -> None:
    """Two of a hundred that wait are taken back; ten of the others are admitted meanwhile."""
    taken, now = TakenBack(HeldWork(4, 4, 100), 1.0, (7, 8)), HeldWork(14, 4, 88)
    assert taken.is_settled(now)
    assert taken.verdict(now).never == {7, 8}


CLIENT = client()


def relocation_of(rooms: Rooms, attempts: list[Attempt]) -> Relocation:
    replicas, accounting = rooms.replicas, rooms.service_ledger.accounting
    return Relocation(replicas.fleet, accounting, {*attempts}, asyncio.get_running_loop().time)


async def draining(
    *, tried: bool = False, since: int = 0
) -> tuple[Rooms, Relocation, list[Attempt]]:
    """Three requests are at a replica that drains, and there is another one. By its report one runs, and two wait."""
    rooms, upstream = rooms_of("r0"), FakeUpstream(lambda *_: FakeReply([]), takes_back=True)
    reports(rooms, "r0", "process")
    attempts = [await dispatched(rooms, CLIENT, upstream) for _ in range(3)]
    rooms.service_ledger.accounting.drains("r0")
    joins(rooms, "r1")
    for attempt in attempts:
        attempt.tried = rooms.replicas.fleet.routable if tried else EMPTY
    relocation = relocation_of(rooms, attempts)
    now = held(CLIENT, running=1, waiting=2, admitted=1)
    reports(rooms, "r0", "process", now, sequence=2, since=since)
    relocation.reported("process")
    return rooms, relocation, attempts


@pytest.mark.parametrize(
    ("how", "want"),
    [
        ({}, [True, False, False]),  # the oldest one runs
        ({"tried": True}, [True, True, True]),  # nowhere else
        ({"since": 1}, [True, True, True]),  # a part of the report may be missing
    ],
)
async def test_what_waits_is_taken_back_by_a_whole_report_for_another_replica(
    how: dict[str, Any], want: list[bool]
) -> None:
    _, _, attempts = await draining(**how)
    assert [attempt.taken_back is None for attempt in attempts] == want


def reported(rooms: Rooms, relocation: Relocation, now: ClientReport, *, sequence: int) -> None:
    reports(rooms, "r0", "process", now, sequence=sequence)
    relocation.reported("process")


def test_a_verdict_waits_for_the_report_that_settles_it() -> None:
    async def scene() -> None:
        rooms, relocation, (oldest, one, other) = await draining()
        assert one.taken_back is not None
        assert one.taken_back is other.taken_back
        verdict = asyncio.create_task(one.taken_back.verdict())
        reported(rooms, relocation, held(CLIENT, running=2, waiting=1, admitted=2), sequence=3)
        assert oldest.taken_back is None, "not before it is known what the others did"
        await asyncio.sleep(NOTICE_S / 2)
        assert not verdict.done()
        reported(rooms, relocation, held(CLIENT, admitted=2), sequence=4)
        await asyncio.sleep(NOTICE_S / 4)
        assert verdict.done()
        told = verdict.result()
        assert told is not None
        assert (len(told.paid), len(told.never)) == (1, 1)

    run_virtually(scene())


def test_a_verdict_that_no_report_settles_is_that_of_the_last_one_in_time() -> None:
    """The replica dropped one of two that were taken back, and says nothing of the other: no client waits for longer than `NOTICE_S`."""

    async def scene() -> None:
        rooms, relocation, (_, one, other) = await draining()
        assert one.taken_back is not None
        assert one.booking is not None
        assert other.booking is not None
        since_s = asyncio.get_running_loop().time()
        verdict = asyncio.create_task(one.taken_back.verdict())
        await asyncio.sleep(0)
        reported(rooms, relocation, held(CLIENT, running=2, admitted=2), sequence=3)
        told = await verdict
        assert asyncio.get_running_loop().time() - since_s == pytest.approx(NOTICE_S)
        assert told is not None
        assert told.paid.keys() == {one.booking.number}
        assert told.never == {other.booking.number}

    run_virtually(scene())


@pytest.mark.parametrize("gone", [True, False])
def test_without_another_report_there_is_no_verdict(gone: bool) -> None:
    """At once where no report can come, otherwise after a while."""

    async def scene() -> None:
        _, relocation, (_, one, _) = await draining()
        assert one.taken_back is not None
        verdict = asyncio.create_task(one.taken_back.verdict())
        await asyncio.sleep(0)
        if gone:
            relocation.forget("process")
        await asyncio.sleep(NOTICE_S / 2)
        assert verdict.done() is gone
        assert await verdict is None

    run_virtually(scene())


async def beside_an_idle_replica(
    *, busy: bool = False, waited_s: float = 10.0, avoids: str | None = None
) -> list[Attempt]:
    """Four requests are at r0, and r1 has none. By the report of r0 one runs and three wait; the last came after it."""
    rooms, upstream = rooms_of("r0"), FakeUpstream(lambda *_: FakeReply([]), takes_back=True)
    reports(rooms, "r0", "process")
    attempts = [await dispatched(rooms, CLIENT, upstream) for _ in range(4)]
    now_s = asyncio.get_running_loop().time()
    for attempt in attempts:
        attempt.dispatched_s = now_s - waited_s
    attempts[-1].dispatched_s = now_s
    joins(rooms, "r1")
    reports(rooms, "r1", "idle process", held(client(name="other"), running=int(busy)))
    if avoids is not None:
        rooms.replicas.fleet.avoided[avoids] = ReplicaSet(0b10)
    relocation = relocation_of(rooms, attempts)
    for sequence in (2, 3):  # one at a time: the second report finds one that has no verdict yet
        now = held(CLIENT, running=1, waiting=3, admitted=1)
        reports(rooms, "r0", "process", now, sequence=sequence)
        relocation.reported("process")
    return attempts


async def test_the_youngest_that_waited_too_long_is_taken_back_for_an_idle_replica() -> None:
    attempts = await beside_an_idle_replica()
    assert [attempt.taken_back is None for attempt in attempts] == [True, True, False, True]
    assert attempts[2].invited == 0b10


@pytest.mark.parametrize(
    "how",
    [
        {"busy": True},  # another router's request runs there
        {"waited_s": 0.9},  # the report may be older than the request
        {"avoids": CLIENT.identity},  # the idle replica failed the client's last request
        {"avoids": ALL},  # its process is new, and failed the first request
    ],
)
async def test_nothing_is_taken_back_that_need_not_wait(how: dict[str, Any]) -> None:
    assert not any(attempt.taken_back for attempt in await beside_an_idle_replica(**how))


async def behind_others(
    *, late_s: float = 0.0, begins: bool = True, each: int = 8, running: int = 1
) -> list[list[Attempt]]:
    """Clients have sixteen requests at r0, `each` of them, and two new replicas join: r1 answers its first request, r2 none.

    Lists of the attempts of each client at r0. By its report `running` of each client run, and the others wait.
    """
    rooms, upstream = rooms_of("r0"), FakeUpstream(lambda *_: FakeReply([]), takes_back=True)
    fleet, now_s = rooms.replicas.fleet, asyncio.get_running_loop().time()
    clients = [client(name=f"c{number}") for number in range(16 // each)]
    reports(rooms, "r0", "process")
    attempts = [[await dispatched(rooms, one, upstream) for _ in range(each)] for one in clients]
    for attempt in chain(*attempts):
        attempt.dispatched_s = now_s - 2.0
    for name in ("r1", "r2"):
        joins(rooms, name)
        fleet.member(name).standing = Standing(is_new=True)  # type: ignore[union-attr]
    fleet.ready(fleet.member("r1"))  # type: ignore[arg-type]
    first = fleet.select(
        fleet.match("ann", weight=1.0, text=b"", input_tokens=1), ReplicaSet(0b101)
    )
    assert first is not None
    if begins:
        fleet.begins(first)
    relocation = Relocation(
        fleet, rooms.service_ledger.accounting, {*chain(*attempts)}, lambda: now_s
    )
    relocation.reported("process")
    now_s += late_s
    waiting = each - running
    theirs = [held(one, running=running, waiting=waiting, admitted=running) for one in clients]
    reports(rooms, "r0", "process", *theirs, sequence=2)
    relocation.reported("process")
    return attempts


async def test_a_replica_that_has_just_answered_gets_half_of_what_waits() -> None:
    """r0 has 16, r1 has 1 and r2 none, of which the mean is 17/3: r1 gets up to it, of each client as much."""
    for theirs in await behind_others():
        assert [attempt.taken_back is None for attempt in theirs] == [True] * 6 + [False] * 2
        assert {attempt.invited for attempt in theirs[6:]} == {0b10}
        # If one of them has begun, it was the older one.
        pending, older = theirs[6].taken_back, theirs[6].booking
        assert pending is not None and older is not None
        pending.reported(HeldWork(admitted=2, running=1, waiting=5, aborted=1))
        verdict = await pending.verdict()
        assert verdict is not None
        assert verdict.paid.keys() == {older.number}


async def test_of_many_clients_with_a_single_request_some_are_taken() -> None:
    """The mean is 17/3, so r1 gets 4 of the 16 that wait. Each client's part is less than a request."""
    attempts = chain(*await behind_others(each=1, running=0))
    assert sum(attempt.taken_back is not None for attempt in attempts) == 4


@pytest.mark.parametrize("how", [{"begins": False}, {"late_s": CATCH_UP_S}])
async def test_nothing_is_levelled_before_an_answer_and_long_after_it(how: dict[str, Any]) -> None:
    assert not any(attempt.taken_back for attempt in chain(*await behind_others(**how)))
