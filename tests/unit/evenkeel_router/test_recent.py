"""Requests of the last minute and those in flight: the verdict's first two levels, and latencies that count who still waits."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from evenkeel_fairshare.verdict import Level
from evenkeel_fairshare.window import Taken
from evenkeel_router.api.errors import Outcome
from evenkeel_router.ledger.endings import ending_of
from evenkeel_router.request.request_log import RequestLogLine
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.telemetry.recent import NO_REQUESTS, Recent, judged, recent_requests
from evenkeel_router.telemetry.rooms import Rooms

from tests.support.router_rooms import client, ends, rooms_of
from tests.support.steps import result_of

NOW_S = 1000.0


def over(
    rooms: Rooms, name: str = "c", tenant: str = "acme", *, ago_s: float = 0.0, **facts: Any
) -> None:
    """A request that ended so many seconds ago, after two."""
    of, at = client(tenant, name), time.time() - ago_s
    given = {"time": at, "request_id": "1", "path": "/", "status": 200, "duration_s": 2.0}
    line = RequestLogLine(client=of.identity, **(given | facts))
    totals = rooms.totals.of(of)
    totals.distributions.recent.append(line)
    ending = ending_of(
        Outcome(line.outcome) if line.outcome else None,
        ttft_s=line.ttft_s or None,
        duration_s=line.duration_s,
        silent_s=0.0,
        beyond=False,
    )
    totals.ended_as(ending, NOW_S - ago_s)


def opened(rooms: Rooms, age_s: float, name: str = "c", **facts: Any) -> RequestState:
    one = RequestState("2", "/", NOW_S - age_s, client=client("acme", name), **facts)
    rooms.intake.active_requests.add(one)
    return one


def found(rooms: Rooms, name: str = "") -> Recent:
    return result_of(recent_requests(rooms, NOW_S)).get(name, NO_REQUESTS)


def test_requests_are_counted_by_client_tenant_and_all_together() -> None:
    rooms = rooms_of("r0")
    over(rooms)
    over(rooms, "d", outcome="replica_failed")
    over(rooms, "d", outcome="rate_limited")
    over(rooms, "e", "rival", outcome="client_gone")
    opened(rooms, 3.0)
    opened(rooms, 5.0, first_byte_s=NOW_S)
    own = found(rooms, "ns/acme")
    assert (own.answered, own.failed, own.given_up) == (1, 1, 0)
    assert (own.waiting, own.running, own.oldest_s) == (1, 1, 3.0)
    everything = found(rooms)
    assert (everything.answered, everything.failed, everything.given_up) == (1, 1, 1)
    assert everything.causes == {"replica_failed": 1, "rate_limited": 1, "client_gone": 1}
    assert found(rooms, "ns/acme/d").waiting == 0


def test_what_ended_more_than_a_minute_ago_no_longer_counts() -> None:
    rooms = rooms_of("r0")
    over(rooms, ago_s=63)
    assert found(rooms).answered == 0
    over(rooms, ago_s=55)
    assert found(rooms).answered == 1


@pytest.mark.parametrize(
    ("ended", "waiting", "want"),
    [
        ([], [], (None, None)),
        ([], [7.0], (7.0, 7.0)),
        ([], [0.1], (None, None)),  # it only came
        ([1.0, 1.0, 1.0], [0.5], (1.0, 1.0)),  # it may still be as fast as the others
        ([1.0, 1.0], [90.0, 90.0, 90.0], (90.0, 90.0)),
    ],
)
def test_the_latency_of_a_client_counts_who_still_waits(
    ended: list[float], waiting: list[float], want: tuple[float | None, float | None]
) -> None:
    rooms = rooms_of("r0")
    for ttft_s in ended:
        over(rooms, ttft_s=ttft_s)
    for age_s in waiting:
        opened(rooms, age_s)
    assert found(rooms, "ns/acme/c").latency_s() == want


def test_the_latency_of_a_client_counts_what_it_gave_up() -> None:
    rooms = rooms_of("r0")
    for _ in range(2):
        over(rooms, ttft_s=1.0)
    for duration_s in (1.9, 40.0, 40.0, 40.0):
        over(rooms, outcome="client_gone", duration_s=duration_s)
    assert found(rooms, "ns/acme/c").latency_s() == (40.0, 40.0)


def test_an_engine_that_fails_everything_is_an_outage() -> None:
    rooms = rooms_of("r0")
    for _ in range(106):
        over(rooms, outcome="replica_failed", status=502)
    opened(rooms, 80.0)
    verdict = judged(rooms, found(rooms), NOW_S)
    assert verdict.level is Level.OUT
    assert verdict.sentence == (
        "No client is served: all 106 requests that ended failed; 1 request waits, the oldest for 80 s."
    )


def test_people_are_told_of_failures_that_all_replicas_share() -> None:
    """A replica that fails like all others is not suspect, and fails all the same."""
    rooms = rooms_of("r0")
    over(rooms, replica="r0", outcome="replica_failed")
    assert found(rooms).failing("r0") == 0.0, "one failure says little"
    over(rooms, replica="r0", outcome="timeout")
    assert (found(rooms).failing("r0"), found(rooms).failing("r1")) == (1.0, 0.0)
    for _ in range(19):
        over(rooms, replica="r0")
    assert found(rooms).failing("r0") == 0.0


def test_requests_that_the_router_holds_are_held_up() -> None:
    rooms = rooms_of("r0")
    over(rooms)
    opened(rooms, 50.0, holding_since_s=NOW_S - 47.0)
    assert judged(rooms, found(rooms), NOW_S).sentence == (
        "Held up: 1 request waits for a replica, the oldest for 47 s."
    )


@pytest.mark.parametrize(
    ("names", "tenant", "want"),
    [
        ((), "", "No client is served: there is no replica."),
        (("r0",), "", "No client is served: the only replica takes no requests."),
        (("r0", "r1"), "", "No client is served: none of 2 replicas takes requests."),
        (("r0", "r1"), "ns/acme", "No client is served: no replica takes requests."),
    ],
)
def test_a_fleet_without_a_replica_that_takes_requests_is_out(
    names: tuple[str, ...], tenant: str, want: str
) -> None:
    rooms = rooms_of(*names)
    for name in names:
        ends(rooms, name)
    assert judged(rooms, found(rooms, tenant), NOW_S, tenant).sentence == want


def test_service_that_other_routers_gave_is_judged_too() -> None:
    rooms = rooms_of("r0")
    fairness = rooms.service_ledger.fairness
    fairness.now = msgspec.structs.replace(fairness.now, given=1.0)
    assert judged(rooms, NO_REQUESTS, NOW_S).level is Level.FAIR
    assert judged(rooms, NO_REQUESTS, NOW_S, "ns/acme").level is Level.NOTHING
    assert judged(rooms, NO_REQUESTS, NOW_S, "ns/acme", served=1.0).level is Level.FAIR


def test_without_requests_there_is_nothing_to_judge() -> None:
    rooms = rooms_of("r0")
    assert judged(rooms, found(rooms), NOW_S).level is Level.NOTHING


def test_clients_that_wait_are_not_judged_before_they_have_a_figure() -> None:
    rooms = rooms_of("r0")
    fairness = rooms.service_ledger.fairness
    over(rooms)
    for age_s in (4.0, 12.0):
        opened(rooms, age_s)
    opened(rooms, 6.0, "d")
    verdict = judged(rooms, found(rooms), NOW_S)
    assert verdict.level is Level.UNJUDGED
    assert verdict.sentence.startswith("Not judged yet: 3 requests wait, the oldest for 12 s; ")
    fairness.now = msgspec.structs.replace(fairness.now, given_over_owed={"ns/acme/c": 1.0})
    assert judged(rooms, found(rooms), NOW_S).sentence == (
        "Not judged yet: 1 request waits, the oldest for 6 s; "
        "every client that waited for half of the last minute was given at least 100% of what it was owed."
    )
    both = {"ns/acme/c": 1.0, "ns/acme/d": 0.9}
    fairness.now = msgspec.structs.replace(fairness.now, given_over_owed=both)
    assert judged(rooms, found(rooms), NOW_S).sentence == (
        "Fair: every client that waited was given at least 90% of what it was owed."
    )


@pytest.mark.parametrize(("tokens", "level"), [(20_001, Level.FAIR), (20_000, Level.UNJUDGED)])
def test_the_time_that_a_long_prompt_takes_is_no_wait(tokens: int, level: Level) -> None:
    rooms = rooms_of("r0")
    over(rooms)
    opened(rooms, 12.0, estimate_tokens=tokens)
    assert judged(rooms, found(rooms), NOW_S).level is level


def test_the_pages_of_both_tenants_of_a_flood_say_the_same() -> None:
    rooms = rooms_of("r0")
    fairness = rooms.service_ledger.fairness
    fairness.now = msgspec.structs.replace(
        fairness.now,
        given_over_owed={"ns/acme/c": 1.3, "ns/rival/d": 0.3},
        took={"ns/acme/c": Taken(0.87, 0.22)},
    )
    over(rooms)
    over(rooms, "d", "rival")
    words = {tenant: judged(rooms, found(rooms, tenant), NOW_S, tenant).sentence for tenant in ("", "ns/acme", "ns/rival")}  # fmt: skip
    hurt = "rival/d (given 30% of what it was owed while it waited)."
    assert words == {
        "": f"Unfair: in the last minute acme/c took 87% of the service, owed 22%; hurt: {hurt}",
        "ns/acme": "Unfair: in the last minute acme/c took 87% of the service, owed 22%; hurt: clients of other tenants.",
        "ns/rival": f"Unfair: in the last minute other tenants took 87% of the service, owed 22%; hurt: {hurt}",
    }


def test_requests_beyond_a_share_count_where_no_other_client_is_answered() -> None:
    rooms = rooms_of("r0")
    totals = rooms.totals.of(client("acme", "c"))
    for ending in ("answered_beyond", "given_up_beyond", "given_up_beyond", "given_up"):
        totals.ended_as(ending, NOW_S)
    assert found(rooms, "ns/acme").counted_given_up(found(rooms)) == 3
    over(rooms, "d", "rival")
    own = found(rooms, "ns/acme")
    assert (own.given_up, own.counted_given_up(found(rooms))) == (3, 1)
    assert found(rooms).counted_given_up() == 1
    verdict = judged(rooms, own, NOW_S, "ns/acme", everything=found(rooms))
    assert verdict.level is Level.FAIR
