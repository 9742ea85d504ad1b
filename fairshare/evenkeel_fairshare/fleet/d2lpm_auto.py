"""D2LPM with `workerQuantum: Auto`: the worker quantum follows the prompts (design R2; docs/design/0005).

A constant Q^w has no good value. Below the length of one prompt it sends each question on a document to a cold replica; far
above it, clients stay at one replica while others idle. So here a request leaves the replica with its longest match only if the
wait that it saves is worth more than the tokens that another replica computes again:

    wait(near) - wait(far) > PATIENCE · matched tokens

That is Algorithm 2 with a quantum of PATIENCE times what the match saves, and with credit that is charged at dispatch and
returned at the end of the request. `near` is the replica of the longest match, `far` the replica outside it, where the client
has the least open work. All quantities are weighted tokens.

A replica runs DLPM, so the wait depends on the client: its own open work there, and the work of each other client, up to
the same amount per weight. Behind a flooding client a light one waits only a little.

Fairness needs that a backlogged client waits at every replica (DLPM paper, Theorem 5.1). It does: while some replica has no
work of the client, its work at any other is bounded. See the design note.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.fleet.contract import (
    EMPTY,
    Dispatch,
    FleetPolicy,
    ReplicaSet,
    Usage,
    slots_of,
)

PATIENCE: Final = 32.0
"""Tokens of wait that are worth one token computed again. A wait delays one client, and only while replicas are unequally
loaded; a token computed again takes time from all clients. Measured from 1 to 64: docs/design/0005."""
RECENT_REQUESTS: Final = 20
"""Requests in the mean output of a client."""


class _OpenWork:
    """What one client, or all clients together, have sent to one replica and what has not ended yet."""

    __slots__ = ("input_cost", "sequences", "weight")

    def __init__(self, weight: float = 0.0) -> None:
        self.weight = weight
        """The client's; of all clients, the sum over those with open work."""
        self.sequences = 0
        self.input_cost = 0.0


class _MeanOutput:
    """The mean cost of the output of a sequence, over the last requests."""

    __slots__ = ("_requests", "cost")

    def __init__(self) -> None:
        self.cost = 0.0
        self._requests = 0

    def add(self, cost: float) -> None:
        if self._requests < RECENT_REQUESTS:
            self._requests += 1
        self.cost += (cost - self.cost) / self._requests


class _ClientWork:
    """The open work of one client by slot, and its mean output."""

    __slots__ = ("busy", "open", "output")

    def __init__(self) -> None:
        self.open: dict[int, _OpenWork] = {}
        self.busy = 0
        """The slots in `open`, as a `ReplicaSet`."""
        self.output = _MeanOutput()

    def work(self, slot: int) -> float:
        """Weighted tokens: the uncached input of its open requests, and their expected output."""
        own = self.open.get(slot)
        return 0.0 if own is None else own.input_cost + own.sequences * self.output.cost

    def drop(self, slot: int) -> None:
        del self.open[slot]
        self.busy &= ~(1 << slot)


