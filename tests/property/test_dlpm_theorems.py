"""DLPM's theorems at every instant of random runs, flat and on two levels, with and without weights.

Every test also says how much it saw, so that none holds for want of a backlog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from itertools import combinations, permutations
from typing import NamedTuple

import pytest
from evenkeel_fairshare.bounds import dlpm_overshoot
from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.replica.contract import ReplicaPolicy
from evenkeel_fairshare.replica.deficit import DEFERRED_REFILLS, DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.order import LONGEST_MATCH, Order
from evenkeel_laboratory.policies.registry import PrintedDlpm
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import theorems as bounds
from tests.support.abstract_engine import Room
from tests.support.costs import QuadraticCost
from tests.support.loads import (
    MAX_INPUT_TOKENS,
    MAX_OUTPUT_TOKENS,
    Load,
    Run,
    largest_rise,
    loads,
    newcomer,
    run,
)
from tests.support.replica import SHORTEST_FIRST

QUANTA = st.sampled_from([1, 10, 60, 300, 2000])

HIERARCHIES = {"flat": 1, "two levels": 3}


class Held(NamedTuple):
    """What a level holds against one member."""

    deficit: float
    refills: int


class Pair(NamedTuple):
    """Two members of one level, with their weights."""

    one: str
    other: str
    weights: tuple[float, float]


def held(policy: ReplicaPolicy) -> dict[str, Held]:
    assert isinstance(policy, Dlpm)
    tenants = [*policy.tenants.known()]
    clients = [client for tenant in tenants for client in tenant.children.known()]
    return {one.name: Held(one.deficit, one.level.refills) for one in (*tenants, *clients)}


class Way(NamedTuple):
    """How a replica runs DLPM."""

    order: Order | None = None
    """In which order a pass takes the positive ones; None: as printed. No theorem asks."""
    warmup_s: float = 0.0
    """A step of the engine is a second here."""
    kv_time: float = 0.0
    """The price of KV held over time (R14)."""

    @property
    def deferred_refills(self) -> int:
        return DEFERRED_REFILLS if self.warmup_s else 0


WAY: ContextVar[Way] = ContextVar("WAY")
WAYS = {
    "as printed": Way(),
    "longest first": Way(order=LONGEST_MATCH),
    "held memory has a price": Way(order=LONGEST_MATCH, kv_time=500),
    "shortest first": Way(order=SHORTEST_FIRST),
    "warming up": Way(warmup_s=15),
    "warming up, longest first": Way(order=LONGEST_MATCH, warmup_s=25),
    "warming up, shortest first": Way(order=SHORTEST_FIRST, warmup_s=25),
}


@pytest.fixture(params=WAYS.values(), ids=WAYS, autouse=True)
def way(request):
    token = WAY.set(request.param)
    yield request.param
    WAY.reset(token)


def play(load: Load, quantum: float, **options) -> Run:
    way = WAY.get()
    options.setdefault("cost", LinearCost(kv_time=way.kv_time))
    make = partial(Dlpm, order=way.order) if way.order else PrintedDlpm
    policy = make(
        rules=DeficitRules(quantum=quantum),
        cost=options["cost"],
        warmup_s=way.warmup_s,
    )
    return run(policy, load, probe=held, **options)


def weights(load: Load) -> dict[str, float]:
    """Every party's weight in its level."""
    tenants = {client.tenant: client.tenant_weight for client in load.clients}
    return tenants | {client.identity: client.weight for client in load.clients}


def pairs(load: Load, choose=combinations) -> Iterator[Pair]:
    """Members of the same level: tenants, and clients of the same tenant."""
    weight = weights(load)
    levels: dict[str, list[str]] = {"": sorted({client.tenant for client in load.clients})}
    for client in load.clients:
        levels.setdefault(client.tenant, []).append(client.identity)
    for members in levels.values():
        for one, other in choose(members, 2):
            yield Pair(one, other, (weight[one], weight[other]))


def overshoot(load: Load) -> float:
    return overshoot_of(load.memory_tokens)


def overshoot_of(memory_tokens: int) -> float:
    return dlpm_overshoot(
        max_input_tokens=MAX_INPUT_TOKENS, memory_tokens=memory_tokens, kv_time=WAY.get().kv_time
    )


