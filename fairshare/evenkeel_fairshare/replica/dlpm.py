"""Deficit longest prefix match: locality first, fairness kept (DLPM, Algorithm 1; design R1, R9).

Place in the flow: arrive → the engine matches prefixes → **admissions** → progress → leave. A pass walks the
queue in LPM order and proposes every request whose tenant and client both have a positive deficit.

The surprising thing: within one walk a refill does not go back to requests that were passed over; they get
their turn in the next walk of the same pass, in the same order, exactly as the listing's lines 17 and 18 say.
The readings of what the listing leaves open are in docs/design/0001-replica-policies.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping
from typing import ClassVar

from evenkeel_fairshare.cost import Cost, LinearCost, flat_output_price
from evenkeel_fairshare.replica.contract import (
    Arrival,
    ClientState,
    Outcome,
    ReplicaPolicy,
    Request,
)
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel, DeficitRules
from evenkeel_fairshare.replica.longest_first import Line, longest_first
from evenkeel_fairshare.replica.lpm import by_prefix
from evenkeel_fairshare.replica.walks import later_walks


class Dlpm(ReplicaPolicy):
    """Algorithm 1 on a tree of two levels; with a single tenant it is the flat algorithm.

    `skip_misfit`: go on past an eligible request that does not fit instead of ending the pass. `longest_first`:
    after a refill go back to the longest match (`replica.longest_first`), instead of on with the walk as printed.
    `warmup_s`: for so long, from the first request on, the last `WITHHELD` rounds are withheld, and whoever needs the fewest goes
    first; begun anew where the replica is empty before. A new replica of a fleet meets its clients one by one, and
    rounds for those who came first would forgive them, and only them, what they owe (docs/design/0003).
    A pass never proposes the same request twice.
    """

    name: ClassVar[str] = "DLPM"
    matches_prefix: ClassVar[bool] = True

    def __init__(
        self,
        *,
        rules: DeficitRules | None = None,
        cost: Cost | None = None,
        skip_misfit: bool = False,
        longest_first: bool = False,
        warmup_s: float = 0.0,
    ) -> None:
        self._cost: Cost = cost or LinearCost()
        self._token_price = flat_output_price(self._cost)
        self._skip_misfit = skip_misfit
        self._longest_first = longest_first
        self._queue: dict[Request, Account] = {}
        self.lines: defaultdict[Account, Line] = defaultdict(Line)
        self._running: dict[Request, Account] = {}
        self._warmup_s = warmup_s
        self._warm_at_s = 0.0
        self.tenants = DeficitLevel(rules or DeficitRules(), warming=warmup_s > 0)

    def arrive(self, request: Request, now_s: float) -> Arrival:
        """Lines 11 to 13."""
        if self.tenants.warming and not (self._queue or self._running):
            self._begin_warming(now_s)
        client = self._join(request)
        for node in client.path:
            node.begin_waiting()
        self._queue[request] = client
        self.lines[client][request] = None
        return Arrival.QUEUED

    def admissions(self, now_s: float) -> Generator[Request, Outcome, None]:
        """Lines 16 to 24. Ends when memory is full, or when nobody else is or gets positive (§1.13 a)."""
        if self.tenants.warming and self._queue:
            self._warm_up(now_s)
        for request in self._eligible():
            outcome = yield request
            if outcome is Outcome.ADMITTED:
                self._admit(request)
            elif outcome is Outcome.NO_ROOM and not self._skip_misfit:
                return

    def _begin_warming(self, now_s: float) -> None:
        self._warm_at_s = now_s + self._warmup_s
        for level in self._levels():
            level.end_warming()
            level.warming = True

    def _warm_up(self, now_s: float) -> None:
        for level in self._levels():
            if now_s < self._warm_at_s:
                level.begin_pass()
            else:
                level.end_warming()

    def _levels(self) -> list[DeficitLevel]:
        return [self.tenants, *(tenant.children for tenant in self.tenants.known())]

    def _eligible(self) -> Iterator[Request]:
        """Lines 17 to 20: each positive one whom a walk comes to. Looks at the deficits anew for each."""
        if self._longest_first:
            yield from longest_first(self.tenants, self._queue, self.lines)
            return
        order = by_prefix(self._queue)
        passed_over: defaultdict[Account, list[int]] = defaultdict(list)
        refilled: set[DeficitLevel] = (
            set()
        )  # asked since the last proposal: nothing can have changed
        for position, request in enumerate(order):
            client = self._queue[request]
            for node in client.path:
                level = node.level
                if node.rank > level.reach:  # not positive
                    if level not in refilled:
                        level.refill()
                        refilled.add(level)
                    if node.rank > level.reach:
                        passed_over[client].append(position)
                        break
            else:
                yield request
                refilled.clear()
        yield from later_walks(self.tenants, order, passed_over)

    def progress(self, request: Request, tokens: int) -> None:
        """Line 26, per token produced (§1.13 e)."""
        after = request.output_tokens
        cost = self._cost.output_cost(request.extend_tokens, after - tokens, after)
        for node in self._running[request].path:
            node.charge(cost)

    def progress_all(self, requests: Collection[Request], tokens: int) -> None:
        """Charged once per account instead of once per request: most of what a decode step costs here."""
        if self._token_price is None:
            super().progress_all(requests, tokens)
            return
        price = self._token_price * tokens
        by_tenant: defaultdict[Account, int] = defaultdict(int)
        for client, count in Counter(map(self._running.__getitem__, requests)).items():
            client.charge(price * count)
            by_tenant[client.path[0]] += count
        for tenant, count in by_tenant.items():
            tenant.charge(price * count)

    def requeue(self, request: Request, now_s: float) -> None:
        client = self._running.pop(request)
        for node in client.path:
            node.running -= 1
            node.begin_waiting()
        self._queue = {request: client, **self._queue}  # first among equals: it came before them
        self.lines[client][request] = None
        self.lines[client].move_to_end(request, last=False)
        request.charge_input = (
            True  # whoever paid the first time, this replica computes it again (R11)
        )

    def leave(self, request: Request, now_s: float) -> None:
        client = self._queue.pop(request, None)
        if client is not None:
            self.lines[client].take_out(request, admitted=False)
            for node in client.path:
                node.waiting -= 1
        else:
            client = self._running.pop(request)
            for node in client.path:
                node.running -= 1
        if not client.waiting:
            self.lines.pop(client, None)
        for node in client.path:
            node.level.leave_if_idle(node)

    def waiting(self) -> Collection[Request]:
        return self._queue.keys()

    def __len__(self) -> int:
        return len(self._queue)

    def clients(self) -> Mapping[str, ClientState]:
        """Everybody with a request here, in debt at one of the levels, or seeded at one."""
        return {
            client.name: ClientState(
                deficit=client.deficit,
                tenant_deficit=tenant.deficit,
                waiting=client.waiting,
                seed=client.seed,
                tenant_seed=tenant.seed,
            )
            for tenant in self.tenants.known()
            for client in tenant.children.known()
            if client.waiting
            or client.running
            or min(client.deficit, tenant.deficit) < 0
            or client.seed
            or tenant.seed
        }

    def _join(self, request: Request) -> Account:
        # R5: each level has its own seed, and the first one wins.
        is_new = not self.tenants.knows(request.tenant)
        tenant = self.tenants.join(request.tenant, weight=request.tenant_weight)
        if is_new:
            tenant.start_from(request.tenant_seed)
        is_new = not tenant.children.knows(request.client)
        client = tenant.children.join(request.client, weight=request.client_weight, parent=tenant)
        if is_new:
            client.start_from(request.seed)
        return client

    def _admit(self, request: Request) -> None:
        """Lines 22 to 24."""
        client = self._running[request] = self._queue.pop(request)
        self.lines[client].take_out(request, admitted=True)
        cost = self._cost.input_cost(request.extend_tokens) if request.charge_input else 0.0
        for node in client.path:
            node.admit(cost)
