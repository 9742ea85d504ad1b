"""A DLPM pass that proposes the longest match among those who are positive, every time anew.

Place in the flow: `dlpm` with `longest_first` → **here**, instead of the walks that Algorithm 1 prints. There a refill in the
middle of a walk lets it go on where it is: with requests that match less than those of the same client that it passed over
while the client was in debt. So a client that is refilled again and again computes cold prefixes while its warm ones wait,
and lose their place in the cache.

The surprising thing: no bound changes. The proofs ask who is positive, and never in which order those are taken.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Generic, TypeVar

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel


class Lane:
    """The requests of one client that are still to be proposed, by their positions, ascending."""

    __slots__ = ("account", "positions")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.positions: deque[int] = deque()

    @property
    def left(self) -> int:
        """How many there are."""
        return len(self.positions)

    def next(self) -> int | None:
        """Its best one; None when all were proposed."""
        return self.positions[0] if self.positions else None


class TenantLane:
    """Those of all clients of a tenant."""

    __slots__ = ("account", "clients", "left")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.left = 0
        self.clients: Positive[Lane] = Positive(account.children)

    def next(self) -> int | None:
        """The best one of its positive clients, who are refilled if there is none."""
        best = self.clients.best()
        return None if best is None else best.next()


_Lane = TypeVar("_Lane", Lane, TenantLane)


class Positive(Generic[_Lane]):
    """The lanes of one level: those of positive accounts by their best request, the others by the round they need.

    While a pass lasts nobody's rank changes but that of who is admitted, and a refill goes to the lowest rank of all.
    """

    __slots__ = ("_level", "_needing", "_ready")

    def __init__(self, level: DeficitLevel) -> None:
        self._level = level
        self._ready: list[
            tuple[int, _Lane]
        ] = []  # no two positions are equal: lanes are not compared
        self._needing: defaultdict[float, list[_Lane]] = defaultdict(list)

    def put(self, lane: _Lane) -> None:
        """Nobody is refilled for the sake of a lane without requests."""
        if not lane.left:
            return
        if lane.account.rank > self._level.reach:
            self._needing[lane.account.rank].append(lane)
        elif (position := lane.next()) is not None:
            heappush(self._ready, (position, lane))

    def best(self) -> _Lane | None:
        """The lane with the best request; with nobody positive there is a refill (lines 3 to 8).

        None: nobody is left, or all that are positive were refused.
        """
        while not self._ready and self._needing:
            self._level.refill()
            refilled = self._needing.pop(self._level.reach, None)
            if refilled is None:
                return None
            for lane in refilled:
                self.put(lane)
        return self._ready[0][1] if self._ready else None

    def took(self) -> None:
        """The best lane's best request was proposed and answered."""
        self.put(heappop(self._ready)[1])


def longest_first(
    level: DeficitLevel, order: Sequence[Request], accounts: Mapping[Request, Account]
) -> Iterator[Request]:
    """Those to be proposed, each once. Before the next one is asked for, the last must have been charged if it was
    admitted. `level`: of the tenants; `order`: longest match first. O(n + log(clients) per proposal)."""
    clients: dict[Account, Lane] = {}
    for position, request in enumerate(order):
        account = accounts[request]
        lane = clients.get(account) or clients.setdefault(account, Lane(account))
        lane.positions.append(position)
    tenants: dict[Account, TenantLane] = {}
    for account, lane in clients.items():
        owner = account.path[0]
        tenant = tenants.get(owner) or tenants.setdefault(owner, TenantLane(owner))
        tenant.clients.put(lane)
        tenant.left += lane.left
    positive: Positive[TenantLane] = Positive(level)
    for tenant in tenants.values():
        positive.put(tenant)
    while (tenant_lane := positive.best()) is not None:
        client = tenant_lane.clients.best()
        assert client is not None  # or the tenant would have no best request
        tenant_lane.left -= 1
        yield order[client.positions.popleft()]
        tenant_lane.clients.took()
        positive.took()
