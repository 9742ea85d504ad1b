"""What routers received is dropped once reports cover it, at any copy and any time: nothing counts that was not served, and no service
falls (design R3, docs/design/0003)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from evenkeel_fairshare.ledger import Delta, Ledger, ReplicaRow
from evenkeel_fairshare.ledger.replica_rows import SERVICE
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.ledger_worlds import (
    kept,
    ledger,
    look,
    merged,
    nothing_open,
    recounted,
    stated,
    whole,
)

CLIENTS = ("ns/t/a", "ns/t/b")
REPLICAS = ("r", "s")
ROUTERS = 3


@dataclass
class Open:
    """A request that runs."""

    router: int
    replica: str
    client: str
    charged: float = 0.0


class World:
    """Two replicas and some routers. Requests overlap, reports are of any moment, messages are late and come again."""

    def __init__(self, routers: int, seeded: float = 0.0) -> None:
        self.names = 0
        self.seeded = seeded
        self.routers = [self.new() for _ in range(routers)]
        self.alive = set(REPLICAS)
        self.truth: Counter[tuple[str, str]] = Counter()
        """(replica, client) → service that it got there."""
        self.received: Counter[tuple[str, str]] = Counter()
        self.rows = {name: dict[str, tuple[int, float]]() for name in REPLICAS}
        self.sequence = Counter[str]()
        self.open: list[Open] = []
        self.under_way: list[Delta] = []
        self.store: list[Delta] = []

    def new(self) -> Ledger:
        self.names += 1
        return ledger(f"router-{self.names}")

    def send(self, router: int, replica: str, client: str) -> None:
        if replica in self.alive:
            at = router % len(self.routers)
            here = self.routers[at]
            if self.seeded and not here.is_reported(replica, client):
                here.promised(replica, client, seed=self.seeded, tenant_seed=0.0)
            if not self.has_open(at, replica, client):
                here.begins(replica, client)
            self.open.append(Open(at, replica, client))

    def has_open(self, router: int, replica: str, client: str) -> bool:
        return any(
            (one.router, one.replica, one.client) == (router, replica, client) for one in self.open
        )

    def work(self, which: int, amount: int) -> None:
        """A replica charges for some tokens of a request."""
        if self.open:
            one = self.open[which % len(self.open)]
            one.charged += amount
            self.truth[one.replica, one.client] += amount
            self.sequence[one.replica] += 1
            new = self.sequence[one.replica], self.truth[one.replica, one.client]
            self.rows[one.replica][one.client] = new

    def end(self, which: int) -> None:
        """A router receives the end of an answer."""
        if self.open:
            one = self.open.pop(which % len(self.open))
            if one.charged:
                self.routers[one.router].received(one.replica, one.client, one.charged)
            self.received[one.replica, one.client] += one.charged

    def report(self, router: int, replica: str) -> None:
        if replica in self.alive:
            here = self.routers[router % len(self.routers)]
            since = here.sequence(replica)
            rows = [
                ReplicaRow(client, service, service, 1)
                for client, (at, service) in self.rows[replica].items()
                if at > since
            ]
            here.observe(replica, since=since, sequence=self.sequence[replica], rows=rows)

    def reread(self, router: int, replica: str) -> None:
        """A report comes after a long silence."""
        here = self.routers[router % len(self.routers)]
        if replica in self.alive and replica in here.replica_accounts:
            before = dict(here.service)
            here.reread(replica)
            assert here.service == before
            self.report(router, replica)

    def exchange(self, taker: int, giver: int) -> None:
        here, there = (self.routers[n % len(self.routers)] for n in (taker, giver))
        here.merge(there.delta(here.digest()))

    def delay(self, taker: int, giver: int) -> None:
        here, there = (self.routers[n % len(self.routers)] for n in (taker, giver))
        self.under_way.append(there.delta(here.digest()))

    def arrive(self, which: int, taker: int) -> None:
        """A message arrives somewhere, however old it is, and may come again."""
        if self.under_way:
            here = self.routers[taker % len(self.routers)]
            here.merge(self.under_way[which % len(self.under_way)])

    def look(self, router: int) -> None:
        at = router % len(self.routers)
        look(
            self.routers[at], self.alive, lambda replica, client: self.has_open(at, replica, client)
        )

    def idle(self, router: int) -> None:
        at = router % len(self.routers)
        here = self.routers[at]
        before = dict(here.service)
        for _ in here.forget_idle(
            self.alive, lambda replica, client: self.has_open(at, replica, client)
        ):
            pass
        assert here.service == before

    def save(self, router: int) -> None:
        self.store = whole(self.routers[router % len(self.routers)])

    def restart(self, router: int) -> None:
        """Its requests end unheard, and a new process reads what the store has."""
        at = router % len(self.routers)
        self.open = [one for one in self.open if one.router != at]
        self.routers[at] = merged(self.new(), self.store)

    def crash(self, replica: str) -> None:
        self.alive.discard(replica)
        self.open = [one for one in self.open if one.replica != replica]

    def check(self) -> None:
        for here in self.routers:
            assert kept(here) == recounted(here)
            for replica, account in here.replica_accounts.items():
                for client in account.names():
                    served = account.served(client)
                    assert served <= self.truth[replica, client]
                    assert served >= account.clients.cell(client, SERVICE)

    def settle(self) -> None:
        """Everything is reported, exchanged and dropped."""
        while self.open:
            self.end(0)
        for n, _ in enumerate(self.routers):
            for replica in self.alive:
                self.report(n, replica)
        self.exchange_all()
        for _ in range(3):
            for n, _ in enumerate(self.routers):
                self.idle(n)
                self.look(n)

    def exchange_all(self) -> None:
        for _ in range(2):
            for taker, _ in enumerate(self.routers):
                for giver, _ in enumerate(self.routers):
                    self.exchange(taker, giver)


routers, replicas, clients = st.integers(0, ROUTERS - 1), st.sampled_from(REPLICAS), st.sampled_from(CLIENTS)  # fmt: skip
which, amounts = st.integers(0, 3), st.integers(1, 9)
seeds = st.sampled_from((0.0, -5.0))
requests = st.one_of(
    st.tuples(st.just("send"), routers, replicas, clients),
    st.tuples(st.just("work"), which, amounts),
    st.tuples(st.just("end"), which),
)
messages = st.one_of(
    st.tuples(st.just("exchange"), routers, routers),
    st.tuples(st.just("delay"), routers, routers),
    st.tuples(st.just("arrive"), which, routers),
)
looks = st.one_of(st.tuples(st.just("look"), routers), st.tuples(st.just("idle"), routers))
reports = st.tuples(st.just("report"), routers, replicas)
steps = st.one_of(
    requests,
    reports,
    messages,
    looks,
    looks,
    st.tuples(st.just("save"), routers),
    st.tuples(st.just("reread"), routers, replicas),
    st.tuples(st.just("restart"), routers) | st.tuples(st.just("crash"), replicas),
)


def lived(history: list[tuple[Any, ...]], seeded: float) -> World:
    world = World(ROUTERS, seeded)
    for what, *given_to in history:
        getattr(world, what)(*given_to)
        world.check()
    return world


@given(st.lists(steps, max_size=60), seeds)
@examples(400)
def test_no_more_counts_than_was_served_whatever_is_dropped(
    history: list[tuple[Any, ...]], seeded: float
) -> None:
    world = lived(history, seeded)
    world.settle()
    world.check()
    for here in world.routers:
        for replica in world.alive:
            for client in CLIENTS:
                account = here.replica_accounts.get(replica)
                served = 0.0 if account is None else account.served(client)
                assert served == world.truth[replica, client]
            rows = [] if account is None else [*account.accounts.values()]
            left = (stated(one, client) for one in rows for client in one.clients)
            assert not any(received for _, received in left), "reports cover all of it"
            assert seeded or not any(one.clients for one in rows)


@given(st.lists(st.one_of(requests, requests, reports, looks), max_size=80))
@examples(300)
def test_one_router_counts_all_that_it_received_and_all_that_was_reported(
    history: list[tuple[Any, ...]],
) -> None:
    world = World(1)
    for what, *given_to in history:
        getattr(world, what)(*given_to)
        world.check()
        for (replica, client), received in world.received.items():
            account = world.routers[0].replica_accounts.get(replica)
            assert received <= (0.0 if account is None else account.served(client))


@given(st.lists(steps, max_size=40), st.lists(st.one_of(requests, messages), max_size=40), seeds)
@examples(300)
def test_what_was_received_since_the_last_report_counts_after_a_drop(
    before: list[tuple[Any, ...]], after: list[tuple[Any, ...]], seeded: float
) -> None:
    history = [step for step in before if step[0] not in ("crash", "restart", "save")]
    world = lived(history, seeded)
    world.settle()
    for what, *given_to in after:
        getattr(world, what)(*given_to)
    world.exchange_all()
    world.check()
    for here in world.routers:
        for replica in REPLICAS:
            for client in CLIENTS:
                running = sum(
                    one.charged
                    for one in world.open
                    if (one.replica, one.client) == (replica, client)
                )
                account = here.replica_accounts.get(replica)
                served = 0.0 if account is None else account.served(client)
                assert served == world.truth[replica, client] - running


def test_two_routers_that_received_beyond_different_reports_add_up() -> None:
    """The base of the second has a part of what the first received: 500, then 30 and 60 more."""
    world = World(2)
    world.send(0, "r", CLIENTS[0])
    world.work(0, 500)
    world.settle()
    assert not any(one.clients for one in world.routers[0].replica_accounts["r"].accounts.values())
    world.send(0, "r", CLIENTS[0])
    world.work(0, 20)
    world.report(1, "r")
    world.send(1, "r", CLIENTS[0])
    world.work(1, 60)
    world.work(0, 10)
    world.end(0)
    world.end(0)
    world.exchange_all()
    for here in world.routers:
        account = here.replica_accounts["r"]
        assert sorted(stated(one, CLIENTS[0]) or () for one in account.accounts.values()) == [
            (500.0, 30.0),
            (520.0, 60.0),
        ]
        assert account.served(CLIENTS[0]) == 590.0


def test_rows_that_were_dropped_do_not_return_with_an_old_copy() -> None:
    world = World(2)
    world.send(0, "r", CLIENTS[0])
    world.work(0, 5)
    world.end(0)
    world.save(0)
    world.settle()
    for here in world.routers:
        merged(here, world.store)
        assert not any(one.clients for one in here.replica_accounts["r"].accounts.values())
        assert here.served(CLIENTS[0]) == 5.0


def test_a_look_is_no_news_and_costs_only_what_changed() -> None:
    here = ledger("only")
    for n in range(5):
        here.received("r", f"ns/t/{n}", 9.0)
    here.observe("r", since=0, sequence=1, rows=[ReplicaRow(f"ns/t/{n}", 9.0, 9.0, 1) for n in range(5)])  # fmt: skip
    here.grown()
    here.touched = set()
    asked: list[str] = []

    def noted(incarnation: str, client: str) -> bool:
        asked.append(client)
        return client == "ns/t/3"

    for n in range(5):
        if n == 2:
            here.received("r", "ns/t/4", 1.0)
            row = ReplicaRow("ns/t/4", 10.0, 10.0, 1)
            here.observe("r", since=1, sequence=2, rows=[row])
            here.grown()
            here.touched = set()
        look(here, {"r"}, noted)
    assert sorted(asked) == [f"ns/t/{n}" for n in (0, 1, 2, 3, 4, 4)], "only what changed"
    assert set(here.replica_accounts["r"].accounts["only"].clients) == {"ns/t/3"}
    assert (here.grown(), here.touched) == ({}, set())
    for _ in range(2):  # the rest goes with the idle ones
        for _ in here.forget_idle({"r"}, nothing_open):
            pass
    assert not here.replica_accounts["r"].accounts["only"].clients
    assert (here.grown(), here.touched) == ({}, set())


def test_rows_stay_while_one_of_them_changes() -> None:
    """Otherwise what its router receives next would count without what the others received before."""
    here, there = ledger("here"), ledger("there")
    here.received("r", CLIENTS[0], 9.0)
    for n in range(4):
        there.received("r", CLIENTS[0], 1.0)
        here.merge(there.delta(here.digest()))
        here.observe("r", since=n, sequence=n + 1, rows=[ReplicaRow(CLIENTS[0], 10.0 + n, 1.0, 1)])
        look(here, {"r"})
    accounts = here.replica_accounts["r"].accounts
    assert [stated(accounts[name], CLIENTS[0]) for name in ("here", "there")] == [(0, 9), (0, 4)]
    for _ in range(2):
        look(here, {"r"})
    assert [stated(accounts[name], CLIENTS[0]) for name in ("here", "there")] == [None, None]


def test_a_report_covers_what_only_rounding_lacks() -> None:
    here = ledger("only")
    for service in (0.1, 0.2):
        here.received("r", CLIENTS[0], service)
    here.observe("r", since=0, sequence=1, rows=[ReplicaRow(CLIENTS[0], 0.3, 0.3, 2)])
    assert here.served(CLIENTS[0]) > 0.3
    for _ in range(2):
        for _ in here.drop_covered({"r"}, nothing_open):
            pass
    assert not here.replica_accounts["r"].accounts["only"].clients
    assert here.replica_accounts["r"].served(CLIENTS[0]) == 0.3
    assert abs(here.served(CLIENTS[0]) - 0.3) < 1e-15
