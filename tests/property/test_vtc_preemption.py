"""VTC with preemption keeps VTC's bound, and goes below what a policy without preemption can promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import pytest
from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.vtc import Vtc
from evenkeel_laboratory.policies.vtc_preempt import PreemptiveVtc
from hypothesis import given
from hypothesis import strategies as st

from tests.support import theorems as bounds
from tests.support.abstract_engine import AbstractEngine
from tests.support.loads import (
    MAX_INPUT_TOKENS,
    MAX_OUTPUT_TOKENS,
    Client,
    Load,
    Run,
    Sending,
    loads,
    run,
)


class Audited(PreemptiveVtc):
    """Tests each decision against the rule."""

    decisions = 0

    def preempt(self, running: Sequence[Request], now_s: float) -> Sequence[Request]:
        chosen = super().preempt(running, now_s)
        if not chosen:
            return chosen
        type(self).decisions += 1
        counters = {client: -state.deficit for client, state in self.clients().items()}
        least = min(counters[one.client] for one in self.waiting())
        most = max(counters[one.client] for one in running)
        assert most - least > self._lead
        assert {counters[one.client] for one in chosen} == {most}
        of_victim = [one for one in self._running if one.client == chosen[0].client]
        assert list(chosen) == of_victim[::-1][: len(chosen)]
        return chosen


def play(policy: Vtc, load: Load) -> Run:
    return run(policy, load, full_input=True)


@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("lead", [0.0, 30.0])
def test_two_backlogged_clients_differ_by_no_more_than_under_vtc(lead, weighted):
    """Theorem 4.4. A request that is computed again pays for input and output, so U has the largest of both."""
    seen: Counter[str] = Counter()
    Audited.decisions = 0

    @given(load=loads(tenants=2, weighted=weighted))
    def check(load: Load) -> None:
        played = play(Audited(lead=lead), load)
        assert all(job.output_tokens == job.true_output_tokens for job in played.jobs)
        weight = {c.identity: c.tenant_weight * c.weight for c in load.clients}
        unit = bounds.vtc_overshoot(
            max_input_tokens=MAX_INPUT_TOKENS + MAX_OUTPUT_TOKENS, memory_tokens=load.memory_tokens
        )
        bound = bounds.vtc_backlogged_gap(unit, [*weight.values()])
        for one, other in combinations(weight, 2):
            first, second = played.parties[one].service, played.parties[other].service
            for interval in played.backlogged(one, other):
                gaps = [first[t] / weight[one] - second[t] / weight[other] for t in interval]
                assert max(gaps) - min(gaps) <= bound
                seen["backlogged"] += 1

    check()
    assert seen["backlogged"] > 0
    assert Audited.decisions > 0


@given(load=loads(tenants=2, weighted=True))
def test_with_an_infinite_lead_the_schedule_is_vtc_s(load):
    plain, preemptive = (
        [(job.id, job.admitted_step) for job in play(policy, load).jobs]
        for policy in (Vtc(), PreemptiveVtc(lead=float("inf")))
    )
    assert plain == preemptive


@given(most=st.integers(20, 60), count=st.integers(2, 6), lead=st.sampled_from([0, 10, 40]))
def test_it_promises_less_than_a_memory_of_output(most, count, lead):
    """The construction of Theorem 4.8: one client fills the memory with n requests, then another arrives, with as many.

    Each pass that memory ends preempts one of the n. So the first client gets ahead by at most lead + wq·n(n + 1)/2, and by the
    input of a request that is computed again. Without preemption it is wq·M = wq·n·(most + 1) at least.
    """
    flood, late = Client("ns/t", "flood"), Client("ns/t", "late")
    largest = {}
    for policy in (Vtc(), PreemptiveVtc(lead=lead)):
        engine = AbstractEngine(policy, memory_tokens=count * (most + 1))
        for number in range(2 * count):
            engine.submit(Sending(0, flood, 1, most, most).job(number))
        engine.step()
        for number in range(2 * count):
            engine.submit(Sending(0, late, 1, most, most).job(100 + number))
        start = served(engine, flood)
        largest[policy.name] = 0
        for _ in range(most - 2):
            engine.step()
            gap = served(engine, flood) - start - served(engine, late)
            largest[policy.name] = max(largest[policy.name], gap)
    assert largest["VTC"] == 2 * count * (most - 2)
    assert largest["VTCPreempt"] <= lead + count * (count + 1) + most + 1


def served(engine: AbstractEngine, client: Client) -> int:
    return engine.input_tokens[client.identity] + 2 * engine.output_tokens[client.identity]


def test_an_answer_other_than_no_room_does_not_preempt():
    policy = PreemptiveVtc(lead=0)
    flood, late = (Sending(0, Client("ns/t", n), 1, 9, 9).job(i) for i, n in enumerate("fl"))
    policy.arrive(flood, 0.0)
    conversation = policy.admissions(0.0)
    next(conversation)
    with pytest.raises(StopIteration):
        conversation.send(AdmissionResult.ADMITTED)
    policy.arrive(late, 0.0)
    flood.output_tokens = 5
    policy.progress(flood, 5)
    conversation = policy.admissions(1.0)
    next(conversation)
    with pytest.raises(StopIteration):
        conversation.send(AdmissionResult.LATER)
    assert policy.preempt([flood], 2.0) == ()
