"""Replicas that give no token while requests wait there: now, and in the last minute."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_fairshare.verdict import NO_SILENCE, Level
from evenkeel_router.fleet.replicas import ReplicaReport
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.telemetry.recent import NO_REQUESTS, Recent, judged, recent_requests
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.silences import FLEET

from tests.support.router_rooms import client, ends, held, joins, reports, rooms_of
from tests.support.steps import result_of


def fleet(*names: str, reporting: bool = True) -> Rooms:
    """A router and its replicas, which reported 0 tokens at 0 s."""
    rooms = rooms_of(*names)
    for n, name in enumerate(names):
        rooms.replicas.configured[name] = ReplicaConfig(name=name, url=f"http://127.0.0.1:{n + 1}")
        if reporting:
            rooms.replicas.reports[name] = ReplicaReport(
                incarnation=f"i-{name}", policy="DLPM", sequence=1, received_s=0.0, counted=True
            )
            reports(rooms, name, f"i-{name}", held(client()))
    rooms.silences.look(0.0)
    return rooms


def opened(rooms: Rooms, begin_s: float, **facts: Any) -> RequestState:
    given: dict[str, Any] = {"replica": "r0", "sent_s": begin_s, "stream": True}
    one = RequestState("1", "/", begin_s, client=client("acme", "c"), **(given | facts))
    rooms.intake.active_requests.add(one)
    return one


def found(rooms: Rooms, now_s: float, name: str = "") -> Recent:
    return result_of(recent_requests(rooms, now_s)).get(name, NO_REQUESTS)


def said(rooms: Rooms, now_s: float, tenant: str = "") -> tuple[Level, str]:
    verdict = judged(rooms, found(rooms, now_s, tenant), now_s, tenant)
    return verdict.level, verdict.sentence


def test_a_hung_replica_is_named_after_five_seconds_without_a_token() -> None:
    rooms = fleet("r0")
    for n in range(23):
        opened(rooms, 100.0 + n / 10)
    assert said(rooms, 104.9)[0] is Level.UNJUDGED
    want = "Held up: no token for 9 s: 23 requests wait at replica r0."
    assert said(rooms, 109.0) == (Level.HELD_UP, want)
    # A tenant does not learn which replicas there are.
    want = "Held up: no token for 9 s: 23 requests wait."
    assert said(rooms, 109.0, "ns/acme") == (Level.HELD_UP, want)
    level, sentence = said(rooms, 130.0)
    assert level is Level.OUT
    assert sentence.startswith("No client is served: no token came for 30 s from replica r0; 23")


def test_a_long_prompt_is_no_silence_while_its_replica_reports_progress() -> None:
    rooms = fleet("r0")
    opened(rooms, 100.0)
    one = held(client())
    for n in range(1, 12):
        reports(
            rooms, "r0", "i-r0", msgspec.structs.replace(one, service=100.0 * n), sequence=1 + n
        )
        assert said(rooms, 100.0 + n)[0] is (Level.FAIR if n < 2 else Level.UNJUDGED)
    assert said(rooms, 115.9)[0] is Level.UNJUDGED
    assert said(rooms, 116.0)[0] is Level.HELD_UP


@pytest.mark.parametrize(("stream", "from_s"), [(True, 5.0), (False, 30.0)])
def test_whole_answers_of_a_replica_without_reports_show_nothing_meanwhile(
    stream: bool, from_s: float
) -> None:
    rooms = fleet("r0", reporting=False)
    opened(rooms, 100.0, stream=stream)
    assert found(rooms, 99.9 + from_s).silence(rooms.silences.now, 0.0) == NO_SILENCE
    found(rooms, 100.0 + from_s)
    assert rooms.silences.now == {"r0": 100.0, FLEET: 100.0}


def test_content_to_any_client_ends_a_silence() -> None:
    rooms = fleet("r0", reporting=False)
    opened(rooms, 100.0)
    rooms.intake.content_s["http://127.0.0.1:1"] = 103.0
    rooms.silences.look(107.9)
    assert rooms.silences.now == {}
    rooms.silences.look(108.0)
    assert rooms.silences.now == {"r0": 103.0, FLEET: 103.0}


def test_answers_that_have_stopped_count_where_reports_show_it() -> None:
    """Without reports, a client that does not read looks the same."""
    for reporting, want in ((True, {"r0": 101.0, FLEET: 101.0}), (False, {})):
        rooms = fleet("r0", reporting=reporting)
        opened(rooms, 100.0, first_byte_s=101.0)
        rooms.silences.look(106.0)
        assert rooms.silences.now == want
    rooms = fleet("r0", "r1")
    opened(rooms, 100.0, first_byte_s=101.0)
    opened(rooms, 100.0)
    opened(rooms, 107.9, replica="r1")
    assert said(rooms, 108.0) == (
        Level.HELD_UP,
        "Held up: replica r0 gives no token for 8 s: 1 request waits and 1 answer has stopped there.",
    )


def test_a_minute_remembers_its_longest_silence() -> None:
    rooms = fleet("r0")
    one = opened(rooms, 100.0)
    for now_s in range(100, 126, 2):
        rooms.silences.look(float(now_s))
    rooms.intake.active_requests.discard(one)
    want = (
        "Held up: no token came for 24 s of the last minute, until 2 s ago, while requests waited."
    )
    assert said(rooms, 126.0) == (Level.HELD_UP, want)
    # Less and less of it lies within the minute.
    assert "for 14 s" in said(rooms, 170.0)[1]
    assert said(rooms, 170.0, "ns/acme")[0] is Level.NOTHING
    assert said(rooms, 185.0)[0] is Level.NOTHING


def test_a_minute_remembers_that_no_replica_took_requests() -> None:
    rooms = fleet("r0")
    ends(rooms, "r0")
    one = opened(rooms, 100.0, sent_s=0.0, replica="", holding_since_s=100.0)
    for now_s in range(100, 121, 2):
        rooms.silences.look(float(now_s))
    assert said(rooms, 120.0)[0] is Level.OUT
    joins(rooms, "r0")
    rooms.intake.active_requests.discard(one)
    want = (
        "Held up: no token came for 20 s of the last minute, until 2 s ago, while requests waited."
    )
    assert said(rooms, 122.0) == (Level.HELD_UP, want)


def test_a_silence_lasts_although_clients_give_up_and_others_come() -> None:
    rooms = fleet("r0")
    for begin_s in (100.0, 108.0, 116.0):
        one = opened(rooms, begin_s)
        rooms.silences.look(begin_s + 7.0)
        opened(rooms, begin_s + 7.0)
        rooms.silences.look(begin_s + 7.5)
        rooms.intake.active_requests.discard(one)
    assert rooms.silences.now == {"r0": 100.0, FLEET: 100.0}
    assert "no token for 24 s: 3 requests wait" in said(rooms, 124.0)[1]


def left(rooms: Rooms, sent_s: float, after_s: float = 1.5, **facts: Any) -> None:
    """A client left without a token, as `RequestPipeline` notes it."""
    given: dict[str, Any] = {"stream": True, "tokens": 0, "content_s": 0.0}
    rooms.intake.abandoned.add("http://127.0.0.1:1", sent_s, sent_s + after_s, **(given | facts))


@pytest.mark.parametrize("reporting", [True, False])
def test_a_silence_begins_with_requests_that_were_left_meanwhile(reporting: bool) -> None:
    rooms = fleet("r0", reporting=reporting)
    for begin_s in (100.0, 101.5, 103.0):
        left(rooms, begin_s)
    rooms.silences.look(104.9)
    assert rooms.silences.now == {}
    rooms.silences.look(105.0)
    assert rooms.silences.now == {"r0": 100.0, FLEET: 100.0}
    want = "Held up: replica r0 gives no token for 6 s: clients leave without an answer there."
    assert said(rooms, 106.0) == (Level.HELD_UP, want)
    opened(rooms, 109.0)
    want = "Held up: no token for 10 s: 1 request waits at replica r0."
    assert said(rooms, 110.0) == (Level.HELD_UP, want)
    # No other request followed for five seconds.
    rooms.intake.active_requests.clear()
    rooms.silences.look(110.1)
    assert rooms.silences.now == {}


def test_requests_that_were_left_show_nothing_beside_an_answer() -> None:
    rooms = fleet("r0", reporting=False)
    left(rooms, 100.0)
    rooms.intake.content_s["http://127.0.0.1:1"] = 103.0
    left(rooms, 103.5, content_s=103.0)
    rooms.silences.look(108.0)
    assert rooms.silences.now == {}
    rooms.silences.look(108.5)
    assert rooms.silences.now == {"r0": 103.5, FLEET: 103.5}
    rooms.intake.content_s["http://127.0.0.1:1"] = 109.0
    opened(rooms, 109.9)
    rooms.silences.look(114.0)
    assert rooms.silences.now == {}


@pytest.mark.parametrize(
    ("after_s", "facts", "step_s"),
    [
        (0.4, {}, 0.5),  # an editor: the next key
        (1.5, {"stream": False}, 2.0),  # whole answers show nothing for 30 s
        (1.5, {"tokens": 10_000}, 2.0),  # a prompt that takes 5 s
        (1.5, {}, 7.0),  # they do not follow each other
    ],
)
def test_requests_that_were_left_soon_show_no_silence(
    after_s: float, facts: dict[str, Any], step_s: float
) -> None:
    rooms = fleet("r0", reporting=False)
    for n in range(int(8 / step_s) + 1):
        left(rooms, 100.0 + n * step_s, after_s, **facts)
    rooms.silences.look(109.0)
    assert rooms.silences.now == {}


def test_a_replica_that_clients_leave_does_not_put_the_fleet_out() -> None:
    rooms = fleet("r0", "r1", reporting=False)
    for n in range(30):
        left(rooms, 100.0 + 1.5 * n)
    rooms.intake.content_s["http://127.0.0.1:2"] = 144.0
    want = "Held up: replica r0 gives no token for 45 s: clients leave without an answer there."
    assert said(rooms, 145.0) == (Level.HELD_UP, want)
    assert said(rooms, 145.0, "ns/acme")[0] is Level.NOTHING


def test_a_long_prompt_may_take_its_time() -> None:
    """50,000 tokens of a slow replica: 25 s."""
    rooms = fleet("r0")
    opened(rooms, 100.0, estimate_tokens=50_000)
    opened(rooms, 101.0)
    want = "Not judged yet: 2 requests wait, the oldest for 30 s; clients are judged once they have waited for half a minute."
    assert said(rooms, 129.9) == (Level.UNJUDGED, want)
    assert said(rooms, 130.0)[0] is Level.OUT


def test_one_replica_that_gave_no_token_is_named_afterwards() -> None:
    rooms = fleet("r0", "r1")
    one = opened(rooms, 100.0)
    for now_s in range(100, 121):
        rooms.intake.content_s["http://127.0.0.1:2"] = float(now_s)
        rooms.silences.look(float(now_s))
    rooms.intake.active_requests.discard(one)
    want = "Held up: replica r0 gave no token for 20 s of the last minute, until 1 s ago, while requests waited."
    assert said(rooms, 121.0) == (Level.HELD_UP, want)


def test_requests_that_just_came_to_an_idle_replica_are_no_silence() -> None:
    rooms = fleet("r0")
    opened(rooms, 5000.0)
    assert said(rooms, 5004.9)[0] is Level.UNJUDGED
