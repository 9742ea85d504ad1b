"""Engine time by client: use, lead, lag, and whose prefill waits (design R13)."""

from __future__ import annotations

import pytest
from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.engine_time import EngineTime, PassTurns
from evenkeel_fairshare.replica.time_levels import (
    MAX_LAG_S,
    NOT_LEADING,
    REQUEST_TOKENS,
    Clients,
    StepTimes,
    TimeLevel,
)

from tests.support.engine_figures import figures


def request(client: str, *, weight: float = 1.0, tenant: str = "", input_tokens: int = 100):
    owner = f"ns/{tenant or client}"
    return Request(
        id=f"{client}-{weight}-{input_tokens}",
        client=f"{owner}/{client}",
        tenant=owner,
        arrival_s=0.0,
        input_tokens=input_tokens,
        max_output_tokens=100,
        client_weight=weight if tenant else 1.0,
        tenant_weight=1.0 if tenant else weight,
    )


def opened(time: EngineTime, *requests: Request) -> None:
    for one in requests:
        time.open(one)


def decoding(time: EngineTime, *requests: Request) -> None:
    for one in requests:
        time.open(one)
        time.starts(one)
        one.output_tokens = 1
        time.decodes(one)


def prefill(time: EngineTime, one: Request, seconds: float) -> None:
    time.elapsed(seconds, prefilled={one: one.input_tokens}, decoded=False)


def decode(time: EngineTime, seconds: float) -> None:
    time.elapsed(seconds, prefilled={}, decoded=True)


def test_a_prefill_makes_a_lead_and_a_lag_that_equal_decode_time_works_off():
    time = EngineTime()
    victim, rival = request("victim"), request("rival")
    decoding(time, victim)
    opened(time, rival)
    assert not time.must_wait(rival)
    time.starts(rival)
    prefill(time, rival, 0.4)
    assert figures(time) == {
        victim.client: (0.0, pytest.approx(0.2)),
        rival.client: (pytest.approx(0.2), pytest.approx(0.2 - 0.2, abs=1e-9)),
    }
    assert time.must_wait(rival)
    decode(time, 0.3)
    assert time.must_wait(rival)
    decode(time, 0.1)
    assert not time.must_wait(rival)


def test_a_client_that_used_less_than_its_share_never_waits():
    time = EngineTime()
    victim, rival, newcomer = request("victim"), request("rival"), request("newcomer")
    decoding(time, victim)
    opened(time, rival)
    time.starts(rival)
    prefill(time, rival, 1.0)
    opened(time, newcomer)
    assert time.must_wait(rival)
    assert not time.must_wait(newcomer)


def test_without_another_client_that_runs_nothing_waits():
    time = EngineTime()
    victim, rival = request("victim"), request("rival")
    decoding(time, victim)
    opened(time, rival)
    time.starts(rival)
    prefill(time, rival, 1.0)
    assert time.must_wait(rival)
    time.stops(victim)
    assert not time.must_wait(rival)
    assert time.should_wait(rival), "the victim's next request goes first"
    time.close(victim)
    assert not time.should_wait(rival)


def test_two_clients_in_prefill_do_not_wait_for_each_other():
    """Both lead at their level, both lag, and no request decodes."""
    time = EngineTime(isolation=4.0)
    one, other, short = request("one"), request("other"), request("short")
    for client in (one, other):
        opened(time, client)
        time.starts(client)
    decoding(time, short)
    for _ in range(10):
        prefill(time, one, 0.4)
        prefill(time, other, 0.4)
        decode(time, 0.1)
    time.stops(short)
    assert not (time.must_wait(one) and time.must_wait(other))


def test_shares_follow_weights():
    time = EngineTime()
    victim, rival = request("victim", weight=3.0), request("rival", weight=1.0)
    decoding(time, victim)
    opened(time, rival)
    time.starts(rival)
    prefill(time, rival, 0.1)
    decode(time, 0.29)
    assert time.must_wait(rival)
    decode(time, 0.02)
    assert not time.must_wait(rival)


def test_many_clients_of_a_tenant_have_one_share():
    """A tenant's lead is that of all its clients, one after the other."""
    time = EngineTime()
    victim = request("victim")
    decoding(time, victim)
    waited = 0
    for number in range(10):
        name = request(f"name-{number}", tenant="many")
        time.open(name)
        while time.must_wait(name):
            decode(time, 0.01)
            waited += 1
        time.starts(name)
        prefill(time, name, 0.1)
        time.stops(name)
        time.close(name)
    assert waited >= 9 * 5, "a lead of 0.05 s, or more while the client is gone, takes 5 steps"


def test_clients_of_one_tenant_divide_its_share():
    time = EngineTime()
    victim, rival = request("victim", tenant="t"), request("rival", tenant="t")
    decoding(time, victim)
    opened(time, rival)
    time.starts(rival)
    prefill(time, rival, 0.4)
    assert time.must_wait(rival)
    decode(time, 0.5)
    assert not time.must_wait(rival)


def test_a_lag_stays_the_same_between_two_requests():
    time = EngineTime()
    victim, rival = request("victim"), request("rival")
    decoding(time, victim)
    opened(time, rival)
    time.starts(rival)
    prefill(time, rival, 0.4)
    time.stops(victim)
    time.close(victim)
    prefill(time, rival, 10.0)
    again = request("victim", input_tokens=50)
    opened(time, again)
    assert figures(time)[victim.client][1] == pytest.approx(0.2)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("weight", [0.02, 50.0])
