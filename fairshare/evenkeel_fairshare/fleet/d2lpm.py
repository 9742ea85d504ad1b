"""D2LPM, the fleet half: a deficit q_{i,w} per client and replica (D2LPM paper, Algorithm 2; design R2).

A request goes to a replica that holds the longest match of its prefix while its client has credit there,
else to the least loaded replica where the client has credit. Once no routable replica has any, all of them
get quanta of Q^w·weight. So a client stays where its prefixes are until its credit there is spent, and
every replica gets work of it between two refills.

None of this makes the fleet fair: Q^w is in no bound. DLPM at each replica isolates (R1), and D2LPM only has to
keep a backlogged client backlogged everywhere. That is why q may be
forgotten and rebuilt from zero (R8), and why a stale or wrong prefix costs speed, never fairness.

Readings, where Algorithm 2 is open (ALGORITHMS §2.4, A7):
 - Refills are simultaneous: the same k quanta for every replica, k the smallest that makes some routable
   one positive (the listing's loop never looks again).
 - A refill credits the routable replicas only. For a replica that is draining or not ready the client's
   account does not change: it neither gains credit beyond Q^w·weight, nor loses its debt.
 - The input charge is the full prompt, not its uncached part: q measures how much of a client's work went
   where, and a replica that keeps hitting its cache must run out of credit too.
 - That charge is an estimate until the request ends; then the replica's own count takes its place, and what
   never ran is taken back (design §5.6). Credit that comes back never lifts q above Q^w·weight: a refill in
   the meantime has made up for part of it.
 - No match at all means that every replica matches.
 - A client starts at 0 everywhere. A joining replica starts at the client's largest q (R5): level with the
   best of the others, so that it takes part at once, and no higher, or all clients would stampede onto a
   cold cache. A leaving replica's q is dropped (R6).
 - Beyond `max_clients` the client that has gone longest without a dispatch is forgotten.
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
    slots_of,
)
from evenkeel_fairshare.fleet.picking import least_outstanding


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
    """Algorithm 2, on replicas that each run a fair scheduler of their own."""

    name = "D2LPM"
    matches_prefix = True

    def __init__(
        self,
        *,
        worker_quantum: float = 20_000.0,
        cost: Cost | None = None,
        max_clients: int = 10_000,
    ) -> None:
        """`worker_quantum` is Q^w in weighted tokens: infinity means that locality always wins.

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
            return  # after its replica left, its q is gone and the end is not charged (R6)
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
            )  # `positive` may keep its bit: what is not live is not routable

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
