"""Closing: what a departed incarnation served at the end, and what its clients owed there (design R3, R6).

Place in the flow: page → **closing** → standing (what is carried to the next replica) and book.

What it served lies in an interval: at least what it reported and what all routers together received from it;
at most that plus the worst case of everything still open there. The ledger counts the lower end: work that was
neither reported nor received died with the process and was service to nobody.

What clients owed there follows from the last report: a deficit d, less what was received since, plus the quanta
that the replica gave out since. Nobody saw those, but all who were queued got the same number, so only
differences matter and any number may stand for it. The surprising thing is the choice: the smallest number that
brings every deficit back into its range. It never exceeds the true number, so nobody is forgiven anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, TypeVar

from evenkeel_fairshare.bounds import DeficitRange
from evenkeel_fairshare.ledger.page import (
    DEFICIT,
    DISPATCHED,
    MARKED_DEFICIT,
    MARKED_QUEUED,
    MARKED_SEED,
    MARKED_SERVICE,
    RELEASED,
    SEED,
    SERVICE,
    TENANT_DEFICIT,
    TENANT_SEED,
    TOTALS,
    WAITING,
    Page,
    Totals,
    tenant_of,
)
from evenkeel_fairshare.ledger.table import Table

STRIDE: Final = 200
"""Rows to look at between two moments in which something else may be done."""


class Weights(Protocol):
    """Current weights, by identity. Compared by identity of the object: a change is a new one."""

    def client(self, client: str) -> float:
        """The weight of `namespace/tenant/client` within its tenant."""

    def tenant(self, tenant: str) -> float:
        """The weight of `namespace/tenant`."""


@dataclass(frozen=True, slots=True)
class EqualWeights:
    """Everybody weighs 1."""

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
            # Seeds are whole tokens: a limit in between would lose the rest at every scale event.
            if not float(getattr(self, name)).is_integer():
                raise ValueError(f"{name} {getattr(self, name)} is not a whole number")


@dataclass(frozen=True, slots=True)
class Interval:
    """Service of one client at one incarnation. Exact where the ends agree."""

    lower: float
    """What the ledger counts."""
    upper: float


@dataclass(frozen=True, slots=True)
class Closing:
    """What a departed incarnation leaves behind: by name, weighted tokens to charge at replicas to come.

    Negative: credit that the client had there and lost.
    """

    clients: Mapping[str, float]
    tenants: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Last:
    """The last that is known of a member of one level."""

    deficit: float
    seed: float
    queued: bool


def counted(page: Page, client: str) -> Totals:
    """What the ledger counts for `client`: max(reported, Σ router accounts), figure by figure."""
    row = page.clients.get(client)
    reported = Totals(*row[1 : 1 + TOTALS]) if row is not None else _NOTHING
    rows = [
        theirs
        for account in page.accounts.values()
        if (theirs := account.clients.get(client)) is not None
    ]
    if not rows:
        return reported
    if len(rows) == 1:
        return Totals(*map(max, reported, rows[0][1 : 1 + TOTALS]))
    received = map(sum, zip(*(theirs[1 : 1 + TOTALS] for theirs in rows), strict=True))
    return Totals(*map(max, reported, received))


def counted_figure(page: Page, client: str, column: int) -> float:
    """One figure of `counted`, by its column in a replica's row: several times as fast."""
    received = 0.0
    for account in page.accounts.values():
        received += account.clients.cell(client, column)
    return max(page.clients.cell(client, column), received)


def counted_figures(page: Page, client: str, columns: Sequence[int]) -> list[float] | None:
    """Several figures of `counted` at once; None if nobody names the client."""
    row = page.clients.get(client)
    rows = [
        theirs
        for account in page.accounts.values()
        if (theirs := account.clients.get(client)) is not None
    ]
    if not rows:
        return None if row is None else [row[column] for column in columns]
    received = [sum([theirs[column] for theirs in rows]) for column in columns]
    if row is None:
        return received
    return [max(row[column], amount) for column, amount in zip(columns, received, strict=True)]


def interval(page: Page, client: str) -> Interval:
    """Within what the true service of a closed incarnation lies.

    The upper end supposes that every router that sent anything there made its account known. Where the
    replica retracts, both ends can be too low by what it computed again: no usage that a router receives shows that.
    """
    lower = counted_figure(page, client, SERVICE)
    still_open = sum(
        account.clients.cell(client, DISPATCHED) - account.clients.cell(client, RELEASED)
        for account in page.accounts.values()
    )
    return Interval(lower, lower + max(0.0, still_open))


