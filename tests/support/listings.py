"""The papers' listings, as literally as Python allows and as slow as they look, to test the policies against.

Only what a listing leaves open follows ALGORITHMS §1.13. Nothing here is shared with the policies, but that
`SearchedDlpm` has the accounts of `Dlpm`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping
from typing import Any, ClassVar

from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.replica.contract import AdmissionResult, Arrival, ReplicaPolicy, Request
from evenkeel_fairshare.replica.deficit import Account, DeficitLevel
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.rounds import HELD_REFILLS


class ListedVtc(ReplicaPolicy):
    """VTC, Algorithm 2: never forgets a client, looks at all clients for every choice."""

    name: ClassVar[str] = "VTC as listed"
    matches_prefix: ClassVar[bool] = False

    def __init__(self, cost: Cost | None = None) -> None:
        self.cost = cost or LinearCost()
        self.c: dict[str, float] = {}
        self.w: dict[str, float] = {}
        self.queue: list[Request] = []
        self.last: str | None = None

    def arrive(self, request: Request, now_s: float) -> Arrival:
        self._lift(request.client)
        self.w[request.client] = request.tenant_weight * request.client_weight
        self.queue.append(request)
        return Arrival.QUEUED

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        while self.queue:
            k = min({r.client for r in self.queue}, key=lambda i: (self.c[i], i))  # line 20
            r = next(r for r in self.queue if r.client == k)  # line 21
            if (yield r) is AdmissionResult.NO_ROOM:
                return
            self._admit(r)
            self._remove(r)

    def progress(self, request: Request, tokens: int) -> None:
        now = request.output_tokens
        self._charge(request, self.cost.output_cost(request.input_tokens, now - tokens, now))

    def requeue(self, request: Request, now_s: float) -> None:
        self._lift(request.client)
        self.queue.insert(0, request)
        request.charge_input = True

    def leave(self, request: Request, now_s: float) -> None:
        if request in self.queue:
            self._remove(request)

    def waiting(self) -> Iterable[Request]:
        return self.queue

    def __len__(self) -> int:
        return len(self.queue)

    def _lift(self, u: str) -> None:
        self.c.setdefault(u, 0.0)
        waiting = {r.client for r in self.queue}
        if u not in waiting:  # line 7
            if not self.queue:
                lifted = self.c[self.last] if self.last is not None else 0.0  # lines 9, 10
            else:
                lifted = min(self.c[i] for i in waiting)  # lines 12, 13
            self.c[u] = max(self.c[u], lifted)

    def _admit(self, r: Request) -> None:
        if r.charge_input:  # line 24
            self._charge(r, self.cost.input_cost(r.input_tokens + r.output_tokens))

    def _charge(self, request: Request, cost: float) -> None:
        self.c[request.client] += cost / self.w[request.client]

    def _remove(self, request: Request) -> None:
        self.queue.remove(request)
        if all(r.client != request.client for r in self.queue):
            self.last = request.client


class ListedPredictedVtc(ListedVtc):
    """VTC, Algorithm 3, with the mean of the last five of the client for a predictor."""

    name: ClassVar[str] = "VTC with prediction as listed"

    def __init__(self, cost: Cost | None = None) -> None:
        super().__init__(cost)
        self.over: dict[str, list[int]] = {}
        self.predicted: dict[Request, int] = {}

    def progress(self, request: Request, tokens: int) -> None:
        now = request.output_tokens
        for n in range(now - tokens + 1, now + 1):
            if n > self.predicted[request]:  # line 31
                self._charge(request, self.cost.output_cost(request.input_tokens, n - 1, n))

    def requeue(self, request: Request, now_s: float) -> None:
        self._refund(request)
        super().requeue(request, now_s)

    def leave(self, request: Request, now_s: float) -> None:
        if request not in self.queue:
            self._refund(request)
            self.over.setdefault(request.client, []).append(request.output_tokens)
        super().leave(request, now_s)

    def _admit(self, r: Request) -> None:
        super()._admit(r)
        last = self.over.get(r.client, [])[-5:]
        mean = round(sum(last) / len(last)) if last else 0
        self.predicted[r] = max(min(mean, r.max_output_tokens), r.output_tokens)
        self._charge(
            r, self.cost.output_cost(r.input_tokens, r.output_tokens, self.predicted[r])
        )  # line 25

    def _refund(self, request: Request) -> None:
        made, paid = request.output_tokens, self.predicted[request]
        if made < paid:  # line 33
            self._charge(request, -self.cost.output_cost(request.input_tokens, made, paid))


class ListedLcf(ListedVtc):
    """Algorithm 2 without lines 7 to 13."""

    name: ClassVar[str] = "LCF as listed"

    def _lift(self, u: str) -> None:
        self.c.setdefault(u, 0.0)


class ListedDlpm(ReplicaPolicy):
    """DLPM, Algorithm 1: flat, refills one quantum at a time over the whole list.

    With `keep_debt` debts fade (design R15): refills reduce the debts of clients that left, to less than a quantum, and all debts end
    when a request arrives and none waits. With `first_turn` too, a client that joins without a debt gets the quantum of the current
    round, unless it was here in that round, or its debt got that quantum (R17).
    """

    name: ClassVar[str] = "DLPM as listed"
    matches_prefix: ClassVar[bool] = True

    def __init__(
        self, quantum: float, *, keep_debt: bool, first_turn: bool = False, cost: Cost | None = None
    ) -> None:
        self.refill_tokens = quantum
        self.keep_debt = keep_debt
        self.first_turn = keep_debt and first_turn
        self.round = 0
        self.last_round: dict[str, int] = {}
        """The last round of which a client that left got the quantum."""
        self.debts_end = 0
        """The round by which each debt, as of its last change, is paid."""
        self.cost = cost or LinearCost()
        self.l: list[str] = []
        self.q: dict[str, float] = {}
        self.w: dict[str, float] = {}
        self.queue: list[Request] = []
        self.batch: list[Request] = []

    def arrive(self, request: Request, now_s: float) -> Arrival:
        i = request.client
        if self.keep_debt and not self.queue:
            self.end_debts()
        if i not in self.l:  # line 12
            self.w.setdefault(i, request.client_weight)
            self.join(i, request.seed)
            self.l.append(i)
            self.changed(i)
        self.w[i] = request.client_weight
        self.changed(i)
        self.queue.append(request)
        return Arrival.QUEUED

    def changed(self, i: str) -> None:
        missing = int(-self.q[i] // (self.refill_tokens * self.w[i])) + 1
        self.debts_end = max(self.debts_end, self.round + missing)

    def join(self, i: str, seed: float) -> None:
        turn = self.refill_tokens * self.w[i] if self.first_turn and self.round else 0.0
        if i not in self.q:
            self.q[i] = seed if seed < 0 else max(seed, turn)
        elif self.q[i] == 0 and self.last_round[i] < self.round:
            self.q[i] = turn

    def end_debts(self) -> None:
        for j in self.q:
            now = self.round
            while self.q[j] <= 0 and self.refill(j, now + 1):
                now += 1
        self.round = max(self.round, self.debts_end)

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        # Line 16. `queue` stays in order of arrival, so that equals always go in that order.
        order = sorted(self.queue, key=lambda r: -r.matched_tokens)
        moved = True
        while self.queue and moved:  # line 17
            moved = False
            for r in [r for r in order if r in self.queue]:
                i = r.client
                if self.q[i] <= 0:
                    moved |= self.check_refill()
                if self.q[i] > 0:
                    if (yield r) is AdmissionResult.NO_ROOM:
                        return
                    self.admit(r)
                    moved = True

    def admit(self, r: Request) -> None:
        """Lines 22 to 24."""
        self.queue.remove(r)
        self.batch.append(r)
        if r.charge_input:
            self.q[r.client] -= self.cost.input_cost(r.extend_tokens)
            self.changed(r.client)

    def progress(self, request: Request, tokens: int) -> None:
        now = request.output_tokens
        cost = self.cost.output_cost(request.extend_tokens, now - tokens, now)
        self.q[request.client] -= cost
        self.changed(request.client)

    def requeue(self, request: Request, now_s: float) -> None:
        self.batch.remove(request)
        self.queue.insert(0, request)
        request.charge_input = True

    def leave(self, request: Request, now_s: float) -> None:
        (self.queue if request in self.queue else self.batch).remove(request)
        if all(r.client != request.client for r in (*self.queue, *self.batch)):
            self.l.remove(request.client)
            self.q[request.client] = min(self.q[request.client], 0.0) if self.keep_debt else 0.0
            self.last_round[request.client] = self.round

    def waiting(self) -> Iterable[Request]:
        return self.queue

    def __len__(self) -> int:
        return len(self.queue)

    def check_refill(self) -> bool:
        """Lines 3 to 8; whether there was a refill."""
        queued = {r.client for r in self.queue}
        refilled = False
        while all(self.q[i] <= 0 for i in queued):  # lines 4, 5, and §1.13 b
            self.round += 1
            for i in self.q if self.keep_debt else self.l:
                self.refill(i, self.round)
            refilled = True
        return refilled

    def refill(self, i: str, number: int) -> bool:
        """Line 7; whether the client got a quantum. A client that left gets none that would make it positive."""
        quantum = self.refill_tokens * self.w[i]
        due = self.q[i] <= 0 and (i in self.l or self.q[i] + quantum <= 0)
        if due:
            self.q[i] += quantum
            self.last_round[i] = number
        return due


class SearchedDlpm(Dlpm):
    """DLPM that looks for the best request of a positive client, of light clients first, from the top again before every proposal."""

    name: ClassVar[str] = "DLPM longest first"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._max_overtaken = options["order"].max_overtaken
        self._overtaken: Counter[Request] = Counter()

    def _oldest(self, client: Account) -> Request:
        return next(r for r, queue in self._queue.items() if queue.account is client)

    def _admit(self, request: Request) -> None:
        oldest = self._oldest(self._queue[request].account)
        self._overtaken[oldest] += oldest is not request
        super()._admit(request)

    def _may_go(
        self, r: Request, order: list[Request], accounts: Mapping[Request, Account]
    ) -> bool:
        oldest = self._oldest(accounts[r])
        too_often = self._overtaken[oldest] >= self._max_overtaken
        return r is oldest or not too_often or oldest not in order

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        order = sorted(self._queue, key=self._key)
        accounts = {r: queue.account for r, queue in self._queue.items()}
        kept_waiting: set[DeficitLevel] = set()
        for account in {node for client in accounts.values() for node in client.path}:
            account.held = 0
        while (r := self._best(order, accounts, kept_waiting)) is not None:
            order.remove(r)
            light = {node.level for node in accounts[r].path if node.is_light}
            outcome = yield r
            if outcome is AdmissionResult.ADMITTED:
                self._admit(r)
            elif outcome is AdmissionResult.NO_ROOM and not self._skip_misfit:
                return
            elif outcome is AdmissionResult.HELD:
                for node in accounts[r].path:
                    node.held += 1
            else:
                kept_waiting |= light

    def _best(
        self,
        order: list[Request],
        accounts: Mapping[Request, Account],
        kept_waiting: set[DeficitLevel],
    ) -> Request | None:
        stuck: set[Account] = set()
        while True:
            tenants = {accounts[r].path[0] for r in order}
            for tenant in tenants:
                clients = {accounts[r] for r in order if accounts[r].path[0] is tenant}
                in_debt = tenant.deficit > 0 and all(client.deficit <= 0 for client in clients)
                if in_debt and not self._refill(tenant.children, accounts):
                    stuck.add(tenant)
            positive = [
                r
                for r in order
                if all(
                    node.deficit > 0 and (node.is_light or node.level not in kept_waiting)
                    for node in accounts[r].path
                )
                and self._may_go(r, order, accounts)
            ]
            if positive:
                # min keeps the order: of each tenant its best client's, of these the best tenant's.
                of_tenants = [
                    min(
                        (r for r in positive if accounts[r].path[0] is tenant),
                        key=lambda r: not accounts[r].is_light,
                    )
                    for tenant in dict.fromkeys(accounts[r].path[0] for r in positive)
                ]
                return min(
                    of_tenants, key=lambda r: (not accounts[r].path[0].is_light, order.index(r))
                )
            before = self.tenants.refills
            if all(tenant.deficit <= 0 for tenant in tenants - stuck) and tenants:
                self._refill(self.tenants, accounts, stuck)
            if self.tenants.refills == before:
                return None

    @staticmethod
    def _refill(
        level: DeficitLevel, accounts: Mapping[Request, Account], stuck: Collection[Account] = ()
    ) -> bool:
        """CheckRefill. False: while one is held, the others get no refill, since they need too many. `stuck`: members inside of
        which that was so."""
        members = {node for one in accounts.values() for node in one.path if node.level is level}
        asking = [one for one in members if one.waiting > one.held and one not in stuck]
        if not asking or any(one.positive_from <= level.refills for one in asking):
            return True
        needed = min(one.positive_from for one in asking)
        held = any(one.held for one in members if one.positive_from <= level.refills)
        if held and needed > level.refills + HELD_REFILLS:
            return False
        level.refill_to(needed)
        return True


class ListedDrr(ReplicaPolicy):
    """Adapted DRR of the VTC paper's App. C.2: goes round the ring, one quantum at a time."""

    name: ClassVar[str] = "DRR as listed"
    matches_prefix: ClassVar[bool] = False

    def __init__(self, quantum: float, cost: Cost | None = None) -> None:
        self.refill_tokens = quantum
        self.cost = cost or LinearCost()
        self.ring: dict[int, str] = {}
        self.joined = 0
        self.turn = 0
        self.c: dict[str, float] = {}
        self.w: dict[str, float] = {}
        self.queue: list[Request] = []
        self.batch: list[Request] = []

    def arrive(self, request: Request, now_s: float) -> Arrival:
        if request.client not in self.c:
            self.joined += 1
            self.ring[self.joined] = request.client
            self.c[request.client] = 0.0
        self.w[request.client] = request.tenant_weight * request.client_weight
        self.queue.append(request)
        return Arrival.QUEUED

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        while self.queue:
            i = self.ring.get(self.turn)
            own = [r for r in self.queue if r.client == i]
            if i is None or not own or self.c[i] <= 0:
                self._next_turn()
                continue
            if (yield own[0]) is AdmissionResult.NO_ROOM:
                return
            self.queue.remove(own[0])
            self.batch.append(own[0])
            if own[0].charge_input:
                self.c[i] -= self.cost.input_cost(own[0].input_tokens + own[0].output_tokens)

    def progress(self, request: Request, tokens: int) -> None:
        now = request.output_tokens
        cost = self.cost.output_cost(request.input_tokens, now - tokens, now)
        self.c[request.client] -= cost

    def requeue(self, request: Request, now_s: float) -> None:
        self.batch.remove(request)
        self.queue.insert(0, request)
        request.charge_input = True

    def leave(self, request: Request, now_s: float) -> None:
        (self.queue if request in self.queue else self.batch).remove(request)
        self._let_go(request.client)

    def waiting(self) -> Iterable[Request]:
        return self.queue

    def __len__(self) -> int:
        return len(self.queue)

    def _next_turn(self) -> None:
        self.turn = min((seat for seat in self.ring if seat > self.turn), default=min(self.ring))
        i = self.ring[self.turn]
        waits = any(r.client == i for r in self.queue)
        if self.c[i] < 0 or (waits and self.c[i] == 0):
            self.c[i] += self.refill_tokens * self.w[i]
        self._let_go(i)

    def _let_go(self, i: str) -> None:
        """Out of the ring, if it has neither requests nor debts."""
        if self.c[i] >= 0 and all(r.client != i for r in (*self.queue, *self.batch)):
            self.ring = {seat: client for seat, client in self.ring.items() if client != i}
            del self.c[i]
