"""Rows of idle clients are given back by replicas and routers: service counts once all the time, and debts stay (design 0003)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from evenkeel_contract.reportbook import Accounts, News, ReportBook
from evenkeel_contract.reports import IDLE_LOOK_S, REPORT_VERSION, ReportRequest
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.ledger import CompactionRules, Compactor, Delta, Ledger
from evenkeel_fairshare.ledger.replica_rows import ReplicaRow, tenant_of
from evenkeel_fairshare.replica.contract import ClientDeficits, Request
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.ledger_worlds import kept, ledger, look, merged, nothing_open, recounted, whole

NAMES = [f"ns/{tenant}/c{n}" for tenant in ("t", "u") for n in range(3)]
ROUTERS = ("a", "b")
REPLICAS = ("r", "s")


class States:
    """What a policy has of clients: their debts and how many of their requests wait. It names those that changed."""

    quantum = 10.0

    def __init__(self) -> None:
        self.debts: dict[str, float] = {}
        self.waiting: dict[str, int] = {}
        self.changed: set[str] = set()

    def news(self) -> dict[str, ClientDeficits]:
        changed, self.changed = self.changed, set()
        return {
            name: ClientDeficits(-self.debts.get(name, 0.0), 0.0, self.waiting.get(name, 0))
            for name in changed
        }


@dataclass
class Replica:
    """One replica: its accounts and its book."""

    name: str
    accounts: Accounts = field(default_factory=lambda: Accounts(LinearCost(), max_clients=2))
    states: States = field(default_factory=States)

    admitted: int = 0

    def __post_init__(self) -> None:
        self.book = ReportBook(incarnation=self.name, policy="DLPM")


class World:
    """Two replicas, and two routers that receive all that they serve, and exchange now and then."""

    def __init__(self) -> None:
        self.replicas = {name: Replica(name) for name in REPLICAS}
        self.ledgers = {name: ledger(name) for name in ROUTERS}
        self.total = dict.fromkeys(ROUTERS, 0.0)
        self.served: Counter[str] = Counter()
        self.now_s = 0.0
        self.halves = self.starts = 0
        self.old: list[list[Delta]] = []

    def serve(self, at: str, client: str, router: str, tokens: int) -> None:
        """A request runs to its end, and a router receives its answer."""
        request = Request(client, client, tenant_of(client), 0.0, tokens, 9)
        request.extend_tokens = tokens
        self.ledgers[router].begins(at, client)
        accounts = self.replicas[at].accounts
        self.replicas[at].admitted += 1
        accounts.admitted(request, charged=True)
        request.output_tokens = tokens
        accounts.left(request)
        self.served[client] += 3 * tokens
        self.ledgers[router].received(at, client, 3.0 * tokens)

    def wait(self, at: str, client: str, count: int) -> None:
        states = self.replicas[at].states
        states.waiting[client] = count
        states.changed.add(client)

    def owe(self, at: str, client: str, debt: int) -> None:
        states = self.replicas[at].states
        states.debts[client] = float(debt)
        states.changed.add(client)

    def report(self, at: str, router: str) -> None:
        """A router takes the news of a replica."""
        one, taker = self.replicas[at], self.ledgers[router]
        idle = one.book.idle(self.now_s)
        one.book.take(News.of(one.accounts, one.states, idle))  # type: ignore[arg-type]
        since = int(taker.sequence(at))
        report = one.book.answer(ReportRequest(REPORT_VERSION, at, since))
        assert report.requests == one.admitted
        columns = ReplicaRow._fields
        rows = [ReplicaRow(*(getattr(row, name) for name in columns)) for row in report.clients]
        for row in rows:  # in pieces, of which only the last one is complete
            taker.observe(at, since=report.sequence, sequence=report.sequence, rows=[row])
            self.checked()
        taker.observe(at, since=report.since, sequence=report.sequence, rows=())

    def drop(self, router: str) -> None:
        """A router looks at what reports cover."""
        look(self.ledgers[router], REPLICAS)

    def keep(self, router: str) -> None:
        """A store keeps a copy of a ledger."""
        self.old.append(whole(self.ledgers[router]))

    def return_late(self, router: str) -> None:
        """Messages come late, and again."""
        for delta in self.old.pop() if self.old else ():
            self.ledgers[router].merge(delta)

    def exchange(self, taker: str) -> None:
        (giver,) = [name for name in ROUTERS if name != taker]
        here = self.ledgers[taker]
        here.merge(self.ledgers[giver].delta(here.digest()))

    def restart(self, router: str) -> None:
        """A new process takes the place of a router; the other one has all that it received."""
        (other,) = [name for name in ROUTERS if name != router]
        self.exchange(other)
        self.starts += 1
        self.ledgers[router], self.total[router] = ledger(f"{router}{self.starts}"), 0.0
        self.exchange(router)
        for at in REPLICAS:  # with its first report
            self.ledgers[router].reread(at)

    def settle(self) -> None:
        for at in REPLICAS:
            for router in ROUTERS:
                self.report(at, router)
        for router in (*ROUTERS, *ROUTERS):
            self.exchange(router)
        for name, one in self.ledgers.items():
            self.total[name] += sum(one.grown().values())

    def half(self) -> None:
        """Half of the time between two looks at what is idle passes; at its end all hear of one another."""
        self.now_s += IDLE_LOOK_S / 2
        self.halves += 1
        self.settle()
        if self.halves % 2 == 0:
            for one in self.ledgers.values():
                for _ in one.forget_idle(REPLICAS, nothing_open):
                    pass

    def idle(self) -> None:
        """The time between two such looks passes: half of an idle period."""
        self.half()
        self.half()

    def sums(self, here: Ledger) -> Counter[str]:
        found: Counter[str] = Counter()
        for name in here.clients():
            found[tenant_of(name)] += here.served(name)
        return found

    def checked(self) -> None:
        served: Counter[str] = Counter()
        for name, service in self.served.items():
            served[tenant_of(name)] += service
        for here in self.ledgers.values():
            assert all(own <= served[tenant] + 1e-6 for tenant, own in self.sums(here).items())
            assert kept(here) == recounted(here)


clients, routers, places = st.sampled_from(NAMES), st.sampled_from(ROUTERS), st.sampled_from(REPLICAS)  # fmt: skip
steps = st.one_of(
    st.tuples(st.just("serve"), places, clients, routers, st.integers(1, 100)),
    st.tuples(st.just("wait"), places, clients, st.integers(0, 2)),
    st.tuples(st.just("owe"), places, clients, st.integers(0, 2)),
    st.tuples(st.just("report"), places, routers),
    st.tuples(st.just("exchange"), routers),
    st.tuples(st.just("drop"), routers),
    st.tuples(st.just("keep"), routers),
    st.tuples(st.just("return_late"), routers),
    st.tuples(st.just("restart"), routers),
    st.tuples(st.just("half")),
    st.tuples(st.just("idle")),
)


def lived(history: list[tuple[Any, ...]]) -> World:
    world = World()
    for what, *given_to in history:
        getattr(world, what)(*given_to)
        world.checked()
    world.settle()
    world.checked()
    return world


@given(st.lists(steps, max_size=40))
@examples(300)
def test_service_counts_once_while_idle_rows_are_given_back(history: list[tuple[Any, ...]]) -> None:
    world = lived(history)
    everything = sum(world.served.values())
    for name, here in world.ledgers.items():
        for tenant, own in world.sums(here).items():
            assert (
                abs(own - sum(s for c, s in world.served.items() if tenant_of(c) == tenant)) < 1e-6
            )
        assert abs(world.total[name] - everything) < 1e-6
        # So has a router that reads all of it from a store, and the closed totals.
        read = merged(ledger("reader"), whole(here))
        assert abs(sum(map(read.served, read.clients())) - everything) < 1e-6
        for at in REPLICAS:
            here.closed(at)
            for router in ROUTERS:
                here.replica_accounts[at].close(router)
        Compactor(here, CompactionRules()).compact([name], live=(), now_s=0.0)
        assert abs(sum(map(here.served, here.clients())) - everything) < 1e-6


@given(st.lists(steps, max_size=40))
@examples(100)
def test_within_two_idle_periods_only_debts_are_left(history: list[tuple[Any, ...]]) -> None:
    world = lived(history)
    for one in world.replicas.values():
        for name in one.states.waiting:
            one.states.waiting[name] = 0
            one.states.changed.add(name)
    for _ in range(4):
        world.idle()
    world.settle()
    for here in world.ledgers.values():
        assert abs(sum(world.sums(here).values()) - sum(world.served.values())) < 1e-6
    for at, one in world.replicas.items():
        debts = {name for name, debt in one.states.debts.items() if debt}
        assert {name for name in one.accounts.clients if not name.endswith("/*")} <= debts
        for here in world.ledgers.values():
            if at not in here.replica_accounts:
                continue
            account = here.replica_accounts[at]
            assert {name for name in account.clients if not name.endswith("/*")} == debts
            assert {n for own in account.accounts.values() for n in own.clients} <= debts
            for name in debts:  # the next replica charges them
                assert account.row(name).deficit == -one.states.debts[name]


def test_a_client_that_returns_begins_at_zero_and_counts_on() -> None:
    world = World()
    world.serve("r", NAMES[0], "a", 10)
    for _ in range(3):
        world.idle()
    world.settle()
    assert NAMES[0] not in world.replicas["r"].accounts.clients
    here = world.ledgers["b"]
    assert (here.served(NAMES[0]), here.served("ns/t/*")) == (0.0, 30.0)
    world.serve("r", NAMES[0], "b", 1)
    world.settle()
    for here in world.ledgers.values():
        assert (here.served(NAMES[0]), here.served("ns/t/*")) == (3.0, 30.0)


def test_a_router_that_missed_a_mark_asks_for_all_rows_anew() -> None:
    world = World()
    world.serve("r", NAMES[0], "a", 10)
    world.settle()
    kept_of_old = whole(world.ledgers["b"])  # as in a store
    for _ in range(4):
        world.idle()
    world.settle()
    late = merged(ledger("b2"), kept_of_old)
    world.ledgers["b"] = late
    late.reread("r")
    world.report("r", "b")
    assert sum(map(late.served, late.clients())) == 30.0
    world.ledgers["a"].merge(late.delta())  # an old copy brings nothing back
    world.checked()
