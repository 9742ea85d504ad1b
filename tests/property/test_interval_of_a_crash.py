"""A crashed replica's true service against the interval that a ledger states for it (design R3, R11).

The engine is the simulator's, with both rules of admission. What SGLang's computes again after a retraction is charged
at the replica and is in no usage that a router receives: that, and nothing else, is what the interval does not know.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from unittest.mock import patch

from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.ledger import CarryRules, Figures, Ledger, ReplicaRow, Totals
from evenkeel_simulator.engine.admission import SGLangAdmission
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.request import EngineRequest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.evenkeel_simulator.engine_support import PROFILE, Queue, make_request

POOL = 200
EVERY_STEPS = 5
COST = LinearCost(1.0, 2.0)
INCARNATION = "crashed"
CLIENTS = ("ns/t/a", "ns/u/b")
CROWDS = st.lists(
    st.tuples(st.integers(5, 40), st.integers(10, 90), st.sampled_from(CLIENTS)),
    min_size=4,
    max_size=20,
)


@dataclass
class Crash:
    """What is true, and what the ledger says, when the process is gone."""

    true: dict[str, float]
    again: Counter[str]
    """Weighted tokens that were computed again, by client."""
    ledger: Ledger

    def beyond(self, client: str) -> float:
        """How much was served beyond the end of the interval."""
        return self.true.get(client, 0.0) - Figures(self.ledger).interval(client).upper


def crash(
    crowd: list[tuple[int, int, str]], rule: AdmissionRule, *, report_at: int, crash_at: int
) -> Crash:
    """Run a crowd, one of whom comes every five steps; the replica reports after one step, and is gone after another."""
    engine = Engine(EngineConfig(kv_tokens=POOL, admission=rule), Queue(), PROFILE, cost=COST)
    ledger = Ledger("router", rules=CarryRules(quantum=100, overshoot=1000))
    worst: dict[str, float] = {}
    requests = [
        make_request(f"r{n}", tail=tail, output=output, max_output=output, client=client)
        for n, (tail, output, client) in enumerate(crowd)
    ]
    now_s, coming = 0.0, iter(requests)
    for steps in range(crash_at):
        if steps % EVERY_STEPS == 0 and (request := next(coming, None)) is not None:
            worst[request.id] = COST.input_cost(request.input_tokens)
            worst[request.id] += COST.output_cost(0, 0, request.max_output_tokens)
            ledger.dispatched(INCARNATION, request.client, worst=worst[request.id])
            engine.submit(request, now_s)
        if (step := engine.step(now_s)) is None:
            continue
        now_s = step.end_s
        for done in step.finished:
            ledger.received(INCARNATION, done.client, _usage(done), released=worst[done.id])
        if steps == report_at:
            rows = [
                ReplicaRow(client, Totals(service=totals.service))
                for client, totals in engine.accounts.clients.items()
            ]
            ledger.observe(INCARNATION, since=0, sequence=1, rows=rows)
    true = {client: totals.service for client, totals in engine.accounts.clients.items()}
    return Crash(true, _again(requests), ledger)


def _usage(request: EngineRequest) -> Totals:
    """What a router is told at a request's end."""
    extend = request.input_tokens - request.cached_tokens
    service = COST.input_cost(extend) + COST.output_cost(extend, 0, request.output_tokens)
    return Totals(service=service)


def _again(requests: list[EngineRequest]) -> Counter[str]:
    again: Counter[str] = Counter()
    for request in requests:
        if request.admitted_s is not None:
            once = request.input_tokens - request.cached_tokens
            again[request.client] += request.computed_tokens - once
    return again


MOMENTS = {"report_at": st.integers(0, 200), "crash_at": st.integers(0, 400)}


@settings(max_examples=200, deadline=None)
@given(crowd=CROWDS, **MOMENTS)
def test_what_a_replica_served_that_reserves_memory_is_within_its_interval(
    crowd: list[tuple[int, int, str]], report_at: int, crash_at: int
) -> None:
    gone = crash(crowd, AdmissionRule.RESERVATION, report_at=report_at, crash_at=crash_at)
    assert not +gone.again
    assert all(gone.beyond(client) <= 0 for client in gone.true)


MANY = [(20, 60, CLIENTS[n % 2]) for n in range(12)]


@settings(max_examples=200, deadline=None)
@given(crowd=CROWDS, **MOMENTS)
@example(crowd=MANY, report_at=40, crash_at=400)
def test_what_one_served_that_retracts_is_beyond_it_by_what_it_computed_again_at_most(
    crowd: list[tuple[int, int, str]], report_at: int, crash_at: int
) -> None:
    with patch.object(SGLangAdmission, "INITIAL", 0.1):  # a bet as good as lost
        gone = crash(crowd, AdmissionRule.SGLANG, report_at=report_at, crash_at=crash_at)
    assert all(gone.beyond(client) <= gone.again[client] for client in gone.true)


def test_the_end_of_the_interval_of_one_that_retracts_does_come_too_early() -> None:
    """As the note says; remove this, and the sentence there, once reports tell the two apart."""
    with patch.object(SGLangAdmission, "INITIAL", 0.1):
        gone = [
            crash(MANY, AdmissionRule.SGLANG, report_at=at, crash_at=400) for at in range(0, 200, 5)
        ]
    assert max(one.beyond(client) for one in gone for client in CLIENTS) > 0
