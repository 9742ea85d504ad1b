"""Closed totals: the sum of all ended incarnations, in bounded memory (design R3, R6).

Two sums that share an incarnation cannot be merged. So one router at a time writes the next numbered version, and the higher
version replaces the lower as a whole. Replica accounts in a version are kept until every router has that version (`compaction`).
All other parts of the ledger merge row by row: the later one counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from evenkeel_fairshare.ledger.merge_table import MergeTable, Rows

ACTIVE: Final = -1.0
"""Value of `ClosedRow.idle_level` while a client is not idle. Other values are never negative."""

MAX_FOLDED: Final = 1 << 16
"""Names of compacted incarnations that are kept: enough for one scale event per minute over six weeks."""
MAX_LINEAGE: Final = 256
"""Earlier versions that a delta can start from. A router with an older version gets all rows."""


class Rank(NamedTuple):
    """Version of closed totals. The higher one wins."""

    height: int = 0
    writer: str = ""


NOTHING_CLOSED: Final = Rank()


class ClosedRow(NamedTuple):
    """One client or tenant in closed totals. Its table has the number of the version that wrote it, then these."""

    service: float = 0.0
    """Service in ended incarnations, weighted tokens."""
    carried: float = 0.0
    """Carried balance of ended incarnations in weighted tokens. Debt is positive."""
    idle_level: float = ACTIVE
    """The value of `ClosedTotals.given` for the tenant when the client became idle."""


class ClosedTotalsDelta(NamedTuple):
    """What changed after version `base`; all rows if `base` is None."""

    rank: Rank
    base: Rank | None
    lineage: tuple[Rank, ...]
    clients: Rows
    tenants: Rows
    dropped: dict[str, int]
    """Clients aged out, and the height of that version."""
    folded: dict[str, int]
    """Incarnations compacted, and the height of that version."""
    given: dict[str, float]
    baselines: tuple[str, ...]


@dataclass(slots=True)
class ClosedTotals:
    """One version of closed totals. Only `compaction` writes to it."""

    rank: Rank = NOTHING_CLOSED
    lineage: list[Rank] = field(default_factory=lambda: [NOTHING_CLOSED])
    """The versions that this one continues, itself last."""
    clients: MergeTable = field(default_factory=lambda: MergeTable(columns=3))
    tenants: MergeTable = field(default_factory=lambda: MergeTable(columns=3))
    """Carried balances of tenants, and the service of their clients that were aged out."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Clients aged out within the lineage, and the height of that version."""
    folded: dict[str, int] = field(default_factory=dict)
    baselines: frozenset[str] = frozenset()
    """Incarnations older than the first version. Their seeds count only if a known router promised them."""
    given: dict[str, float] = field(default_factory=dict)
    """Tenant → quanta of a client that is always queued on all replicas (R4).

    It only rises. It is never too large: quanta that no report shows are left out.
    """

    def client(self, client: str) -> ClosedRow:
        """A client's row; zeros if it has none."""
        return _row(self.clients, client)

    def tenant(self, tenant: str) -> ClosedRow:
        """A tenant's row; zeros if it has none."""
        return _row(self.tenants, tenant)

    def copy(self) -> ClosedTotals:
        """A copy that can change while readers use this one."""
        return ClosedTotals(
            rank=self.rank,
            lineage=list(self.lineage),
            clients=self.clients.copy(),
            tenants=self.tenants.copy(),
            dropped=dict(self.dropped),
            folded=dict(self.folded),
            given=dict(self.given),
            baselines=self.baselines,
        )

    def contains(self, rank: Rank) -> bool:
        """Whether this version continues `rank`, within the lineage that is kept."""
        return rank in self.lineage

    def delta(self, has: Rank) -> ClosedTotalsDelta | None:
        """What a router with version `has` lacks; None if that version is not older."""
        if has >= self.rank:
            return None
        # To a router without closed totals, a delta and all rows are the same. It may have a version when the answer
        # arrives, and then only all rows are usable.
        base = has if has != NOTHING_CLOSED and self.contains(has) else None
        height = base.height if base else -1
        return ClosedTotalsDelta(
            rank=self.rank,
            base=base,
            lineage=tuple(self.lineage),
            clients=self.clients.since(height),
            tenants=self.tenants.since(height),
            dropped={name: at for name, at in self.dropped.items() if at > height},
            folded={name: at for name, at in self.folded.items() if at > height},
            given=dict(self.given),
            baselines=tuple(sorted(self.baselines)),
        )

    def adopt(self, delta: ClosedTotalsDelta) -> ClosedTotals | None:
        """The newer version after `delta`; None if `delta` does not apply to this one."""
        if delta.rank <= self.rank or (delta.base is not None and delta.base != self.rank):
            return None
        newer = self if delta.base is not None else ClosedTotals()
        newer.rank, newer.lineage = delta.rank, list(delta.lineage)
        # Before the new rows: a client that was aged out may have returned in the same delta.
        newer.clients.drop(delta.dropped)
        newer.clients.merge(delta.clients)
        newer.tenants.merge(delta.tenants)
        newer.folded.update(delta.folded)
        newer.dropped.update(delta.dropped)
        newer.given = dict(delta.given)
        newer.baselines = frozenset(delta.baselines)
        newer.prune()
        return newer

    def prune(self) -> None:
        """Remove history that is older than the lineage."""
        del self.lineage[:-MAX_LINEAGE]
        oldest = self.lineage[0].height
        self.dropped = {name: at for name, at in self.dropped.items() if at >= oldest}
        if len(self.folded) > MAX_FOLDED:
            by_height = sorted(self.folded.items(), key=lambda item: item[1])
            self.folded = dict(by_height[-MAX_FOLDED:])


def _row(table: MergeTable, name: str) -> ClosedRow:
    cells = table.get(name)
    if cells is None:
        return ClosedRow()
    return ClosedRow(*cells[1:])
