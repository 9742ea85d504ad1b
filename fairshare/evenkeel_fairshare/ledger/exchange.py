"""Messages in which ledgers are exchanged, and how far a router has read the ledger of a peer (design R3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Final, NamedTuple

from evenkeel_fairshare.ledger.account_deltas import ReplicaAccountDelta, ReplicaAccountDigest
from evenkeel_fairshare.ledger.closed_totals import NOTHING_CLOSED, ClosedTotalsDelta, Rank
from evenkeel_fairshare.ledger.merge_table import Rows


class DemandDelta(NamedTuple):
    """Requested rates that one router measured and that changed after version `base`."""

    router: str
    base: float
    head: float
    rates: Rows


class Digest(NamedTuple):
    """The versions that a router has: the question of an exchange."""

    replica_accounts: dict[str, ReplicaAccountDigest]
    """Versions of every account; with `router` only of accounts that may differ."""
    closed_totals: Rank
    demand: dict[str, float]
    adopted: dict[str, Rank]
    router: str = ""
    """Incarnation of the router whose ledger the asker has, as it was at `revision`. Empty: it may lack anything."""
    revision: int = 0


class Delta(NamedTuple):
    """The rows that the asker lacks: the answer of an exchange. For an empty digest it is the whole ledger."""

    router: str
    members: tuple[str, ...]
    """Routers of the service according to this router, itself included."""
    live: tuple[str, ...] | None
    """Incarnations that the router takes for alive; None: as the asker has it."""
    replica_accounts: tuple[ReplicaAccountDelta, ...]
    closed_totals: ClosedTotalsDelta | None
    demand: tuple[DemandDelta, ...]
    adopted: dict[str, Rank]
    revision: int = 0
    """Revision of the ledger when the answer began, in its last part; 0 in the others."""
    unknown: tuple[str, ...] = ()
    """Accounts that changed since the asker's revision, and of which its digest has no versions: it must ask again."""


@dataclass(slots=True)
class Progress:
    """How far a router has read the ledger of one peer: it has all that the peer had at `revision`."""

    router: str = ""
    """Incarnation of the peer."""
    revision: int = 0
    listed: set[str] = field(default_factory=set)
    """Accounts whose versions the next question lists, until an answer is complete."""
    own_revision: int = 0
    """The asker's own revision at its last question."""

    def answered(self, last: Delta) -> None:
        """All parts of an answer were merged. `last`: the last one."""
        if last.router != self.router:
            self.router, self.revision = last.router, 0
        self.listed.update(last.unknown)
        if not last.unknown:
            self.revision = last.revision
            self.listed.clear()


NO_VERSIONS: Final = Digest({}, NOTHING_CLOSED, {}, {})
"""The digest of an asker that has nothing: it gets the whole ledger."""
NO_PROGRESS: Final = Progress()
"""The progress of a router that never read the peer's ledger."""


def check_finite(delta: Delta) -> None:
    """Raise `ValueError` for a version that is not finite: it would hide all later changes. Tables check their rows themselves."""
    numbers = list(delta.closed_totals.given.values()) if delta.closed_totals is not None else []
    for account in delta.replica_accounts:
        numbers += account.base, account.head
        numbers += (n for part in account.accounts for n in (part.base, part.head))
    numbers += (n for part in delta.demand for n in (part.base, part.head))
    if not isfinite(sum(numbers)):
        raise ValueError("a version or a total is not finite")
