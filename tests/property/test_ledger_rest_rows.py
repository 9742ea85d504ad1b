"""A replica that reports its clients beyond a bound in one row of their tenant: their service counts once (design R3)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from evenkeel_contract.reportbook import Accounts, ReportBook
from evenkeel_contract.reports import REPORT_VERSION, ReportRequest
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.ledger import CompactionRules, Compactor, Ledger
from evenkeel_fairshare.ledger.closing import EqualWeights, close, finish
from evenkeel_fairshare.ledger.replica_rows import ReplicaRow, tenant_of
from evenkeel_fairshare.replica.contract import ClientDeficits, Request
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.ledger_worlds import RULES, kept, ledger, look, merged, recounted, row, whole

MOST = 3
"""Clients with their own totals at the replica."""
NAMES = [f"ns/{tenant}/c{n}" for tenant in ("t", "u") for n in range(6)]
ROUTERS = ("a", "b")


class World:
    """One replica, and two routers that receive all that it serves, and exchange now and then."""

    def __init__(self) -> None:
        self.accounts = Accounts(LinearCost(), max_clients=MOST)
        self.book = ReportBook(incarnation="r", policy="DLPM", max_unserved=2)
        self.ledgers = {name: ledger(name) for name in ROUTERS}
        self.total = {name: 0.0 for name in ROUTERS}
        self.served: Counter[str] = Counter()
        self.waiting: dict[str, int] = {}

    def serve(self, client: str, router: str, tokens: int) -> None:
        """A request runs to its end, and a router receives its answer."""
        self.ledgers[router].begins("r", client)
        request = Request(client, client, tenant_of(client), 0.0, tokens, 9)
        request.extend_tokens = tokens
        self.accounts.admitted(request, charged=True)
        request.output_tokens = tokens
        self.accounts.left(request)
        self.served[client] += 3 * tokens
        self.ledgers[router].received("r", client, 3.0 * tokens)

    def wait(self, client: str, count: int) -> None:
        self.waiting[client] = count

    def report(self, router: str) -> None:
        """A router takes the news; a client that waits has a row, whoever has its totals."""
        states = {
            name: ClientDeficits(-1.0, -1.0, count) for name, count in self.waiting.items() if count
        }
        self.book.update(self.accounts.copy(), states, 10.0)
        taker = self.ledgers[router]
        since = int(taker.sequence("r"))
        report = self.book.answer(ReportRequest(REPORT_VERSION, "r", since))
        columns = ReplicaRow._fields
        rows = [ReplicaRow(*(getattr(one, name) for name in columns)) for one in report.clients]
        taker.observe("r", since=report.since, sequence=report.sequence, rows=rows)

    def exchange(self, taker: str) -> None:
        (giver,) = [name for name in ROUTERS if name != taker]
        here = self.ledgers[taker]
        here.merge(self.ledgers[giver].delta(here.digest()))

    def drop(self, router: str) -> None:
        """A router looks at what reports cover."""
        look(self.ledgers[router], ("r",))

    def refresh(self) -> None:
        for name, one in self.ledgers.items():
            self.total[name] += sum(one.grown().values())

    def settle(self) -> None:
        for router in ROUTERS:
            self.report(router)
        for router in (*ROUTERS, *ROUTERS):
            self.exchange(router)
        self.refresh()


clients, routers = st.sampled_from(NAMES), st.sampled_from(ROUTERS)
steps = st.one_of(
    st.tuples(st.just("serve"), clients, routers, st.integers(1, 100)),
    st.tuples(st.just("wait"), clients, st.integers(0, 2)),
    st.tuples(st.just("report"), routers),
    st.tuples(st.just("exchange"), routers),
    st.tuples(st.just("drop"), routers),
    st.tuples(st.just("refresh")),
)


def lived(history: list[tuple[Any, ...]]) -> World:
    world = World()
    for what, *given_to in history:
        getattr(world, what)(*given_to)
        for here in world.ledgers.values():
            # At no time is more counted than was served.
            for tenant in ("ns/t", "ns/u"):
                assert sum_of(here, tenant) <= sum_served(world, tenant) + 1e-6
            assert kept(here) == recounted(here)
    world.settle()
    return world


def sum_of(here: Ledger, tenant: str) -> float:
    return sum(here.served(name) for name in here.clients() if tenant_of(name) == tenant)


def sum_served(world: World, tenant: str) -> float:
    return sum(service for name, service in world.served.items() if tenant_of(name) == tenant)


@given(st.lists(steps, max_size=40))
@examples(200)
def test_service_counts_once_whatever_names_come_and_go(history: list[tuple[Any, ...]]) -> None:
    world = lived(history)
    for name, here in world.ledgers.items():
        for tenant in ("ns/t", "ns/u"):
            assert abs(sum_of(here, tenant) - sum_served(world, tenant)) < 1e-6
        # What grew from step to step is the same in total.
        assert abs(world.total[name] - sum(world.served.values())) < 1e-6
        for client, service in world.served.items():
            assert abs(here.served(client) - service) < 1e-6
        # So has a router that reads all of it from a store, and the closed totals.
        read = merged(ledger("reader"), whole(here))
        assert abs(sum(map(read.served, read.clients())) - sum(world.served.values())) < 1e-6
        here.closed("r")
        for router in ROUTERS:
            here.replica_accounts["r"].close(router) if "r" in here.replica_accounts else None
        Compactor(here, CompactionRules()).compact([name], live=(), now_s=0.0)
        assert abs(sum(map(here.served, here.clients())) - sum(world.served.values())) < 1e-6


@given(st.lists(steps, max_size=40))
@examples(100)
def test_what_is_reported_is_charged_once_when_the_replica_ends(
    history: list[tuple[Any, ...]],
) -> None:
    world = lived(history)
    for here in world.ledgers.values():
        account = here.replica_accounts.get("r")
        if account is None:
            continue
        beyond = {name: account.beyond(name, account.row(name).service) for name in account.names()}
        assert all(abs(more) < 1e-6 for more in beyond.values())  # the reports have everything
        closing = finish(close(account, RULES, EqualWeights()))
        # Deficits of -1 are the debts; nothing is added for service that reports have under another name.
        assert all(abs(debt) <= 1.0 for debt in closing.clients.values())


def test_clients_beyond_the_bound_of_a_replica_do_not_count_twice() -> None:
    here = ledger("router")
    for n in range(4):
        here.received("r", f"ns/t/c{n}", 300.0)
    here.observe(
        "r",
        since=0,
        sequence=9,
        rows=[row("ns/t/c0", 300.0), row("ns/t/c1", 300.0), row("ns/t/*", 600.0)],
    )
    assert {name: here.served(name) for name in here.clients()} == {
        "ns/t/c0": 300.0, "ns/t/c1": 300.0, "ns/t/c2": 300.0, "ns/t/c3": 300.0, "ns/t/*": 0.0,
    }  # fmt: skip
    here.received("r", "ns/t/c4", 50.0)  # not reported yet
    assert sum(map(here.served, here.clients())) == 1250.0