@pytest.mark.parametrize("tenants", HIERARCHIES.values(), ids=HIERARCHIES)
def test_service_is_old_deficit_plus_refills_minus_new_deficit(tenants, way):
    """The identity under Theorem A.1, exactly; and the theorem, for those that start from 0 or with a first turn (R17), whose
    round then counts."""
    seen: Counter[str] = Counter()

    @given(load=loads(tenants=tenants, weighted=True), quantum=QUANTA)
    @example(load=newcomer(tenants), quantum=60)
    def check(load: Load, quantum: float) -> None:
        played = play(load, quantum)
        weight = weights(load)
        for party, trace in played.parties.items():
            error = bounds.dlpm_service_error(
                overshoot(load), quantum, weight[party], deferred_refills=way.deferred_refills
            )
            for interval in played.backlogged(party):
                first, origin = trace.probes[interval[0]], trace.service[interval[0]]
                for event in interval:
                    now = trace.probes[event]
                    quanta = (now.refills - first.refills) * quantum * weight[party]
                    served = trace.service[event] - origin
                    assert served == first.deficit + quanta - now.deficit
                    if first.deficit == 0:
                        assert abs(quanta - served) <= error
                        seen["from 0"] += 1
                    if first.deficit == (turn := quantum * weight[party]):
                        assert abs(quanta + turn - served) <= error
                        seen["from a turn"] += 1
                    seen["refilled"] += now.refills > first.refills

    check()
    assert min(seen["refilled"], seen["from 0"], seen["from a turn"]) > 0


@pytest.mark.parametrize("tenants", HIERARCHIES.values(), ids=HIERARCHIES)
def test_a_deficit_stays_above_minus_u_and_up_to_a_quantum(tenants, way):
    """Equations 1 and 2."""
    seen: Counter[str] = Counter()

    @given(load=loads(tenants=tenants, weighted=True), quantum=QUANTA)
    def check(load: Load, quantum: float) -> None:
        played = play(load, quantum)
        weight = weights(load)
        for party, trace in played.parties.items():
            low, high = bounds.dlpm_deficit_range(
                overshoot(load), quantum, weight[party], deferred_refills=way.deferred_refills
            )
            deficits = [now.deficit for now in trace.probes if now]
            assert low < min(deficits) and max(deficits) <= high
            seen["a debt of several quanta"] += min(deficits) < -3 * quantum
            seen["nearly a quantum of credit"] += max(deficits) > 0.9 * high

    check()
    assert seen["a debt of several quanta"] > 0 and seen["nearly a quantum of credit"] > 0


@pytest.mark.parametrize("tenants", HIERARCHIES.values(), ids=HIERARCHIES)
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
def test_two_backlogged_members_of_a_level_differ_by_a_constant(tenants, weighted, way):
    """Theorem 4.1."""
    seen: Counter[str] = Counter()

    @given(load=loads(tenants=tenants, weighted=weighted), quantum=QUANTA)
    def check(load: Load, quantum: float) -> None:
        played = play(load, quantum)
        for one, other, (weight_one, weight_other) in pairs(load):
            unit, pair = overshoot(load), (weight_one, weight_other)
            bound = bounds.dlpm_backlogged_gap(
                unit, quantum, pair, deferred_refills=way.deferred_refills
            )
            together = bounds.dlpm_backlogged_gap(unit, quantum, pair)
            first, second = played.parties[one].service, played.parties[other].service
            for interval in played.backlogged(one, other):
                gaps = [first[t] / weight_one - second[t] / weight_other for t in interval]
                assert max(gaps) - min(gaps) <= bound
                if first[interval[0]] == second[interval[0]] == 0:  # neither came late
                    assert max(gaps) - min(gaps) <= together
                    seen["came together"] += 1
                ends = interval[0], interval[-1]
                seen["both served"] += all(w[ends[1]] > w[ends[0]] for w in (first, second))

    check()
    assert seen["both served"] > 0 and seen["came together"] > 0


