"""D2LPM with a constant worker quantum, the fleet half: a deficit q_{i,w} per client and replica (D2LPM paper, Algorithm 2; design R2).

While the client has credit at a replica with the longest match of the prefix, the request goes there. Otherwise it
goes to the least loaded replica where the client has credit. If no routable replica has credit, all of them get quanta of
Q^w·weight. So a client stays near its prefixes until its credit there is spent, and every replica gets some of its
work between two refills.

Fairness does not depend on this policy: Q^w is in no bound. DLPM at each replica isolates clients (R1), and D2LPM
only keeps a backlogged client backlogged at every replica. So q may be lost and rebuilt from zero (R8), and a stale
or wrong prefix costs speed, never fairness.

Decisions, where Algorithm 2 is open (ALGORITHMS §2.4, A7):
 - Refills are simultaneous: every replica gets the same k quanta, k the smallest number that makes a routable
   one positive (the listing's loop does not check again).
 - A refill credits routable replicas only. At a draining or unready replica the client's account does not change:
   it neither gains credit beyond Q^w·weight, nor loses its debt.
 - The input charge is the full prompt, not its uncached part: q measures where a client's work goes, and a replica
   with many cache hits must run out of credit too.
 - That charge is an estimate. At the end of the request the replica's count replaces it, and a request that never
   ran costs nothing (design §5.6). Returned credit never raises q above Q^w·weight: a refill in between has already
   replaced a part of it.
 - Without any match every replica counts as a match.
 - A client starts at 0 everywhere. A joining replica starts at the client's largest q (R5), so that it gets requests
   at once. With more credit all clients would go to its cold cache. The q of a leaving replica is dropped (R6).
 - Beyond `max_clients` the client with the oldest last dispatch is removed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.fleet.contract import (
    EMPTY,
    Dispatch,
    FleetPolicy,
    ReplicaSet,
    Usage,
    least_outstanding,
    slots_of,
)


class _Account:
    """q_{i,w} of one client by slot, in weighted tokens, and the set of slots where it is positive."""

    __slots__ = ("positive", "q")

    def __init__(self, live: ReplicaSet) -> None:
        self.q = dict.fromkeys(slots_of(live), 0.0)
        self.positive = EMPTY

    def set(self, slot: int, value: float) -> None:
        self.q[slot] = value
        if value > 0:
            self.positive = ReplicaSet(self.positive | 1 << slot)
        else:
            self.positive = ReplicaSet(self.positive & ~(1 << slot))


class D2lpm(FleetPolicy):
    """Algorithm 2. Each replica runs its own fair scheduler."""

    name = "D2LPM"
    matches_prefix = True

    def __init__(
        self,
        *,
        worker_quantum: float,
        cost: Cost | None = None,
        max_clients: int = 10_000,
    ) -> None:
        """`worker_quantum` is Q^w in weighted tokens. With infinity, locality always wins.

        Memory: about 60 bytes per client and replica.
        """
        if not worker_quantum > 0:
            raise ValueError(f"worker_quantum is {worker_quantum}; it must be positive")
        if max_clients < 1:
            raise ValueError(f"max_clients is {max_clients}; it must be at least 1")
        self._worker_quantum = worker_quantum
        self._cost = cost if cost is not None else LinearCost()
        self._max_clients = max_clients
        self._live = EMPTY
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        """Algorithm 2, SelectWorker."""
        if routable & ~self._live:
            strangers = ReplicaSet(routable & ~self._live)
            raise ValueError(f"slots {list(slots_of(strangers))} are routable but have not joined")
        account = self._account(request.client)
        available = ReplicaSet(account.positive & routable)
        if not available:
            self._refill(account, routable, request.weight)
            available = ReplicaSet(account.positive & routable)
        candidates = ReplicaSet(available & request.longest) or available
        return least_outstanding(candidates, outstanding)

    def dispatched(self, request: Dispatch, slot: int) -> None:
        account = self._account(request.client)
        self._accounts.move_to_end(request.client)
        if slot in account.q:
            account.set(slot, account.q[slot] - self._cost.input_cost(request.input_tokens))

    def finished(self, request: Dispatch, slot: int, usage: Usage | None) -> None:
        account = self._accounts.get(request.client)
        if usage is None or account is None or slot not in account.q:
            return  # its replica has left: there is no q to charge (R6)
        tokens = usage.input_tokens
        used = self._cost.input_cost(tokens)
        used += self._cost.output_cost(tokens, 0, usage.output_tokens)
        due = used - self._cost.input_cost(request.input_tokens)
        before = account.q[slot]
        after = before - due
        if due < 0:
            after = max(before, min(after, self._worker_quantum * request.weight))
        account.set(slot, after)

    def joined(self, slot: int) -> None:
        self._live = ReplicaSet(self._live | 1 << slot)
        for account in self._accounts.values():
            account.set(slot, max(account.q.values(), default=0.0))

    def left(self, slot: int) -> None:
        self._live = ReplicaSet(self._live & ~(1 << slot))
        for account in self._accounts.values():
            account.q.pop(
                slot, None
            )  # `positive` may keep its bit: only live replicas are routable

    def credit(self, client: str) -> Mapping[int, float]:
        account = self._accounts.get(client)
        return {} if account is None else dict(account.q)

    def _account(self, client: str) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = _Account(self._live)
            if len(self._accounts) > self._max_clients:
                self._accounts.popitem(last=False)
        return account

    def _refill(self, account: _Account, routable: ReplicaSet, weight: float) -> None:
        """Algorithm 2, lines 5-6, all k quanta at once. No routable slot is positive.

        largest + k·quantum for the smallest k that makes it positive is largest mod quantum (or one whole
        quantum): exact in floats at any ratio of debt to quantum, where a product k·quantum is not.
        """
        if not weight > 0:
            raise ValueError(f"a client's weight is {weight}; it must be positive")
        quantum = self._worker_quantum * weight
        slots = list(slots_of(routable))
        largest = max(account.q[slot] for slot in slots)
        after = largest % quantum or quantum
        for slot in slots:
            account.set(slot, after - (largest - account.q[slot]))
