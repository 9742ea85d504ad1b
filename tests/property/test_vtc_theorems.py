"""VTC's lemmas and theorems at every instant of random runs, with and without weights.

Every test also says how much it saw, so that none holds for want of a backlog.
"""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from itertools import combinations, permutations

import pytest
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import ReplicaPolicy
from evenkeel_fairshare.replica.registry import POLICIES, make_policy
from evenkeel_fairshare.replica.vtc import Vtc
from hypothesis import given
from hypothesis import strategies as st

from tests.support import theorems as bounds
from tests.support.abstract_engine import AbstractEngine, Room
from tests.support.costs import QuadraticCost
from tests.support.loads import (
    MAX_INPUT_TOKENS,
    MAX_OUTPUT_TOKENS,
    Client,
    Load,
    Run,
    Sending,
    largest_rise,
    loads,
    run,
)

WEIGHTED = pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])


def counters(policy: ReplicaPolicy) -> dict[str, float]:
    return {client: -state.deficit for client, state in policy.clients().items()}


KV_TIME: ContextVar[float] = ContextVar("KV_TIME")


@pytest.fixture(params=[0.0, 500.0], ids=["", "held memory has a price"], autouse=True)
def kv_time(request):
    """R14."""
    token = KV_TIME.set(request.param)
    yield
    KV_TIME.reset(token)


def play(load: Load, **options) -> Run:
    options.setdefault("cost", LinearCost(kv_time=KV_TIME.get()))
    return run(Vtc(cost=options["cost"]), load, probe=counters, full_input=True, **options)


def weights(load: Load) -> dict[str, float]:
    """Flat: a client's weight is its tenant's times its own."""
    return {client.identity: client.tenant_weight * client.weight for client in load.clients}


def overshoot(load: Load) -> float:
    return overshoot_of(load.memory_tokens)


def overshoot_of(memory_tokens: int) -> float:
    return bounds.vtc_overshoot(
        max_input_tokens=MAX_INPUT_TOKENS, memory_tokens=memory_tokens, kv_time=KV_TIME.get()
    )


def waiting_counters(played: Run, load: Load) -> list[list[float]]:
    """By event: the counters of the clients that wait."""
    traces = [played.parties[client.identity] for client in load.clients]
    events = range(len(traces[0].queued))
    return [[trace.probes[t] for trace in traces if trace.queued[t]] for t in events]


@WEIGHTED
def test_the_least_counter_of_those_that_wait_never_falls(weighted):
    """Lemma A.1, also across times without waiting clients: that is what line 10 is for."""
    seen: Counter[str] = Counter()

    @given(load=loads(tenants=2, weighted=weighted))
    def check(load: Load) -> None:
        played = play(load)
        level, was_empty = 0.0, False
        for waiting in waiting_counters(played, load):
            if waiting:
                assert min(waiting) >= level
                seen["after an empty queue"] += was_empty and level > 0
                level = min(waiting)
            was_empty = not waiting

    check()
    assert seen["after an empty queue"] > 0


@WEIGHTED
def test_counters_of_those_that_wait_stay_within_u(weighted):
    """Lemma 4.3."""
    seen: Counter[str] = Counter()

    @given(load=loads(tenants=2, weighted=weighted))
    def check(load: Load) -> None:
        played = play(load)
        bound = bounds.vtc_counter_spread(overshoot(load), [*weights(load).values()])
        for waiting in waiting_counters(played, load):
            if waiting:
                assert max(waiting) - min(waiting) <= bound
                seen["apart"] += max(waiting) - min(waiting) > 0.05 * bound

    check()
    assert seen["apart"] > 0


@WEIGHTED
def test_two_backlogged_clients_differ_by_a_constant(weighted):
    """Theorem 4.4; weighted as ALGORITHMS §1.5."""
    seen: Counter[str] = Counter()

    @given(load=loads(tenants=2, weighted=weighted))
    def check(load: Load) -> None:
        played, weight = play(load), weights(load)
        bound = bounds.vtc_backlogged_gap(overshoot(load), [*weight.values()])
        for one, other in combinations(weight, 2):
            first, second = played.parties[one].service, played.parties[other].service
            for interval in played.backlogged(one, other):
                gaps = [first[t] / weight[one] - second[t] / weight[other] for t in interval]
                assert max(gaps) - min(gaps) <= bound
                start, end = interval[0], interval[-1]
                seen["both served"] += first[end] > first[start] and second[end] > second[start]

    check()
    assert seen["both served"] > 0


@WEIGHTED
def test_a_backlogged_client_falls_behind_no_other_by_more_than_a_constant(weighted):
    """Theorem 4.9: whatever the other one does."""
    seen: Counter[str] = Counter()

    @given(load=loads(tenants=2, weighted=weighted))
    def check(load: Load) -> None:
        played, weight = play(load), weights(load)
        bound = bounds.vtc_shortfall(overshoot(load), [*weight.values()])
        for one, other in permutations(weight, 2):
            ours, theirs = played.parties[one].service, played.parties[other].service
            for interval in played.backlogged(one):
                lead = largest_rise(
                    theirs[t] / weight[other] - ours[t] / weight[one] for t in interval
                )
                assert lead <= bound
                waits = [played.parties[other].queued[t] for t in interval]
                seen["the other came and went"] += any(waits) and not all(waits)

    check()
    assert seen["the other came and went"] > 0


