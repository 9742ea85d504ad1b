"""The policies against the papers' listings taken literally: the same schedule, request by request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator
from contextlib import closing
from dataclasses import replace
from random import Random

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import AdmissionResult, Arrival, ReplicaPolicy, Request
from evenkeel_fairshare.replica.deficit import DeficitRules, Rejoin
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.drr import Drr
from evenkeel_fairshare.replica.lcf import Lcf
from evenkeel_fairshare.replica.lpm import Lpm
from evenkeel_fairshare.replica.vtc import Vtc
from evenkeel_fairshare.replica.vtc_predict import PredictedVtc
from evenkeel_laboratory.policies.registry import PrintedDlpm
from evenkeel_laboratory.policies.vtc_oracle import OracleVtc
from hypothesis import given
from hypothesis import strategies as st

from tests.support.abstract_engine import AbstractEngine, Job
from tests.support.costs import QuadraticCost
from tests.support.listings import ListedDlpm, ListedDrr, ListedLcf, ListedPredictedVtc, ListedVtc
from tests.support.loads import Load, loads, run

QUADRATIC = QuadraticCost(extend=2, output=1, product=1, output_squared=3)


def schedule(policy: ReplicaPolicy, load: Load, disturbances: int) -> list[list[str]]:
    """The admissions of every step, with aborts, retractions, seeds, retries and changed weights that `disturbances` seeds."""
    rng = Random(disturbances)
    engine = AbstractEngine(policy, load.memory_tokens)
    jobs: list[Job] = [sending.job(number) for number, sending in enumerate(load.sendings)]
    seeds = {client.identity: rng.choice([0.0, -300.0, 70.0]) for client in load.clients}
    log = []
    pending = [*zip(load.sendings, jobs, strict=True)]
    while pending or engine.queue or engine.batch:
        while pending and pending[0][0].step <= engine.step_number:
            job = pending.pop(0)[1]
            job.seed, job.charge_input = seeds[job.client], rng.random() < 0.9
            if rng.random() < 0.1:
                job.client_weight = rng.choice([1, 2, 5])
            engine.submit(job)
        for victims, act in ((engine.queue, engine.abort), (engine.batch, engine.abort)):
            if victims and rng.random() < 0.1:
                act(rng.choice(victims))
        if engine.batch and rng.random() < 0.1:
            engine.retract(rng.choice(engine.batch))
        log.append([job.id for job in engine.step()])
    return log


@given(
    load=loads(weighted=True),
    disturbances=st.integers(0, 1000),
    quantum=st.sampled_from([1, 7, 50, 400, 10_000]),
    keep_debt=st.booleans(),
    first_turn=st.booleans(),
    cost=st.sampled_from([None, QUADRATIC]),
)
def test_the_printed_order_is_that_of_algorithm_1(
    load, disturbances, quantum, keep_debt, first_turn, cost
):
    rejoin = Rejoin.KEEP_DEBT if keep_debt else Rejoin.PAPER
    rules = DeficitRules(quantum=quantum, rejoin=rejoin, first_turn=first_turn)
    policy = PrintedDlpm(rules=rules, cost=cost)
    listed = ListedDlpm(quantum, keep_debt=keep_debt, first_turn=first_turn, cost=cost)
    assert schedule(policy, load, disturbances) == schedule(listed, load, disturbances)
    # The deficits too, of those that left included.
    held = {account.name: account for account in accounts(policy)}
    assert set(held) == set(listed.q)
    for name, deficit in listed.q.items():
        assert held[name].deficit == deficit


class AuditedDlpm(Dlpm):
    """The shipped policy, with the listing's accounts of the same events beside it."""

    def __init__(self, quantum: float, *, keep_debt: bool, cost: Cost | None) -> None:
        rejoin = Rejoin.KEEP_DEBT if keep_debt else Rejoin.PAPER
        super().__init__(rules=DeficitRules(quantum=quantum, rejoin=rejoin), cost=cost)
        self.listed = ListedDlpm(quantum, keep_debt=keep_debt, first_turn=True, cost=cost)
        self.seen: Counter[str] = Counter()

    def arrive(self, request: Request, now_s: float) -> Arrival:
        self.listed.arrive(request, now_s)
        return super().arrive(request, now_s)

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        with closing(super().admissions(now_s)) as proposals:
            proposed = next(proposals, None)
            while proposed is not None:
                self._audit(proposed)
                outcome = yield proposed
                if outcome is AdmissionResult.ADMITTED:
                    self.listed.admit(proposed)
                try:
                    proposed = proposals.send(outcome)
                except StopIteration:
                    return

    def _audit(self, proposed: Request) -> None:
        """Lines 19 and 20: the listing would refill now where this policy did, and the client is positive."""
        if self.listed.q[proposed.client] <= 0:
            assert self.listed.check_refill()
            self.seen["refilled"] += 1
        assert self.listed.q[proposed.client] > 0
        for account in accounts(self):
            if account.waiting or account.running:
                assert account.deficit == self.listed.q[account.name]
        longest = max(r.matched_tokens for r in self.listed.queue)
        self.seen["another order"] += proposed.matched_tokens < longest

    def progress(self, request: Request, tokens: int) -> None:
        self.listed.progress(request, tokens)
        super().progress(request, tokens)

    def progress_all(self, requests: Collection[Request], tokens: int) -> None:
        for request in requests:
            self.progress(request, tokens)

    def requeue(self, request: Request, now_s: float) -> None:
        self.listed.requeue(request, now_s)
        super().requeue(request, now_s)

    def leave(self, request: Request, now_s: float) -> None:
        self.listed.leave(request, now_s)
        super().leave(request, now_s)


