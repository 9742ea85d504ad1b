"""How several routers share one replica (R12): which part of it each may use, and whose clients must wait for others. Pure.

Every gate publishes, by client, the service so far and the requests that wait (`gate.upkeep`). From these figures of all gates of one
replica, each router computes the same:

- **Its part.** Each client that waits somewhere is owed its share (R9). A router's part is the sum of these shares, each times the
  router's part of the client's waiting requests. The windows shrink to this part. Where it is less than one place of a small batch,
  the places are dealt out (`portion`): the portions of all routers are whole, and make up the batch.
- **Service elsewhere.** What other routers gave a client is charged to the client here, too. So a client that comes through two routers
  gets no more than one that comes through one.
- **Who is ahead.** Over the time in which clients wait at the same time, each is owed its share of what they got together. If all clients
  that wait here are ahead of one that waits at another router, this gate sends nothing until that one has caught up. A client is ahead
  by more than a quantum and the service of two intervals: news is as old as that.

Policies without accounts (FCFS, LPM, HRRN) owe nothing to clients. There each waiting request is owed the same, wherever it waits: a
router's part is its part of all waiting requests, and nothing else of the above applies. So requests wait about equally long at all
routers, as they would in one queue by arrival. LPM and HRRN order the requests of one router only.

A client that does not wait keeps no credit (R4), and its debt fades by what the least served client gets (R15). If nothing at all is
served for `STALL` intervals, all start from zero: a router that cannot use its part must not hold up the others for good.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from evenkeel_fairshare.ledger import Weights
from evenkeel_fairshare.tenancy import shares

STALL: Final = 5
TINY: Final = 1e-9
"""Sums of parts differ by less."""


class ClientAtGate(NamedTuple):
    """One client at one gate."""

    service: float
    """Service that the client was ever given, weighted tokens."""
    waiting: float
    """Requests that wait."""


AtGates: TypeAlias = Mapping[str, Mapping[str, ClientAtGate]]
"""Router → client → what it has at that router's gate."""


class Sharing:
    """One router's view of one process of a replica."""

    __slots__ = (
        "_at", "_before", "_has_accounts", "_lags", "_offset", "_own", "_pace", "_stalled", "_waited", "_waiting_elsewhere", "_weights",
        "ahead", "part",
    )  # fmt: skip

    def __init__(
        self, own: str, weights: Weights, *, has_accounts: bool = True, offset: float = 0.0
    ) -> None:
        """`own`: this router. `has_accounts`: whether the policy keeps accounts of clients. `offset`: see `portion`; from 0 to below 1,
        the same at all routers, and another one for each replica."""
        self._own = own
        self._has_accounts = has_accounts
        self._weights = weights
        self._at: AtGates = {}
        self._waited: frozenset[str] = frozenset()
        self._waiting_elsewhere: dict[str, float] = {}
        self._lags: dict[str, float] = {}
        """Client → owed less given, weighted tokens, while it waited together with others."""
        self._pace = 0.0
        """Service of all in one interval, smoothed."""
        self._stalled = 0
        self.part = 1.0
        """This router's part of the replica, from 0 to 1."""
        self._before = 0.0
        """The parts of the routers before this one, by name."""
        self._offset = offset
        self.ahead: frozenset[str] = frozenset()
        """Clients that must wait until a client of another router has caught up."""

    def update(self, at: AtGates, weights: Weights, *, quantum: float) -> dict[str, float]:
        """Take news of all gates. Returns what other routers gave each client since the last news, weighted tokens.

        `quantum`: how far the policy lets a client be ahead.
        """
        self._weights = weights
        own = {client: one.waiting for client, one in at.get(self._own, {}).items()}
        waiting_here = {client: count for client, count in own.items() if count > 0}
        if not self._has_accounts:
            self._at = at
            self._count_waiting()
            self.divide(waiting_here)
            return {}
        given: defaultdict[str, float] = defaultdict(float)
        elsewhere: defaultdict[str, float] = defaultdict(float)
        for router, clients in at.items():
            before = self._at.get(router, {})
            for client, now in clients.items():
                if client in before and (more := now.service - before[client].service) > 0:
                    given[client] += more
                    if router != self._own:
                        elsewhere[client] += more
        self._at = at
        self._count_waiting()
        waiting = frozenset(
            client for clients in at.values() for client, one in clients.items() if one.waiting > 0
        )
        self._owe(given, waiting & self._waited)
        self._waited = waiting
        slack = 2 * self._pace + quantum  # news is up to two intervals old
        most_behind = max(
            (self._lags.get(one, 0.0) for one in self._waiting_elsewhere), default=None
        )
        self.ahead = frozenset(
            client
            for client, lag in self._lags.items()
            if most_behind is not None and most_behind - lag > slack
        )
        self.divide(waiting_here)
        return elsewhere

    def divide(self, waiting: Mapping[str, float]) -> None:
        """Compute `part` for the clients that wait here, with their numbers of requests."""
        others = self._waiting_elsewhere
        if not others:
            self.part, self._before = 1.0, 0.0
            return
        if self._has_accounts:
            owed = shares({*waiting, *others}, self._weights.client, self._weights.tenant)
            each = {
                client: share / (waiting.get(client, 0.0) + others.get(client, 0.0))
                for client, share in owed.items()
            }
        else:
            one = 1.0 / (sum(waiting.values()) + sum(others.values()))
            each = dict.fromkeys((*waiting, *others), one)
        self.part = sum(each[client] * count for client, count in waiting.items())
        self._before = sum(
            each[client] * one.waiting
            for router, clients in self._at.items()
            if router < self._own
            for client, one in clients.items()
            if one.waiting > 0
        )

    @property
    def others_wait(self) -> bool:
        """Whether requests wait for the replica at other routers."""
        return bool(self._waiting_elsewhere)

    def portion(self, places: int) -> int:
        """How many of so many places are this router's: its part, rounded up or down so that those of all routers make up all places.

        `offset` decides who gets a place that several have a part of. Over many replicas each router gets its part.
        """
        first = places * self._before + self._offset + TINY
        return int(first + places * self.part) - int(first)

    def holds(self, waiting: Iterable[str]) -> bool:
        """Whether all clients that wait here must wait for others."""
        return bool(self.ahead) and all(client in self.ahead for client in waiting)

    def _count_waiting(self) -> None:
        waiting: defaultdict[str, float] = defaultdict(float)
        for router, clients in self._at.items():
            if router != self._own:
                for client, one in clients.items():
                    if one.waiting > 0:
                        waiting[client] += one.waiting
        self._waiting_elsewhere = dict(waiting)

    def _owe(self, given: Mapping[str, float], competing: frozenset[str]) -> None:
        """Divide what the competing clients got by their shares."""
        together = sum(given.get(client, 0.0) for client in competing)
        self._pace += (together - self._pace) / 2  # smooth, yet a stop shows after a few intervals
        self._stalled = self._stalled + 1 if competing and not together else 0
        if self._stalled >= STALL:
            self._lags = {}
        least = min((given.get(client, 0.0) for client in competing), default=0.0)
        lags = {
            client: lag + least
            for client, lag in self._lags.items()
            if client not in competing and lag + least < 0  # a debt fades (R15), a credit ends (R4)
        }
        owed = shares(competing, self._weights.client, self._weights.tenant)
        for client, share in owed.items():
            lag = self._lags.get(client, 0.0)
            lags[client] = lag + share * together - given.get(client, 0.0)
        self._lags = lags
