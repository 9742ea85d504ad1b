"""Ledgers in known states, for tests: what a ledger says, whatever way it came to know it."""

from __future__ import annotations

from collections.abc import Iterable

from evenkeel_contract.ledgerwire import LedgerDelta
from evenkeel_fairshare.ledger import CarryRules, Ledger, ReplicaRow, Sealer, Totals
from evenkeel_fairshare.ledger.page import Account, Page
from evenkeel_fairshare.ledger.table import Table
from evenkeel_router.ledger.exchange import from_wire, to_wire

RULES = CarryRules(quantum=100.0, overshoot=500.0)
ALICE, BOB = "ns/t/alice", "ns/t/bob%2F"


def ledger(router: str) -> Ledger:
    return Ledger(router, rules=RULES)


def full_ledger(router: str = "router-1") -> Ledger:
    """Something of everything."""
    here = ledger(router)
    for name in ("gone", "alive"):
        row = ReplicaRow(ALICE, Totals(service=5, requests=1), deficit=-3, seed=-2, waiting=1)
        here.observe(name, since=0, sequence=4, rows=[row])
        here.promised(name, BOB, seed=-7, tenant_seed=8)
        here.dispatched(name, BOB, worst=50)
        here.received(name, BOB, Totals(service=9), released=10)
        here.drained(name)
    here.levels.levels.raise_to("ns/t", 12)
    here.levels.lifts.raise_to(ALICE, 3)
    here.requested({ALICE: 4.5})
    here.closed("gone")
    Sealer(here).seal([router], live=["alive"], now_s=0)
    return here


def whole(of: Ledger) -> list[LedgerDelta]:
    """All of a ledger, as it goes to a store."""
    return [to_wire(part) for part in of.parts()]


def merged(into: Ledger, kept: Iterable[LedgerDelta]) -> Ledger:
    """`into`, with what `whole` said taken over."""
    for part in kept:
        into.merge(from_wire(part))
    return into


def content(of: Ledger) -> dict[str, object]:
    """All that merging joins, in a form that compares; not the heads, which say only what to ask for."""
    return {
        "pages": {name: _page(page) for name, page in of.pages.items()},
        "book": of.book.rank,
        "book clients": _table(of.book.clients),
        "book tenants": _table(of.book.tenants),
        "folded": of.book.folded,
        "baselines": of.book.baselines,
        "levels": of.levels.levels.since(0),
        "lifts": of.levels.lifts.since(0),
        "demand": {router: _table(demand.rates) for router, demand in of._demand.items()},
        "adopted": {name: rank for name, rank in of.adopted.items() if name != of.router},
    }


def _page(page: Page) -> dict[str, object]:
    return {
        "clients": _table(page.clients),
        "tenants": _table(page.tenants),
        "accounts": {router: _account(account) for router, account in page.accounts.items()},
        "closed by": frozenset(page.closed_by),
    }


def _account(account: Account) -> list[dict[str, tuple[float, ...]]]:
    return [
        _table(t) for t in (account.clients, account.tenants, account.marks, account.tenant_marks)
    ]


def _table(table: Table) -> dict[str, tuple[float, ...]]:
    return {name: tuple(table[name]) for name in table}
