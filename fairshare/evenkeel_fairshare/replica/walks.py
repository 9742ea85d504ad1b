"""The walks of one DLPM pass after its first, without a visit to everybody whom a walk passes over.

Place in the flow: `dlpm` makes the first walk of a pass as Algorithm 1 prints it and notes whom it passed over;
what lines 17 to 24 do with those from then on is **here**, at a cost per proposal instead of per walk.

The surprising thing: all walks are one endless circle over fixed positions, on which only two kinds of turns
matter: somebody positive is proposed, or a tenant is visited of whose clients nobody is positive, which refills
them. The moment of a turn is walk x length + position, so heaps find the next. Nobody looks whether a walk
admitted anybody: one that did not would leave everything as it was, and then there are no turns left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Generic, TypeVar

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel


class Lane:
    """The requests of one account that are still to be proposed, by their positions, ascending."""

    __slots__ = ("_length", "account", "positions")

    def __init__(self, account: Account, *, length: int) -> None:
        self.account = account
        self.positions: list[int] = []
        self._length = length

    def turn_after(self, moment: int) -> int:
        """When a walk comes to one of them."""
        position = moment % self._length
        walk_began = moment - position
        index = bisect_right(self.positions, position)
        if index < len(self.positions):
            return walk_began + self.positions[index]
        return walk_began + self._length + self.positions[0]

    def take(self, moment: int) -> None:
        """The turn of the request at `moment` is over."""
        del self.positions[bisect_left(self.positions, moment % self._length)]


class TenantLane(Lane):
    """Those of all clients of a tenant."""

    __slots__ = ("clients",)

    def __init__(self, account: Account, *, length: int) -> None:
        super().__init__(account, length=length)
        self.clients: Turns[Lane] = Turns(account.children)

    def turn_after(self, moment: int) -> int:
        """When a walk comes to one of a positive client; with none, to any, for there is a refill then."""
        turn = self.clients.next_after(moment)
        return super().turn_after(moment) if turn is None else turn


_Lane = TypeVar("_Lane", bound=Lane)


class Turns(Generic[_Lane]):
    """The lanes of one level: those of positive accounts by their turns, the others by the round they need.

    While a pass lasts nobody's rank changes but that of who is admitted, and a refill goes to the lowest rank of
    all. So whoever needs a round is looked at when it has come, and not before.
    """

    __slots__ = ("_level", "_needing", "_ready")

    def __init__(self, level: DeficitLevel) -> None:
        self._level = level
        self._ready: list[tuple[int, _Lane]] = []  # no two turns are equal: lanes are not compared
        self._needing: defaultdict[float, list[_Lane]] = defaultdict(list)

    def put(self, lane: _Lane, moment: int) -> None:
        """The turn of `lane` is its next after `moment`."""
        if not lane.positions:
            return
        if lane.account.rank > self._level.reach:
            self._needing[lane.account.rank].append(lane)
        else:
            heappush(self._ready, (lane.turn_after(moment), lane))

    def find(self, moment: int) -> tuple[int, _Lane] | None:
        """The next turn, which stays. With nobody positive there is a refill, for turns after `moment`.

        None without one: nobody is left, or all that are positive were refused.
        """
        if not self._ready and self._needing:  # with nobody left no walk visits anybody
            self._level.refill()
            for lane in self._needing.pop(self._level.reach, ()):
                self.put(lane, moment)
        return self._ready[0] if self._ready else None

    def next_after(self, moment: int) -> int | None:
        """The next turn of those that are positive now. Turns up to `moment` are missed (the tenant's fault)."""
        while self._ready and self._ready[0][0] <= moment:
            lane = self._ready[0][1]
            heapreplace(self._ready, (lane.turn_after(moment), lane))
        return self._ready[0][0] if self._ready else None

    def advance(self) -> None:
        """The next turn is over."""
        moment, lane = heappop(self._ready)
        self.put(lane, moment)

    def drop(self) -> None:
        """Whose turn is next gets no other."""
        heappop(self._ready)


def later_walks(
    level: DeficitLevel, order: Sequence[Request], passed_over: Mapping[Account, list[int]]
) -> Iterator[Request]:
    """Those to be proposed after a first walk over `order`, each once.

    `level`: of the tenants. `passed_over`: positions in `order` by client, ascending. Before the next one is
    asked for, the last one must have been charged if it was admitted.
    """
    length = len(order)
    moment = length - 1
    tenants = _tenants(level, passed_over, length=length)
    while (turn := tenants.find(moment)) is not None:
        moment, tenant = turn
        # A request of this tenant is visited, which refills its clients if nobody there is positive.
        turn_there = tenant.clients.find(moment - 1)
        if turn_there is None:
            tenants.drop()  # who is positive there was refused: nobody else of it enters in this pass
            continue
        if turn_there[0] == moment:
            turn_there[1].take(moment)
            tenant.take(moment)
            yield order[moment % length]
            tenant.clients.advance()
        tenants.advance()


def _tenants(
    level: DeficitLevel, passed_over: Mapping[Account, list[int]], *, length: int
) -> Turns[TenantLane]:
    lanes: dict[Account, TenantLane] = {}
    for account, positions in passed_over.items():
        owner = account.path[0]
        tenant = lanes.get(owner) or lanes.setdefault(owner, TenantLane(owner, length=length))
        client = Lane(account, length=length)
        client.positions = positions
        tenant.positions += positions
        tenant.clients.put(client, length - 1)
    tenants: Turns[TenantLane] = Turns(level)
    for tenant in lanes.values():
        tenant.positions.sort()
        tenants.put(tenant, length - 1)
    return tenants
