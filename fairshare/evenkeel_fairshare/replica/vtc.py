"""Virtual token counter: the least served client first (VTC, Algorithm 2; weights §4.3; general cost §4.2).

Counters are flat over all clients: a client's weight is its tenant's times its own, and its charges are divided by that.

Memory is bounded without a change to any schedule: after the lift a removed client and a remembered one are equal (`_forget`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import (
    AdmissionResult,
    Arrival,
    ClientDeficits,
    Request,
)
from evenkeel_fairshare.replica.metered import ClientAccount, MeteredPolicy


@dataclass(slots=True, eq=False)
class Counter(ClientAccount):
    """c_i of one client: its `rank` is its service in weighted tokens, divided by its weight."""

    weight: float = 1.0


class Vtc(MeteredPolicy[Counter]):
    """Algorithm 2. Ties go to the lowest client id. Input is charged in full, cached or not: h(np, 0).

    `sweep_above`: number of clients above which a sweep removes those without effect on a schedule.
    """

    name: ClassVar[str] = "VTC"
    matches_prefix: ClassVar[bool] = False

    def __init__(self, *, cost: Cost | None = None, sweep_above: int = 1024) -> None:
        super().__init__(cost)
        self._last: Counter | None = None
        """The client that left the queue last (line 9)."""
        self._sweep_above = self._sweep_next = sweep_above

    def arrive(self, request: Request, now_s: float) -> Arrival:
        """Lines 6 to 14."""
        counter = self._accounts.get(request.client)
        if counter is None:
            self._forget()
            counter = Counter(tie=self._tie(request.client))
            self._accounts[request.client] = counter
        counter.weight = request.tenant_weight * request.client_weight
        self._enqueue(request, counter)
        return Arrival.QUEUED

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        """Lines 18 to 26. Ends at the first request that does not fit."""
        while (counter := self._queued.find()) is not None:
            request = next(iter(counter.queue))
            if (yield request) is not AdmissionResult.ADMITTED:
                return
            self._admit(request, counter)

    def clients(self) -> Mapping[str, ClientDeficits]:
        """Remembered clients; the deficit of each is its negated counter."""
        return {
            client: ClientDeficits(-counter.rank, 0.0, counter.waiting)
            for client, counter in self._accounts.items()
        }

    def _tie(self, client: str) -> Any:
        """Order among equal counters: the lowest goes first."""
        return client

    def _charge(self, account: Counter, cost: float) -> None:
        account.rank += cost / account.weight

    def _lift(self, counter: Counter) -> None:
        """Lines 8 to 13: idling earns no credit."""
        least = self._queued.find() or self._last
        if least is not None:
            counter.rank = max(counter.rank, least.rank)

    def _enqueue(self, request: Request, account: Counter) -> None:
        # A client without waiting requests is lifted, also after a retraction: Lemma A.1 needs it.
        if not account.waiting:
            self._lift(account)
        account.queue[request] = None
        account.waiting += 1
        self._waiting += 1
        if account.waiting == 1:
            self._queued.add(account)

    def _dequeue(self, request: Request, account: Counter) -> None:
        del account.queue[request]
        account.waiting -= 1
        self._waiting -= 1
        if not account.waiting:
            self._last = account

    def _forget(self) -> None:
        """Bound the memory without a change to any schedule.

        The target of the next lift never falls (Lemma A.1). So an idle client at or below it would return with the
        same counter as a new one.
        """
        least = self._queued.find() or self._last
        if least is None or len(self._accounts) < self._sweep_next:
            return
        self._accounts = {
            client: counter
            for client, counter in self._accounts.items()
            if not counter.is_idle or counter.rank > least.rank
        }
        self._sweep_next = max(self._sweep_above, 2 * len(self._accounts))
