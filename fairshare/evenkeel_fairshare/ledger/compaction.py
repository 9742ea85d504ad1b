"""Compaction: adds closed replica accounts to the next closed totals and removes them from memory (design R3, R6).

The member with the first name in the alphabet writes. A replica account has three stages:

1. Every member has closed it (`ReplicaAccount.closed_by`). It no longer changes. A member's closing travels with that member's
   router account, so the writer's copy is complete.
2. The writer adds it to the next closed totals. From then on all sums skip the account.
3. Every member has these closed totals or later ones. The account is removed.

A new router writes only after every member has reported that it lists the new router. From then on no member removes an account that
the new router lacks.

There can be two writers while member lists differ. Nothing is lost: the higher rank replaces the lower, whose accounts were not
removed, and they are compacted again. While a member is unreachable nothing is compacted, and memory grows with each scale event.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass

from evenkeel_fairshare.ledger.closed_totals import (
    ACTIVE,
    NOTHING_CLOSED,
    ClosedRow,
    ClosedTotals,
    Rank,
)
from evenkeel_fairshare.ledger.closing import STRIDE, Closing, finish
from evenkeel_fairshare.ledger.ledger import Ledger
from evenkeel_fairshare.ledger.replica_account import ReplicaAccount
from evenkeel_fairshare.ledger.replica_rows import DEFICIT, NORMALISED, REST, SEED, tenant_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    """When clients are aged out."""

    idle_s: float = 3600.0
    """A client is aged out after this idle time at the earliest."""
    max_clients: int = 200_000
    """Clients in closed totals. Above this number idle clients are aged out although they have a debt."""


class Compactor:
    """Writes closed totals for one router, if this router is the writer."""

    def __init__(self, ledger: Ledger, rules: CompactionRules | None = None) -> None:
        self._ledger = ledger
        self._rules = rules or CompactionRules()
        self._active: set[str] | None = None
        """Clients that closed totals mark as active; None until they are read."""
        self._idle_since_s: dict[str, float] = {}
        """Clients marked idle, in the order in which this process marked them."""
        self._quanta = QuantaSeen(ledger)

    def compact(self, members: Collection[str], *, live: Collection[str], now_s: float) -> bool:
        """Run all of `steps`; returns whether closed totals were written."""
        return finish(self.steps(members, live=live, now_s=now_s))

    def steps(
        self, members: Collection[str], *, live: Collection[str], now_s: float
    ) -> Generator[None, None, bool]:
        """Write the next closed totals, if this router is the writer and something changed; returns whether it wrote.

        The ledger may change between steps. Such changes go into the version after this one. If another router's
        version arrives, this one is abandoned.

        `members`: all routers of the service, this one included. `live`: incarnations taken for alive. Call it
        less often than replicas are asked for reports: a client without changes between two versions counts as
        idle from the second one on, and all reports of that time must have arrived.
        """
        ledger = self._ledger
        ledger.members = frozenset(members)
        if ledger.router != min(members, default="") or not self._all_follow(members):
            self._active = None  # the current writer changes it
            return False
        rank = ledger.closed_totals.rank  # without the accounts that are added below
        foldable = [
            name
            for name, account in ledger.open_accounts()
            if name not in live and account.closed_by >= set(members)
        ]
        if self._active is None:
            yield from self._take_over(now_s)
        if not (foldable or ledger.touched or self._active or self._idle_since_s):
            return False
        touched, ledger.touched = ledger.touched, set()
        written = False
        try:
            draft = yield from self._draft(foldable, touched, live, now_s)
            closed_totals = yield from draft.written(Rank(rank.height + 1, ledger.router))
            # A version that lacks a late change of an account would lose it.
            late = any(
                ledger.replica_accounts[name].changes != n for name, n in draft.folded.items()
            )
            if ledger.closed_totals.rank == rank and not late:
                self._publish(closed_totals, draft.forgotten)
                written = True
        finally:
            if not written:
                ledger.touched |= touched
                self._active = None
        return written

    def collect(self, members: Collection[str]) -> None:
        """Remove accounts that the closed totals of every member contain, and data of routers that are gone."""
        ledger = self._ledger
        ledger.members = frozenset(members)
        lowest = min((self._followed_height(member) for member in members), default=-1)
        for name in list(ledger.replica_accounts):
            # An account that is not folded counts as one above the lowest height, so it stays.
            if ledger.closed_totals.folded.get(name, lowest + 1) <= lowest:
                ledger.forget_account(name)
        ledger.forget_routers(members)

    def _all_follow(self, members: Collection[str]) -> bool:
        """Whether every member lists this router and has this version of closed totals or an earlier one of its lineage."""
        ledger = self._ledger
        return all(
            self._followed_height(member) >= 0
            and (member == ledger.router or ledger.router in ledger.members_of.get(member, ()))
            for member in members
        )

    def _followed_height(self, member: str) -> int:
        rank = self._ledger.adopted.get(member)
        return rank.height if rank is not None and self._ledger.closed_totals.contains(rank) else -1

    def _draft(
        self, foldable: list[str], touched: set[str], live: Collection[str], now_s: float
    ) -> Generator[None, None, Draft]:
        ledger = self._ledger
        draft = Draft(ledger.closed_totals)
        quanta = yield from self._quanta.since_last_compaction(touched, live)
        for tenant, amount in quanta.items():
            draft.given[tenant] = draft.given.get(tenant, 0.0) + amount
        for name in foldable:
            # Every member has closed it, so it no longer changes.
            account = ledger.replica_accounts[name]
            draft.folded[name] = account.changes
            closing = yield from ledger.closing_steps(name)
            yield from draft.fold(account, closing)
        yield from self._mark_activity(draft, touched, live, now_s)
        yield from self._age_out(draft, live, now_s)
        return draft

    def _publish(self, closed_totals: ClosedTotals, forgotten: dict[str, float]) -> None:
        """Replace the closed totals in one step: peers must not get a half written version."""
        ledger = self._ledger
        first = ledger.closed_totals.rank == NOTHING_CLOSED
        older = ledger.replica_accounts.keys() if first else ledger.closed_totals.baselines
        closed_totals.baselines = frozenset(older) - closed_totals.folded.keys()
        ledger.closed_totals = closed_totals
        ledger.adopted[ledger.router] = closed_totals.rank
        ledger.grow({name: -service for name, service in forgotten.items()})

    def _take_over(self, now_s: float) -> Generator[None, None, None]:
        closed_totals = self._ledger.closed_totals
        active = {
            client
            for client in closed_totals.clients
            if closed_totals.client(client).idle_level == ACTIVE
        }
        working = yield from self._working(set(self._ledger.replica_accounts))
        self._idle_since_s = {
            name: now_s
            for name in closed_totals.clients
            if name not in active and name not in working
        }
        quanta = QuantaSeen(self._ledger)
        yield from quanta.begin()
        self._quanta, self._active = quanta, active | working

    def _working(self, incarnations: Collection[str]) -> Generator[None, None, set[str]]:
        """Clients with a waiting or running request at one of `incarnations`."""
        working: set[str] = set()
        for name, account in list(self._ledger.open_accounts()):
            if name in incarnations:
                working.update(account.waiting, account.running)
                yield
        return working

    def _mark_activity(
        self, draft: Draft, touched: set[str], live: Collection[str], now_s: float
    ) -> Generator[None, None, None]:
        still = self._active or set()
        # A new request changes a row; an old one that waits on does not.
        working = yield from self._working(live)
        busy = touched | still & working
        # A client with a new row counts as active until it proves idle.
        before = still | draft.clients.keys() - self._idle_since_s.keys()
        for n, client in enumerate(busy & self._idle_since_s.keys()):
            draft.activate(client)
            del self._idle_since_s[client]
            if n % STRIDE == STRIDE - 1:
                yield
        for n, client in enumerate(before - busy):
            if draft.rest(client):
                self._idle_since_s[client] = now_s
            if n % STRIDE == STRIDE - 1:
                yield
        self._active = busy

    def _age_out(
        self, draft: Draft, live: Collection[str], now_s: float
    ) -> Generator[None, None, None]:
        """Remove clients whose idle time has cost them at least their debt, so that they gain nothing by it."""
        ledger, rules = self._ledger, self._rules
        for client, since_s in list(self._idle_since_s.items()):
            # Clients are in the order in which they became idle: the others are idle for less.
            if now_s - since_s < rules.idle_s:
                break
            del self._idle_since_s[client]
            if self._has_waited_enough(draft, client, live):
                draft.forget(client)
            else:
                self._idle_since_s[client] = now_s  # checked again after the others
            yield
        surplus = len(draft.closed_totals.clients) - len(draft.forgotten) - rules.max_clients
        if surplus > 0:
            idle = []
            for name in list(self._idle_since_s):
                if not _seeded(ledger, name, live):
                    idle.append(name)
                yield
            # Credit goes first, then the smallest debts: a debt that is forgotten is a gift.
            idle.sort(key=lambda name: draft.client(name).carried)
            for client in idle[:surplus]:
                del self._idle_since_s[client]
                draft.forget(client)

    def _has_waited_enough(self, draft: Draft, client: str, live: Collection[str]) -> bool:
        """Whether the quanta that the client missed while it was idle are at least its debt."""
        ledger, row = self._ledger, draft.client(client)
        # Up to the last version: a client without changes since then was idle at least until then.
        waited_for = draft.closed_totals.given.get(tenant_of(client), 0.0) - row.idle_level
        return row.carried <= waited_for * ledger.weights.client(client) and not _seeded(
            ledger, client, live
        )


def _seeded(ledger: Ledger, client: str, live: Collection[str]) -> bool:
    """Whether the client has a seed at a live incarnation: closed totals contain the debt or credit behind it."""
    return any(ledger.charged_seeds(client, live))


class QuantaSeen:
    """The quanta of replicas per tenant, as far as reports show them.

    A client that was always queued got service + (deficit - seed) / weight, and no client got more. So the maximum
    over clients never rises faster than the quanta of the replica.
    """

    def __init__(self, ledger: Ledger) -> None:
        """Call `begin` next."""
        self._ledger = ledger
        self._weights = ledger.weights
        self._most: dict[tuple[str, str], float] = {}

    def begin(self) -> Generator[None, None, None]:
        """Start from the current state: earlier quanta do not count."""
        self._weights = self._ledger.weights
        self._most = {}
        for name, account in list(self._ledger.open_accounts()):
            yield from self._look(name, account, list(account.clients))

    def since_last_compaction(
        self, touched: Collection[str], live: Collection[str]
    ) -> Generator[None, None, dict[str, float]]:
        """Tenant → new quanta since the last call, over the live replicas."""
        if self._weights is not self._ledger.weights:
            yield from self.begin()  # quanta before and after a change of weights are not comparable
            return {}
        rise: dict[str, float] = {}
        for name, account in list(self._ledger.open_accounts()):
            if name in live:
                here = [client for client in touched if client in account.clients]
                quanta = yield from self._look(name, account, here)
                for tenant, amount in quanta.items():
                    rise[tenant] = rise.get(tenant, 0.0) + amount
        gone = [key for key in self._most if key[0] not in live]
        for key in gone:
            del self._most[key]
        return rise

    def _look(
        self, name: str, account: ReplicaAccount, clients: list[str]
    ) -> Generator[None, None, dict[str, float]]:
        rise: dict[str, float] = {}
        for n, client in enumerate(clients):
            if client.endswith(REST):
                continue  # the service of many clients
            row = account.clients[client]
            held = (row[DEFICIT] - row[SEED]) / self._ledger.weights.client(client)
            key = (name, tenant_of(client))
            more = row[NORMALISED] + held - self._most.get(key, 0.0)
            if more > 0:
                self._most[key] = self._most.get(key, 0.0) + more
                rise[key[1]] = rise.get(key[1], 0.0) + more
            if n % STRIDE == STRIDE - 1:
                yield
        return rise


class Draft:
    """The next closed totals while they are computed."""

    def __init__(self, closed_totals: ClosedTotals) -> None:
        self.closed_totals = closed_totals
        self.clients: dict[str, ClosedRow] = {}
        """Client → its row in the next version, if it changes."""
        self.given = dict(closed_totals.given)
        self.folded: dict[str, int] = {}
        """Incarnation that is added → the number of its changes when that began."""
        self.forgotten: dict[str, float] = {}
        """Client that is aged out → its service, which its tenant's row now contains."""
        self._tenants: dict[str, ClosedRow] = {}

    def client(self, client: str) -> ClosedRow:
        """A client's row in the next version."""
        return self.clients.get(client) or self.closed_totals.client(client)

    def fold(self, account: ReplicaAccount, closing: Closing) -> Generator[None, None, None]:
        """Add the service and balances of an ended incarnation."""
        for n, client in enumerate(list(account.names())):
            if n % STRIDE == STRIDE - 1:
                yield
            row = self.client(client)
            self.clients[client] = ClosedRow(
                service=row.service + account.served(client),
                carried=row.carried + closing.clients.get(client, 0.0),
                # An idle client has missed nothing yet for this debt.
                idle_level=ACTIVE if row.idle_level == ACTIVE else self._level_of(client),
            )
        for tenant, balance in closing.tenants.items():
            self._add_to_tenant(tenant, 0.0, balance)

    def activate(self, client: str) -> None:
        """Mark a client as active."""
        self.clients[client] = self.client(client)._replace(idle_level=ACTIVE)

    def rest(self, client: str) -> bool:
        """Mark a client as idle; returns whether it has a row."""
        if client not in self.clients and client not in self.closed_totals.clients:
            return False
        self.clients[client] = self.client(client)._replace(idle_level=self._level_of(client))
        return True

    def forget(self, client: str) -> None:
        """Age a client out. Its service goes to its tenant."""
        service = self.forgotten[client] = self.client(client).service
        self._add_to_tenant(tenant_of(client), service, 0.0)
        self.clients.pop(client, None)

    def written(self, rank: Rank) -> Generator[None, None, ClosedTotals]:
        """The next closed totals."""
        closed_totals, n = self.closed_totals.copy(), 0
        for table, rows in (
            (closed_totals.clients, self.clients),
            (closed_totals.tenants, self._tenants),
        ):
            for name, row in rows.items():
                table.put(name, (rank.height, *row))
                n += 1
                if n % STRIDE == 0:
                    yield
        closed_totals.clients.drop(self.forgotten)
        closed_totals.dropped.update(dict.fromkeys(self.forgotten, rank.height))
        closed_totals.given = self.given
        closed_totals.folded.update(dict.fromkeys(self.folded, rank.height))
        closed_totals.rank = rank
        closed_totals.lineage.append(rank)
        closed_totals.prune()
        return closed_totals

    def _add_to_tenant(self, tenant: str, service: float, balance: float) -> None:
        row = self._tenants.get(tenant) or self.closed_totals.tenant(tenant)
        self._tenants[tenant] = row._replace(
            service=row.service + service, carried=row.carried + balance
        )

    def _level_of(self, client: str) -> float:
        return self.given.get(tenant_of(client), 0.0)
