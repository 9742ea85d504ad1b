"""While incarnations come, go and are folded away, every router counts each of them once (design R3, R6).

A world of replicas and routers, with messages that are lost, repeated and late, routers that restart from an
old snapshot, and a store of true totals beside it. Figures are whole numbers, so sums are exact.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest
from evenkeel_fairshare.ledger import (
    CompactionRules,
    Compactor,
    Delta,
    Ledger,
    ReplicaRow,
    tenant_of,
)

from tests.support.ledger_worlds import kept, ledger, recounted

CLIENTS = ("ns/t/a", "ns/t/b", "ns/u/c")
TENANTS = ("ns/t", "ns/u")
RULES = CompactionRules(idle_s=20, max_clients=100)


class Replica:
    """What a replica process knows of itself."""

    def __init__(self) -> None:
        self.sequence = 0
        self.rows: dict[str, tuple[int, float]] = {}

    def serve(self, client: str, amount: int) -> None:
        self.sequence += 1
        self.rows[client] = (self.sequence, self.served(client) + amount)

    def served(self, client: str) -> float:
        return self.rows.get(client, (0, 0.0))[1]

    def report(self, since: float) -> list[ReplicaRow]:
        return [
            ReplicaRow(client, served, served, 1)
            for client, (at, served) in self.rows.items()
            if at > since
        ]


class World:
    """Everything happens by chance; `run` begins, lives and checks."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now_s = 0.0
        self.names = 0
        self.alive: dict[str, Replica] = {}
        self.counted: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """By incarnation and client: what the ledgers must count, from what was ever told to any of them."""
        self.received: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.routers: dict[str, tuple[Ledger, Compactor]] = {}
        self.store = ledger("store")
        self.under_way: list[Delta] = []
        self.folded = 0
        self.aged_out: set[tuple[str, int]] = set()

    def run(self, steps: int) -> None:
        for _ in range(2 + self.rng.randrange(2)):
            self.start_router()
        deeds = {
            self.a_replica_joins: 4,
            self.a_replica_serves: 30,
            self.a_router_asks_for_a_report: 20,
            self.a_router_receives_all_that_is_done: 15,
            self.a_replica_dies: 4,
            self.a_router_gives_up_what_is_gone: 15,
            self.a_router_asks_another: 20,
            self.a_message_is_delayed: 5,
            self.a_message_arrives_sometime_somewhere: 5,
            self.a_router_compacts_and_collects: 20,
            self.everybody_waits_a_while: 2,
            self.a_router_saves: 2,
            self.a_router_restarts: 3,
        }
        for deed in self.rng.choices(list(deeds), list(deeds.values()), k=steps):
            deed()
            self.nothing_is_counted_twice()
        self.end()

    def start_router(self) -> str:
        # Any name may come first: a newcomer may have to compact before it knows the latest closed totals.
        name = f"router-{self.rng.random()}"
        here = ledger(name)
        here.merge(self.store.delta())
        self.routers[name] = (here, Compactor(here, RULES))
        return name

    def fresh(self) -> int:
        self.names += 1
        return self.names

    def router(self) -> tuple[Ledger, Compactor]:
        return self.routers[self.rng.choice(list(self.routers))]

    def replica(self) -> tuple[str, Replica] | None:
        name = self.rng.choice(list(self.alive) or [""])
        return (name, self.alive[name]) if name else None

    def a_replica_joins(self) -> None:
        if len(self.alive) < 4:
            self.alive[f"replica-{self.fresh()}"] = Replica()

    def a_replica_serves(self) -> None:
        if found := self.replica():
            found[1].serve(self.rng.choice(CLIENTS), self.rng.randint(1, 9))

    def a_router_asks_for_a_report(self) -> None:
        if found := self.replica():
            (name, replica), (here, _) = found, self.router()
            since = here.sequence(name)
            rows = replica.report(since)
            here.observe(name, since=since, sequence=replica.sequence, rows=rows)
            for row in rows:
                self.count(name, row.client, row.service)

    def a_router_receives_all_that_is_done(self) -> None:
        """Received so far by all routers = served so far: the accounts may be ahead of every report."""
        if found := self.replica():
            (name, replica), client = found, self.rng.choice(CLIENTS)
            missing = replica.served(client) - self.received[name, client]
            if missing > 0:
                self.router()[0].received(name, client, missing)
                self.received[name, client] += missing
                self.count(name, client, self.received[name, client])

    def count(self, name: str, client: str, service: float) -> None:
        self.counted[name][client] = max(service, self.counted[name].get(client, 0.0))

    def a_replica_dies(self) -> None:
        if found := self.replica():
            del self.alive[found[0]]

    def a_router_gives_up_what_is_gone(self) -> None:
        self.give_up(self.router()[0])

    def give_up(self, here: Ledger) -> None:
        for name in here.replica_accounts.keys() - self.alive.keys():
            here.closed(name)

    def a_router_asks_another(self) -> None:
        here, there = self.router()[0], self.router()[0]
        here.merge(there.delta(here.digest()))

    def a_message_is_delayed(self) -> None:
        self.under_way.append(self.router()[0].delta(self.router()[0].digest()))

    def a_message_arrives_sometime_somewhere(self) -> None:
        """It may be meant for another, be very old, and come again."""
        if self.under_way:
            self.router()[0].merge(self.rng.choice(self.under_way))

    def a_router_compacts_and_collects(self) -> None:
        self.now_s += self.rng.randint(1, 15)
        self.compact(*self.router())

    def compact(self, here: Ledger, compactor: Compactor) -> None:
        compactor.compact(self.routers.keys(), live=self.alive.keys(), now_s=self.now_s)
        self.aged_out.update(here.closed_totals.dropped.items())
        before = len(here.replica_accounts)
        compactor.collect(self.routers.keys())
        self.folded += before - len(here.replica_accounts)

    def everybody_waits_a_while(self) -> None:
        """Long enough to be aged out (R4)."""
        self.now_s += RULES.idle_s

    def a_router_saves(self) -> None:
        self.store.merge(self.router()[0].delta())

    def a_router_restarts(self) -> None:
        name = self.rng.choice(list(self.routers))
        self.store.merge(self.routers.pop(name)[0].delta())
        self.start_router()

    def nothing_is_counted_twice(self) -> None:
        for here, _ in self.routers.values():
            for client in CLIENTS:
                assert here.served(client) <= self.truth(client)
            assert kept(here) == recounted(here)

    def truth(self, client: str) -> float:
        return sum(by_client.get(client, 0.0) for by_client in self.counted.values())

    def end(self) -> None:
        """Once all have heard of all, all agree with the truth, and nothing is kept of what is gone."""
        for _ in range(6):
            for here, compactor in self.routers.values():
                self.give_up(here)
                for there, _ in self.routers.values():
                    here.merge(there.delta(here.digest()))
                self.compact(here, compactor)
        for here, _ in self.routers.values():
            assert here.replica_accounts.keys() <= self.alive.keys(), "a page stayed for ever"
            for tenant in TENANTS:
                of_tenant = [client for client in CLIENTS if tenant_of(client) == tenant]
                aged_out = here.closed_totals.tenant(tenant).service
                served = sum(here.served(client) for client in of_tenant)
                assert served + aged_out == sum(map(self.truth, of_tenant))


@pytest.mark.parametrize("seed", range(40))
def test_every_incarnation_is_counted_once_and_then_forgotten(seed):
    world = World(seed)
    world.run(steps=400)
    assert world.folded > 0


def test_clients_are_aged_out_in_these_worlds_too():
    worlds = [World(seed) for seed in range(10)]
    for world in worlds:
        world.run(steps=400)
    assert sum(len(world.aged_out) for world in worlds) > 5
