"""Bursts while no request waits gain a client nothing over a backlog of its own (design R15)."""

from __future__ import annotations

from evenkeel_fairshare.bounds import dlpm_overshoot
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from hypothesis import given
from hypothesis import strategies as st

from tests.support.abstract_engine import AbstractEngine, Job

MEMORY, STEPS, LIGHT, GREEDY = 80, 600, "ns/l/light", "ns/g/greedy"


def job(client: str, number: int, tokens: int) -> Job:
    return Job(
        id=f"{client}-{number}",
        client=client,
        tenant=client.rpartition("/")[0],
        arrival_s=0.0,
        input_tokens=tokens,
        max_output_tokens=tokens,
        true_output_tokens=tokens,
    )


def served(quantum: float, tokens: int, *, bursts: bool) -> float:
    """Weighted tokens of the light client, which sends a request when its last one ended."""
    engine = AbstractEngine(Dlpm(rules=DeficitRules(quantum=quantum)), MEMORY)
    number = 0
    for _ in range(STEPS):
        waiting = [one for one in engine.queue if one.client == GREEDY]
        # A burst comes only when nothing waits; a backlog is always there.
        missing = 12 if bursts and not engine.queue else 0 if bursts else 12 - len(waiting)
        for _ in range(missing):
            number += 1
            engine.submit(job(GREEDY, number, tokens))
        if all(one.client != LIGHT for one in (*engine.queue, *engine.batch)):
            number += 1
            engine.submit(job(LIGHT, number, 8))
        engine.step()
    return engine.extend_tokens[LIGHT] + 2.0 * engine.output_tokens[LIGHT]


@given(quantum=st.sampled_from([10.0, 60.0, 300.0]), tokens=st.integers(2, 20))
def test_bursts_leave_a_light_client_about_what_a_backlog_leaves_it(
    quantum: float, tokens: int
) -> None:
    backlog = served(quantum, tokens, bursts=False)
    overshoot = dlpm_overshoot(max_input_tokens=20, memory_tokens=MEMORY)
    assert served(quantum, tokens, bursts=True) >= backlog - overshoot - quantum
