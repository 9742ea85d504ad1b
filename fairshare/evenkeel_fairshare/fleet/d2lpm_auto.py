"""D2LPM with `workerQuantum: Auto`: the worker quantum follows the prompts (design R2; docs/design/0005).

A constant Q^w has no good value. Below the length of one prompt it sends each question on a document to a cold replica; far
above it, clients stay at one replica while others idle. So here a request leaves the replica with its longest match only if that
saves more time than it costs:

    wait(near) - wait(far) > price · time that its matched prefix takes at far

`near` is the replica of the longest match, `far` the replica outside it, each the one where the client has the least open work.
Work is in weighted tokens, and becomes time by the measured speed of its replica. The price is 1 while `far` has less than
1/`NEARLY_IDLE` of the open work of `near`: then hardly any request waits for its time. Otherwise it is `PATIENCE`.

That is Algorithm 2 with a quantum of price times what the match saves, and with credit that is charged at dispatch and returned
at the end of the request.

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
    NOTHING,
    Dispatch,
    FleetPolicy,
    ReplicaSet,
    Usage,
    slots_of,
)

PATIENCE: Final = 32.0
"""Price of a token that is computed again at a replica with work, in tokens of wait. A wait delays one client, and only while
replicas are unequally loaded; a token computed again takes time from all clients. Measured from 1 to 64: docs/design/0005."""
NEARLY_IDLE: Final = 4.0
"""A replica with less than this part of another one's open work, in seconds, will be idle long before it: its time is not scarce."""
EQUAL_SPEEDS: Final = 1.5
"""Speeds within this factor of the median count as the median. What a replica serves depends on its mix of prompts and outputs:
equal replicas were measured at 0.7 to 1.4 times the median."""
SPEED_BOUND: Final = 4.0
"""The most by which a speed counts as different from the median. One wrong measurement neither attracts nor repels everything."""
LEAST_WAIT_S: Final = 1.0
"""A request that waits for less is not relocated to an idle replica: the last report of its own replica may not count it."""
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
        self._paces: list[float] = []
        """slot → time per weighted token, as a multiple of that at the median speed."""
        self._least_pace = 1.0
        self._token_s = inf
        """Time per weighted token at the median speed, seconds; infinite before a measurement."""
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
        wait = self._wait(account, request, near)
        prefix = self._cost.input_cost(request.matched_tokens + request.adapter_tokens)
        # Most requests end here, without a look at the other replicas: the fastest one saves no more than the whole wait.
        if wait <= self._least_pace * prefix:
            return near
        far = self._least_work(account, others, outstanding)
        saved = wait - self._wait(account, request, far)
        scarce = NEARLY_IDLE * self._load(far) >= self._load(near)
        price = self._patience if scarce else 1.0
        return near if saved <= price * self._paces[far] * prefix else far

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
        input_tokens, _, output_tokens = usage or NOTHING
        if input_tokens:
            output = self._cost.output_cost(input_tokens, 0, output_tokens) / request.sequences
            account.output.add(output)
            self._output.add(output)

    def credit(self, client: str) -> Mapping[int, float]:
        """Open work of a client by slot, negated: what it was charged at dispatch and gets back when requests end."""
        account = self._accounts.get(client)
        return {} if account is None else {slot: -account.work(slot) for slot in account.open}

    def joined(self, slot: int) -> None:
        while len(self._loads) <= slot:
            self._loads.append(_OpenWork())
            self._paces.append(1.0)
        self._loads[slot] = _OpenWork()
        self._paces[slot] = 1.0
        self._live = ReplicaSet(self._live | 1 << slot)

    def left(self, slot: int) -> None:
        self._live = ReplicaSet(self._live & ~(1 << slot))
        for account in self._accounts.values():
            if slot in account.open:
                account.drop(slot)

    def measured(self, speeds: Mapping[int, float]) -> None:
        known = {slot: speed for slot, speed in speeds.items() if self._live >> slot & 1}
        if not known:
            return
        middle = sorted(known.values())[len(known) // 2]
        self._token_s = 1 / middle if middle > 0 else inf
        for slot, speed in known.items():
            pace = min(SPEED_BOUND, middle / speed) if speed > 0 else SPEED_BOUND
            equal = 1 / EQUAL_SPEEDS <= pace <= EQUAL_SPEEDS
            self._paces[slot] = 1.0 if equal else max(1 / SPEED_BOUND, pace)
        self._least_pace = min(self._paces)

    def longest_wait_s(self, request: Dispatch, at: int, idle: int) -> float:
        held = request.matched_tokens if request.longest >> at & 1 else 0
        missing = self._cost.input_cost(max(0, held - request.matched_at(idle)))
        # Without a measurement, no request has waited for longer than its prefix takes.
        return (
            max(LEAST_WAIT_S, self._token_s * self._paces[idle] * missing)
            if missing
            else LEAST_WAIT_S
        )

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

    def _load(self, slot: int) -> float:
        """Time that all open work at a replica takes, at its speed."""
        load = self._loads[slot]
        return self._paces[slot] * (load.input_cost + load.sequences * self._output.cost)

    def _wait(self, account: _ClientWork, request: Dispatch, slot: int) -> float:
        """Time until a replica has served the client's open work there, at its speed.

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
        share = work + self._input_cost(request, slot) + request.sequences * account.output.cost
        return self._paces[slot] * (work + min(others, share * other_weight / request.weight))

    def _least_work(self, account: _ClientWork, slots: int, outstanding: Sequence[int]) -> int:
        """The slot with the least open work of the client, then of all clients, as time; then with the fewest requests.

        `slots` is not empty. Ties go to the lowest slot.
        """
        # Where the client has no open work, its own work is 0, the least there is.
        idle = slots & ~account.busy
        mask = idle or slots
        # A single slot needs no comparison.
        if not mask & mask - 1:
            return mask.bit_length() - 1
        paces, price = self._paces, self._output.cost
        best, least, own = -1, inf, 0.0 if idle else inf
        # Without `slots_of` and tuples: this is the router's inner loop over up to 64 replicas.
        for slot, load in enumerate(self._loads):
            if not mask >> slot & 1:
                continue
            work = paces[slot] * (load.input_cost + load.sequences * price)
            if not idle:
                own_here = paces[slot] * account.work(slot)
                if own_here < own:
                    best, least, own = slot, work, own_here
                if own_here != own:
                    continue
            if work < least or (work == least and outstanding[slot] < outstanding[best]):
                best, least = slot, work
        return best
