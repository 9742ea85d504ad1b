"""Distributed VTC: one counter per client for the whole fleet (VTC paper, Appendix C.3, which names the idea).

Every replica orders its own queue by counters that all replicas share. So a client that was served at one replica waits longer at all
others, where local counters would let it be served again. Counters are exact here; in a cluster their updates take time.
"""

from __future__ import annotations

from typing import ClassVar

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.vtc import Counter, Vtc


class CentralCounters:
    """The replicas of one fleet, whose counters are equal at all times."""

    def __init__(self) -> None:
        self.replicas: list[CentralVtc] = []
        self.last: Counter | None = None
        """Counter of the client that was the last to have no waiting request at any replica (line 9)."""

    def of(self, client: str) -> list[Counter]:
        """The client's counter at each replica that has one."""
        own = (replica.counter(client) for replica in self.replicas)
        return [counter for counter in own if counter is not None]

    def lift_target(self) -> float:
        """The least counter of the clients that wait anywhere; else that of the client that left the queues last."""
        heads = [replica.least() for replica in self.replicas]
        ranks = [head.rank for head in heads if head is not None]
        return min(ranks, default=self.last.rank if self.last else 0.0)


class CentralVtc(Vtc):
    """Algorithm 2 with `central` counters; O(replicas) per charge. It forgets no client."""

    name: ClassVar[str] = "VTCCentral"

    def __init__(self, central: CentralCounters, *, cost: Cost | None = None) -> None:
        super().__init__(cost=cost)
        self._central = central
        central.replicas.append(self)

    def counter(self, client: str) -> Counter | None:
        """The client's counter here; None if it has sent no request here."""
        return self._accounts.get(client)

    def least(self) -> Counter | None:
        """The least served client that waits here."""
        return self._queued.find()

    def _charge(self, account: Counter, cost: float) -> None:
        for counter in self._central.of(account.tie):
            counter.rank += cost / account.weight

    def _lift(self, counter: Counter) -> None:
        everywhere = self._central.of(counter.tie)
        rank = max(one.rank for one in everywhere)
        if not any(one.waiting for one in everywhere):
            rank = max(rank, self._central.lift_target())
        for one in everywhere:
            one.rank = rank

    def _dequeue(self, request: Request, counter: Counter) -> None:
        super()._dequeue(request, counter)
        if not any(one.waiting for one in self._central.of(counter.tie)):
            self._central.last = counter

    def _forget(self) -> None:
        pass  # a counter at another replica may be needed for the next lift
