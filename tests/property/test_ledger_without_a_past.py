"""Carried balances of a router that started with an empty ledger: exact, whatever it learns later (design R8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations

from evenkeel_fairshare.ledger import CarryRules, Compactor, Ledger, ReplicaRow, promise
from evenkeel_fairshare.ledger.balances import carried_balance, carried_balance_of_tenant
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.ledger_worlds import content

ALICE, TENANT = "ns/t/alice", "ns/t"
RULES = CarryRules(quantum=100, overshoot=500)

events = st.lists(
    st.tuples(
        st.sampled_from(["join", "serve", "leave", "compact"]),
        st.integers(0, 9),
        st.integers(-500, 100).map(float),
    ),
    max_size=15,
)


@dataclass
class Replica:
    """What is true of the client at one incarnation."""

    seed: float
    deficit: float
    sequence: int = 1
    gone: bool = False


@dataclass
class World:
    """Replicas, and routers that see every report. Each request comes to any of the routers."""

    routers: list[Ledger]
    replicas: dict[str, Replica] = field(default_factory=dict)
    forgiven: float = 0.0
    """What the balance must not contain, because all who knew it are gone."""

    def live(self) -> list[str]:
        return [name for name, replica in self.replicas.items() if not replica.gone]

    def run(self, story: list[tuple[str, int, float]]) -> None:
        for what, which, deficit in story:
            router, live = self.routers[which % len(self.routers)], self.live()
            if what == "join":
                name = f"r{len(self.replicas)}"
                seed = promise(router, ALICE, name, live=[*live, name])
                self.replicas[name] = Replica(seed.client, seed.client)
                self.report(name)
            elif what == "serve" and live:
                self.replicas[live[which % len(live)]].deficit = deficit
                self.report(live[which % len(live)])
            elif what == "leave" and live:
                self.replicas[live[which % len(live)]].gone = True
            elif what == "compact" and len(self.routers) == 1:
                self.compact()  # a router that has not heard of another one yet writes no book

    def report(self, name: str) -> None:
        replica = self.replicas[name]
        replica.sequence += 1
        row = ReplicaRow(
            ALICE, deficit=replica.deficit, tenant_deficit=replica.deficit,
            seed=replica.seed, tenant_seed=replica.seed, waiting=1,
        )  # fmt: skip
        for router in self.routers:
            router.observe(name, since=0, sequence=replica.sequence, rows=[row])

    def compact(self) -> None:
        members = [router.router for router in self.routers]
        for router in self.routers:
            router.members = frozenset(members)
            for name in router.replica_accounts.keys() - set(self.live()):
                router.closed(name)
        self.exchange()
        for router in self.routers:
            compactor = Compactor(router)
            compactor.compact(members, live=self.live(), now_s=0)
            self.exchange()
            compactor.collect(members)

    def exchange(self) -> None:
        for here in self.routers:
            for there in self.routers:
                here.merge(there.delta(here.digest()))

    def newcomer(self) -> Ledger:
        """A router with an empty ledger that has heard of every live replica."""
        router = Ledger("newcomer", rules=RULES)
        self.routers.append(router)
        for name in self.live():
            self.report(name)
        return router

    def truth(self) -> float:
        """Seeds of all incarnations, less what was left where they ended."""
        seeds = sum(replica.seed for replica in self.replicas.values())
        left = sum(replica.deficit for replica in self.replicas.values() if replica.gone)
        return seeds - left - self.forgiven

    def check(self) -> None:
        for router in self.routers:
            assert carried_balance(router, ALICE, self.live()) == self.truth()
            assert carried_balance_of_tenant(router, TENANT, self.live()) == self.truth()


def fleet() -> World:
    return World([Ledger("router", rules=RULES)])


@given(events, events)
@examples(100)
def test_carried_balances_begin_at_zero_and_stay_exact_without_old_routers(before, after):
    world = fleet()
    world.run(before)
    world.check()
    world.forgiven = world.truth()
    world.routers.clear()
    world.newcomer()
    world.check()
    world.run(after)
    world.check()


@given(events, events, events)
@examples(100)
def test_a_router_that_started_alone_agrees_with_the_peers_it_meets(before, apart, together):
    world = fleet()
    world.run(before)
    world.newcomer()
    world.run(apart)
    world.exchange()
    world.check()
    world.run(together)
    world.exchange()
    for _ in range(3):
        world.compact()
        world.check()


@given(events, events)
@examples(100)
def test_a_store_that_is_read_late_is_as_good_as_one_that_is_read_early(before, apart):
    world = fleet()
    world.run(before)
    stored = list(world.routers.pop().parts())
    router = world.newcomer()
    world.routers.append(Ledger("second", rules=RULES))  # so that no book is written before
    for name in world.live():
        world.report(name)
    world.run(apart)
    for part in stored:
        router.merge(part)
    world.exchange()
    world.check()


@given(events, events)
@examples(60)
def test_three_routers_agree_in_whatever_order_they_meet(before, apart):
    world = fleet()
    world.run(before)
    world.newcomer()
    world.routers.append(Ledger("second", rules=RULES))
    for name in world.live():
        world.report(name)
    world.run(apart)
    deltas = [router.delta() for router in world.routers]
    seen = []
    for order in permutations(deltas):
        reader = Ledger("reader", rules=RULES)
        for delta in (*order, order[0]):
            reader.merge(delta)
        assert carried_balance(reader, ALICE, world.live()) == world.truth()
        seen.append(content(reader))
    assert all(each == seen[0] for each in seen)
