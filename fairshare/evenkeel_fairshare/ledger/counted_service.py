"""The service of clients by account and in all, with what this router received and has not counted yet (R3, R11).

A router receives service with every request. It is noted by incarnation and client, and counted in the accounts before anything reads
them: of each client once, however many requests it had.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from math import isfinite
from typing import Final

from evenkeel_fairshare.ledger.changes import Changes
from evenkeel_fairshare.ledger.closed_totals import ClosedTotals
from evenkeel_fairshare.ledger.closing import STRIDE
from evenkeel_fairshare.ledger.replica_account import ReplicaAccount
from evenkeel_fairshare.ledger.replica_rows import Grown

ROUNDING: Final = 1e-9
"""A sum that falls by this part of what is taken away, or to less, is zero: sums of floats are inexact."""
MOST_UNCOUNTED: Final = 64
"""Clients at incarnations whose received service is counted together: in less than a millisecond."""


class CountedService:
    """The part of a ledger that counts service."""

    def __init__(self, router: str) -> None:
        self.router = router
        self._accounts: dict[str, ReplicaAccount] = {}
        self._uncounted: dict[tuple[str, str], float] = {}
        """(incarnation, client) → service that this router received and that is in no account yet. Whatever reads counts it first."""
        self.closed_totals = ClosedTotals()
        self._touched: set[str] = set()
        self._service: dict[str, float] = {}
        self._grown: Grown = {}
        """Client → what its service grew by since the last call of `grown`."""
        self._arrivals = 0
        """Number of accounts that were added or removed."""
        self._changes = Changes()
        self.live: frozenset[str] = frozenset()
        """Incarnations that this router takes for alive. Peers get them; no figure here depends on them."""
        self._looks = (0, 0)
        """Revisions at the look before last at what reports cover, and at the last one."""

    @property
    def replica_accounts(self) -> dict[str, ReplicaAccount]:
        """Incarnation → its account."""
        self._count_received()
        return self._accounts

    @property
    def service(self) -> dict[str, float]:
        """S_i by client: weighted tokens over all incarnations, ended ones included (R3). No zeros."""
        self._count_received()
        return self._service

    @property
    def touched(self) -> set[str]:
        """Clients with a changed row since the last closed totals; `compaction` empties it."""
        self._count_received()
        return self._touched

    @touched.setter
    def touched(self, clients: set[str]) -> None:
        self._count_received()
        self._touched = clients

    def _count_received(self) -> None:
        """Count what this router received since the last time: of each client at once, however many requests it had."""
        if not self._uncounted:
            return
        received, self._uncounted = self._uncounted, {}
        for (incarnation, client), service in received.items():
            account = self._account_of(incarnation)
            self._count(incarnation, account.received(self.router, client, service))
            self._changes.note(incarnation)

    def received(self, incarnation: str, client: str, service: float) -> None:
        """This router received `service` more from the incarnation, weighted tokens (R3, R11). Raises `ValueError` unless it is finite."""
        if not isfinite(service):
            raise ValueError("an amount is not finite, or absurdly large")
        uncounted, at = self._uncounted, (incarnation, client)
        uncounted[at] = uncounted.get(at, 0.0) + service
        if len(uncounted) >= MOST_UNCOUNTED:
            self._count_received()

    def begins(self, incarnation: str, client: str) -> None:
        """This router is about to send a request to the incarnation, and has no other request of the client open there (R3)."""
        account = self._accounts.get(incarnation)
        if account is None:
            return
        own = account.accounts.get(self.router)
        if own is not None and client in own.clients:
            return
        # What is not counted yet may be in the last report already, so it must not be added to that.
        if (incarnation, client) not in self._uncounted:
            account.begins(self.router, client)

    def drop_covered(
        self, live: Collection[str], keeps: Callable[[str, str], bool]
    ) -> Iterator[None]:
        """Drop what routers received, where reports have it, too, in steps. Each call looks at the rows that changed between the two
        calls before. No service changes with it. `keeps`: whether the rows of a client at an incarnation must stay, since this
        router has an open request of it there, or writes both sides."""
        self._count_received()
        self._changes.number(self.live)
        changed = self._changes.since(self._looks[0])
        self._looks = self._looks[1], self._changes.revision
        for incarnation in changed:
            account = self.replica_accounts.get(incarnation)
            if account is None or incarnation not in live:
                continue  # what has ended stays as it is
            heads = {router: one.looks[1] for router, one in account.accounts.items()}
            names = list(dict.fromkeys(n for one in account.accounts.values() for n in one.look()))
            size = max(1, STRIDE // len(account.accounts)) if names else 1
            for at in range(0, len(names), size):
                yield
                if account.closed_by or self.replica_accounts.get(incarnation) is not account:
                    break
                piece = names[at : at + size]
                self.grow(account.drop_covered(piece, heads, partial(keeps, incarnation)))

    def is_reported(self, incarnation: str, client: str) -> bool:
        """Whether the replica has a row of the client."""
        account = self._accounts.get(incarnation)
        return account is not None and account.knows(client)

    def _count(self, incarnation: str, grown: Grown) -> None:
        """Rows of clients at an incarnation changed. Closed totals that contain it do not change with it."""
        self._touched.update(grown)
        if incarnation not in self.closed_totals.folded:
            self.grow(grown)

    def grow(self, grown: Grown) -> None:
        """The service of clients grew; also for `compaction`."""
        service, news = self.service, self._grown
        for client, more in grown.items():
            news[client] = news.get(client, 0.0) + more
            if more > 0:
                service[client] = service.get(client, 0.0) + more
            elif more:
                add_to(service, client, more)

    def _account_of(self, incarnation: str) -> ReplicaAccount:
        account = self.replica_accounts.get(incarnation)
        if account is None:
            account = self._accounts[incarnation] = ReplicaAccount()
            self._arrivals += 1
        return account


def add_to(sums: dict[str, float], name: str, more: float) -> None:
    total = sums.get(name, 0.0) + more
    if total <= -ROUNDING * more:
        sums.pop(name, None)
    else:
        sums[name] = total
