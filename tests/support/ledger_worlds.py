"""Ledgers in known states, for tests: what a ledger says, whatever way it came to know it."""

from __future__ import annotations

from evenkeel_fairshare.ledger import CarryRules, Ledger
from evenkeel_fairshare.ledger.page import Account, Page
from evenkeel_fairshare.ledger.table import Table

RULES = CarryRules(quantum=100.0, max_debt=500.0)


def ledger(router: str) -> Ledger:
    return Ledger(router, rules=RULES)


def content(of: Ledger) -> dict[str, object]:
    """All that merging joins, in a form that compares; not the heads, which say only what to ask for."""
    return {
        "pages": {name: _page(page) for name, page in of.pages.items()},
        "book": of.book.rank,
        "book clients": _table(of.book.clients),
        "book tenants": _table(of.book.tenants),
        "folded": of.book.folded,
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
