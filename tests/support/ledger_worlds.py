"""Ledgers in known states, for tests: what a ledger says, whatever way it came to know it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from evenkeel_fairshare.ledger import (
    CarryRules,
    CompactionRules,
    Compactor,
    Delta,
    Ledger,
    ReplicaRow,
)
from evenkeel_fairshare.ledger.merge_table import MergeTable
from evenkeel_fairshare.ledger.replica_account import ReplicaAccount
from evenkeel_fairshare.ledger.replica_rows import BASE, SERVICE
from evenkeel_fairshare.ledger.router_account import RouterAccount

RULES = CarryRules(quantum=100.0, overshoot=500.0)
ALICE, BOB = "ns/t/alice", "ns/t/bob%2F"


def ledger(router: str) -> Ledger:
    return Ledger(router, rules=RULES)


def report(to: Ledger, name: str, at: int, *rows: ReplicaRow) -> None:
    to.observe(name, since=0, sequence=at, rows=rows)


def row(client: str, service: float, *, deficit: float = 0.0, **state: float) -> ReplicaRow:
    return ReplicaRow(
        client, service, service, requests=1, deficit=deficit, tenant_deficit=deficit, **state
    )


def one_router(rules: CompactionRules | None = None) -> tuple[Ledger, Compactor]:
    here = ledger("only")
    return here, Compactor(here, rules)


def full_ledger(router: str = "router-1") -> Ledger:
    """Something of everything."""
    here = ledger(router)
    for name in ("gone", "alive"):
        one = ReplicaRow(ALICE, service=5, requests=1, deficit=-3, seed=-2, waiting=1)
        here.observe(name, since=0, sequence=4, rows=[one])
        here.promised(name, BOB, seed=-7, tenant_seed=8)
        here.received(name, BOB, 9)
        here.drained(name)
    here.requested({ALICE: 4.5})
    here.closed("gone")
    Compactor(here).compact([router], live=["alive"], now_s=0)
    return here


def nothing_open(incarnation: str, client: str) -> bool:
    """Where requests run to their end at once."""
    return False


def look(
    at: Ledger, live: Collection[str], is_open: Callable[[str, str], bool] = nothing_open
) -> None:
    """The look at what reports cover: it changes no service."""
    before = dict(at.service)
    for _ in at.drop_covered(live, is_open):
        pass
    assert at.service == before
    assert kept(at) == recounted(at)


def stated(by: RouterAccount, client: str) -> tuple[float, float] | None:
    """What a router's row of a client says: its base, and the service received beyond it."""
    return by.clients.pair(client, BASE, SERVICE)


def whole(of: Ledger) -> list[Delta]:
    """All of a ledger, as it goes to a store."""
    return list(of.parts())


def merged(into: Ledger, kept: Iterable[Delta]) -> Ledger:
    """`into`, with what `whole` said taken over."""
    for part in kept:
        into.merge(part)
    return into


def kept(of: Ledger) -> tuple[object, ...]:
    """What a ledger keeps up to date with every row: service by client; seeds; each replica's service, and what waits and runs there."""
    at = {
        name: (one.service, one.waiting, one.running) for name, one in of.replica_accounts.items()
    }
    return of.service, of.seeds.promised, of.seeds.unpromised, at


def recounted(of: Ledger) -> tuple[object, ...]:
    """The same, computed from every row."""
    service = {name: of.closed_totals.client(name).service for name in of.closed_totals.clients}
    for _, account in of.open_accounts():
        for name in account.names():
            service[name] = service.get(name, 0.0) + account.served(name)
    seeds: dict[bool, dict[str, dict[str, float]]] = {True: {}, False: {}}
    at = {}
    for incarnation, account in of.replica_accounts.items():
        found = {name: account.seed(name) for name in account.names()}
        found |= {name: account.tenant_seed(name) for name in account.named_tenants()}
        for name, seed in found.items():
            if seed:
                seeds[account.is_promised(name)].setdefault(name, {})[incarnation] = seed
        rows = [account.row(name) for name in account.clients]
        waiting = {row.client: row.waiting for row in rows if row.waiting}
        running = {row.client: row.running for row in rows if row.running}
        at[incarnation] = sum(row.service for row in rows), waiting, running
    return {name: total for name, total in service.items() if total}, seeds[True], seeds[False], at


def content(of: Ledger) -> dict[str, object]:
    """All that merging joins, in a form that compares; not the heads, which say only what to ask for."""
    return {
        "replica accounts": {
            name: _account_of_replica(account) for name, account in of.replica_accounts.items()
        },
        "closed totals": of.closed_totals.rank,
        "closed clients": _table(of.closed_totals.clients),
        "closed tenants": _table(of.closed_totals.tenants),
        "folded": of.closed_totals.folded,
        "baselines": of.closed_totals.baselines,
        "demand": {
            (router, client): rate
            for router, demand in of._demand.items()
            for client in demand.rates
            if (rate := demand.rate(client))
        },
        "adopted": {name: rank for name, rank in of.adopted.items() if name != of.router},
    }


def _account_of_replica(account: ReplicaAccount) -> dict[str, object]:
    return {
        "clients": _table(account.clients),
        "tenants": _table(account.tenants),
        "accounts": {router: _account(received) for router, received in account.accounts.items()},
        "closed by": frozenset(account.closed_by),
    }


def _account(account: RouterAccount) -> list[dict[str, tuple[float, ...]]]:
    return [
        _table(t) for t in (account.clients, account.tenants, account.marks, account.tenant_marks)
    ]


def _table(table: MergeTable) -> dict[str, tuple[float, ...]]:
    return {name: tuple(table[name]) for name in table}
