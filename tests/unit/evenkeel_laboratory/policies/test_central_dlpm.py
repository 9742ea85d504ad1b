"""Central DLPM: one schedule for the fleet, replicas that wait for it, and nothing lost."""

from __future__ import annotations

from pathlib import Path

from evenkeel_fairshare.fleet.contract import NOTHING, Dispatch, Usage, replica_set
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_laboratory.experiments.fleet import Fleet
from evenkeel_laboratory.experiments.generators import Arrivals, Judge, Single
from evenkeel_laboratory.experiments.setup import Setup, engine_config, find_profile
from evenkeel_laboratory.experiments.workload_file import ClientSpec, WorkloadSpec, make_workload
from evenkeel_laboratory.policies.central_dlpm import CentralDlpm, Overhead
from evenkeel_simulator.traffic.records import Record
from hypothesis import given
from hypothesis import strategies as st

QUANTUM = 100.0
MEMORY = 400


def policy_of() -> CentralDlpm:
    policy = CentralDlpm(rules=DeficitRules(quantum=QUANTUM))
    policy.joined(0)
    policy.joined(1)
    return policy


def ask(policy: CentralDlpm, client: str, tokens: int = 10) -> Dispatch:
    request = Dispatch(client, tokens)
    assert policy.select(request, replica_set([0, 1]), [0, 0]) is None
    return request


def test_requests_wait_for_a_replica_with_memory_for_them():
    policy = policy_of()
    first, second = ask(policy, "a", 300), ask(policy, "b", 300)
    assert policy.pull(0, 600, 0.0) == [first], "300 and an output of 256 expected, once"
    policy.dispatched(first, 0)
    assert policy.pull(0, 300, 0.0) == []
    assert policy.pull(1, 10, 0.0) == [second], "a replica without work always gets a request"
    assert len(policy) == 0


def test_a_request_goes_first_to_the_replica_that_holds_its_prefix():
    policy = policy_of()
    policy.facts.index.insert([5, 6], 1)
    ask(policy, "a")
    cached = Dispatch("a", 30, blocks=[5, 6, 7], block_tokens=[10, 10, 10])
    policy.select(cached, replica_set([0, 1]), [0, 0])
    assert policy.pull(1, 300, 0.0)[0] is cached
    policy.dispatched(cached, 1)
    policy.finished(cached, 1, Usage(30, 20, 4))
    assert policy.deficit("a") == QUANTUM - 10 - 2 * 4, "10 tokens were computed"


def test_a_request_that_never_ran_costs_nothing():
    policy = policy_of()
    request = ask(policy, "a", 50)
    ask(policy, "a")
    policy.pull(0, 100, 0.0)
    assert policy.deficit("a") == QUANTUM - 50
    policy.dispatched(request, 0)
    policy.finished(request, 0, NOTHING)
    assert policy.deficit("a") == QUANTUM


@given(
    sizes=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 40), st.integers(1, 40)),
        min_size=60,
        max_size=120,
    ),
    turns=st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=200, max_size=300),
)
def test_two_backlogged_clients_differ_by_no_more_than_over_one_memory(sizes, turns):
    """Theorem 4.1 with U = we·L + wq·M of both replicas: 2(U + Q). Backlogged while both have waiting requests."""
    policy = policy_of()
    outputs = {}
    for client, tokens, output in sizes:
        request = ask(policy, client, tokens)
        outputs[id(request)] = request, output
    waiting = {client: sum(one[0] == client for one in sizes) for client in "ab"}
    served = dict.fromkeys("ab", 0.0)
    running: dict[int, list[Dispatch]] = {0: [], 1: []}
    gaps = [0.0]
    for slot, ends in turns:
        if ends and running[slot]:
            request = running[slot].pop(0)
            output = outputs[id(request)][1]
            policy.finished(request, slot, Usage(request.input_tokens, 0, output))
            served[request.client] += 2 * output
        free = MEMORY - sum(one.input_tokens + 40 for one in running[slot])
        for request in policy.pull(slot, free, 0.0):
            policy.dispatched(request, slot)
            running[slot].append(request)
            served[request.client] += request.input_tokens
            waiting[request.client] -= 1
        if not all(waiting.values()):
            break
        gaps.append(served["a"] - served["b"])
    overshoot = 40 + 2 * 2 * MEMORY
    assert max(gaps) - min(gaps) <= 2 * (overshoot + QUANTUM)


def play(overhead: Overhead, *, replicas: int = 3) -> tuple[list[Record], Fleet, float]:
    judge = Judge(dimensions=3, article_tokens=900, output_tokens=40)
    spec = WorkloadSpec(
        about="a burst",
        profile="a10g-llama3.2-3b",
        duration_s=10,
        clients=(
            ClientSpec(name="judge", count=2, arrivals=Arrivals(rate_per_s=3), program=judge),
            ClientSpec(
                name="single",
                arrivals=Arrivals(rate_per_s=5),
                program=Single(input_tokens=200, output_tokens=60),
            ),
        ),
    )
    setup = Setup(
        profile=find_profile(spec.profile),
        replicas=replicas,
        fleet_policy="DLPMCentral",
        replica_policy="FCFS",
        engine=engine_config(kv_tokens=6000),
    )
    config = setup.fleet()
    assert isinstance(config.fleet_policy, CentralDlpm)
    config.fleet_policy.overhead = overhead
    records: list[Record] = []
    fleet = Fleet(config, records.append)
    makespan_s = fleet.run(make_workload("burst", spec, seed=1, traces=Path()))
    return records, fleet, makespan_s


def test_all_requests_are_served_on_all_replicas_and_the_overhead_costs_time():
    free, free_fleet, free_s = play(Overhead(0.0, 0.0))
    dear, dear_fleet, dear_s = play(Overhead(0.05, 0.001))
    for records in (free, dear):
        assert {record.status for record in records} == {"finished"}
        assert {record.replica for record in records} == {0, 1, 2}
    assert len(free) == len(dear)
    assert sum(r.cached_tokens for r in free) > 0.3 * sum(r.input_tokens for r in free)
    assert dear_s > free_s
    assert free_fleet.central is not None and dear_fleet.central is not None
    assert free_fleet.central.blocked_s == 0
    least = dear_fleet.central.steps * dear_fleet.central.policy.overhead.sync_s
    assert dear_fleet.central.blocked_s >= least, (
        "replicas wait for the scheduler, and for each other"
    )


def test_a_request_that_no_replica_takes_is_refused_and_not_charged():
    spec = WorkloadSpec(
        about="too long",
        profile="a10g-llama3.2-3b",
        duration_s=2,
        clients=(
            ClientSpec(
                name="long",
                arrivals=Arrivals(rate_per_s=3, pattern="uniform"),
                program=Single(input_tokens=900, output_tokens=60),
            ),
        ),
    )
    setup = Setup(
        profile=find_profile(spec.profile),
        fleet_policy="DLPMCentral",
        replica_policy="FCFS",
        engine=engine_config(kv_tokens=500),
    )
    records: list[Record] = []
    fleet = Fleet(setup.fleet(), records.append)
    fleet.run(make_workload("long", spec, seed=1, traces=Path()))
    assert [record.status for record in records] == ["refused"] * len(records) and records
    assert fleet.central is not None
    assert fleet.central.policy.deficit("long") >= 0
