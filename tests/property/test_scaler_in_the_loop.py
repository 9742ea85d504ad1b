"""The built-in scaler in a closed loop with a fleet: it answers steps of load, and neither flaps nor follows one greedy client.

The fleet is a fluid: clients receive equal parts of its capacity, and what they do not receive waits. Measurements are those of
the routers: demand is an average over a minute, and capacity is known after requests have waited for 15 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp

from evenkeel_contract.spec.autoscaling import Autoscaling, Prometheus, Targets
from evenkeel_contract.values import CountOrPercent, Quantity
from evenkeel_fairshare.tenancy import divided
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.recommendation import Measurements, Sample, measurements
from evenkeel_operator.core.scaling import ScalerState, Terms, started, step
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples

CAPACITY = 1000.0
"""Of a replica, weighted tokens per second."""
LOOK_S = 15.0
USABLE = 0.75


def scaling(*, given: bool = False, cap: int = 100) -> Autoscaling:
    """`given`: with `servicePerReplica`."""
    service = Quantity.from_plain(int(CAPACITY)) if given else None
    return Autoscaling(
        max_replicas=100,
        max_replicas_per_client=CountOrPercent.from_plain(cap),
        prometheus=Prometheus(url="http://prometheus:9090"),
        targets=Targets(service_per_replica=service),
    )


@dataclass
class World:
    """A fleet and its clients."""

    scaling: Autoscaling
    startup_s: float
    replicas: int = 1
    rates: dict[str, float] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    now_s: float = 0.0
    saturated_s: float = 0.0
    ready_s: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """The decision of each look."""

    def __post_init__(self) -> None:
        self.ready_s = [0.0] * self.replicas
        self.state: ScalerState = started(self.replicas, now_s=0.0)

    def runs(self, seconds: float, rates: dict[str, float]) -> list[int]:
        """Requests come at these rates, weighted tokens per second. Returns the decisions."""
        self.rates = rates
        before = len(self.numbers)
        for _ in range(round(seconds / LOOK_S)):
            for _ in range(round(LOOK_S)):
                self._second()
            self._look()
        return self.numbers[before:]

    @property
    def ready(self) -> int:
        return sum(at_s <= self.now_s for at_s in self.ready_s)

    def _second(self) -> None:
        self.now_s += 1.0
        kept = exp(-1.0 / 60.0)
        for name in {**self.rates, **self.asked}:
            rate = self.rates.get(name, 0.0)
            self.asked[name] = self.asked.get(name, 0.0) * kept + rate * (1.0 - kept)
            self.waiting[name] = self.waiting.get(name, 0.0) + rate
        parts = divided(
            min(self.ready * CAPACITY, sum(self.waiting.values())),
            {f"n/{name}/c": amount for name, amount in self.waiting.items()},
            lambda _: 1.0,
            lambda _: 1.0,
        )
        for name in self.waiting:
            self.waiting[name] = max(0.0, self.waiting[name] - parts[f"n/{name}/c"])
        self.saturated_s += sum(self.waiting.values()) > 1.0

    def _look(self) -> None:
        def samples(of: dict[str, float]) -> list[Sample]:
            return [
                Sample({"tenant": name, "client": "c"}, value)
                for name, value in of.items()
                if value > 1e-6
            ]

        answers = {
            "age": [Sample({}, 1.0)],
            "asked": samples(self.asked),
            "waiting": samples(self.waiting),
            "seen": [Sample({}, min(CAPACITY, sum(self.rates.values()) / max(1, self.ready)))],
        }
        if self.saturated_s > 15.0:
            answers["saturated"] = [Sample({}, CAPACITY)]
        seen = measurements(answers)
        assert isinstance(seen, Measurements)
        terms = Terms(scaling=self.scaling, ready=self.ready)
        self.state, decision = step(self.state, terms, seen, now_s=self.now_s)
        self.numbers.append(decision.replicas)
        more = decision.replicas - len(self.ready_s)
        self.ready_s = sorted(self.ready_s)[: decision.replicas]
        self.ready_s += [self.now_s + self.startup_s] * max(0, more)


startups = st.sampled_from([0.0, 30.0, 120.0])
loads = st.lists(st.floats(10.0, 4000.0), min_size=1, max_size=5)


def clients(rates: list[float]) -> dict[str, float]:
    return {f"client-{n}": rate for n, rate in enumerate(rates)}


def turns(numbers: list[int]) -> int:
    """How often the number grew after it had fallen."""
    changes = [after - before for before, after in pairwise(numbers)]
    signs = [change > 0 for change in changes if change]
    return sum(not before and after for before, after in pairwise(signs))


@examples(40)
@given(st.booleans(), startups, loads, loads)
def test_a_steady_load_makes_no_flap(
    known: bool, startup_s: float, before: list[float], after: list[float]
) -> None:
    """Within ten minutes after a step, and the number is constant in the next ten."""
    world = World(scaling(given=known), startup_s)
    world.runs(900, clients(before))
    assert turns(world.runs(600, clients(after))) == 0
    world.runs(900, clients(after))
    assert len(set(world.runs(600, clients(after)))) == 1


@examples(40)
@given(st.booleans(), startups, st.floats(10.0, 700.0), st.floats(2.0, 12.0))
def test_a_step_of_load_is_answered_within_two_intervals(
    known: bool, startup_s: float, before: float, replicas: float
) -> None:
    """From one replica by as many as the load needs; a third interval if capacity is to be learnt first, or policies limit the step."""
    world = World(scaling(given=known), startup_s)
    assert set(world.runs(600, clients([before]))) == {1}
    load = clients([replicas * CAPACITY])
    first, second, third = world.runs(45, load)
    assert first > 1 or not known
    assert second > 1
    assert third >= min(9, 0.9 * replicas)  # the scaler leaves a small excess of load alone
    world.runs(600, load)
    assert sum(world.waiting.values()) < 1.0


@examples(40)
@given(st.booleans(), startups, loads, st.integers(1, 10))
def test_one_client_at_a_hundred_times_the_load_adds_its_cap(
    known: bool, startup_s: float, rates: list[float], cap: int
) -> None:
    """Beside what the others have waiting until the flood is answered."""
    world = World(scaling(given=known, cap=cap), startup_s)
    calm = world.runs(900, clients(rates))[-1]
    others = sum(min(rate / CAPACITY / USABLE, cap) for rate in rates)
    numbers = world.runs(900, {**clients(rates), "greedy": 100 * sum(rates)})
    assert max(numbers) <= max(calm, 2 * others) + cap + 2
    assert numbers[-1] <= 1.1 * others + cap + 2


odd = st.sampled_from([math.nan, math.inf, -math.inf])


@given(st.sampled_from(["asked", "waiting", "inFlight", "age"]), odd, st.integers(1, 50))
def test_a_number_that_is_none_and_old_data_hold(name: str, value: float, live: int) -> None:
    answers = {
        "age": [Sample({}, 1.0)],
        name: [Sample({"tenant": "t", "client": "c"}, 181.0 if name == "age" else value)],
    }
    seen = measurements(answers)
    assert isinstance(seen, Note)
    state = started(live, now_s=0.0)
    for look in range(1, 100):
        state, decision = step(
            state, Terms(scaling=scaling(), ready=live), seen, now_s=LOOK_S * look
        )
        assert (decision.replicas, decision.active) == (live, False)
