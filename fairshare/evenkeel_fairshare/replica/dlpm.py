"""Deficit longest prefix match: locality first, fairness kept (DLPM, Algorithm 1; design R1, R9).

A pass proposes the best of the requests whose tenant and client both have a positive deficit, by default the longest match
(`order`). Unlike the printed listing it searches again for each proposal. In the listing a refill continues the current walk, past warm requests
that it skipped while their client was in debt. A client with frequent refills would compute cold prefixes, while its warm
requests wait and lose their place in the cache.

No bound changes: the proofs depend on which members are positive, not on their order.
docs/design/0001-replica-policies.md lists our decisions where the listing is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping
from itertools import count as serials
from itertools import islice
from operator import itemgetter
from typing import ClassVar, Final

from evenkeel_fairshare.cost import Cost, LinearCost, flat_output_price
from evenkeel_fairshare.replica.contract import (
    AdmissionResult,
    Arrival,
    ClientDeficits,
    ReplicaPolicy,
    Request,
)
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel, DeficitRules, MeasuredQuantum
from evenkeel_fairshare.replica.order import LONGEST_MATCH, ClientQueue, Order, TenantQueue
from evenkeel_fairshare.replica.rounds import UNASKED, Rounds

ADMITTED: Final = AdmissionResult.ADMITTED
"""A pass compares each answer with it, and an attribute of an enum takes ten times as long as a name."""


def _deficits(client: Account) -> ClientDeficits:
    tenant = client.path[0]
    return ClientDeficits(
        deficit=client.deficit,
        tenant_deficit=tenant.deficit,
        waiting=client.waiting,
        seed=client.seed,
        tenant_seed=tenant.seed,
    )


class Dlpm(ReplicaPolicy):
    """Algorithm 1 on a tree of two levels; with a single tenant it is the flat algorithm.

    `skip_misfit`: go on past an eligible request that does not fit instead of ending the pass.
    `order`: which request of those with positive deficits goes first.
    `warmup_s`: time after its first request in which a replica defers refills (`DEFERRED_REFILLS`). It starts again when a
    request arrives at an empty replica. Clients arrive at a new replica one by one, and refills for the first ones would
    cancel the debts of these clients only (docs/design/0003).
    A pass never proposes the same request twice. A client or tenant that joins without a debt gets its first turn at once (R17).
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
        self._order = order
        self._queue: dict[Request, ClientQueue] = {}
        self._serials = serials()
        self._serials_of_retracted = serials(-1, -1)
        self._running: dict[Request, Account] = {}
        self._refused: dict[Account, ClientQueue] = {}
        """Clients of which the current pass refused a request."""
        self._warmup_s = warmup_s
        self._warm_at_s = 0.0
        rules = rules or DeficitRules()
        self.tenants = DeficitLevel(rules, warming_up=warmup_s > 0)
        self._changed: dict[Account, None] | None = None
        """Clients and tenants that changed since the last `news`, apart from charges to running requests and refills; None before the
        first `news`."""
        self.tenant_queues: Rounds[TenantQueue] = Rounds(self.tenants)
        """Tenant → queues of its clients with a waiting request."""
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
        self._note(client)
        for node in client.path:
            node.waiting += 1
        self._put(request, client, next(self._serials))
        return Arrival.QUEUED

    def admit_alone(self, request: Request, now_s: float) -> bool:
        """Admit a request without the queue: most requests at a router's gate find no other one there."""
        if self.tenants.warming_up:
            return False
        self._queue_was_empty()
        self._running[request] = client = self._join(request)
        work = request.extend_tokens + request.load_tokens
        cost = self._cost.input_cost(work) if request.charge_input else 0.0
        self._service += cost
        for node in client.path:
            node.running += 1
            if node.positive_from > node.level.horizon:
                node.level.refill_to(node.positive_from)
            node.charge(cost)
        return True

    def rematched(self, request: Request) -> None:
        queue = self._queue.get(request)
        if queue is not None:
            before, serial, *_ = queue[request]
            key = self._key(request)
            if key != before and queue.put(key, serial, request):
                self._moved(queue.account)

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        """Lines 16 to 24. Ends when memory is full, or when no other client is or becomes positive (§1.13 a)."""
        if self.tenants.warming_up and self._queue:
            self._warm_up(now_s)
        measured = self._measured
        if measured is not None and self._queue and measured.begin_pass(now_s, self._service):
            self.change_quantum(measured.value)
        # Cleared here and not after the pass: the engine may end a pass at any request.
        if self._refused:
            self._forget_refused()
        for request in self._eligible():
            outcome = yield request
            if outcome is ADMITTED:
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
        # All of them, which the accounts have counted; and not many accounts that only wait.
        if len(requests) == len(self._running) and len(self._queue) <= len(self._running):
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
        self._note(account)
        if own is not None:
            self._note(own)
            own.charge(service)

    def requeue(self, request: Request, now_s: float) -> None:
        client = self._running.pop(request)
        self._note(client)
        for node in client.path:
            node.running -= 1
            node.waiting += 1
        queue = self._put(request, client, next(self._serials_of_retracted))
        queue.move_to_end(request, last=False)
        self._moved(client)
        self._queue = {request: queue, **self._queue}  # first among equals: it came before them
        request.charge_input = True  # this replica computes it again (R11)

    def leave(self, request: Request, now_s: float) -> None:
        queue = self._queue.pop(request, None)
        if queue is not None:
            queue.take_out(request, admitted=False)
            if not queue:
                self._drop(queue)
            for node in queue.account.path:
                node.waiting -= 1
                node.level.leave_if_idle(node)
            self._note(queue.account)
            self._moved(queue.account)
        else:
            client = self._running.pop(request)
            self._note(client)
            for node in client.path:
                node.running -= 1
                node.level.leave_if_idle(node)

    def waiting(self) -> Collection[Request]:
        return self._queue.keys()

    def __len__(self) -> int:
        return len(self._queue)

    def clients(self) -> Mapping[str, ClientDeficits]:
        """Every client with a request here, or with a debt or a seed at one of the levels."""
        return {
            client.name: _deficits(client)
            for tenant in self.tenants.known()
            for client in tenant.children.known()
            if client.waiting
            or client.running
            or min(client.deficit, tenant.deficit) < 0
            or client.seed
            or tenant.seed
        }

    def news(self) -> Mapping[str, ClientDeficits]:
        """The states of clients that requests, charges or refills changed."""
        forgotten = dict(self.tenants.forgotten)
        self.tenants.forgotten.clear()
        if self._changed is None:
            self.tenants.refilled.clear()
            self._changed = {}
            return self.clients()
        self._note_refills()
        changed, self._changed = self._changed | dict.fromkeys(self._running.values()), {}
        tenants = [account for account in changed if account.level is self.tenants]
        for tenant in tenants:
            del changed[tenant]
        seen = {client.path[0] for client in changed}
        for tenant in tenants:
            if tenant not in seen:  # any client of it reports its deficit
                changed |= dict.fromkeys(islice(tenant.children.known(), 1))
        news = {client.name: _deficits(client) for client in changed}
        return news | {name: self._deficits_of(name, tenant) for name, tenant in forgotten.items()}

    def _deficits_of(self, client: str, tenant: str) -> ClientDeficits:
        of = self.tenants.find(tenant)
        found = of.children.find(client) if of is not None else None
        if found is not None:
            return _deficits(found)
        return ClientDeficits(0.0, of.deficit if of else 0.0, 0, 0.0, of.seed if of else 0.0)

    def _note(self, account: Account) -> None:
        if self._changed is not None:
            self._changed[account] = None
        else:
            self.tenants.forgotten.clear()

    def _note_refills(self) -> None:
        refilled = dict(self.tenants.refilled)
        self.tenants.refilled.clear()
        for level, since in refilled.items():
            for account in level.raised(since):
                self._note(account)

    def _eligible(self) -> Iterator[Request]:
        """Lines 17 to 20: the requests to propose, each once. The answer to the last one must have been recorded."""
        if len(self._queue) == 1:
            return self._only()
        moved = self.tenants.moved
        for account in moved:
            self._moved(account)
        moved.clear()
        return map(itemgetter(2), iter(self.tenant_queues.following, None))

    def _moved(self, account: Account) -> None:
        """What a tenant or client offers, or the refill that makes it eligible, may be another one."""
        queues = self.tenant_queues.get(account.path[0])
        if queues is None:
            return
        queue = queues.get(account)
        if queue is not None:
            queues.changed(queue)
        if queue is None or queues.item is not UNASKED:
            self.tenant_queues.changed(queues)

    def _only(self) -> Iterator[Request]:
        """A single request needs no order."""
        for queue in self._queue.values():
            for node in queue.account.path:
                if node.positive_from > node.level.horizon:
                    node.level.refill_to(node.positive_from)
                    self._sort()
        return iter(list(self._queue))

    def _refuse(self, request: Request, outcome: AdmissionResult) -> None:
        """Record a request, or all the others of its client too, as refused in this pass."""
        queue = self._queue[request]
        client, requests = queue.account, 1
        all_of_client = outcome in {AdmissionResult.CLIENT_LATER, AdmissionResult.CLIENT_HELD}
        is_held = outcome in {AdmissionResult.HELD, AdmissionResult.CLIENT_HELD}
        if outcome is AdmissionResult.NO_SLOT:
            queue.without_slot = request
        elif all_of_client:
            requests = client.waiting - client.refused
        queue.refuse(others=all_of_client)
        self._refused[client] = queue
        for node in client.path:
            node.refused += requests
            node.held += requests if is_held else 0
        queue.tenant.refuse(client, held=is_held)
        self.tenant_queues.refuse(client.path[0], held=is_held)

    def _forget_refused(self) -> None:
        """A pass begins: what the last one refused is proposed again."""
        refused, self._refused = self._refused, {}
        self.tenant_queues.begin()
        for queue in refused.values():
            queue.begin()
            queue.tenant.begin()
            for node in queue.account.path:
                node.refused = node.held = 0
        for client in refused:
            self._moved(client)

    def _put(self, request: Request, client: Account, serial: int) -> ClientQueue:
        tenant = client.path[0]
        queues = self.tenant_queues.get(tenant)
        if queues is None:
            queues = self.tenant_queues[tenant] = TenantQueue(tenant, self._order)
        self._queue[request] = queue = queues.of(client)
        if queue.put(self._key(request), serial, request):
            queues.changed(queue)
            if queues.item is not UNASKED:
                self.tenant_queues.changed(queues)
        return queue

    def _drop(self, queue: ClientQueue) -> None:
        """Remove the queue of a client without waiting requests."""
        queues = queue.tenant
        del queues[queue.account]
        if not queues:
            queues.clear()
            del self.tenant_queues[queues.account]

    @property
    def quantum(self) -> float:
        """Q^u in force: weighted tokens per refill for weight 1."""
        return self.tenants.quantum

    def change_quantum(self, quantum: float) -> None:
        """Later refills give `quantum` per weight. The bounds hold with the largest quantum in force meanwhile."""
        self._note_refills()  # afterwards no account shows which ones it got
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
            self._sort()
            return
        self.tenants.begin_pass()
        for tenant in self.tenant_queues:
            tenant.children.begin_pass()
        self._sort()

    def _sort(self) -> None:
        """Members may have ceased to be eligible although no charge ended a credit."""
        for queues in self.tenant_queues.values():
            queues.sort()
        self.tenant_queues.sort()

    def _levels(self) -> list[DeficitLevel]:
        return [self.tenants, *(tenant.children for tenant in self.tenants.known())]

    def _join(self, request: Request) -> Account:
        # R5: each level has its own seed, and the first one wins.
        tenant = self.tenants.members.get(request.tenant)
        if tenant is None or tenant.weight != request.tenant_weight:
            tenant = self.tenants.join(
                request.tenant, weight=request.tenant_weight, seed=request.tenant_seed
            )
        clients = tenant.children
        if not tenant.waiting:
            clients.end_debts()
        client = clients.members.get(request.client)
        if client is not None and client.weight == request.client_weight:
            return client
        return clients.join(
            request.client, weight=request.client_weight, seed=request.seed, parent=tenant
        )

    def _admit(self, request: Request) -> None:
        """Lines 22 to 24."""
        queue = self._queue.pop(request)
        queue.take_out(request, admitted=True)
        if not queue:
            self._drop(queue)
        self._running[request] = client = queue.account
        if self._changed is not None:
            self._changed[client] = None
        work = request.extend_tokens + request.load_tokens
        cost = self._cost.input_cost(work) if request.charge_input else 0.0
        self._service += cost
        for node in client.path:
            node.waiting -= 1
            node.running += 1
            node.charge(cost)
        self.tenants.moved.clear()  # only these two, which the rounds look at next

    def _queue_was_empty(self) -> None:
        self.tenants.end_debts()
        if self._measured is not None:
            self._measured.queue_was_empty()