def test_the_shipped_policy_refills_and_admits_only_as_algorithm_1_allows():
    """It is a run of the listing with another order among those that are positive."""
    seen: Counter[str] = Counter()

    @given(
        load=loads(weighted=True),
        disturbances=st.integers(0, 1000),
        quantum=st.sampled_from([1, 7, 50, 400, 10_000]),
        keep_debt=st.booleans(),
        cost=st.sampled_from([None, QUADRATIC]),
    )
    def check(
        load: Load, disturbances: int, quantum: float, keep_debt: bool, cost: Cost | None
    ) -> None:
        policy = AuditedDlpm(quantum, keep_debt=keep_debt, cost=cost)
        schedule(policy, load, disturbances)
        seen.update(policy.seen)

    check()
    assert min(seen["refilled"], seen["another order"]) > 0, seen


def accounts(policy: Dlpm):
    return (client for tenant in policy.tenants.known() for client in tenant.children.known())


@given(
    load=loads(tenants=2, weighted=True),
    disturbances=st.integers(0, 1000),
    cost=st.sampled_from([None, QUADRATIC]),
    sweep_above=st.sampled_from([1, 1024]),
    both=st.sampled_from([(Vtc, ListedVtc), (Lcf, ListedLcf)]),
)
def test_vtc_schedules_what_algorithm_2_lists_and_lcf_that_without_the_lift(
    load, disturbances, cost, sweep_above, both
):
    made, as_listed = both
    policy = made(cost=cost, sweep_above=sweep_above)  # forgetting clients changes nothing
    listed = as_listed(cost)
    assert schedule(policy, load, disturbances) == schedule(listed, load, disturbances)
    for client, state in policy.clients().items():
        assert -state.deficit == listed.c[client]


@given(
    load=loads(tenants=2, weighted=True),
    disturbances=st.integers(0, 1000),
    cost=st.sampled_from([None, QUADRATIC]),
)
def test_vtc_with_prediction_schedules_what_algorithm_3_lists(load, disturbances, cost):
    policy, listed = PredictedVtc(cost=cost), ListedPredictedVtc(cost)
    assert schedule(policy, load, disturbances) == schedule(listed, load, disturbances)
    assert {client: -state.deficit for client, state in policy.clients().items()} == listed.c


@given(
    load=loads(),
    cost=st.sampled_from([None, QUADRATIC]),
    oracle=st.booleans(),
    error=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_with_and_without_prediction_finished_requests_cost_the_same(load, cost, oracle, error):
    """Clients that are there from the start and always wait are never lifted: counters are what they paid."""
    together = Load(
        load.memory_tokens, tuple(replace(sending, step=0) for sending in load.sendings)
    )

    def know(job: Job) -> None:
        job.expected_output_tokens = job.true_output_tokens if oracle else None

    paid = [
        {client: state.deficit for client, state in policy.clients().items()}
        for policy in (Vtc(cost=cost), OracleVtc(cost=cost, error=error))
        if run(policy, together, cost=cost, prepare=know)
    ]
    assert paid[0] == paid[1]


@given(
    load=loads(tenants=2, weighted=True),
    disturbances=st.integers(0, 1000),
    quantum=st.sampled_from([1, 7, 50, 400]),
    cost=st.sampled_from([None, QUADRATIC]),
)
def test_drr_schedules_what_going_round_the_ring_makes_of_it(load, disturbances, quantum, cost):
    policy = Drr(rules=DeficitRules(quantum=quantum), cost=cost)
    listed = ListedDrr(quantum, cost)
    assert schedule(policy, load, disturbances) == schedule(listed, load, disturbances)
    assert {client: state.deficit for client, state in policy.clients().items()} == listed.c


@given(load=loads())
def test_a_quantum_beyond_all_work_is_lpm_for_clients_of_the_first_refill(load):
    together = Load(
        load.memory_tokens,
        tuple(replace(sending, step=0) for sending in load.sendings),
    )
    generous = PrintedDlpm(rules=DeficitRules(quantum=1e9))
    assert schedule(generous, together, 0) == schedule(Lpm(), together, 0)
