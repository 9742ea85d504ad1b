"""Several routers' gates in front of one engine that serves first come, first served (R12), in virtual time.

The routers learn from one another once in `EXCHANGE` steps of the engine, as through the ledger.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median

import pytest
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_fairshare.replica.contract import UnchargedPolicy
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.fcfs import Fcfs
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy
from evenkeel_router.gate.engine_load import EngineLoad
from evenkeel_router.gate.gate import NOTHING_HELD, Gate
from evenkeel_router.gate.sharing import ClientAtGate, Sharing
from evenkeel_router.gate.window import GatedRequest
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.request import EngineRequest

from tests.unit.evenkeel_simulator.engine_support import PROFILE, make_request

COST = LinearCost()
EXCHANGE = 20
"""Steps of the engine from one exchange to the next."""
READING = 10
"""Steps from one reading of the engine's figures to the next."""
IDLE_S = 0.02
"""How long an engine without work waits for some."""
A, B, C = "ns/a/c", "ns/b/c", "ns/c/c"


class FixedWeights:
    """Weights of tenants; each has one client."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights

    def client(self, client: str) -> float:
        return 1.0

    def tenant(self, tenant: str) -> float:
        return self._weights.get(f"{tenant}/c", 1.0)


@dataclass
class Router:
    """One router: its gate, and what it received."""

    gate: Gate
    received: Counter[str] = field(default_factory=Counter)
    jobs: dict[str, tuple[GatedRequest, EngineRequest]] = field(default_factory=dict)


@dataclass
class World:
    """Routers, each with clients that keep so many requests waiting, and one engine."""

    backlogs: Sequence[Mapping[str, int]]
    weights: Mapping[str, float] = field(default_factory=dict)
    policy: str = "DLPM"
    shared: bool = True
    reads_load: bool = True
    whole: bool = False
    number: int = 0
    now_s: float = 0.0
    queue: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = EngineConfig(
            kv_tokens=4000, admission=AdmissionRule.RESERVATION, prefill_tokens=500
        )
        self.engine = Engine(config, Fcfs(), PROFILE)
        self.rng = Random(1)
        self.of_weights = FixedWeights(self.weights)
        rules = ReplicaPolicyConfig(cost=COST, deficits=DeficitRules(quantum=200))
        self.routers = {}
        for number in range(len(self.backlogs)):
            policy = make_policy(self.policy, rules)
            has_accounts = not isinstance(policy, UnchargedPolicy)
            sharing = Sharing(f"r{number}", self.of_weights, has_accounts=has_accounts)
            self.routers[f"r{number}"] = Router(Gate(policy, sharing))
        self.alive = set(self.routers)

    def run(self, steps: int) -> dict[str, float]:
        """The part of each client in the service of these steps."""
        before = self.served()
        for number in range(steps):
            self.step(number)
        gained = Counter(self.served())
        gained.subtract(before)
        total = sum(gained.values())
        return {client: service / total for client, service in gained.items()}

    def served(self) -> dict[str, float]:
        return {name: one.service for name, one in self.engine.accounts.clients.items()}

    def step(self, number: int) -> None:
        now_s = self.now_s
        for name, backlog in zip(self.routers, self.backlogs, strict=True):
            if name in self.alive:
                self.arrive(self.routers[name], backlog, now_s)
        step = self.engine.step(now_s, until_s=now_s)
        self.now_s = now_s + IDLE_S if step is None else step.end_s
        self.queue.append(len(self.engine.policy))
        for name in self.alive:
            self.observe(self.routers[name], self.now_s)
        if self.reads_load and number % READING == 0:
            load = EngineLoad(len(list(self.engine.running())), len(self.engine.policy), 0.5)
            for name in self.alive:
                self.routers[name].gate.read(load, self.now_s)
        if number % EXCHANGE == 0:
            self.exchange()

    def arrive(self, router: Router, backlog: Mapping[str, int], now_s: float) -> None:
        for client, count in backlog.items():
            for _ in range(count - router.gate.clients[client]):
                gated, job = self.make(client, now_s)
                router.jobs[gated.id] = gated, job
                router.gate.arrive(gated, now_s)
        for gated in router.gate.admit(now_s):
            self.engine.submit(router.jobs[gated.id][1], now_s)

    def make(self, client: str, now_s: float) -> tuple[GatedRequest, EngineRequest]:
        self.number += 1
        output = self.rng.randint(1, 60)
        job = make_request(
            f"{client}{self.number}",
            tail=self.rng.randint(10, 100),
            output=output,
            max_output=output,
            client=client,
            arrival_s=now_s,
        )
        gated = GatedRequest(
            id=job.id,
            client=client,
            tenant=job.tenant,
            arrival_s=now_s,
            input_tokens=job.input_tokens,
            max_output_tokens=job.max_output_tokens,
            tenant_weight=self.of_weights.tenant(job.tenant),
            streams=not self.whole,
        )
        return gated, job

    def observe(self, router: Router, now_s: float) -> None:
        gate = router.gate
        for gated in list(gate.sent):
            _, job = router.jobs[gated.id]
            if job.output_tokens and not self.whole:
                gate.progress(gated, job.output_tokens)
                gate.begun(gated, now_s)
            if job.finished_s is not None:
                if self.whole:
                    gate.begun(gated, now_s, output_tokens=job.output_tokens)
                usage = Usage(job.input_tokens, 0, job.output_tokens)
                gate.leave(gated, now_s, usage)
                input_cost = COST.input_cost(job.input_tokens)
                output_cost = COST.output_cost(job.input_tokens, 0, job.output_tokens)
                router.received[gated.client] += int(input_cost + output_cost)
                del router.jobs[gated.id]

    def exchange(self) -> None:
        """Every router learns what the others published, if they share."""
        if not self.shared:
            return
        at: defaultdict[str, dict[str, ClientAtGate]] = defaultdict(dict)
        for name in self.alive:
            router = self.routers[name]
            held = router.gate.held(COST)
            for client in (A, B, C):
                own = held.get(client, NOTHING_HELD)
                waiting = own.state[2]
                at[name][client] = ClientAtGate(router.received[client] + own.service, waiting)
        for name in self.alive:
            self.routers[name].gate.share(at, self.of_weights)


SKEWS = {
    "one client through one router, the other through two": (
        [{A: 24, B: 24}, {B: 24}],
        {},
        {A: 0.5, B: 0.5},
    ),
    "the same, and the second router has the most": (
        [{A: 4, B: 4}, {B: 36}],
        {},
        {A: 0.5, B: 0.5},
    ),
    "each client through a router of its own, 4:1": ([{A: 24}, {B: 24}], {A: 4}, {A: 0.8, B: 0.2}),
    "95 % of the requests enter at one of two routers, 4:1": (
        [{A: 38, B: 38}, {A: 2, B: 2}],
        {A: 4},
        {A: 0.8, B: 0.2},
    ),
    "95 % of one client's requests enter at one of two routers, of the other at the other": (
        [{A: 38, B: 2}, {A: 2, B: 38}],
        {A: 4},
        {A: 0.8, B: 0.2},
    ),
    "three routers, and one has 90 %": (
        [{A: 36, B: 36}, {A: 2, B: 2}, {A: 2, B: 2}],
        {A: 4},
        {A: 0.8, B: 0.2},
    ),
    "three clients, each through a router of its own": (
        [{A: 24}, {B: 24}, {C: 24}],
        {C: 2},
        {A: 0.25, B: 0.25, C: 0.5},
    ),
    "three clients, and one of them through all routers": (
        [{A: 24, C: 8}, {B: 24, C: 8}, {C: 8}],
        {},
        {A: 1 / 3, B: 1 / 3, C: 1 / 3},
    ),
}


@pytest.mark.parametrize("reads_load", [True, False], ids=["with figures", "by latency"])
@pytest.mark.parametrize("skew", SKEWS)
def test_shares_are_right_wherever_requests_enter(skew: str, reads_load: bool) -> None:
    backlogs, weights, want = SKEWS[skew]
    world = World(backlogs, weights, reads_load=reads_load)
    world.run(400)
    shares = world.run(6000)
    assert shares == pytest.approx(want, rel=0.05)
    assert median(world.queue) <= 1 + len(backlogs)


def test_without_sharing_the_client_with_two_routers_gets_more() -> None:
    backlogs, weights, _ = SKEWS["one client through one router, the other through two"]
    world = World(backlogs, weights, shared=False)
    world.run(400)
    assert world.run(2000)[B] > 0.6


@pytest.mark.parametrize("policy", ["VTC", "DRR"])
def test_other_fair_policies_share_too(policy: str) -> None:
    backlogs, weights, want = SKEWS["one client through one router, the other through two"]
    world = World(backlogs, weights, policy=policy)
    world.run(400)
    assert world.run(4000) == pytest.approx(want, rel=0.05)


@pytest.mark.parametrize("backlogs", [[{A: 30}, {B: 10}], [{A: 20}, {A: 10}, {B: 10}]], ids=len)
@pytest.mark.parametrize("policy", ["FCFS", "LPM", "HRRN"])
def test_policies_without_accounts_serve_routers_by_their_waiting_requests(
    policy: str, backlogs: list[dict[str, int]]
) -> None:
    """So requests wait equally long at all routers, as in one queue."""
    world = World(backlogs, policy=policy)
    world.run(400)
    assert world.run(4000) == pytest.approx({A: 0.75, B: 0.25}, rel=0.1)
    assert median(world.queue) <= 1 + len(backlogs)


def test_without_sharing_fcfs_serves_each_router_the_same() -> None:
    world = World([{A: 30}, {B: 10}], policy="FCFS", shared=False)
    world.run(400)
    assert world.run(2000)[B] > 0.4


def test_whole_answers_share_too() -> None:
    backlogs, weights, want = SKEWS["one client through one router, the other through two"]
    world = World(backlogs, weights, whole=True)
    world.run(400)
    assert world.run(6000) == pytest.approx(want, rel=0.05)


def test_a_router_that_dies_frees_its_part() -> None:
    world = World([{A: 24}, {B: 24}])
    world.run(1000)
    world.alive.remove("r1")
    world.run(400)
    gate = world.routers["r0"].gate
    assert gate.streamed.part == 1.0
    assert not gate.is_held
    assert world.run(500)[A] > 0.99


def test_a_router_that_cannot_use_its_part_holds_up_others_for_a_short_time() -> None:
    world = World([{A: 24}, {B: 24}])
    world.run(1000)
    world.routers["r1"].gate.admit = lambda now_s: []  # type: ignore[method-assign]
    world.run(1000)
    assert world.run(1000)[A] > 0.99