def test_a_client_that_comes_back_waits_for_a_constant_of_others_service():
    """Theorem 4.11 in service: over the least service per second, that is the delay."""
    seen: Counter[str] = Counter()

    @given(load=loads(tenants=2))
    def check(load: Load) -> None:
        played = play(load)
        identities = [client.identity for client in load.clients]
        total = [
            sum(now) for now in zip(*(played.parties[i].service for i in identities), strict=True)
        ]
        bound = bounds.vtc_dispatch_delay_s(
            overshoot(load), clients=len(identities), service_per_s=1.0
        )
        for identity in identities:
            trace = played.parties[identity]
            for interval in played.backlogged(identity):
                arrival = interval[0]
                if arrival and trace.running[arrival - 1]:
                    continue  # the premise: none waiting and none running
                waits_until = next((t - 1 for t in interval if trace.running[t]), interval[-1])
                assert total[waits_until] - total[arrival] <= bound
                seen["waited"] += total[waits_until] > total[arrival]

    check()
    assert seen["waited"] > 0


def test_under_peak_aware_admission_the_bounds_hold_for_the_real_batches():
    """§7 A1: M' instead of M."""
    seen: Counter[str] = Counter()

    @given(load=loads())
    def check(load: Load) -> None:
        played = play(load, room=Room.PEAK)
        memory_tokens = played.engine.peak_resident_tokens
        seen["beyond M"] += memory_tokens > load.memory_tokens
        unit = overshoot_of(memory_tokens)
        for waiting in waiting_counters(played, load):
            if waiting:
                assert max(waiting) - min(waiting) <= bounds.vtc_counter_spread(unit)
                seen["waiting"] += len(waiting) > 1

    check()
    assert seen["beyond M"] > 0 and seen["waiting"] > 0


def test_under_peak_aware_admission_the_bound_for_m_itself_is_false():
    """§7 A1: requests of lengths M, M/2, M/3, … peak at M together, but decode M ln n tokens."""
    memory_tokens = 2000
    flood, late = Client("ns/t", "flood"), Client("ns/t", "late")
    engine = AbstractEngine(Vtc(), memory_tokens, room=Room.PEAK)
    lengths = [memory_tokens // number - 1 for number in range(1, 40)]
    for number, made in enumerate(lengths):
        engine.submit(Sending(0, flood, 1, made, made).job(number))
    engine.submit(Sending(0, flood, memory_tokens - 1, 1, 1).job(99))  # its backlog
    assert len(engine.admit()) == len(lengths)
    for number in range(2):  # fits only when nothing else runs, and holds back the flood meanwhile
        engine.submit(Sending(0, late, memory_tokens - 1, 1, 1).job(100 + number))
    while engine.batch:
        assert not engine.admit()
        engine.decode()
    gap = 2 * engine.output_tokens[flood.identity]
    assert engine.output_tokens[late.identity] == 0

    def bound(memory_tokens: int) -> float:
        unit = bounds.vtc_overshoot(max_input_tokens=1999, memory_tokens=memory_tokens)
        return bounds.vtc_backlogged_gap(unit)

    assert bound(memory_tokens) < gap <= bound(engine.peak_resident_tokens)


def test_a_general_cost_is_bounded_by_its_dearest_batch():
    """§4.2: U becomes the most that a batch can add up to."""
    cost = QuadraticCost(extend=2, output=1, product=1, output_squared=3)
    seen: Counter[str] = Counter()

    @given(load=loads())
    def check(load: Load) -> None:
        played = play(load, cost=cost)
        most = load.memory_tokens // 2
        unit = bounds.general_overshoot(cost, [[(MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS)] * most])
        for one, other in combinations(weights(load), 2):
            first, second = played.parties[one].service, played.parties[other].service
            for interval in played.backlogged(one, other):
                gaps = [first[t] - second[t] for t in interval]
                assert max(gaps) - min(gaps) <= bounds.vtc_backlogged_gap(unit)
                seen["backlogged"] += 1

    check()
    assert seen["backlogged"] > 0


@pytest.mark.parametrize("name", POLICIES)
@given(most=st.integers(20, 60), count=st.integers(2, 6))
def test_no_policy_here_promises_less_than_a_memory_of_output(name, most, count):
    """Theorem 4.8: one client fills the memory, then another comes, and nothing of it runs meanwhile."""
    flood, late = Client("ns/t", "flood"), Client("ns/t", "late")
    engine = AbstractEngine(make_policy(name), memory_tokens=count * (most + 1))
    for number in range(2 * count):
        engine.submit(Sending(0, flood, 1, most, most).job(number))
    assert len(engine.admit()) == count
    for number in range(2 * count):
        engine.submit(Sending(0, late, 1, most, most).job(100 + number))
    decoded = 0
    while engine.batch:
        decoded += len(engine.batch)
        engine.decode()
        if engine.batch:
            assert not engine.admit()
    outputs_only = engine.memory_tokens - count  # each has one token of input
    assert 2 * decoded == bounds.least_gap_of_any_policy(memory_tokens=outputs_only)
