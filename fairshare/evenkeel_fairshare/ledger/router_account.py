"""What one router received from one replica incarnation, and the seeds that it promised there (design R3).

A row is a statement that stays true: beyond the service of the client that the replica had reported when it was made (its base), the
router received so much. So any copy may drop any row at any time (docs/design/0003).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evenkeel_fairshare.ledger.account_deltas import RouterAccountDelta
from evenkeel_fairshare.ledger.merge_table import MergeTable
from evenkeel_fairshare.ledger.replica_rows import BASE, PROMISED, SERVICE

Statement = tuple[float, float]
"""(base, service received beyond it), weighted tokens."""


def floor_of(statements: Sequence[Statement]) -> float:
    """The service that a client got at least, if all statements are true: the largest of b + Σ received by those with a base of at
    least b. When the first of these was made, the replica had reported b, and none of them had received anything yet."""
    if not statements:
        return 0.0
    if len(statements) == 1:
        base, received = statements[0]
        return base + received
    received = most = 0.0
    for base, more in sorted(statements, reverse=True):
        received += more
        most = max(most, base + received)
    return most


@dataclass(slots=True)
class RouterAccount:
    """Service that one router incarnation received from one replica incarnation. Only that router writes it."""

    clients: MergeTable = field(default_factory=lambda: MergeTable(columns=3))
    tenants: MergeTable = field(default_factory=lambda: MergeTable(columns=1))
    marks: MergeTable = field(default_factory=lambda: MergeTable(columns=4))
    """The replica's rows at the time of the drain; empty if the router did not drain it."""
    tenant_marks: MergeTable = field(default_factory=lambda: MergeTable(columns=2))
    head: float = 0.0
    """Every change up to this version is here."""
    looks: tuple[float, float] = (0.0, 0.0)
    """`head` at the look before last at what reports cover, and at the last one."""

    def begins(self, client: str, reported: float) -> None:
        """The router is about to receive something for a client without a row. It is no news for others until then."""
        self.clients.add(client, self.head, BASE, reported)

    def forget(self, client: str) -> None:
        """Forget the row of a client, if it is here."""
        if client in self.clients and self.clients.cell(client, 0) <= self.head:
            self.clients.forget((client,))

    def drop(self, covered: Mapping[str, float]) -> None:
        """Drop the rows of clients of which the replica has reported so much, all that is received included. What a row promised stays,
        and it begins anew with that base. All of the rows have been here."""
        promised = [name for name in covered if self.clients.cell(name, PROMISED)]
        for name in promised:
            self.clients.replace(name, {SERVICE: 0.0, BASE: covered[name]})
        self.clients.forget(covered.keys() - promised)

    def look(self) -> list[str]:
        """The clients whose rows changed between the look before last and the last one, and not since; this is a look, too."""
        before, last = self.looks
        self.looks = last, self.head
        return self.clients.between(before, last)

    def delta(self, router: str, base: float) -> RouterAccountDelta:
        """The changes after version `base`."""
        return RouterAccountDelta(
            router,
            base,
            self.head,
            self.clients.since(base),
            self.tenants.since(base),
            self.marks.since(base),
            self.tenant_marks.since(base),
        )

    def merge(self, delta: RouterAccountDelta) -> list[str]:
        """Merge another router's copy; returns the clients with changed rows."""
        changed = self.clients.merge(delta.clients) + self.marks.merge(delta.marks)
        self.tenants.merge(delta.tenants)
        self.tenant_marks.merge(delta.tenant_marks)
        if self.head >= delta.base:
            self.head = max(self.head, delta.head)
        return changed
