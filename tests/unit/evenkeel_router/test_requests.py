"""Why a request took so long: where its time went, and who was ahead."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_contract.consolestate import Ahead, RequestNow, RequestsState
from evenkeel_router.ledger.totals import RECENT
from evenkeel_router.request.request_log import RequestLogLine
from evenkeel_router.telemetry.requests import NAMED, ahead_of, of_line, requests_answer, why
from evenkeel_router.telemetry.rooms import Rooms

from tests.support.router_rooms import client, rooms_of
from tests.support.steps import result_of
from tests.unit.evenkeel_router.test_recent import NOW_S, opened

END_S = 10_000.0


def line(client: str = "ns/acme/c", **facts: Any) -> RequestLogLine:
    """A streamed request that came at 9,990 s: 8 s without a replica, 0.5 s at the gate, and 1 s at r0 before its first token."""
    given: dict[str, Any] = {
        "time": END_S, "request_id": "id", "path": "/v1/completions", "status": 200, "duration_s": 10.0,
        "replica": "r0", "attempts": 1, "stream": True, "ttft_s": 9.6, "input_tokens": 900,
        "cached_tokens": 300, "output_tokens": 5, "held_s": 8.0, "gate_s": 0.5, "engine_s": 1.0,
    }  # fmt: skip
    return RequestLogLine(client=client, **(given | facts))


def test_the_parts_of_a_wait_add_up_to_it_and_the_largest_comes_first() -> None:
    one = of_line(line())
    assert one.held_s + one.gate_s + one.engine_s + one.other_s == pytest.approx(one.ttft_s)
    assert one.itl_s == pytest.approx(0.1)
    assert list(why(one)) == [
        "The first token came after 9.6 s.",
        "8.0 s waited in the router, because no replica took requests.",
        "1.0 s at replica r0: its queue, and 600 input tokens to compute, 300 more were cached.",
        "500 ms waited for its turn at the router's gate.",
        "100 ms went to its body, the choice of a replica, and attempts that failed.",
        "Then 5 tokens came, one every 100 ms.",
    ]


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        (
            {"stream": False, "ttft_s": 10.0, "engine_s": 1.5},
            ["The whole answer came after 10.0 s."],
        ),
        (
            {"ttft_s": 0.0, "engine_s": 0.0, "outcome": "client_gone", "output_tokens": 0},
            ["Its client left after 10.0 s, before an answer began."],
        ),
    ],
)
def test_an_answer_that_was_whole_or_never_came_is_told_so(
    facts: dict[str, Any], want: list[str]
) -> None:
    sentences = list(why(of_line(line(**facts))))
    assert sentences[:1] == want
    at_replica = {
        True: "1.5 s at replica r0: its queue, and 600 input tokens to compute, 300 more were cached, and all of the answer.",
        False: "1.5 s at replica r0, which gave no answer.",
    }
    assert sentences[2] == at_replica[facts["ttft_s"] > 0]


def test_a_client_that_left_within_an_answer_had_not_all_of_it() -> None:
    sentences = list(why(of_line(line(outcome="client_gone"))))
    assert sentences[0] == "The first token came after 9.6 s."
    assert sentences[-1] == "Its client left after 10.0 s, within the answer."


def test_a_replica_that_gave_no_answer_is_not_said_to_have_computed_one() -> None:
    failed = line(stream=False, ttft_s=0.0, engine_s=0.0, outcome="replica_failed", input_tokens=0)
    (told,) = (one for one in why(of_line(failed)) if " at replica " in one)
    assert told.endswith("at replica r0, which gave no answer.")


def test_a_request_that_was_sent_more_than_once_says_so() -> None:
    assert "It was sent 3 times." in list(why(of_line(line(attempts=3))))


def test_requests_that_began_there_while_it_waited_were_ahead() -> None:
    one = of_line(line())  # it waited there from 9,998.1 s to 9,999.6 s
    began = {"duration_s": 3.0, "ttft_s": 1.0}
    others = [
        *(line("ns/acme/d", request_id=f"d{n}", time=10_001.0, **began) for n in range(2)),
        line("ns/rival/x", request_id="x", time=10_001.5, **began),
        line("ns/rival/x", request_id="y", time=10_000.0, **began),  # too early
        line("ns/rival/x", request_id="z", time=10_002.0, **began),  # too late
        line("ns/rival/x", request_id="w", time=10_001.0, replica="r1", **began),
    ]
    everything = [one, *map(of_line, others)]
    assert ahead_of(one, everything, "") == [
        Ahead(name="acme/d", requests=2, tokens=2 * 605),
        Ahead(name="rival/x", requests=1, tokens=605),
    ]
    to_tenant = ahead_of(one, everything, "ns/acme")
    assert [of.name for of in to_tenant] == ["acme/d", "other tenants"]


def filled() -> Rooms:
    rooms = rooms_of("r0")
    for tenant in ("acme", "rival"):
        of = client(tenant)
        for n in range(RECENT + 1):
            recent = rooms.totals.of(of).distributions.recent
            recent.append(line(of.identity, request_id=f"{tenant}-{n}", time=END_S + n))
    return rooms


def answered(rooms: Rooms, **query: Any) -> RequestsState:
    return result_of(requests_answer(rooms, NOW_S, **({"tenant": ""} | query)))


def test_each_tenant_keeps_its_newest_requests_and_sees_no_other() -> None:
    rooms = filled()
    assert len(answered(rooms).requests) == 2 * RECENT
    own = answered(rooms, tenant="ns/acme")
    assert (len(own.requests), own.kept) == (RECENT, RECENT)
    assert own.requests[0].request_id == f"acme-{RECENT}"
    assert answered(rooms, tenant="ns/acme", request_id="rival-9").requests == ()
    told = answered(rooms, tenant="ns/acme", request_id="acme-9")
    assert told.requests[0].replica == ""
    assert any("at its replica" in words for words in told.words)
    assert answered(rooms, tenant="ns/acme", client="ns/rival/c").requests == ()
    assert len(answered(rooms, client="ns/rival/c").requests) == RECENT


def test_one_request_comes_with_its_reasons_and_a_bounded_list() -> None:
    rooms = rooms_of("r0")
    recent = rooms.totals.of(client()).distributions.recent
    recent.append(line())
    for n in range(NAMED + 2):
        recent.append(
            line(f"ns/t{n}/x", request_id=f"{n}", time=10_001.0, duration_s=3.0, ttft_s=1.0)
        )
    found = answered(rooms, request_id="id")
    assert found.words[0] == "The first token came after 9.6 s."
    assert (len(found.ahead), found.ahead_more) == (NAMED, 2)


def test_a_request_in_flight_is_explained_too() -> None:
    rooms = rooms_of("r0")
    opened(rooms, 9.0, held_s=1.0, holding_since_s=NOW_S - 2.0)
    found = answered(rooms, request_id="2")
    assert found.requests[0].state == "waiting"
    assert found.words == (
        "It has waited for 9.0 s.",
        "6.0 s went to its body, the choice of a replica, and attempts that failed.",
        "3.0 s waited in the router, because no replica took requests.",
    )
    opened(rooms, 9.0, first_byte_s=NOW_S - 5.0, sent_s=NOW_S - 8.0, replica="r0")
    running: list[RequestNow] = [one for one in answered(rooms).requests if one.ttft_s]
    assert [(one.state, one.ttft_s, one.engine_s) for one in running] == [("running", 4.0, 3.0)]
