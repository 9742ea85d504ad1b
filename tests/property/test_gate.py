"""The theorem's bound with the router's gate in the loop: the engine itself serves first come, first served (R12).

The gate decides by predictions, and learns what was computed when a request ends. The predictions here are often wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from statistics import median

import pytest
from evenkeel_fairshare.bounds import dlpm_overshoot
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_fairshare.ledger import EqualWeights
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.fcfs import Fcfs
from evenkeel_router.gate.gate import Gate
from evenkeel_router.gate.sharing import Sharing
from evenkeel_router.gate.window import GatedRequest
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.request import EngineRequest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.theorems import gated_backlogged_gap
from tests.unit.evenkeel_simulator.engine_support import PROFILE, make_request

KV_TOKENS = 600
MAX_INPUT = 80
PREFIX = 60
BACKLOG = {"ns/warm/c": 24, "ns/cold/c": 6}
"""Requests that each client has waiting: warm floods, and all its requests share a prefix."""


@dataclass
class Loop:
    """Two backlogged clients, a gate and an engine, in virtual time."""

    weights: dict[str, float]
    quantum: float
    seed: int
    whole: bool = False
    gated: bool = True
    number: int = 0
    largest_tokens: int = 0
    """Largest sum of final lengths at the engine, its own queue included."""
    queue: list[int] = field(default_factory=list)
    """Length of the engine's own queue after each step."""
    output_per_s: float = 0.0
    jobs: dict[str, tuple[GatedRequest, EngineRequest]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = EngineConfig(
            kv_tokens=KV_TOKENS, admission=AdmissionRule.RESERVATION, prefill_tokens=100
        )
        self.engine = Engine(config, Fcfs(), PROFILE)
        policy = Dlpm(rules=DeficitRules(quantum=self.quantum))
        self.gate = Gate(policy, Sharing("r", EqualWeights()))
        self.rng = Random(self.seed)

    def run(self, steps: int) -> float:
        """The largest difference of normalised service over any interval."""
        now_s, gaps = 0.0, [0.0]
        warm, cold = BACKLOG
        for _ in range(steps):
            self.arrive(now_s)
            step = self.engine.step(now_s, until_s=now_s)
            assert step is not None
            now_s = step.end_s
            self.observe(now_s)
            self.queue.append(len(self.engine.policy))
            served = {client: 0.0 for client in BACKLOG}
            for client, totals in self.engine.accounts.clients.items():
                served[client] = totals.service / self.weights[client]
            gaps.append(served[warm] - served[cold])
        output = sum(one.output_tokens for one in self.engine.accounts.clients.values())
        self.output_per_s = output / now_s
        return max(gaps) - min(gaps)

    def arrive(self, now_s: float) -> None:
        waiting = dict.fromkeys(BACKLOG, 0)
        for request in self.gate.waiting() if self.gated else self.engine.policy.waiting():
            waiting[request.client] += 1
        for client, backlog in BACKLOG.items():
            for _ in range(backlog - waiting[client]):
                gated, job = self.make(client, now_s)
                if self.gated:
                    self.jobs[gated.id] = gated, job
                    self.gate.arrive(gated, now_s)
                else:
                    self.engine.submit(job, now_s)
        self.admit(now_s)

    def make(self, client: str, now_s: float) -> tuple[GatedRequest, EngineRequest]:
        self.number += 1
        rng, is_warm = self.rng, client == "ns/warm/c"
        output = rng.randint(1, 40)
        job = make_request(
            f"{client}{self.number}",
            prompt=(("prefix", PREFIX),) if is_warm else (),
            tail=rng.randint(1, MAX_INPUT - PREFIX) if is_warm else rng.randint(1, MAX_INPUT),
            output=output,
            max_output=output + rng.randint(0, 20),
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
            tenant_weight=self.weights[client],
            matched_tokens=rng.choice([0, job.input_tokens // 2, job.input_tokens]),
            streams=not self.whole,
        )
        return gated, job

    def admit(self, now_s: float) -> None:
        """Send what the gate admits."""
        for gated in self.gate.admit(now_s):
            _, job = self.jobs[gated.id]
            self.engine.submit(job, now_s)
        sent = self.gate.sent
        tokens = sum(one.input_tokens + one.max_output_tokens for one in sent)
        self.largest_tokens = max(self.largest_tokens, tokens)

    def observe(self, now_s: float) -> None:
        """What a router sees of a step: the streams' events, and the usage at the end."""
        for gated in list(self.gate.sent):
            _, job = self.jobs[gated.id]
            if job.output_tokens and not self.whole:
                self.gate.progress(gated, job.output_tokens)
                self.gate.begun(gated, now_s)
            if job.finished_s is not None:
                if self.whole:
                    self.gate.begun(gated, now_s, output_tokens=job.output_tokens)
                cached = job.input_tokens - job.extend_tokens
                usage = Usage(job.input_tokens, cached, job.output_tokens)
                self.gate.leave(gated, now_s, usage)
                del self.jobs[gated.id]


def bound(loop: Loop) -> float:
    overshoot = dlpm_overshoot(max_input_tokens=MAX_INPUT, memory_tokens=loop.largest_tokens)
    warm, cold = loop.weights.values()
    return gated_backlogged_gap(
        overshoot, loop.quantum, (warm, cold), tokens_at_engine=loop.largest_tokens
    )


@examples(10)
@given(
    seed=st.integers(0, 10**6),
    quantum=st.sampled_from([50.0, 500.0]),
    weights=st.sampled_from([(1.0, 1.0), (1.0, 4.0), (3.0, 1.0)]),
    whole=st.booleans(),
)
def test_two_backlogged_clients_stay_within_the_bound_and_the_window(
    seed: int, quantum: float, weights: tuple[float, float], whole: bool
) -> None:
    loop = Loop(dict(zip(BACKLOG, weights, strict=True)), quantum, seed, whole=whole)
    gap = loop.run(300)
    assert gap <= bound(loop)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_bound_does_not_grow_with_time_and_without_the_gate_the_gap_does(seed: int) -> None:
    weights = dict.fromkeys(BACKLOG, 1.0)
    loop = Loop(weights, 50.0, seed)
    assert loop.run(4000) <= bound(loop)
    assert Loop(weights, 50.0, seed, gated=False).run(4000) > bound(loop)


def test_the_engine_is_kept_busy_and_its_queue_short() -> None:
    """As many tokens per second as with the whole backlog at the engine, within a twentieth."""
    weights = dict.fromkeys(BACKLOG, 1.0)
    rates = []
    for gated in (True, False):
        loop = Loop(weights, 50.0, 1, gated=gated)
        loop.run(1500)
        rates.append(loop.output_per_s)
        if gated:
            assert median(loop.queue) <= 2
    assert rates[0] >= 0.95 * rates[1]
