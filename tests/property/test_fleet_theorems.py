"""The theorems of D2LPM and of per-client round-robin, on an abstract fleet of the real policies.

Admission reserves input + max_output (ALGORITHMS §7 A1). Service is measured by the engines, at every event.
The router guesses the length of a prompt (short or long by up to four times) and some requests are refused by
their replicas: what is charged is settled at the end, and the bounds are the same. A flooding client is topped up before each step, through the fleet policy, until it waits at every replica:
that this ends is itself the property "distributed to all workers before replenishing". Every test says how
often its premise held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, count, pairwise
from random import Random

import pytest
from evenkeel_fairshare.bounds import dlpm_overshoot
from evenkeel_fairshare.fleet.contract import FleetPolicy
from evenkeel_fairshare.fleet.per_client_round_robin import PerClientRoundRobin
from evenkeel_fairshare.fleet.registry import FleetPolicyConfig, make_policy
from evenkeel_fairshare.replica.contract import ReplicaPolicy
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.vtc import Vtc
from evenkeel_laboratory.policies.vtc_central import CentralCounters, CentralVtc
from hypothesis import given
from hypothesis import strategies as st

from tests.support.abstract_engine import Job
from tests.support.abstract_fleet import AbstractFleet, Gap
from tests.support.examples import examples
from tests.support.theorems import (
    d2lpm_backlogged_gap,
    d2lpm_service_error,
    d2lpm_shortfall,
    per_client_round_robin_backlogged_gap,
    per_client_round_robin_shortfall,
    vtc_backlogged_gap,
    vtc_overshoot,
)

STEPS = 200
SHORTEST = 6  # input + max_output of the smallest request: what one pass can admit is bounded by it
LONGEST_INPUT = 20


@dataclass
class Client:
    """What one client sends. Its requests differ, within its own limits."""

    name: str
    tenant: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    shared: float
    """Which part of an input is one of its two prefixes."""
    client_weight: float = 1.0
    tenant_weight: float = 1.0
    sent: count[int] = field(default_factory=count)

    def job(self, rng: Random) -> Job:
        number = next(self.sent)
        tokens = rng.randint(*self.inputs)
        output = rng.randint(*self.outputs)
        return Job(
            id=f"{self.name}-{number}",
            client=self.name,
            tenant=self.tenant,
            arrival_s=0.0,
            input_tokens=tokens,
            max_output_tokens=output + rng.randint(0, 3),
            true_output_tokens=output,
            client_weight=self.client_weight,
            tenant_weight=self.tenant_weight,
            prefix=f"{self.name}:{rng.randint(0, 1)}",
            prefix_tokens=int(tokens * self.shared),
        )


@dataclass(frozen=True)
class Setting:
    """One fleet and its clients."""

    replicas: int
    memory_tokens: int
    quantum: float
    worker_quantum: float | None
    """None: it follows the prompts (R2)."""
    speeds: tuple[float, ...]
    """Measured speeds by slot, right or wrong; empty: none."""
    clients: list[Client]
    seed: int
    estimate_factor: float
    refused: float
    """Part of what is sent on top that replicas refuse."""

    @property
    def overshoots(self) -> list[float]:
        return [
            dlpm_overshoot(max_input_tokens=LONGEST_INPUT, memory_tokens=self.memory_tokens)
        ] * self.replicas


@st.composite
def settings_of_fleets(
    draw: st.DrawFn, *, weights: Sequence[float] = (1.0,), tenants: int = 1
) -> Setting:
    def client(number: int) -> Client:
        least_input = draw(st.integers(5, LONGEST_INPUT))
        most_output = draw(st.integers(1, 20))
        return Client(
            name=f"client-{number}",
            tenant=f"tenant-{number % tenants}",
            inputs=(least_input, draw(st.integers(least_input, LONGEST_INPUT))),
            outputs=(draw(st.integers(1, most_output)), most_output),
            shared=draw(st.sampled_from([0.0, 0.5, 0.95])),
            client_weight=draw(st.sampled_from(weights)),
            tenant_weight=tenant_weights[number % tenants],
        )

    tenant_weights = [draw(st.sampled_from(weights)) for _ in range(tenants)]
    return Setting(
        replicas=draw(st.integers(2, 4)),
        memory_tokens=draw(st.integers(50, 90)),
        quantum=draw(st.sampled_from([3.0, 20.0, 80.0])),
        worker_quantum=draw(st.sampled_from([None, 10.0, 60.0, 200.0])),
        speeds=draw(st.sampled_from([(), (1.0, 4.0), (0.0, 1.0, 1e9)])),
        clients=[client(number) for number in range(draw(st.integers(2, 3)) + tenants - 1)],
        seed=draw(st.integers(0, 2**32)),
        estimate_factor=draw(st.sampled_from([1.0, 0.25, 4.0])),
        refused=draw(st.sampled_from([0.0, 0.3])),
    )


few = examples(25)


def dlpm(quantum: float) -> Dlpm:
    return Dlpm(rules=DeficitRules(quantum=quantum))


def d2lpm(worker_quantum: float | None) -> FleetPolicy:
    return make_policy("D2LPM", FleetPolicyConfig(worker_quantum=worker_quantum))


def build(setting: Setting, policy: FleetPolicy | None = None) -> AbstractFleet:
    """D2LPM + DLPM; or the given policy + VTC."""

    def replica() -> ReplicaPolicy:
        return dlpm(setting.quantum) if policy is None else Vtc()

    fleet = AbstractFleet(
        policy=policy or d2lpm(setting.worker_quantum),
        make_replica=replica,
        replicas=setting.replicas,
        memory_tokens=setting.memory_tokens,
        estimate_factor=setting.estimate_factor,
    )
    fleet.policy.measured(dict(enumerate(setting.speeds)))
    return fleet


def top_up(fleet: AbstractFleet, client: Client, rng: Random, refused: float) -> None:
    """Send until more wait at every replica than one pass can admit."""
    enough = fleet.memory_tokens // SHORTEST + 1
    for _ in range(10_000):
        if all(fleet.waiting(slot, [client.name]) >= enough for slot in range(fleet.replicas)):
            return
        if rng.random() < refused:
            fleet.refuse(client.job(rng))
        else:
            fleet.send(client.job(rng))
    raise AssertionError(f"{client.name} never came to wait at every replica")


def flood(
    fleet: AbstractFleet,
    setting: Setting,
    *,
    flooding: Sequence[Client],
    others: Sequence[Client],
) -> None:
    """`flooding` wait everywhere at all times; `others` come in bursts of any size and stay away."""
    rng = Random(setting.seed)
    for _ in range(STEPS):
        for client in flooding:
            top_up(fleet, client, rng, setting.refused)
        for client in others:
            waiting = sum(fleet.waiting(slot, [client.name]) for slot in range(fleet.replicas))
            if waiting < 30 and rng.random() < 0.3:
                for _ in range(rng.choice([1, 5, 60])):
                    fleet.send(client.job(rng))
        fleet.step()


@few
@given(settings_of_fleets(weights=[1.0, 2.0, 5.0]))
def test_theorem_5_1_backlogged_clients_stay_together(setting: Setting) -> None:
    gaps = {pair: Gap() for pair in combinations(range(len(setting.clients)), 2)}

    def observe(fleet: AbstractFleet) -> None:
        holds = [fleet.backlogged_everywhere([client.name]) for client in setting.clients]
        normalised = [
            fleet.service(client.name) / client.client_weight for client in setting.clients
        ]
        for (f, g), gap in gaps.items():
            gap.see(normalised[f] - normalised[g], holds=holds[f] and holds[g])

    fleet = build(setting)
    fleet.observe = observe
    flood(fleet, setting, flooding=setting.clients, others=[])
    for (f, g), gap in gaps.items():
        weights = (setting.clients[f].client_weight, setting.clients[g].client_weight)
        bound = d2lpm_backlogged_gap(setting.overshoots, setting.quantum, weights)
        assert gap.widest <= bound
        assert gap.instants > STEPS * setting.replicas  # the premise held, throughout


@few
@given(settings_of_fleets(weights=[1.0, 2.0, 5.0]))
def test_theorem_5_2_a_backlogged_client_is_behind_no_other(setting: Setting) -> None:
    flooding, *others = setting.clients
    gaps = {client.name: Gap() for client in others}

    def observe(fleet: AbstractFleet) -> None:
        holds = fleet.backlogged_everywhere([flooding.name])
        own = fleet.service(flooding.name) / flooding.client_weight
        for client in others:
            ahead = fleet.service(client.name) / client.client_weight - own
            gaps[client.name].see(ahead, holds=holds)

    fleet = build(setting)
    fleet.observe = observe
    flood(fleet, setting, flooding=[flooding], others=others)
    for client in others:
        weights = (flooding.client_weight, client.client_weight)
        bound = d2lpm_shortfall(setting.overshoots, setting.quantum, weights)
        assert gaps[client.name].steepest <= bound
        assert gaps[client.name].instants > STEPS * setting.replicas


@few
@given(settings_of_fleets(weights=[1.0, 3.0]))
def test_theorem_a_3_service_follows_the_refills(setting: Setting) -> None:
    fleet = build(setting)
    flood(fleet, setting, flooding=setting.clients, others=[])
    replicas = [engine.policy for engine in fleet.engines]
    for client in setting.clients:
        assert fleet.backlogged_everywhere([client.name])
        refills = sum(
            policy.tenants.members["tenant-0"].children.refills
            for policy in replicas
            if isinstance(policy, Dlpm)
        )
        assert refills > 0
        owed = refills * setting.quantum * client.client_weight
        error = d2lpm_service_error(setting.overshoots, setting.quantum, client.client_weight)
        assert abs(owed - fleet.service(client.name)) <= error


@few
@given(settings_of_fleets(weights=[1.0, 4.0], tenants=2))
def test_both_levels_hold_over_the_fleet(setting: Setting) -> None:
    """R9: between tenants, by their weights, and between the clients of one, by theirs."""
    members = {
        tenant: [client for client in setting.clients if client.tenant == tenant]
        for tenant in ("tenant-0", "tenant-1")
    }
    tenants, siblings = Gap(), Gap()
    first, second = members["tenant-0"][:2]

    def observe(fleet: AbstractFleet) -> None:
        holds = {c.name: fleet.backlogged_everywhere([c.name]) for c in setting.clients}
        by_tenant = [
            sum(fleet.service(client.name) for client in clients) / clients[0].tenant_weight
            for clients in members.values()
        ]
        tenants.see(by_tenant[0] - by_tenant[1], holds=all(holds.values()))
        within = (
            fleet.service(first.name) / first.client_weight
            - fleet.service(second.name) / second.client_weight
        )
        siblings.see(within, holds=holds[first.name] and holds[second.name])

    fleet = build(setting)
    fleet.observe = observe
    flood(fleet, setting, flooding=setting.clients, others=[])
    weights = (first.tenant_weight, members["tenant-1"][0].tenant_weight)
    assert tenants.widest <= d2lpm_backlogged_gap(setting.overshoots, setting.quantum, weights)
    weights = (first.client_weight, second.client_weight)
    assert siblings.widest <= d2lpm_backlogged_gap(setting.overshoots, setting.quantum, weights)
    assert min(tenants.instants, siblings.instants) > STEPS * setting.replicas


@few
@given(settings_of_fleets(weights=[1.0, 3.0]))
def test_theorem_a_6_per_client_round_robin_with_vtc_is_fair_too(setting: Setting) -> None:
    flooding, *others = setting.clients
    pair = Gap()
    ahead = {client.name: Gap() for client in others}
    rival = others[0]

    def observe(fleet: AbstractFleet) -> None:
        holds = fleet.backlogged_everywhere([flooding.name])
        own = fleet.full_service(flooding.name) / flooding.client_weight
        for client in others:
            difference = fleet.full_service(client.name) / client.client_weight - own
            ahead[client.name].see(difference, holds=holds)
            if client is rival:
                both = holds and fleet.backlogged_everywhere([rival.name])
                pair.see(difference, holds=both)

    fleet = build(setting, PerClientRoundRobin())
    fleet.observe = observe
    flood(fleet, setting, flooding=[flooding, rival], others=others[1:])
    overshoots = [
        vtc_overshoot(max_input_tokens=LONGEST_INPUT, memory_tokens=setting.memory_tokens)
    ] * setting.replicas
    weights = [client.client_weight for client in setting.clients]
    assert pair.widest <= per_client_round_robin_backlogged_gap(overshoots, weights)
    assert pair.instants > STEPS * setting.replicas
    for gap in ahead.values():
        assert gap.steepest <= per_client_round_robin_shortfall(overshoots, weights)


@few
@given(settings_of_fleets(weights=[1.0, 3.0]))
def test_central_counters_keep_vtc_s_bound_with_the_memory_of_all_replicas(
    setting: Setting,
) -> None:
    """VTC, Appendix C.3. At its last admission a client had the least counter at that replica, where the others wait too."""
    first, second = setting.clients[:2]
    pair, counters = Gap(), CentralCounters()

    def observe(fleet: AbstractFleet) -> None:
        holds = all(fleet.backlogged_everywhere([one.name]) for one in (first, second))
        own, other = (fleet.full_service(one.name) / one.client_weight for one in (first, second))
        pair.see(own - other, holds=holds)

    fleet = AbstractFleet(
        policy=PerClientRoundRobin(),
        make_replica=lambda: CentralVtc(counters),
        replicas=setting.replicas,
        memory_tokens=setting.memory_tokens,
        observe=observe,
    )
    flood(fleet, setting, flooding=[first, second], others=setting.clients[2:])
    overshoot = vtc_overshoot(
        max_input_tokens=LONGEST_INPUT, memory_tokens=setting.replicas * setting.memory_tokens
    )
    weights = [client.client_weight for client in setting.clients]
    assert pair.widest <= vtc_backlogged_gap(overshoot, weights)
    assert pair.instants > STEPS * setting.replicas


def favourite_against_stranger(worker_quantum: float | None, *, steps: int) -> list[float]:
    """Theorem A.5's trace: f has one big prefix, g has none. W_g - W_f after every step."""
    setting = Setting(
        replicas=4,
        memory_tokens=60,
        quantum=40.0,
        worker_quantum=worker_quantum,
        speeds=(),
        clients=[
            Client("f", "tenant-0", inputs=(16, 16), outputs=(8, 8), shared=0.9),
            Client("g", "tenant-0", inputs=(16, 16), outputs=(8, 8), shared=0.0),
        ],
        seed=7,
        estimate_factor=1.0,
        refused=0.0,
    )
    fleet = build(setting)
    rng = Random(setting.seed)
    premise: list[bool] = []
    fleet.observe = lambda fleet: premise.append(
        all(fleet.backlogged_everywhere([name]) for name in ("f", "g"))
    )

    def send(requests_each: int) -> None:
        for _ in range(requests_each):
            for client in setting.clients:
                job = client.job(rng)
                job.prefix = "f:big" if client.name == "f" else ""
                fleet.send(job)

    send(300)
    premise.clear()
    gaps = []
    for _ in range(steps):
        send(4)  # as much as all four replicas can take
        fleet.step()
        gaps.append(fleet.service("g") - fleet.service("f"))
    if worker_quantum not in (None, float("inf")):
        assert all(premise)  # finite: both wait everywhere, at every instant
    elif worker_quantum is not None:  # Auto may do without a replica for a client, within the bound
        assert not any(premise)
        assert all(job.client == "g" for engine in fleet.engines[1:] for job in engine.queue)
        assert any(job.client == "f" for job in fleet.engines[0].queue)  # f waits all the same
    return gaps


def test_theorem_a_5_an_infinite_worker_quantum_is_not_fair() -> None:
    gaps = favourite_against_stranger(float("inf"), steps=240)
    overshoots = [dlpm_overshoot(max_input_tokens=16, memory_tokens=60)] * 4
    assert gaps[-1] > 2 * d2lpm_backlogged_gap(overshoots, 40.0)
    quarters = [gaps[59], gaps[119], gaps[179], gaps[239]]
    growth = [later - earlier for earlier, later in pairwise(quarters)]
    assert min(growth) > 0.9 * quarters[0]  # it grows as long as it lasts


@pytest.mark.parametrize("worker_quantum", [200.0, None])
def test_the_same_trace_stays_within_the_bound_under_a_finite_worker_quantum(
    worker_quantum: float | None,
) -> None:
    gaps = favourite_against_stranger(worker_quantum, steps=240)
    overshoots = [dlpm_overshoot(max_input_tokens=16, memory_tokens=60)] * 4
    bound = d2lpm_backlogged_gap(overshoots, 40.0)
    assert max(gaps) - min(0.0, *gaps) <= bound
    assert max(map(abs, gaps[120:])) <= 2 * max(map(abs, gaps[:120]))  # and it does not grow