class AutoD2lpm(FleetPolicy):
    """Algorithm 2 with a quantum for each request. Each replica runs its own fair scheduler."""

    name = "D2LPM"
    matches_prefix = True

    def __init__(
        self, *, cost: Cost | None = None, patience: float = PATIENCE, max_clients: int = 10_000
    ) -> None:
        """Memory: about 200 bytes per client, and 150 per client and replica where it has open work."""
        if not patience > 0:
            raise ValueError(f"patience is {patience}; it must be positive")
        if max_clients < 1:
            raise ValueError(f"max_clients is {max_clients}; it must be at least 1")
        self._cost = cost if cost is not None else LinearCost()
        self._patience = patience
        self._max_clients = max_clients
        self._live = EMPTY
        self._loads: list[_OpenWork] = []
        """slot → open work of all clients together."""
        self._output = _MeanOutput()
        """Mean output of all clients' requests."""
        self._accounts: OrderedDict[str, _ClientWork] = OrderedDict()

    def select(
        self, request: Dispatch, routable: ReplicaSet, outstanding: Sequence[int]
    ) -> int | None:
        """The replica of the longest match, or another one if that saves enough of the wait."""
        if routable & ~self._live:
            strangers = ReplicaSet(routable & ~self._live)
            raise ValueError(f"slots {list(slots_of(strangers))} are routable but have not joined")
        if not request.weight > 0:
            raise ValueError(f"a client's weight is {request.weight}; it must be positive")
        account = self._accounts.get(request.client) or self._added(request.client)
        holders = routable & request.longest
        if not holders:
            return self._least_work(account, routable, outstanding)
        near, others = self._least_work(account, holders, outstanding), routable & ~holders
        # Nowhere else to go, or nothing to wait for here.
        if not others or not self._loads[near].sequences:
            return near
        saved_tokens = request.matched_tokens + request.adapter_tokens
        quantum = self._patience * self._cost.input_cost(saved_tokens)
        wait = self._wait(account, request, near, self._input_cost(request, near))
        # Another replica can save no more than the whole wait.
        if wait <= quantum:
            return near
        far = self._least_work(account, others, outstanding)
        excess = wait - self._wait(account, request, far, self._input_cost(request, far))
        return near if excess <= quantum else far

    def dispatched(self, request: Dispatch, slot: int) -> None:
        account = self._accounts.get(request.client) or self._added(request.client)
        self._accounts.move_to_end(request.client)
        # The replica has left since it was chosen: there is no work to note.
        if not self._live >> slot & 1:
            return
        load, own = self._loads[slot], account.open.get(slot)
        if own is None:
            own = account.open[slot] = _OpenWork(request.weight)
            account.busy |= 1 << slot
            load.weight += own.weight
        cost = self._input_cost(request, slot)
        own.input_cost += cost
        own.sequences += request.sequences
        load.input_cost += cost
        load.sequences += request.sequences

    def finished(self, request: Dispatch, slot: int, usage: Usage | None) -> None:
        account = self._accounts.get(request.client)
        own = None if account is None else account.open.get(slot)
        if account is None or own is None:
            return  # the replica has left, or the client was removed
        load = self._loads[slot]
        cost = self._input_cost(request, slot)
        own.input_cost -= cost
        own.sequences -= request.sequences
        load.input_cost -= cost
        load.sequences -= request.sequences
        if not own.sequences:
            load.weight -= own.weight
            account.drop(slot)
        if not load.sequences:  # errors of rounding and of removed clients end here
            load.input_cost = load.weight = 0.0
        if usage is not None and usage.input_tokens:
            output = self._cost.output_cost(usage.input_tokens, 0, usage.output_tokens)
            output /= request.sequences
            account.output.add(output)
            self._output.add(output)

    def credit(self, client: str) -> Mapping[int, float]:
        """Open work of a client by slot, negated: what it was charged at dispatch and gets back when requests end."""
        account = self._accounts.get(client)
        return {} if account is None else {slot: -account.work(slot) for slot in account.open}

    def joined(self, slot: int) -> None:
        while len(self._loads) <= slot:
            self._loads.append(_OpenWork())
        self._loads[slot] = _OpenWork()
        self._live = ReplicaSet(self._live | 1 << slot)

    def left(self, slot: int) -> None:
        self._live = ReplicaSet(self._live & ~(1 << slot))
        for account in self._accounts.values():
            if slot in account.open:
                account.drop(slot)

    def _added(self, client: str) -> _ClientWork:
        account = self._accounts[client] = _ClientWork()
        if len(self._accounts) > self._max_clients:
            self._remove(self._accounts.popitem(last=False)[1])
        return account

    def _remove(self, account: _ClientWork) -> None:
        for slot, own in account.open.items():
            load = self._loads[slot]
            load.input_cost -= own.input_cost
            load.sequences -= own.sequences
            load.weight -= own.weight

    def _input_cost(self, request: Dispatch, slot: int) -> float:
        """Cost of the prompt tokens that a replica computes for a request, weighted tokens."""
        if request.longest >> slot & 1:
            tokens = request.input_tokens - request.matched_tokens
        else:
            tokens = request.input_tokens + request.adapter_tokens
        return self._cost.input_cost(max(1, tokens))

    def _wait(self, account: _ClientWork, request: Dispatch, slot: int, input_cost: float) -> float:
        """Work that a replica does before it has served the client's open work there.

        Under DLPM each other client gets, per weight, at most as much as this client needs.
        """
        load, own = self._loads[slot], account.open.get(slot)
        work = account.work(slot)
        other_cost, others_open, other_weight = load.input_cost, load.sequences, load.weight
        if own is not None:
            other_cost -= own.input_cost
            others_open -= own.sequences
            other_weight -= own.weight
        others = other_cost + others_open * self._output.cost
        share = work + input_cost + request.sequences * account.output.cost
        return work + min(others, share * other_weight / request.weight)

    def _least_work(self, account: _ClientWork, slots: int, outstanding: Sequence[int]) -> int:
        """The slot with the least open work of the client, then of all clients, then with the fewest requests.

        `slots` is not empty. Ties go to the lowest slot.
        """
        # Where the client has no open work, its own work is 0, the least there is.
        idle = slots & ~account.busy
        mask = idle or slots
        # A single slot needs no comparison.
        if not mask & mask - 1:
            return mask.bit_length() - 1
        loads, price = self._loads, self._output.cost
        best, least, own = -1, inf, inf
        # Without `slots_of` and tuples: this is the router's inner loop over up to 64 replicas.
        while mask:
            low = mask & -mask
            mask ^= low
            slot = low.bit_length() - 1
            load = loads[slot]
            work = load.input_cost + load.sequences * price
            own_here = 0.0 if idle else account.work(slot)
            if own_here < own or (
                own_here == own
                and (work < least or (work == least and outstanding[slot] < outstanding[best]))
            ):
                best, least, own = slot, work, own_here
        return best
