"""What one router received from one replica incarnation, and the seeds that it promised there (design R3)."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenkeel_fairshare.ledger.account_deltas import RouterAccountDelta
from evenkeel_fairshare.ledger.merge_table import MergeTable


@dataclass(slots=True)
class RouterAccount:
    """Service that one router incarnation received from one replica incarnation. Only that router writes it."""

    clients: MergeTable = field(default_factory=lambda: MergeTable(totals=1, state=1))
    tenants: MergeTable = field(default_factory=lambda: MergeTable(totals=0, state=1))
    marks: MergeTable = field(default_factory=lambda: MergeTable(totals=0, state=4))
    """The replica's rows at the time of the drain; empty if the router did not drain it."""
    tenant_marks: MergeTable = field(default_factory=lambda: MergeTable(totals=0, state=2))
    head: float = 0.0
    """Every change up to this version is here."""

    def clear(self, client: str, column: int) -> None:
        """Forget what was received for a client, in a column, if all of it is here."""
        if client in self.clients and self.clients.cell(client, 0) <= self.head:
            self.clients.clear(client, column)

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
