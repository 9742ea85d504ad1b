"""What a client has waiting, and what that costs, from what replicas report (design §7).

Replicas report how many of a client's requests wait, not what they will cost. So a request that waits costs the mean of the
client's requests lately. All routers have the same reports, so they agree on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from evenkeel_fairshare.cost import FIRST_COST
from evenkeel_fairshare.ledger.replica_account import ReplicaAccount
from evenkeel_fairshare.ledger.replica_rows import REQUESTS, RUNNING, SERVICE, WAITING

MEMORY_S: Final = 60.0
"""Time constant of the mean: about as long as the window over which shares are compared."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """One client at all replicas that are alive, as they reported it until one moment."""

    at_s: float
    waiting: float
    """Requests that wait."""
    admitted: float
    """Requests that were ever admitted."""
    finished: float
    """Requests that ever finished."""
    service: float
    """Service that was ever given, weighted tokens."""
    recent_finished: float
    """Decayed count of requests that finished."""
    recent_admitted: float
    """Decayed count of requests that were admitted."""
    recent_service: float
    """Decayed sum of the service, weighted tokens."""

    @property
    def work(self) -> float:
        """The cost of the requests that wait, weighted tokens, by the mean of the admitted ones. That is too low while many of these run,
        whose output is not counted yet."""
        known = self.recent_admitted > 0 and self.recent_service > 0
        return self.waiting * (self.recent_service / self.recent_admitted if known else FIRST_COST)

    @property
    def request_cost(self) -> float:
        """Weighted tokens of one request, on average; infinite while no request of the client has finished.

        Too high while requests run, whose service counts already. That is the safe side: a client is owed too much rather than
        too little.
        """
        known = self.recent_finished > 0 and self.recent_service > 0
        return self.recent_service / self.recent_finished if known else math.inf

    def asked_since(self, before: Backlog) -> float:
        """The cost of all requests that waited at some time since `before`, weighted tokens. For a client that waits now."""
        return (self.waiting + max(0.0, self.admitted - before.admitted)) * self.request_cost


def look(
    client: str, accounts: Iterable[ReplicaAccount], before: Backlog | None, at_s: float
) -> Backlog:
    """A client's backlog now. `before`: the one of the previous moment, None if it did not wait then."""
    waiting = admitted = finished = service = 0.0
    for account in accounts:
        row = account.clients.get(client)
        if row is not None:
            waiting += row[WAITING]
            admitted += row[REQUESTS]
            finished += max(0.0, row[REQUESTS] - row[RUNNING])
            service += row[SERVICE]
    if before is not None and service >= before.service:
        kept = math.exp((before.at_s - at_s) / MEMORY_S)
        recent_finished = before.recent_finished * kept + finished - before.finished
        recent_admitted = before.recent_admitted * kept + max(0.0, admitted - before.admitted)
        recent_service = before.recent_service * kept + service - before.service
    else:  # it did not wait, or a replica has departed: all that went before counts as one request
        recent_finished = min(1.0, finished)
        recent_admitted = admitted / max(1.0, finished)
        recent_service = service / max(1.0, finished)
    return Backlog(
        at_s, waiting, admitted, finished, service, recent_finished, recent_admitted, recent_service
    )
