"""The console's samples: rates, the hour, and their bound in memory."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan

import pytest
from evenkeel_contract.figures import Figures
from evenkeel_router.ledger.clients import ClientFigures
from evenkeel_router.ledger.estimates import TenantEstimates
from evenkeel_router.ledger.fairness import MemberFigures
from evenkeel_router.ledger.totals import ClientTotals, Distributions
from evenkeel_router.telemetry.console import whole_of
from evenkeel_router.telemetry.history import (
    FIELDS,
    SAMPLES,
    TICKS,
    WHOLE_SERVICE,
    History,
    Moment,
    window_between,
)

from tests.support.steps import result_of

A, B, REST = "ns/t/a", "ns/t/b", "ns/t/*"


def reading(
    service: float = 0.0, *, owed: float = 0.0, waiting: int = 0, running: int = 0, **here: float
) -> ClientFigures:
    """A record of a client; its name does not matter here."""
    fleet = MemberFigures(service=service, owed=owed)
    own = ClientTotals("", Distributions(""), TenantEstimates(), **here)  # type: ignore[arg-type]
    return ClientFigures("", "", "", fleet, own, waiting, running)


def rates(
    before: Mapping[str, ClientFigures], now: Mapping[str, ClientFigures]
) -> Mapping[str, Figures]:
    """The figures of ten seconds."""
    return result_of(window_between(Moment(0.0, before), Moment(10.0, now))).rates


def add(history: History, tick: int, clients: Mapping[str, ClientFigures]) -> None:
    result_of(history.add(Moment(2.0 * tick, clients)))


def test_a_rate_is_the_growth_of_a_total_over_the_time() -> None:
    tokens = {"input_tokens": 50, "cached_tokens": 10, "output_tokens": 10}
    before = {A: reading(100, owed=90, ttft_s=1.0, answers=2, waiting=9, **tokens)}
    tokens = {"input_tokens": 150, "cached_tokens": 60, "output_tokens": 30}
    now = {A: reading(300, owed=190, ttft_s=4.0, answers=4, waiting=1, running=2, **tokens)}
    found = rates(before, now)[A]
    assert found == Figures(
        service_per_s=20,
        owed_per_s=10,
        output_tokens_per_s=2,
        ttft_s=1.5,
        hit_rate=0.5,
        waiting=1,
        running=2,
    )


@pytest.mark.parametrize(
    ("scope", "want_whole"),
    [
        pytest.param(WHOLE_SERVICE, 10, id="shares in the service add up to all of it"),
        pytest.param("ns/t", 5, id="a starved tenant is owed more than it receives"),
        pytest.param("ns/other", 9, id="another one receives more than it is owed"),
    ],
)
def test_shares_and_owed_shares_are_parts_of_the_same_and_at_most_all_of_it(
    scope: str, want_whole: float
) -> None:
    now = {A: reading(10, owed=25), B: reading(0, owed=25), "ns/other/c": reading(90, owed=50)}
    assert whole_of(rates(dict.fromkeys(now, reading()), now), scope) == want_whole


def test_tenant_and_service_are_the_sums_and_their_means_are_weighted() -> None:
    now = {
        A: reading(100, ttft_s=1.0, answers=1, waiting=1),
        B: reading(50, ttft_s=9.0, answers=4, waiting=2),
        "ns/other/c": reading(10, running=1),
    }
    found = rates(dict.fromkeys(now, reading()), now)
    assert (found["ns/t"].service_per_s, found["ns/t"].ttft_s, found["ns/t"].waiting) == (
        15,
        2.0,
        3,
    )
    assert (found[WHOLE_SERVICE].service_per_s, found[WHOLE_SERVICE].running) == (16, 1)
    assert found["ns/other"].ttft_s is None


def test_quality_of_experience_is_the_mean_of_the_streams_of_the_window() -> None:
    before = {A: reading(qoe=5.0, qoe_streams=5), B: reading()}
    now = {A: reading(qoe=6.5, qoe_streams=7), B: reading()}
    found = rates(before, now)
    assert (found[A].qoe, found["ns/t"].qoe) == (0.75, 0.75)
    assert found[B].qoe is None


@pytest.mark.parametrize(
    ("before", "now", "want"),
    [
        ({A: reading(100)}, {A: reading(40)}, 4.0),  # a new process counts from zero
        ({}, {A: reading(40)}, 4.0),  # a new client as well
        ({REST: reading(90)}, {A: reading(40), REST: reading(90)}, 0.0),  # it was one of the others
    ],
)
def test_a_total_that_begins_anew_makes_no_peak(
    before: Mapping[str, ClientFigures], now: Mapping[str, ClientFigures], want: float
) -> None:
    assert rates(before, now)[A].service_per_s == want


def test_the_window_slides_and_every_five_readings_are_a_sample() -> None:
    history = History()
    for tick in range(3 * TICKS):
        add(history, tick, {A: reading(100.0 * tick, waiting=tick)})
    assert history.now.seconds == 2.0 * TICKS
    columns = history.columns(A)
    assert columns is not None
    assert columns["service_per_s"] == [50.0, 50.0, 50.0]
    assert columns["waiting"] == [TICKS - 1, 2 * TICKS - 1, 3 * TICKS - 1]
    assert list(history.times_s) == [8.0, 18.0, 28.0]
    assert columns.keys() == set(FIELDS)


def test_an_hour_is_kept_oldest_first_and_a_client_that_left_ends() -> None:
    history = History()
    ticks = (SAMPLES + 3) * TICKS
    for tick in range(ticks):
        clients = {B: reading(waiting=tick)}
        if tick < 4 * TICKS:
            clients[A] = reading(waiting=1)
        add(history, tick, clients)
    columns, left = history.columns(B), history.columns(A)
    assert columns is not None and left is not None
    assert columns["waiting"] == [TICKS * (n + 5) - 1 for n in range(SAMPLES - 1)]
    assert all(map(isnan, left["waiting"]))
    for tick in range(ticks, ticks + TICKS):
        add(history, tick, {B: reading()})
    assert history.columns(A) is None, "no sample of it is left"


def test_a_sample_that_is_being_written_is_not_shown() -> None:
    history = History()
    for tick in range((SAMPLES + 1) * TICKS - 1):
        add(history, tick, {A: reading(waiting=tick)})
    shown = [
        (len(history.times_s), list((history.columns(A) or {})["waiting"]))
        for _ in history.add(Moment(1e6, {A: reading(waiting=7)}))
    ]
    assert len(shown) > 2, "it takes steps"
    assert shown == shown[:1] * len(shown)


def test_later_clients_are_sampled_with_the_others_of_their_tenant() -> None:
    history = History(max_clients=2)
    names = [f"ns/t/{n}" for n in range(5)]
    for tick in range(2 * TICKS):
        add(history, tick, {name: reading(10.0 * tick, running=1) for name in names})
    assert result_of(history.most_concerned(WHOLE_SERVICE, 9, ())) == [REST, "ns/t/0", "ns/t/1"]
    rest, everybody = history.columns(REST), history.columns(WHOLE_SERVICE)
    assert rest is not None and everybody is not None
    assert (rest["service_per_s"], rest["running"]) == ([15.0, 15.0], [3, 3])
    assert everybody["service_per_s"] == [25.0, 25.0]
    assert len(history) == 2 + 1 + 2, "clients, their others, tenant and service"


def test_the_most_served_are_those_of_the_scope() -> None:
    history = History()
    for tick in range(TICKS):
        add(
            history, tick, {A: reading(tick), B: reading(9.0 * tick), "ns/u/c": reading(5.0 * tick)}
        )
    assert result_of(history.most_concerned(WHOLE_SERVICE, 2, ())) == [B, "ns/u/c"]
    assert result_of(history.most_concerned("ns/t", 9, ())) == [B, A]


def test_those_who_are_hurt_come_before_those_with_the_most_service() -> None:
    history = History()
    for tick in range(TICKS):
        add(history, tick, {A: reading(), B: reading(9.0 * tick), "ns/u/c": reading(5.0 * tick)})
    hurt = [A, "ns/u/gone"]
    assert result_of(history.most_concerned(WHOLE_SERVICE, 2, hurt)) == [A, B]
    assert result_of(history.most_concerned("ns/u", 2, hurt)) == ["ns/u/c"]


def test_a_sample_has_the_latency_of_those_who_wait() -> None:
    history = History()
    for tick in range(TICKS):
        result_of(history.add(Moment(2.0 * tick, {A: reading(), B: reading()}), {A: 47.0}))
    assert (history.columns(A) or {})["ttft_s"] == [47.0]
    assert isnan((history.columns(B) or {})["ttft_s"][0])