@pytest.mark.parametrize("tenants", HIERARCHIES.values(), ids=HIERARCHIES)
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
def test_a_backlogged_member_falls_behind_no_other_by_more_than_a_constant(tenants, weighted, way):
    """Theorem 4.2: whatever the other one does."""
    seen: Counter[str] = Counter()

    @given(load=loads(tenants=tenants, weighted=weighted), quantum=QUANTA)
    def check(load: Load, quantum: float) -> None:
        played = play(load, quantum)
        for one, other, (weight_one, weight_other) in pairs(load, permutations):
            bound = bounds.dlpm_shortfall(
                overshoot(load),
                quantum,
                (weight_one, weight_other),
                deferred_refills=way.deferred_refills,
            )
            ours, theirs = played.parties[one].service, played.parties[other].service
            for interval in played.backlogged(one):
                lead = largest_rise(
                    theirs[t] / weight_other - ours[t] / weight_one for t in interval
                )
                assert lead <= bound
                waits = [played.parties[other].queued[t] for t in interval]
                seen["the other came and went"] += any(waits) and not all(waits)

    check()
    assert seen["the other came and went"] > 0


@pytest.mark.parametrize("tenants", HIERARCHIES.values(), ids=HIERARCHIES)
def test_a_client_that_comes_back_waits_for_a_constant_of_others_service(tenants, way):
    """Theorem A.2 in service: over the least service per second, that is the delay."""
    seen: Counter[str] = Counter()

    @given(load=loads(tenants=tenants), quantum=QUANTA)
    def check(load: Load, quantum: float) -> None:
        played = play(load, quantum)
        sizes = Counter(client.tenant for client in load.clients)
        total = [sum(now) for now in zip(*services(played, load), strict=True)]
        for client in load.clients:
            trace = played.parties[client.identity]
            for interval in played.backlogged(client.identity):
                arrival = interval[0]
                if arrival and trace.running[arrival - 1]:
                    continue  # the premise: none waiting and none running
                waits_until = next((t - 1 for t in interval if trace.running[t]), interval[-1])
                bound = bounds.dlpm_dispatch_delay_s(
                    overshoot(load),
                    quantum,
                    clients=sizes[client.tenant],
                    tenants=len(sizes),
                    service_per_s=1.0,
                    deferred_refills=way.deferred_refills,
                )
                assert total[waits_until] - total[arrival] <= bound
                seen["waited"] += total[waits_until] > total[arrival]

    check()
    assert seen["waited"] > 0


def services(played: Run, load: Load) -> list[list[float]]:
    return [played.parties[client.identity].service for client in load.clients]


def test_under_peak_aware_admission_the_bounds_hold_for_the_real_batches(way):
    """§7 A1: M' instead of M."""
    seen: Counter[str] = Counter()

    @given(load=loads(), quantum=QUANTA)
    def check(load: Load, quantum: float) -> None:
        played = play(load, quantum, room=Room.PEAK)
        memory_tokens = played.engine.peak_resident_tokens
        seen["beyond M"] += memory_tokens > load.memory_tokens
        unit = overshoot_of(memory_tokens)
        for one, other, _ in pairs(load):
            first, second = played.parties[one].service, played.parties[other].service
            for interval in played.backlogged(one, other):
                gaps = [first[t] - second[t] for t in interval]
                assert max(gaps) - min(gaps) <= bounds.dlpm_backlogged_gap(
                    unit, quantum, deferred_refills=way.deferred_refills
                )
                seen["backlogged"] += 1

    check()
    assert seen["beyond M"] > 0 and seen["backlogged"] > 0


QUADRATIC = QuadraticCost(extend=2, output=1, product=1, output_squared=3)


def test_a_general_cost_is_bounded_by_its_dearest_batch(way):
    """§4.2: U becomes the most that a batch can add up to."""
    seen: Counter[str] = Counter()

    @given(load=loads(), quantum=st.sampled_from([100, 3000]))
    def check(load: Load, quantum: float) -> None:
        cost: Cost = QUADRATIC
        played = play(load, quantum, cost=cost)
        # The dearest way to fill the memory with the requests of this load is at most this.
        worst = (MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS)
        most = load.memory_tokens // 2
        unit = bounds.general_overshoot(cost, [[worst] * most])
        for one, other, _ in pairs(load):
            first, second = played.parties[one].service, played.parties[other].service
            for interval in played.backlogged(one, other):
                gaps = [first[t] - second[t] for t in interval]
                assert max(gaps) - min(gaps) <= bounds.dlpm_backlogged_gap(
                    unit, quantum, deferred_refills=way.deferred_refills
                )
                seen["backlogged"] += 1

    check()
    assert seen["backlogged"] > 0
