import pytest
from evenkeel_simulator.traffic.owed import owed_service
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.workload import Client


def served(client: str, arrival_s: float, admitted_s: float, tokens: int) -> Record:
    """A request whose input is computed in the second after its admission."""
    return Record(
        id=f"{client}-{arrival_s}",
        program="",
        client=client,
        replica=0,
        status="finished",
        arrival_s=arrival_s,
        admitted_s=admitted_s,
        first_token_s=admitted_s + 1,
        finished_s=admitted_s + 1,
        input_tokens=tokens,
        cached_tokens=0,
        extend_tokens=tokens,
        output_tokens=0,
        retractions=0,
    )


LAST = 1000


def backlog(client: str, tokens: int) -> list[Record]:
    """Ten requests that arrive at once, of which one is admitted in each second, and one of `LAST` tokens after them: the
    client always waits."""
    return [served(client, 0.0, float(n), tokens) for n in range(10)] + [
        served(client, 0.0, 10.0, LAST)
    ]


def test_clients_that_wait_are_owed_equal_parts_of_what_they_got_together() -> None:
    owed = owed_service([*backlog("a", 30), *backlog("b", 10)], {}, 11.0).service
    assert owed == pytest.approx({"a": LAST + 200, "b": LAST + 200})


def test_a_client_that_does_not_wait_is_owed_what_it_was_given() -> None:
    modest = [served("b", float(n), float(n), 10) for n in range(10)]
    owed = owed_service([*backlog("a", 30), *modest], {}, 11.0).service
    assert owed == pytest.approx({"a": LAST + 300, "b": 100})


def test_shares_follow_weights_first_of_tenants_then_of_clients() -> None:
    clients = {
        "ns/x/a": Client("ns/x/a", "ns/x", client_weight=3),
        "b": Client("b", "ns/x"),
        "c": Client("c", "ns/y", tenant_weight=4),
    }
    records = [*backlog("ns/x/a", 10), *backlog("b", 10), *backlog("c", 10)]
    owed = owed_service(records, clients, 11.0).service
    assert owed == pytest.approx({"ns/x/a": LAST + 45, "b": LAST + 15, "c": LAST + 240})


def test_overlapping_waits_are_one_wait_and_parts_of_a_second_do_not_count() -> None:
    short = [served("b", n + 0.1, n + 0.9, 10) for n in range(10)]
    overlapping = [served("c", 0.0, 1.5, 0), served("c", 1.0, 3.0, LAST)]
    owed = owed_service([*backlog("a", 30), *short, *overlapping], {}, 11.0).service
    assert owed["b"] == pytest.approx(100)
    assert owed["c"] == pytest.approx(LAST + 2 * 30 / 2)


def test_a_client_is_owed_no_more_than_its_waiting_requests_cost() -> None:
    light = [served("b", 0.0, 4.0, 5)]
    owed = owed_service([*backlog("a", 30), *light], {}, 11.0).service
    assert owed["b"] == pytest.approx(5 + 4 * 5)
    assert owed["a"] == pytest.approx(LAST + 300 - 4 * 5)


def test_service_that_a_light_client_leaves_is_owed_to_its_tenant_s_others() -> None:
    clients = {"c": Client("c", "c", tenant_weight=2)}
    records = [*backlog("a", 30), *backlog("c", 30), served("b", 0.0, 1.0, 3)]
    owed = owed_service(records, clients, 11.0).service
    assert owed["b"] == pytest.approx(3 + 3)
    assert owed["a"] == pytest.approx(LAST + 17 + 9 * 20)
    assert owed["c"] == pytest.approx(LAST + 40 + 9 * 40)


def test_the_cost_of_a_request_that_did_not_end_is_no_limit() -> None:
    cut = Record("r", "", "b", -1, "unfinished", 0.0, 10.0, None, None, 0, 0, 0, 0, 0)
    owed = owed_service([*backlog("a", 30), cut], {}, 11.0).service
    assert owed["b"] == pytest.approx(10 * 15)


def test_without_a_known_admission_a_request_waits_until_its_first_token() -> None:
    answered = Record("r", "", "b", -1, "finished", 0.0, None, 4.0, 4.0, 80, 0, 80, 0, 0)
    owed = owed_service([*backlog("a", 30), answered], {}, 11.0).service
    assert owed["b"] == pytest.approx(80 + 4 * 30 / 2)


def test_a_run_of_no_length_owes_nothing() -> None:
    assert owed_service([], {}, 0.0).service == {}


def flood(first_s: int, until_s: int, *, other: bool) -> list[Record]:
    """Client `a` is admitted once a second, and `b`, which waits too, only where `other` says so."""
    records = []
    for n in range(first_s, until_s):
        records.append(served("a", float(first_s), float(n), 30))
        if other:
            records.append(served("b", float(first_s), float(n), 30))
    if not other:
        records.append(served("b", float(first_s), float(until_s), LAST))
    return records


def test_a_run_is_judged_by_its_worst_minute() -> None:
    fair, unfair = flood(0, 300, other=True), flood(300, 400, other=False)
    shares = owed_service([*fair, *unfair], {}, 401.0).shares
    assert shares.given_over_owed["b"] == 0.0
    assert set(shares.took) == {"a"}
    assert (shares.took["a"].given, shares.took["a"].owed) == pytest.approx((1.0, 0.5), rel=0.1)
    assert owed_service(fair, {}, 300.0).shares.given_over_owed == {
        "a": pytest.approx(1.0),
        "b": pytest.approx(1.0),
    }


def test_a_client_that_waits_now_and_then_is_not_judged() -> None:
    """Else a request that waits two seconds would count as starved, whatever its client gets in all."""
    now_and_then = [served("b", 10.0 * n, 10.0 * n + 3, 10) for n in range(12)]
    owed = owed_service([*flood(0, 120, other=False)[:-1], *now_and_then], {}, 121.0)
    assert owed.service["b"] > 2 * 120
    assert set(owed.shares.given_over_owed) == {"a"}


def test_a_run_of_less_than_a_minute_is_one_window() -> None:
    shares = owed_service([*backlog("a", 30), *backlog("b", 10)], {}, 11.0).shares
    assert shares.given_over_owed == {"a": pytest.approx(1.5), "b": pytest.approx(0.5)}
    assert (shares.took["a"].given, shares.took["a"].owed) == pytest.approx((0.75, 0.5))
