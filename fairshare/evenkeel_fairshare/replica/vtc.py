"""Virtual token counter: the least served client first (VTC, Algorithm 2; weights §4.3; general cost §4.2).

Place in the flow: arrive (lifts) → **admissions** → progress → leave. Counters are flat over all clients: a
client's weight is its tenant's times its own, and its charges are divided by that.

The surprising thing: counters only rise, so a heap may hold outdated entries: each is a lower bound, and the
top is brought up to date when it is looked at. That is O(log n) per selection without touching the heap at
every token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import ClassVar

from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.replica.contract import (
    Arrival,
    ClientState,
    Outcome,
    ReplicaPolicy,
    Request,
)


@dataclass(slots=True, eq=False)
class Counter:
    """c_i of one client, weighted tokens over weight."""

    client: str
    tie: tuple[int, str]
    """Who goes first among equal counters."""
    weight: float = 1.0
    value: float = 0.0
    queue: OrderedDict[Request, None] = field(default_factory=OrderedDict)
    running: int = 0
    in_heap: bool = False


class Vtc(ReplicaPolicy):
    """Algorithm 2. Ties go to the lowest client id. Input is charged in full, cached or not: h(np, 0)."""

    name: ClassVar[str] = "VTC"
    matches_prefix: ClassVar[bool] = False

    def __init__(self, *, cost: Cost | None = None) -> None:
        self._cost: Cost = cost or LinearCost()
        self._counters: dict[str, Counter] = {}
        self._heap: list[tuple[float, tuple[int, str], Counter]] = []
        self._waiting = 0
        self._running: dict[Request, Counter] = {}
        self._last: Counter | None = None
        """The client that left the queue last (line 9)."""
        self._sweep_at = 1024

    def arrive(self, request: Request, now_s: float) -> Arrival:
        """Lines 6 to 14."""
        counter = self._counters.get(request.client)
        if counter is None:
            self._forget()
            counter = Counter(request.client, self._tie(request.client))
            self._counters[request.client] = counter
        counter.weight = request.tenant_weight * request.client_weight
        self._enqueue(request, counter)
        return Arrival.QUEUED

    def admissions(self, now_s: float) -> Generator[Request, Outcome, None]:
        """Lines 18 to 26. Ends at the first request that does not fit."""
        while (counter := self._least()) is not None:
            request = next(iter(counter.queue))
            if (yield request) is not Outcome.ADMITTED:
                return
            self._charge(counter, self._input_cost(request))
            self._running[request] = counter
            counter.running += 1
            self._dequeue(request, counter)

    def progress(self, request: Request, tokens: int) -> None:
        """Line 30, and Algorithm 4, line 22."""
        after = request.output_tokens
        cost = self._cost.output_cost(request.input_tokens, after - tokens, after)
        self._charge(self._running[request], cost)

    def requeue(self, request: Request, now_s: float) -> None:
        counter = self._running.pop(request)
        counter.running -= 1
        # A client without waiting requests is lifted, whatever brings it back: Lemma A.1 needs it.
        self._enqueue(request, counter)
        counter.queue.move_to_end(request, last=False)  # it came before all that wait
        request.charge_input = True  # whoever paid the first time, it is computed again (R11)

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
        """Minus the counter, as far as clients are remembered."""
        return {
            counter.client: ClientState(-counter.value, 0.0, len(counter.queue))
            for counter in self._counters.values()
        }

    def _tie(self, client: str) -> tuple[int, str]:
        return (0, client)

    def _input_cost(self, request: Request) -> float:
        """Line 24. After a retraction the output so far is part of what is computed again."""
        if not request.charge_input:
            return 0.0
        return self._cost.input_cost(request.input_tokens + request.output_tokens)

    def _charge(self, counter: Counter, cost: float) -> None:
        counter.value += cost / counter.weight

    def _lift(self, counter: Counter) -> None:
        """Lines 8 to 13: idling earns no credit."""
        least = self._least() or self._last
        if least is not None:
            counter.value = max(counter.value, least.value)

    def _least(self) -> Counter | None:
        """Line 20: the least counter of those with waiting requests; None when nobody waits."""
        heap = self._heap
        while heap:
            value, tie, counter = heap[0]
            if not counter.queue:
                heappop(heap)
                counter.in_heap = False
            elif value < counter.value:
                heapreplace(heap, (counter.value, tie, counter))
            else:
                return counter
        return None

    def _enqueue(self, request: Request, counter: Counter) -> None:
        if not counter.queue:
            self._lift(counter)
            if not counter.in_heap:
                heappush(self._heap, (counter.value, counter.tie, counter))
                counter.in_heap = True
        counter.queue[request] = None
        self._waiting += 1

    def _dequeue(self, request: Request, counter: Counter) -> None:
        del counter.queue[request]
        self._waiting -= 1
        if not counter.queue:
            self._last = counter

    def _forget(self) -> None:
        """Bound the memory without changing any schedule.

        The level that the next lift goes to never falls (Lemma A.1), so an idle client at or below it would
        come back at the same counter as a new one.
        """
        if len(self._counters) < self._sweep_at:
            return
        least = self._least() or self._last
        level = least.value if least is not None else 0.0
        self._counters = {
            client: counter
            for client, counter in self._counters.items()
            if counter.queue or counter.running or counter.value > level
        }
        # Of those forgotten the heap may still hold entries; of the others it needs those that wait.
        for counter in self._counters.values():
            counter.in_heap = bool(counter.queue)
        self._heap = [(c.value, c.tie, c) for c in self._counters.values() if c.in_heap]
        heapify(self._heap)
        self._sweep_at = max(1024, 2 * len(self._counters))
