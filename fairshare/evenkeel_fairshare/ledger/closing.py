"""Service and final deficits of an ended incarnation (design R3, R6).

The ledger counts the larger of two totals: what the incarnation reported, and what all routers received from it. No client
received other work.

A final deficit is the last reported one, less what was received since, plus the quanta since. These quanta are unknown, but equal
for all queued clients. The ledger takes the smallest number that brings every deficit back into its range. It never exceeds the
true number, so no debt is lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, TypeVar

from evenkeel_fairshare.bounds import DeficitRange
from evenkeel_fairshare.ledger.merge_table import MergeTable
from evenkeel_fairshare.ledger.replica_account import ReplicaAccount
from evenkeel_fairshare.ledger.replica_rows import (
    DEFICIT,
    MARKED_DEFICIT,
    MARKED_QUEUED,
    MARKED_SEED,
    MARKED_SERVICE,
    SEED,
    SERVICE,
    TENANT_DEFICIT,
    TENANT_SEED,
    WAITING,
    tenant_of,
)

STRIDE: Final = 200
"""Rows per step. The caller can do other work between steps."""


class Weights(Protocol):
    """Current weights, by client or tenant. New weights need a new object, because the ledger compares objects by `is`."""

    def client(self, client: str) -> float:
        """The weight of `namespace/tenant/client` within its tenant."""

    def tenant(self, tenant: str) -> float:
        """The weight of `namespace/tenant`."""


@dataclass(frozen=True, slots=True)
class EqualWeights:
    """Weight 1 for every client and tenant."""

    def client(self, client: str) -> float:
        return 1.0

    def tenant(self, tenant: str) -> float:
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryRules(DeficitRange):
    """The range of deficits, as all replicas of the service keep it."""

    def __post_init__(self) -> None:
        if not (self.quantum > 0 and self.overshoot > 0 and self.crash_loss >= 0):
            raise ValueError(
                f"quantum {self.quantum} and overshoot {self.overshoot} must be positive, "
                f"crash_loss {self.crash_loss} not negative"
            )
        for name in ("quantum", "overshoot", "crash_loss"):
            # Seeds are whole tokens: with a fractional limit each scale event would lose the fraction.
            if not float(getattr(self, name)).is_integer():
                raise ValueError(f"{name} {getattr(self, name)} is not a whole number")


@dataclass(frozen=True, slots=True)
class Closing:
    """Balances that an ended incarnation leaves, by name, in weighted tokens for later replicas to charge.

    A negative value is credit that the client had there.
    """

    clients: Mapping[str, float]
    tenants: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Last:
    """The last known state of a member of one level."""

    deficit: float
    seed: float
    queued: bool


_Result = TypeVar("_Result")


def finish(steps: Generator[None, None, _Result]) -> _Result:
    """Run all steps at once and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


def close(
    account: ReplicaAccount, rules: CarryRules, weights: Weights, *, unpromised: bool = True
) -> Generator[None, None, Closing]:
    """Balances of the clients and tenants of an ended incarnation, relative to one another.

    `unpromised`: whether seeds count that no known router promised (R8). The caller can do other work between steps.
    """
    known = _known_of_drained(account) or _Known(account.clients, _CLIENT, account.tenants)
    levels: defaultdict[str, dict[str, _Last]] = defaultdict(dict)
    tenants: dict[str, _Last] = {}
    for n, client in enumerate(list(account.names())):
        if n % STRIDE == STRIDE - 1:
            yield
        tenant = tenant_of(client)
        since = account.beyond(client, known.cell(client, known.columns.service))
        # A client that was sent there and has no row has waited since then.
        queued = (
            since > 0 or client not in known.clients or known.cell(client, known.columns.queued) > 0
        )
        last = _last_of_client(account, known, client, since=since, queued=queued)
        if not (unpromised or account.is_promised(client)):
            last = replace(last, seed=0.0)
        levels[tenant][client] = last
        before = tenants.get(tenant) or _last_of_tenant(account, known, tenant)
        tenants[tenant] = _Last(before.deficit - since, before.seed, before.queued or queued)
    if not unpromised:
        for tenant, last in tenants.items():
            if not account.is_promised(tenant):
                tenants[tenant] = replace(last, seed=0.0)
    clients: dict[str, float] = {}
    for members in levels.values():
        clients.update(_balances(members, rules, weights.client))
        yield
    return Closing(clients, _balances(tenants, rules, weights.tenant))


class _Columns(NamedTuple):
    service: int
    deficit: int
    seed: int
    queued: int


_CLIENT: Final = _Columns(SERVICE, DEFICIT, SEED, WAITING)
_MARK: Final = _Columns(MARKED_SERVICE, MARKED_DEFICIT, MARKED_SEED, MARKED_QUEUED)


@dataclass(frozen=True, slots=True)
class _Known:
    """The replica's rows that final deficits start from: the last ones, or those of the mark."""

    clients: MergeTable
    columns: _Columns
    tenants: MergeTable

    def cell(self, client: str, column: int) -> float:
        return self.clients.cell(client, column)


def _known_of_drained(account: ReplicaAccount) -> _Known | None:
    # Alphabetical, so that all routers use the same mark.
    for _, router_account in sorted(account.accounts.items()):
        if router_account.marks:
            return _Known(router_account.marks, _MARK, router_account.tenant_marks)
    return None


def _balances(
    members: Mapping[str, _Last], rules: CarryRules, weight: Callable[[str], float]
) -> dict[str, float]:
    """Seed minus final deficit of each member of one level."""
    quanta = max(
        (
            max(-rules.max_debt(weight(name)) - last.deficit, 0.0) / weight(name)
            for name, last in members.items()
        ),
        default=0.0,
    )
    balances = {}
    for name, last in members.items():
        # A client that left in debt gets no refill while it is away. A client that only ran got no more than it needed.
        refilled = last.deficit + (quanta * weight(name) if last.queued else 0.0)
        balances[name] = last.seed - min(refilled, rules.max_credit(weight(name)))
    return balances


def _last_of_client(
    account: ReplicaAccount, known: _Known, client: str, *, since: float, queued: bool
) -> _Last:
    if client in known.clients:
        deficit = known.cell(client, known.columns.deficit)
        return _Last(deficit - since, known.cell(client, known.columns.seed), queued)
    seed = account.seed(client) or 0.0  # it arrived after the mark, or no report has it
    return _Last(seed - since, seed, queued)


def _last_of_tenant(account: ReplicaAccount, known: _Known, tenant: str) -> _Last:
    row = known.tenants.get(tenant)
    if row is not None:
        return _Last(row[TENANT_DEFICIT], row[TENANT_SEED], False)
    seed = account.tenant_seed(tenant) or 0.0
    return _Last(seed, seed, False)
