"""DRR's balances stay in their range, its clients close together; with a tiny quantum it is VTC."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from evenkeel_fairshare import bounds
from evenkeel_fairshare.replica.contract import ReplicaPolicy
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.drr import Drr
from evenkeel_fairshare.replica.vtc import Vtc
from hypothesis import given
from hypothesis import strategies as st

from tests.support.abstract_engine import AbstractEngine
from tests.support.loads import MAX_INPUT_TOKENS, Load, loads, run


def balances(policy: ReplicaPolicy) -> dict[str, float]:
    return {client: state.deficit for client, state in policy.clients().items()}


def test_balances_stay_in_their_range_and_backlogged_clients_close_together():
    """U as for DLPM. Two that always wait have turns in turn: at most one more for one of them, a quantum.

    So W_f - W_g = (K_f - K_g)·Q + what both balances rose by, each by less than U + Q: at most 2U + 3Q.
    """
    seen: Counter[str] = Counter()

    @given(load=loads(), quantum=st.sampled_from([1, 10, 60, 300, 2000]))
    def check(load: Load, quantum: float) -> None:
        u = bounds.dlpm_overshoot(
            max_input_tokens=MAX_INPUT_TOKENS, memory_tokens=load.memory_tokens
        )
        played = run(
            Drr(rules=DeficitRules(quantum=quantum)), load, probe=balances, full_input=True
        )
        for client in load.clients:
            for balance in played.parties[client.identity].probes:
                assert balance is None or -u < balance <= quantum
        for one, other in combinations([client.identity for client in load.clients], 2):
            for span in played.backlogged(one, other):
                gaps = [
                    played.parties[one].service[t] - played.parties[other].service[t] for t in span
                ]
                assert max(gaps) - min(gaps) <= 2 * u + 3 * quantum
                seen["longer than a quantum"] += max(gaps) - min(gaps) > quantum

    check()
    assert seen["longer than a quantum"] > 10


@given(load=loads())
def test_with_a_quantum_below_all_costs_it_is_vtc(load):
    """All clients are there from the start and wait to the end, so nobody is lifted; their weights prevent ties."""
    weights = {client: (number + 2) ** 0.5 for number, client in enumerate(load.clients)}
    sendings = sorted(load.sendings, key=lambda sending: sending.client.identity)

    def until_somebody_has_nothing_waiting(policy: ReplicaPolicy) -> list[str]:
        engine = AbstractEngine(policy, load.memory_tokens)
        for number, sending in enumerate(sendings):
            job = sending.job(number)
            job.client_weight = weights[sending.client]
            engine.submit(job)
        log: list[str] = []
        while len({job.client for job in engine.queue}) == len(weights):
            log += [job.id for job in engine.step()]
        return log

    drr = until_somebody_has_nothing_waiting(Drr(rules=DeficitRules(quantum=1e-6)))
    assert drr and drr == until_somebody_has_nothing_waiting(Vtc())
