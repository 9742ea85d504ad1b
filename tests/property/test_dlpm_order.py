"""The order of the shipped DLPM: its merge against a search of the whole queue, and against what Algorithm 1 allows.

Tenants, clients, weights, seeds, credit left from before, requests refused for now (`LATER`, `HELD`) or for want of
room, passes ended early, other quanta: after every answer of the engine both must propose the same and hold the same deficits.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from random import Random

from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.order import LONGEST_MATCH
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.listings import SearchedDlpm
from tests.support.replica import SHORTEST_FIRST, decode, request

PASSES = 4


class Twin:
    """One policy with requests of its own, for two that must not share any."""

    def __init__(self, policy: Dlpm) -> None:
        self.policy = policy
        self.requests: list[Request] = []
        self.running: list[Request] = []
        self.proposed: Request | None = None
        self._pass: Generator[Request, AdmissionResult, None] | None = None

    def arrive(self, client: tuple[int, int], rng: Random) -> None:
        tenant = f"ns/t{client[0]}"
        arrived = request(
            str(len(self.requests)),
            f"{tenant}/c{client[1]}",
            tenant,
            extend=rng.choice([1, 30, 100, 330]),
            client_weight=rng.choice([1, 1, 2.5]),
            tenant_weight=rng.choice([1, 1, 3]),
            seed=rng.choice([0, 0, -250, 90]),
            tenant_seed=rng.choice([0, 0, -700, 90]),
        )
        self.requests.append(arrived)
        self.policy.arrive(arrived, 0.0)

    def match(self, rng: Random) -> None:
        for waiting in self.requests:
            waiting.matched_tokens = rng.choice([0, 0, 1, 2, 3, 30])
            self.policy.rematched(waiting)

    def begin(self) -> None:
        self._pass = self.policy.admissions(0.0)
        self.proposed = next(self._pass, None)

    def answer(self, outcome: AdmissionResult) -> None:
        assert self._pass is not None and self.proposed is not None
        if outcome is AdmissionResult.ADMITTED:
            self.running.append(self.proposed)
        try:
            self.proposed = self._pass.send(outcome)
        except StopIteration:
            self.proposed = None

    def abandon(self) -> None:
        assert self._pass is not None
        self._pass.close()

    def decode(self, rng: Random) -> None:
        for running in list(self.running):
            decode(self.policy, running, rng.randint(1, 60))
            if rng.random() < 0.5:
                self.running.remove(running)
                self.policy.leave(running, 0.0)

    def held(self) -> object:
        """The proposal, and all deficits with the refills of every level."""
        tenants = self.policy.tenants
        return (
            self.proposed and self.proposed.id,
            tenants.refills,
            [
                (
                    tenant.name,
                    tenant.deficit,
                    tenant.children.refills,
                    [(client.name, client.deficit) for client in tenant.children.known()],
                )
                for tenant in tenants.known()
            ],
        )


@examples(100)
@given(
    clients=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=20, max_size=80),
    seed=st.integers(0, 10_000),
    quantum=st.sampled_from([1, 40, 100, 1000]),
    skip_misfit=st.booleans(),
    refusing=st.sampled_from([0.0, 0.02, 0.3]),
    max_overtaken=st.sampled_from([1, 3, LONGEST_MATCH.max_overtaken]),
    order=st.sampled_from([SHORTEST_FIRST, LONGEST_MATCH]),
)
def test_a_pass_proposes_what_a_search_of_the_whole_queue_finds(
    clients, seed, quantum, skip_misfit, refusing, max_overtaken, order
):
    rules = DeficitRules(quantum=quantum)
    order = replace(order, max_overtaken=max_overtaken)
    makers = (Dlpm, SearchedDlpm)
    twins = [Twin(make(rules=rules, skip_misfit=skip_misfit, order=order)) for make in makers]

    def both(act):
        """Do the same to both, chance included."""
        drawn = rng.random()
        for twin in twins:
            act(twin, Random(drawn))
        one, other = twins
        assert one.held() == other.held()

    rng = Random(seed)
    share = -(-len(clients) // PASSES)
    for number in range(PASSES):
        for client in clients[number * share : (number + 1) * share]:
            both(lambda twin, chance, client=client: twin.arrive(client, chance))
        both(lambda twin, chance: twin.match(chance))
        if rng.random() < 0.3:  # another quantum may make a light member a heavy one
            # A binary fraction: sums are exact. Where they are rounded, the search may see 0 after the refill that the policy counts.
            both(
                lambda twin, chance: twin.policy.change_quantum(quantum * chance.choice([0.25, 4]))
            )
        both(lambda twin, chance: twin.begin())
        while twins[0].proposed is not None and rng.random() > refusing / 4:
            refused = rng.choice(
                [AdmissionResult.LATER, AdmissionResult.HELD, AdmissionResult.NO_ROOM]
            )
            outcome = refused if rng.random() < refusing else AdmissionResult.ADMITTED
            both(lambda twin, chance, outcome=outcome: twin.answer(outcome))
        both(lambda twin, chance: twin.abandon())
        both(lambda twin, chance: twin.decode(chance))


@examples(100)
@given(
    clients=st.lists(st.tuples(st.integers(0, 5), st.just(0)), min_size=20, max_size=80),
    seed=st.integers(0, 10_000),
    quantum=st.sampled_from([1, 40, 100, 1000]),
    holding=st.sampled_from([0.1, 0.3, 0.8]),
    order=st.sampled_from([SHORTEST_FIRST, LONGEST_MATCH]),
    answers=st.sampled_from(
        [
            (AdmissionResult.CLIENT_LATER, AdmissionResult.LATER),
            (AdmissionResult.CLIENT_HELD, AdmissionResult.HELD),
        ]
    ),
)
def test_a_client_that_has_to_wait_is_proposed_once_and_nothing_else_changes(
    clients, seed, quantum, holding, order, answers
):
    """`CLIENT_LATER` once is `LATER` for each request of the client in this pass, and `CLIENT_HELD` is `HELD`.

    Each tenant has one client. With more, a tenant in debt may get a refill for requests that then have to wait: in this pass or in the
    next one.
    """
    for_client, for_request = answers
    rng, rules = Random(seed), DeficitRules(quantum=quantum)
    once, each = twins = [Twin(Dlpm(rules=rules, order=order)) for _ in range(2)]
    share = -(-len(clients) // PASSES)
    for number in range(PASSES):
        drawn, waiting_clients = rng.random(), set()
        for twin in twins:
            chance = Random(drawn)
            for client in clients[number * share : (number + 1) * share]:
                twin.arrive(client, chance)
            twin.match(chance)
            twin.begin()
        while once.proposed is not None and rng.random() > holding / 20:
            proposed = once.proposed.client
            if rng.random() < holding:
                waiting_clients.add(proposed)
                once.answer(for_client)
            else:
                outcome = rng.choice([AdmissionResult.LATER, *[AdmissionResult.ADMITTED] * 4])
                once.answer(outcome)
                each.answer(outcome)
            while each.proposed is not None and each.proposed.client in waiting_clients:
                each.answer(for_request)
            assert once.held() == each.held()
            assert once.proposed is None or once.proposed.client not in waiting_clients
        for twin in twins:
            twin.abandon()
            twin.decode(Random(drawn))