def test_a_lead_and_a_lag_keep_their_seconds_when_a_weight_changes(weight: float, is_open: bool):
    """Without that a lead of seconds becomes one of minutes, and its client starves."""
    time = EngineTime()
    victim, rival = request("victim"), request("rival")
    decoding(time, victim)
    opened(time, rival)
    time.starts(rival)
    prefill(time, rival, 0.4)
    before = figures(time)
    assert before[rival.client][0] > 0.1
    if not is_open:
        time.stops(rival)
        time.close(rival)
    for client in ("victim", "rival"):
        opened(time, request(client, weight=weight, input_tokens=50))
    assert figures(time)[rival.client][0] == pytest.approx(before[rival.client][0])
    assert figures(time)[victim.client][1] == pytest.approx(before[victim.client][1])


def test_a_lag_and_a_lead_have_a_limit():
    time = EngineTime()
    victim, rival = request("victim"), request("rival")
    decoding(time, victim)
    opened(time, rival)
    time.starts(rival)
    for _ in range(100):
        prefill(time, rival, 1.0)
    assert figures(time)[victim.client] == (0.0, MAX_LAG_S)
    assert figures(time)[rival.client][0] <= MAX_LAG_S


def test_one_prefill_counts_whole_however_long_it_took():
    time = EngineTime()
    victim, rival = request("victim"), request("rival")
    decoding(time, victim)
    opened(time, rival)
    time.starts(rival)
    prefill(time, rival, 1.5 * MAX_LAG_S)
    assert figures(time)[rival.client][0] == pytest.approx(0.75 * MAX_LAG_S)


def test_a_mixed_iteration_counts_as_a_decode_step_and_a_prefill():
    time = EngineTime()
    victim, rival = request("victim"), request("rival")
    decoding(time, victim)
    opened(time, rival)
    decode(time, 0.1)
    time.starts(rival)
    time.elapsed(0.5, prefilled={rival: 100}, decoded=True)
    lead, lag = figures(time)[rival.client][0], figures(time)[victim.client][1]
    assert lead == pytest.approx(0.4 - 0.25)
    assert lag == pytest.approx(0.25 - 0.1)


@pytest.mark.parametrize(("isolation", "want_batch"), [(0.0, 100), (0.5, 37), (1.0, 16)])
def test_isolation_bounds_the_batch_beside_a_small_client(isolation: float, want_batch: int):
    """A step takes 10 ms and 1 ms per request: 11 ms for the victim alone, whose share is a half. At 0.5 a step may take 44 ms."""
    time = EngineTime(isolation=isolation)
    decoding(time, request("victim"))
    for count in range(1, 100):
        decode(time, 0.010 + 0.001 * count)
        rival = request("rival", input_tokens=100 - count)
        opened(time, rival)
        if time.must_wait(rival):
            time.close(rival)
            break
        time.starts(rival)
        rival.output_tokens = 1
        time.decodes(rival)
    else:
        count = 100
    assert count == pytest.approx(want_batch, abs=4)


@pytest.mark.parametrize("isolation", [-0.1, float("inf"), float("nan")])
def test_an_isolation_out_of_range_is_refused(isolation: float):
    with pytest.raises(ValueError, match="isolation is"):
        EngineTime(isolation=isolation)


def test_step_times_are_a_fixed_time_and_one_per_token():
    times = StepTimes()
    for requests in range(1, 200):
        context = requests * 600
        times.observe(requests, context, [0.0145 + 1e-6 * (context + REQUEST_TOKENS * requests)])
    want = 0.0145 + 1e-6 * (4000 + REQUEST_TOKENS * 7)
    assert times.predict(7, 4000) == pytest.approx(want, rel=1e-6)


def test_step_times_of_a_single_size_are_predicted_as_seen():
    times = StepTimes()
    assert times.predict(3, 100) == 0.0
    for _ in range(5):
        times.observe(8, 4800, [0.02])
    assert times.predict(1, 10) == times.predict(100, 100_000) == 0.02


@pytest.mark.parametrize(
    ("lagging", "over_own_tenant", "over_other_tenants"),
    [([], False, False), (["a1"], False, False), (["a2"], True, False), (["b1"], False, True)],
    ids=["no client", "the client itself", "of its tenant", "of another tenant"],
)
def test_a_lead_counts_at_the_level_at_which_two_clients_compete(
    lagging, over_own_tenant, over_other_tenants
):
    tenants, clients = TimeLevel(), {}
    for name in ("a1", "a2", "b1"):
        tenant = tenants.join(name[0], 1.0)
        clients[name] = tenant.children.join(name, 1.0, tenant)
    rivals = Clients(clients[name] for name in lagging)
    client = clients["a1"]
    assert rivals.has_rival(client, (True, False)) == over_own_tenant
    assert rivals.has_rival(client, (False, True)) == over_other_tenants
    assert not rivals.has_rival(client, NOT_LEADING)


@pytest.mark.parametrize("third_lags", [False, True])
def test_beside_a_chunk_that_waits_no_client_yields_to_its_owner(third_lags: bool):
    """Two clients that take turns for long have a lead and a lag each. So each would wait for the other."""
    time = EngineTime()
    first, victim, third = request("victim"), request("victim"), request("third")
    chunk, other = request("rival"), request("rival")
    opened(time, chunk, first)
    if third_lags:
        opened(time, third)
    time.starts(chunk)
    prefill(time, chunk, 1.0)
    time.starts(first)
    first.output_tokens = 1
    time.decodes(first)
    decode(time, 0.4)
    time.stops(first)
    opened(time, victim, other)
    time.close(first)
    found = figures(time)
    assert all(found[one.client][0] > 0 and found[one.client][1] > 0 for one in (chunk, victim))
    turns = PassTurns(time)
    turns.begin(chunk=chunk)
    assert turns.must_wait(victim) == third_lags
    assert turns.must_wait(other)
    turns.begin()
    assert third_lags or not turns.must_wait(victim), "all yield, so this pass becomes the next one"
