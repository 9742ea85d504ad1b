"""Deficit longest prefix match: locality first, fairness kept (DLPM, Algorithm 1; design R1, R9).

A pass proposes the best of the requests whose tenant and client both have a positive deficit, by default the longest match
(`order`). Unlike the printed listing it searches again for each proposal. In the listing a refill continues the current walk, past warm requests
that it skipped while their client was in debt. A client with frequent refills would compute cold prefixes, while its warm
requests wait and lose their place in the cache.

No bound changes: the proofs depend on which members are positive, not on their order.
docs/design/0001-replica-policies.md lists our decisions where the listing is open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping
from itertools import count as serials
from operator import itemgetter
from typing import ClassVar

from evenkeel_fairshare.cost import Cost, LinearCost, flat_output_price
from evenkeel_fairshare.replica.contract import (
    AdmissionResult,
    Arrival,
    ClientState,
    ReplicaPolicy,
    Request,
)
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel, DeficitRules, MeasuredQuantum
from evenkeel_fairshare.replica.order import (
    LONGEST_MATCH,
    ClientQueue,
    Entry,
    Order,
    eligible_entries,
)


class Dlpm(ReplicaPolicy):
    """Algorithm 1 on a tree of two levels; with a single tenant it is the flat algorithm.

    `skip_misfit`: go on past an eligible request that does not fit instead of ending the pass.
    `order`: which request of those with positive deficits goes first.
    `warmup_s`: time after its first request in which a replica defers refills (`DEFERRED_REFILLS`). It starts again when a
    request arrives at an empty replica. Clients arrive at a new replica one by one, and refills for the first ones would
    cancel the debts of these clients only (docs/design/0003).
    A pass never proposes the same request twice.
    """

    name: ClassVar[str] = "DLPM"
    matches_prefix: ClassVar[bool] = True
    divides_time: ClassVar[bool] = True

    def __init__(
        self,
        *,
        rules: DeficitRules | None = None,
        cost: Cost | None = None,
        skip_misfit: bool = False,
        warmup_s: float = 0.0,
        order: Order = LONGEST_MATCH,
    ) -> None:
        self._cost: Cost = cost or LinearCost()
        self._token_price = flat_output_price(self._cost)
        self._skip_misfit = skip_misfit
        self._key = order.key
        self._queue: dict[Request, Account] = {}
        self.client_queues: defaultdict[Account, defaultdict[Account, ClientQueue]] = defaultdict(
            lambda: defaultdict(lambda: ClientQueue(order))
        )
        """Of each tenant and client with a waiting request."""
        self._serials = serials()
        self._serials_of_retracted = serials(-1, -1)
        self._running: dict[Request, Account] = {}
        self._refused: list[Account] = []
        """Accounts of which the current pass refused a request."""
        self._without_slot: list[ClientQueue] = []
        """Queues of which the current pass proposed a request whose adapter has no slot."""
        self._warmup_s = warmup_s
        self._warm_at_s = 0.0
        rules = rules or DeficitRules()
        self.tenants = DeficitLevel(rules, warming_up=warmup_s > 0)
        self._measured = MeasuredQuantum() if rules.quantum is None else None
        self._service = 0.0
        """Weighted tokens charged so far."""

    def arrive(self, request: Request, now_s: float) -> Arrival:
        """Lines 11 to 13."""
        if self.tenants.warming_up and not (self._queue or self._running):
            self._begin_warmup(now_s)
        if not self._queue:
            self._queue_was_empty()
        client = self._join(request)
        for node in client.path:
            node.waiting += 1
        self._queue[request] = client
        self._put(request, next(self._serials))
        return Arrival.QUEUED

    def admit_alone(self, request: Request, now_s: float) -> bool:
        """Without the queue: most requests at a router's gate find no other one there."""
        if self.tenants.warming_up:
            return False
        self._queue_was_empty()
        self._running[request] = client = self._join(request)
        cost = self._input_cost(request)
        self._service += cost
        for node in client.path:
            node.running += 1
            if node.positive_from > node.level.horizon:
                node.level.refill_to(node.positive_from)
            node.charge(cost)
        return True

    def rematched(self, request: Request) -> None:
        client = self._queue.get(request)
        if client is not None:
            key, serial, _ = self.client_queues[client.path[0]][client][request]
            if key != self._key(request):
                self._put(request, serial)

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        """Lines 16 to 24. Ends when memory is full, or when no other client is or becomes positive (§1.13 a)."""
        if self.tenants.warming_up and self._queue:
            self._warm_up(now_s)
        measured = self._measured
        if measured is not None and self._queue and measured.begin_pass(now_s, self._service):
            self.change_quantum(measured.value)
        for account in self._refused:
            account.refused = account.held = 0
        self._refused.clear()
        for queue in self._without_slot:
            queue.without_slot = None
        self._without_slot.clear()
        for request in self._eligible():
            outcome = yield request
            if outcome is AdmissionResult.ADMITTED:
                self._admit(request)
            elif outcome is AdmissionResult.NO_ROOM and not self._skip_misfit:
                return
            else:
                self._refuse(request, outcome)

    def progress(self, request: Request, tokens: int) -> None:
        """Line 26, per token produced (§1.13 e)."""
        after = request.output_tokens
        cost = self._cost.output_cost(request.extend_tokens, after - tokens, after)
        self._service += cost
        for node in self._running[request].path:
            node.charge(cost)

    def progress_all(self, requests: Collection[Request], tokens: int) -> None:
        """Charged once per account instead of once per request: most of what a decode step costs here."""
        if self._token_price is None:
            super().progress_all(requests, tokens)
            return
        price = self._token_price * tokens
        self._service += price * len(requests)
        if len(requests) == len(self._running):  # all of them, which the accounts have counted
            for tenant in self.tenants.members.values():
                tenant.children.charge_running(price)
            self.tenants.charge_running(price)
            return
        counts = Counter(map(self._running.__getitem__, requests))
        for client, count in list(counts.items()):
            counts[client.path[0]] += count
        for account, count in counts.items():
            account.charge(price * count)

    def corrected(self, request: Request, *, extend_tokens: int, output_tokens: int) -> None:
        """Pay the difference, or get it back: then a deficit may exceed Q^u by what came back."""
        cost, paid = self._cost, request.paid_output_tokens
        charged = cost.output_cost(request.extend_tokens, paid, max(paid, request.output_tokens))
        due = cost.output_cost(extend_tokens, paid, max(paid, output_tokens))
        if request.charge_input:
            charged += cost.input_cost(request.input_work)
            due += cost.input_cost(extend_tokens + request.load_tokens)
        request.extend_tokens, request.output_tokens = extend_tokens, output_tokens
        more = due - charged
        self._service += more
        if more:
            for node in self._running[request].path:
                node.charge(more) if more > 0 else node.pay_back(-more)

    def served_elsewhere(self, client: str, tenant: str, service: float) -> None:
        self._service += service
        account = self.tenants.members.get(tenant)
        if account is None:
            return
        account.charge(service)
        own = account.children.members.get(client)
        if own is not None:
            own.charge(service)

    def requeue(self, request: Request, now_s: float) -> None:
        client = self._running.pop(request)
        for node in client.path:
            node.running -= 1
            node.waiting += 1
        self._queue = {request: client, **self._queue}  # first among equals: it came before them
        self._put(request, next(self._serials_of_retracted))
        self.client_queues[client.path[0]][client].move_to_end(request, last=False)
        request.charge_input = True  # this replica computes it again (R11)

    def leave(self, request: Request, now_s: float) -> None:
        if request in self._queue:
            for node in self._take_out(request, admitted=False).path:
                node.waiting -= 1
                node.level.leave_if_idle(node)
        else:
            for node in self._running.pop(request).path:
                node.running -= 1
                node.level.leave_if_idle(node)

    def waiting(self) -> Collection[Request]:
        return self._queue.keys()

    def __len__(self) -> int:
        return len(self._queue)

    def clients(self) -> Mapping[str, ClientState]:
        """Every client with a request here, or with a debt or a seed at one of the levels."""
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

    def _eligible(self) -> Iterator[Request]:
        """Lines 17 to 20: the requests to propose, each once. The answer to the last one must have been recorded."""
        if len(self._queue) == 1:
            return self._only()
        entries = eligible_entries(
            self.tenants, self.client_queues, self._first_of_tenant, self._of_tenant
        )
        return map(itemgetter(2), entries)

    def _only(self) -> Iterator[Request]:
        """A single request needs no order."""
        for client in self._queue.values():
            for node in client.path:
                if node.positive_from > node.level.horizon:
                    node.level.refill_to(node.positive_from)
        return iter(list(self._queue))

    def _of_tenant(self, tenant: Account) -> Iterator[Entry]:
        queues = self.client_queues[tenant]
        return eligible_entries(
            tenant.children,
            queues,
            lambda client: queues[client].first(),
            lambda client: queues[client].proposals(),
        )

    def _first_of_tenant(self, tenant: Account) -> Entry | None:
        """Without a merge: many tenants have one client."""
        queues = self.client_queues[tenant]
        if len(queues) > 1:
            return None
        for client, queue in queues.items():
            if client.positive_from > client.level.horizon:
                client.level.refill_to(client.positive_from)
            return queue.first()
        return None

    def _refuse(self, request: Request, outcome: AdmissionResult) -> None:
        """Record a request, or all the others of its client too, as refused in this pass."""
        client = self._queue[request]
        requests = 1
        if outcome is AdmissionResult.NO_SLOT:
            queue = self.client_queues[client.path[0]][client]
            queue.without_slot = request
            self._without_slot.append(queue)
        elif outcome in {AdmissionResult.CLIENT_LATER, AdmissionResult.CLIENT_HELD}:
            requests = client.waiting - client.refused
        is_held = outcome in {AdmissionResult.HELD, AdmissionResult.CLIENT_HELD}
        self._refused += client.path
        for node in client.path:
            node.refused += requests
            node.held += requests if is_held else 0

    def _put(self, request: Request, serial: int) -> None:
        client = self._queue[request]
        self.client_queues[client.path[0]][client].put(self._key(request), serial, request)

    def _take_out(self, request: Request, *, admitted: bool) -> Account:
        client = self._queue.pop(request)
        clients = self.client_queues[client.path[0]]
        clients[client].take_out(request, admitted=admitted)
        if not clients[client]:
            del clients[client]
            if not clients:
                del self.client_queues[client.path[0]]
        return client

    @property
    def quantum(self) -> float:
        """Q^u in force: weighted tokens per refill for weight 1."""
        return self.tenants.quantum

    def change_quantum(self, quantum: float) -> None:
        """Later refills give `quantum` per weight. The bounds hold with the largest quantum in force meanwhile."""
        for level in self._levels():
            level.change_quantum(quantum)

    def _begin_warmup(self, now_s: float) -> None:
        self._warm_at_s = now_s + self._warmup_s
        for level in self._levels():
            level.end_warmup()
            level.warming_up = True

    def _warm_up(self, now_s: float) -> None:
        if now_s >= self._warm_at_s:
            for level in self._levels():
                level.end_warmup()
            return
        self.tenants.begin_pass()
        for tenant in self.client_queues:
            tenant.children.begin_pass()

    def _levels(self) -> list[DeficitLevel]:
        return [self.tenants, *(tenant.children for tenant in self.tenants.known())]

    def _join(self, request: Request) -> Account:
        # R5: each level has its own seed, and the first one wins.
        tenant = self.tenants.join(
            request.tenant, weight=request.tenant_weight, seed=request.tenant_seed
        )
        if not tenant.waiting:
            tenant.children.end_debts()
        return tenant.children.join(
            request.client, weight=request.client_weight, seed=request.seed, parent=tenant
        )

    def _admit(self, request: Request) -> None:
        """Lines 22 to 24."""
        client = self._running[request] = self._take_out(request, admitted=True)
        cost = self._input_cost(request)
        self._service += cost
        for node in client.path:
            node.admit(cost)

    def _input_cost(self, request: Request) -> float:
        return self._cost.input_cost(request.input_work) if request.charge_input else 0.0

    def _queue_was_empty(self) -> None:
        self.tenants.end_debts()
        if self._measured is not None:
            self._measured.queue_was_empty()
