"""Virtual token counter: the least served client first (VTC, Algorithm 2; weights §4.3; general cost §4.2).

Counters are flat over all clients: a client's weight is its tenant's times its own, and its charges are divided by that.

Memory is bounded without a change to any schedule: after the lift a removed client and a remembered one are equal (`_forget`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import (
    AdmissionResult,
    Arrival,
    ClientState,
    Request,
)
from evenkeel_fairshare.replica.lowest import Lowest, Ranked
from evenkeel_fairshare.replica.metered import MeteredPolicy


@dataclass(slots=True, eq=False)
class Counter(Ranked):
    """c_i of one client: its `rank` is its service in weighted tokens, divided by its weight."""

    weight: float = 1.0
    running: int = 0
    """Requests in the batch."""
    queue: OrderedDict[Request, None] = field(default_factory=OrderedDict)


class Vtc(MeteredPolicy[Counter]):
    """Algorithm 2. Ties go to the lowest client id. Input is charged in full, cached or not: h(np, 0).

    `sweep_above`: number of clients above which a sweep removes those without effect on a schedule.
    """

    name: ClassVar[str] = "VTC"
    matches_prefix: ClassVar[bool] = False

    def __init__(self, *, cost: Cost | None = None, sweep_above: int = 1024) -> None:
        super().__init__(cost)
        self._counters: dict[str, Counter] = {}
        self._queued: Lowest[Counter] = Lowest()
        self._waiting = 0
        self._last: Counter | None = None
        """The client that left the queue last (line 9)."""
        self._sweep_above = self._sweep_next = sweep_above

    def arrive(self, request: Request, now_s: float) -> Arrival:
        """Lines 6 to 14."""
        counter = self._counters.get(request.client)
        if counter is None:
            self._forget()
            counter = Counter(tie=self._tie(request.client))
            self._counters[request.client] = counter
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

    def requeue(self, request: Request, now_s: float) -> None:
        counter = self._running.pop(request)
        counter.running -= 1
        # A client without waiting requests is lifted, also after a retraction: Lemma A.1 needs it.
        self._enqueue(request, counter)
        counter.queue.move_to_end(request, last=False)  # it arrived before all that wait
        request.charge_input = True  # it is computed again here (R11)

    def leave(self, request: Request, now_s: float) -> None:
        counter = self._running.pop(request, None)
        if counter is not None:
            counter.running -= 1
        else:
            self._dequeue(request, self._counters[request.client])

    def waiting(self) -> Iterator[Request]:
        for counter in self._counters.values():
            yield from counter.queue

    def __len__(self) -> int:
        return self._waiting

    def clients(self) -> Mapping[str, ClientState]:
        """Minus the counter, for remembered clients."""
        return {
            client: ClientState(-counter.rank, 0.0, counter.waiting)
            for client, counter in self._counters.items()
        }

    def _admit(self, request: Request, counter: Counter) -> None:
        """Lines 24 and 25."""
        self._charge(counter, self._input_cost(request))
        self._running[request] = counter
        counter.running += 1
        self._dequeue(request, counter)

    def _tie(self, client: str) -> Any:
        """Order among equal counters: the lowest goes first."""
        return client

    def _account(self, client: str) -> Counter | None:
        counter = self._counters.get(client)
        return counter if counter is not None and (counter.waiting or counter.running) else None

    def _charge(self, account: Counter, cost: float) -> None:
        account.rank += cost / account.weight

    def _lift(self, counter: Counter) -> None:
        """Lines 8 to 13: idling earns no credit."""
        least = self._queued.find() or self._last
        if least is not None:
            counter.rank = max(counter.rank, least.rank)

    def _enqueue(self, request: Request, counter: Counter) -> None:
        if not counter.waiting:
            self._lift(counter)
        counter.queue[request] = None
        counter.waiting += 1
        self._waiting += 1
        if counter.waiting == 1:
            self._queued.add(counter)

    def _dequeue(self, request: Request, counter: Counter) -> None:
        del counter.queue[request]
        counter.waiting -= 1
        self._waiting -= 1
        if not counter.waiting:
            self._last = counter

    def _forget(self) -> None:
        """Bound the memory without a change to any schedule.

        The target of the next lift never falls (Lemma A.1). So an idle client at or below it would return with the
        same counter as a new one.
        """
        least = self._queued.find() or self._last
        if least is None or len(self._counters) < self._sweep_next:
            return
        self._counters = {
            client: counter
            for client, counter in self._counters.items()
            if counter.waiting or counter.running or counter.rank > least.rank
        }
        self._sweep_next = max(self._sweep_above, 2 * len(self._counters))