_Result = TypeVar("_Result")


def finish(steps: Generator[None, None, _Result]) -> _Result:
    """What work in steps comes to, done without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _Result = end.value
            return result


def close(
    page: Page, rules: CarryRules, weights: Weights, *, unpromised: bool = True
) -> Generator[None, None, Closing]:
    """What the clients and tenants of a departed incarnation owed there, relative to one another.

    `unpromised`: whether seeds count that no known router promised (R8). Something else may be done at every step.
    """
    known = _known_of_drained(page) or _Known(page.clients, _CLIENT, page.tenants)
    levels: defaultdict[str, dict[str, _Last]] = defaultdict(dict)
    tenants: dict[str, _Last] = {}
    for n, client in enumerate(list(page.names())):
        if n % STRIDE == STRIDE - 1:
            yield
        tenant = tenant_of(client)
        since = counted_figure(page, client, SERVICE) - known.cell(client, known.columns.service)
        # Who was sent there and is in no row has been waiting ever since.
        queued = (
            since > 0 or client not in known.clients or known.cell(client, known.columns.queued) > 0
        )
        last = _last_of_client(page, known, client, since=since, queued=queued)
        if not (unpromised or page.is_promised(client)):
            last = replace(last, seed=0.0)
        levels[tenant][client] = last
        before = tenants.get(tenant) or _last_of_tenant(page, known, tenant)
        tenants[tenant] = _Last(before.deficit - since, before.seed, before.queued or queued)
    if not unpromised:
        for tenant, last in tenants.items():
            if not page.is_promised_to_tenant(tenant):
                tenants[tenant] = replace(last, seed=0.0)
    clients: dict[str, float] = {}
    for members in levels.values():
        clients.update(_owed(members, rules, weights.client))
        yield
    return Closing(clients, _owed(tenants, rules, weights.tenant))


_NOTHING: Final = Totals()


class _Columns(NamedTuple):
    service: int
    deficit: int
    seed: int
    queued: int


_CLIENT: Final = _Columns(SERVICE, DEFICIT, SEED, WAITING)
_MARK: Final = _Columns(MARKED_SERVICE, MARKED_DEFICIT, MARKED_SEED, MARKED_QUEUED)


@dataclass(frozen=True, slots=True)
class _Known:
    """The replica's rows from which its end is reckoned: its last ones, or those of the mark."""

    clients: Table
    columns: _Columns
    tenants: Table

    def cell(self, client: str, column: int) -> float:
        return self.clients.cell(client, column)


def _known_of_drained(page: Page) -> _Known | None:
    # Alphabetical, so that all routers reckon from the same mark.
    for _, account in sorted(page.accounts.items()):
        if account.marks:
            return _Known(account.marks, _MARK, account.tenant_marks)
    return None


class _Weight(Protocol):
    def __call__(self, name: str, /) -> float: ...


def _owed(members: Mapping[str, _Last], rules: CarryRules, weight: _Weight) -> dict[str, float]:
    """Seed minus final deficit of each member of one level."""
    quanta = max(
        (
            max(-rules.max_debt(weight(name)) - last.deficit, 0.0) / weight(name)
            for name, last in members.items()
        ),
        default=0.0,
    )
    owed = {}
    for name, last in members.items():
        # Whoever left in debt is given nothing while it is away; whoever only ran got no more than it needed.
        refilled = last.deficit + (quanta * weight(name) if last.queued else 0.0)
        owed[name] = last.seed - min(refilled, rules.max_credit(weight(name)))
    return owed


def _last_of_client(page: Page, known: _Known, client: str, *, since: float, queued: bool) -> _Last:
    if client in known.clients:
        deficit = known.cell(client, known.columns.deficit)
        return _Last(deficit - since, known.cell(client, known.columns.seed), queued)
    seed = page.seed(client) or 0.0  # it came after the mark, or was never reported
    return _Last(seed - since, seed, queued)


def _last_of_tenant(page: Page, known: _Known, tenant: str) -> _Last:
    row = known.tenants.get(tenant)
    if row is not None:
        return _Last(row[TENANT_DEFICIT], row[TENANT_SEED], False)
    seed = page.tenant_seed(tenant) or 0.0
    return _Last(seed, seed, False)
