"""What every replica policy owes its engine, whatever it orders by."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import (
    AdmissionResult,
    ReplicaPolicy,
    Request,
    UnchargedPolicy,
)
from evenkeel_fairshare.replica.deficit import DeficitRules, Rejoin
from evenkeel_fairshare.replica.registry import POLICIES, ReplicaPolicyConfig, make_policy
from evenkeel_laboratory.policies.registry import REPLICA_POLICIES, LaboratoryConfig, policies
from evenkeel_laboratory.policies.vtc_central import CentralCounters

from tests.support.abstract_engine import AbstractEngine, Job
from tests.support.costs import QuadraticCost
from tests.support.replica import SHORTEST_FIRST

LITERAL = policies(printed=True, artifact=True)
UNLIMITED = LaboratoryConfig(requests_per_minute=10_000)
VARIANTS = {
    **{name: (make, UNLIMITED) for name, make in REPLICA_POLICIES.items()},
    "HRRN, skipping": (LITERAL["HRRN"], LaboratoryConfig(skip_misfit=True)),
    "LPM, skipping": (LITERAL["LPM"], LaboratoryConfig(skip_misfit=True)),
    "DLPM, skipping": (LITERAL["DLPM"], LaboratoryConfig(skip_misfit=True)),
    "DLPM, tiny quantum": (LITERAL["DLPM"], LaboratoryConfig(deficits=DeficitRules(quantum=1))),
    "DLPM, paper": (
        LITERAL["DLPM"],
        LaboratoryConfig(deficits=DeficitRules(rejoin=Rejoin.PAPER)),
    ),
    "DLPM, warming up": (LITERAL["DLPM"], LaboratoryConfig(warmup_s=3.0)),
    "DLPM, shortest first": (
        LITERAL["DLPM"],
        LaboratoryConfig(order=SHORTEST_FIRST),
    ),
    "DRR, tiny quantum": (LITERAL["DRR"], LaboratoryConfig(deficits=DeficitRules(quantum=1))),
    "DLPM as printed": (LITERAL["DLPM"], LaboratoryConfig()),
    "DLPM as printed, skipping": (LITERAL["DLPM"], LaboratoryConfig(skip_misfit=True)),
    "DLPM as printed, warming up": (LITERAL["DLPM"], LaboratoryConfig(warmup_s=3.0)),
    "VTCOracle, ±50 %": (REPLICA_POLICIES["VTCOracle"], LaboratoryConfig(prediction_error=0.5)),
    "VTCPreempt, at once": (LITERAL["VTCPreempt"], LaboratoryConfig(preemption_lead=0)),
    "VTC, artifact": (LITERAL["VTC"], LaboratoryConfig()),
    "LCF, artifact": (LITERAL["LCF"], LaboratoryConfig()),
    "VTCPredict, artifact": (LITERAL["VTCPredict"], LaboratoryConfig()),
    "VTCOracle, artifact": (LITERAL["VTCOracle"], LaboratoryConfig(prediction_error=0.5)),
}


def make_variant(variant: str) -> ReplicaPolicy:
    make, config = VARIANTS[variant]
    return make(replace(config, counters=CentralCounters()))


MEMORY_TOKENS = 120


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def policy(variant: str) -> ReplicaPolicy:
    return make_variant(variant)


def job(number: int, *, client: str = "ns/a/one", tenant: str = "ns/a", **fields) -> Job:
    fields = {"input_tokens": 10, "max_output_tokens": 10, "true_output_tokens": 3, **fields}
    return Job(id=f"r{number}", client=client, tenant=tenant, arrival_s=float(number), **fields)


def random_job(rng: Random, number: int) -> Job:
    tenant = rng.choice("ab")
    return job(
        number,
        client=f"ns/{tenant}/{rng.choice(['one', 'two', 'three'])}",
        tenant=f"ns/{tenant}",
        input_tokens=(size := rng.randint(1, 40)),
        max_output_tokens=(most := rng.randint(1, 40)),
        true_output_tokens=rng.randint(1, most),
        prefix=rng.choice(["", "p", "q", "r", "s"]),
        prefix_tokens=rng.randint(0, size),
        client_weight=rng.choice([1, 2]),
        tenant_weight=rng.choice([1, 3]),
        seed=rng.choice([0.0, 0.0, -50.0]),
        charge_input=rng.random() < 0.9,
    )


def run_randomly(policy: ReplicaPolicy, seed: int, steps: int = 300) -> tuple[list, AbstractEngine]:
    """A life with arrivals, aborts and retractions; the log of admissions."""
    rng = Random(seed)
    engine = AbstractEngine(policy, MEMORY_TOKENS)
    log: list = []
    count = 0
    for _ in range(steps):
        for _ in range(rng.choice([0, 0, 1, 3])):
            engine.submit(random_job(rng, count))
            count += 1
        if engine.queue and rng.random() < 0.1:
            engine.abort(rng.choice(engine.queue))
        if engine.batch and rng.random() < 0.1:
            engine.abort(rng.choice(engine.batch))
        if engine.batch and rng.random() < 0.1:
            engine.retract(rng.choice(engine.batch))
        log.append([request.id for request in engine.step()])
    return log, engine


@pytest.mark.parametrize("seed", range(3))
def test_every_request_that_arrived_waits_runs_or_is_over(policy, seed):
    log, engine = run_randomly(policy, seed)
    assert set(policy.waiting()) == set(engine.queue)
    assert len(policy) == len(engine.queue)
    assert sum(map(len, log)) > 50, "the run must admit something to mean anything"


@pytest.mark.parametrize("seed", range(3))
def test_a_request_is_admitted_once_for_every_time_it_waited(policy, seed):
    proposed: list[Request] = []
    admitted_before: set[Request] = set()

    def watch(engine: AbstractEngine, job: Job) -> None:
        proposed.extend(engine.proposals)
        admitted_before.update(engine.batch)
        assert not set(engine.batch) & set(policy.waiting())

    engine = AbstractEngine(policy, MEMORY_TOKENS, observe=watch)
    rng = Random(seed)
    jobs = [random_job(rng, number) for number in range(40)]
    for one in jobs:
        engine.submit(one)
    while engine.queue or engine.batch:
        engine.step()
    assert admitted_before == set(jobs)
    assert all(one.admissions == 1 + one.retractions for one in jobs)
    assert admitted_before <= set(proposed)
    assert len(policy) == 0 and not list(policy.waiting())


@pytest.mark.parametrize("seed", range(3))
def test_the_same_calls_give_the_same_passes(policy, variant, seed):
    twin = make_variant(variant)
    assert run_randomly(policy, seed)[0] == run_randomly(twin, seed)[0]


@pytest.mark.parametrize("seed", range(3))
def test_an_empty_batch_admits_a_waiting_request(policy, seed):
    rng = Random(seed)
    engine = AbstractEngine(policy, MEMORY_TOKENS)
    idle_with_queue = 0
    for number in range(300):
        if rng.random() < 0.1:
            engine.submit(random_job(rng, number))
        if engine.queue and not engine.batch:
            idle_with_queue += 1
            assert engine.admit()
        engine.step()
    assert idle_with_queue > 5


def test_a_request_that_does_not_fit_stays_and_is_proposed_again(policy):
    policy.arrive(job(1), 0.0)
    for _ in range(3):
        conversation = policy.admissions(0.0)
        assert next(conversation).id == "r1"
        with pytest.raises(StopIteration):
            conversation.send(AdmissionResult.NO_ROOM)
        assert len(policy) == 1


def test_no_pass_proposes_a_request_twice(policy):
    engine = AbstractEngine(policy, MEMORY_TOKENS)
    rng = Random(7)
    for number in range(60):
        engine.submit(random_job(rng, number))
        engine.step()
        assert len(set(engine.proposals)) == len(engine.proposals)


def test_reports_count_waiting_requests(policy):
    engine = AbstractEngine(policy, MEMORY_TOKENS)
    rng = Random(11)
    for number in range(40):
        engine.submit(random_job(rng, number))
        engine.step()
        waiting = Counter(request.client for request in policy.waiting())
        told = {client: state.waiting for client, state in policy.clients().items()}
        assert {client: count for client, count in told.items() if count} == waiting


def test_an_abandoned_pass_changes_nothing(policy):
    for number in range(4):
        policy.arrive(job(number), 0.0)
    conversation = policy.admissions(0.0)
    first = next(conversation)
    conversation.close()
    assert first in set(policy.waiting()) and len(policy) == 4
    assert next(policy.admissions(0.0)) is first


def test_an_empty_queue_proposes_none(policy):
    assert list(policy.admissions(0.0)) == []


def test_one_clients_equal_requests_run_in_order_of_arrival(policy):
    if policy.name == "Andes":
        pytest.skip("the gain of a request that has waited for long is smaller: it is late anyway")
    engine = AbstractEngine(policy, memory_tokens=20)  # one at a time
    for number in range(12):
        engine.submit(job(number))
    order = [one.id for _ in range(40) for one in engine.step()]
    assert order == [f"r{number}" for number in range(12)]


def test_a_retracted_request_goes_before_its_equals(policy):
    engine = AbstractEngine(policy, memory_tokens=40)
    for number in range(5):
        engine.submit(job(number))
    first, second = engine.step()
    engine.retract(second)
    engine.retract(first)  # the newest first, as an engine that is out of memory does
    assert [one.id for one in engine.admit()] == ["r0", "r1"]


def test_aborting_the_only_waiting_request_leaves_nothing(policy):
    only = job(1)
    policy.arrive(only, 0.0)
    policy.leave(only, 0.0)
    assert len(policy) == 0 and list(policy.admissions(1.0)) == []


def test_aborting_one_of_many_leaves_the_others(policy):
    jobs = [job(number) for number in range(5)]
    for one in jobs:
        policy.arrive(one, 0.0)
    policy.leave(jobs[2], 0.0)
    engine = AbstractEngine(policy, MEMORY_TOKENS, queue=[j for j in jobs if j is not jobs[2]])
    assert {one.id for one in engine.admit()} == {"r0", "r1", "r3", "r4"}


def test_a_new_match_of_a_request_that_does_not_wait_is_ignored(policy):
    engine = AbstractEngine(policy, MEMORY_TOKENS)
    runs, unknown = job(1), job(2)
    engine.submit(runs)
    engine.step()
    for one in (runs, unknown):
        one.matched_tokens = 5
        policy.rematched(one)
    assert len(policy) == 0 and list(policy.admissions(1.0)) == []


def test_a_weight_that_is_not_positive_is_refused():
    for fault in ({"client_weight": 0.0}, {"tenant_weight": 0.0}, {"tenant_weight": -1.0}):
        with pytest.raises(ValueError, match=next(iter(fault))):
            job(1, **fault)


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(
        ValueError, match="'dlpm'; there are FCFS, LPM, HRRN, VTC, VTCPredict, LCF, DRR, DLPM$"
    ):
        make_policy("dlpm")


def test_names_are_those_of_the_api():
    assert set(POLICIES) == {"FCFS", "LPM", "HRRN", "VTC", "VTCPredict", "LCF", "DRR", "DLPM"}
    assert all(make_policy(name).name == name for name in POLICIES)


@pytest.mark.parametrize(
    "cost", [LinearCost(1, 2), LinearCost(kv_time=40), QuadraticCost(2, 1, 0.5, 0.25)]
)
@pytest.mark.parametrize("decoding", [12, 8], ids=["all decode", "some in prefill"])
def test_progress_of_a_whole_batch_is_progress_of_each(variant, cost, decoding):
    make, config = VARIANTS[variant]
    batch_wise, one_by_one = (
        make(replace(config, cost=cost, counters=CentralCounters())) for _ in range(2)
    )
    for policy in (batch_wise, one_by_one):
        rng = Random(0)
        batch = [random_job(rng, number) for number in range(12)]
        for one in batch:
            policy.arrive(one, 0.0)
        admissions = policy.admissions(0.0)
        one = next(admissions, None)
        while one is not None:
            one.extend_tokens = one.input_tokens
            try:
                one = admissions.send(AdmissionResult.ADMITTED)
            except StopIteration:
                one = None
        for running in batch[:decoding]:
            running.output_tokens = 4
        before = dict(policy.clients())
        if policy is batch_wise:
            policy.progress_all(batch[:decoding], 4)
        else:
            for running in batch[:decoding]:
                policy.progress(running, 4)
    after, want = batch_wise.clients(), one_by_one.clients()
    assert set(after) == set(want)
    for client, state in want.items():
        assert after[client].deficit == pytest.approx(state.deficit)
        assert after[client].tenant_deficit == pytest.approx(state.tenant_deficit)
    if not isinstance(batch_wise, UnchargedPolicy) and not variant.endswith("artifact"):
        assert after != before, "no client was charged"


def test_a_request_answered_later_waits_while_others_may_enter(policy):
    if not policy.matches_prefix:
        pytest.skip("only engines that match prefixes say later")
    jobs = [job(number) for number in range(4)]
    for one in jobs:
        policy.arrive(one, 0.0)
    admissions = policy.admissions(0.0)
    proposed = [next(admissions)]
    outcome = AdmissionResult.LATER
    for _ in range(10):  # a pass that proposed it again and again would not end
        try:
            proposed.append(admissions.send(outcome))
        except StopIteration:
            break
        outcome = AdmissionResult.ADMITTED
    assert sorted(one.id for one in proposed) == [one.id for one in jobs]
    assert list(policy.waiting()) == proposed[:1]
    assert next(policy.admissions(1.0)) is proposed[0]


def test_a_correction_changes_what_is_charged_and_not_the_queue(policy: ReplicaPolicy) -> None:
    first, second = job(1), job(2)
    policy.arrive(first, 0.0)
    policy.arrive(second, 0.0)
    admissions = policy.admissions(0.0)
    admitted = next(admissions)
    admitted.extend_tokens = 10
    with pytest.raises(StopIteration):
        while admissions.send(AdmissionResult.ADMITTED) is not None:
            second.extend_tokens = 10
    policy.corrected(admitted, extend_tokens=2, output_tokens=3)
    policy.corrected(admitted, extend_tokens=20, output_tokens=3)
    assert len(policy) == 0
    for one in (first, second):
        policy.leave(one, 1.0)
    assert not list(policy.waiting())


FAIR = [name for name in POLICIES if not isinstance(make_policy(name), UnchargedPolicy)]


@pytest.mark.parametrize("name", FAIR)
def test_service_at_another_queue_is_charged_to_a_client_with_requests_here(name: str) -> None:
    rules = ReplicaPolicyConfig(deficits=DeficitRules(quantum=100))
    policy = make_policy(name, rules)
    for number in range(6):
        letter = "ab"[number % 2]
        policy.arrive(job(number, client=f"ns/{letter}/one", tenant=f"ns/{letter}"), 0.0)
    policy.served_elsewhere("ns/a/one", "ns/a", 5000.0)
    policy.served_elsewhere("ns/c/one", "ns/c", 5000.0)  # nothing of it is here
    order = []
    admissions = policy.admissions(0.0)
    request = next(admissions)
    while request is not None:
        request.extend_tokens = request.input_tokens
        order.append(request.client)
        try:
            request = admissions.send(AdmissionResult.ADMITTED)
        except StopIteration:
            break
    assert order == ["ns/b/one"] * 3 + ["ns/a/one"] * 3
