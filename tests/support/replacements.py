"""A fleet in virtual time whose replicas are replaced one after the other, under clients that always want more.

Engine, policy and reports are those of a simulated replica, books, ledger, D2LPM and the rules of moving those of the router; only what
goes over a network is not: reports, peers' messages and a new configuration arrive after a time by chance, and what was moved
is asked of the engine. A minute of the fleet takes about a second.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Final

from evenkeel_contract.key import decode
from evenkeel_contract.reportbook import ReportBook
from evenkeel_contract.reports import REPORT_VERSION, ReportRequest
from evenkeel_contract.routerconfig import ClientConfig, TenantConfig
from evenkeel_fairshare.bounds import dlpm_overshoot
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.fleet.contract import NOTHING, Dispatch, ReplicaSet, Usage
from evenkeel_fairshare.fleet.d2lpm import D2lpm
from evenkeel_fairshare.ledger import CarryRules, Ledger
from evenkeel_fairshare.replica.deficit import DEFERRED_REFILLS, DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_router.api.identity import UNPAID, Client, Paid, client_of
from evenkeel_router.ledger.accounting import Accounting, Booking
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.engine.request import EngineRequest

from tests.unit.evenkeel_simulator.engine_support import make_request

QUANTUM: Final = 500
POOL_TOKENS: Final = 4000
INPUT_TOKENS: Final = (230, 240)
OUTPUT_TOKENS: Final = 32
OVERSHOOT: Final = round(dlpm_overshoot(max_input_tokens=256, memory_tokens=POOL_TOKENS))
COST: Final = LinearCost(1.0, 2.0)
REPORT_S: Final = 1.0
DRAINING_S: Final = 0.1
WEIGHTS: Final = {"gold": 4, "bronze": 1}


def _client(name: str, weight: int) -> Client:
    tenant = TenantConfig(
        namespace="ns", name=name, weight=weight, clients=(ClientConfig(name="a", weight=1),)
    )
    return client_of(tenant, "a")


CLIENTS: Final = {name: _client(name, weight) for name, weight in WEIGHTS.items()}


class Weighed:
    """The tenants' weights, for ledgers."""

    def client(self, client: str) -> float:
        return 1.0

    def tenant(self, tenant: str) -> float:
        return float(WEIGHTS[tenant.rpartition("/")[2]])


@dataclass(eq=False)
class OpenRequest:
    """One request at one replica."""

    who: str
    input_tokens: int
    request: EngineRequest
    router: Router
    replica: Replica
    slot: int
    dispatch: Dispatch
    booking: Booking


class Replica:
    """An engine, its policy, and what it reports."""

    def __init__(self, name: str, *, warmup_s: float) -> None:
        self.name = name
        self.policy = Dlpm(rules=DeficitRules(quantum=QUANTUM), cost=COST, warmup_s=warmup_s)
        config = EngineConfig(kv_tokens=POOL_TOKENS, admission=AdmissionRule.RESERVATION)
        self.engine = Engine(config, self.policy, PROFILES["a100-llama3.1-8b"], cost=COST)
        self.book = ReportBook(incarnation=name, policy="DLPM")
        self.open_requests: dict[str, OpenRequest] = {}

    @property
    def service(self) -> dict[str, float]:
        """What each client was served here."""
        clients = self.engine.accounts.clients
        found = {name: clients.get(client.identity) for name, client in CLIENTS.items()}
        return {name: totals.service if totals else 0.0 for name, totals in found.items()}


class Router:
    """One router's share of the fleet's state."""

    def __init__(self, fleet: Fleet, name: str, members: frozenset[str]) -> None:
        self._fleet = fleet
        deferred_refills = DEFERRED_REFILLS if fleet.warmup_s else 0
        rules = CarryRules(quantum=QUANTUM, overshoot=OVERSHOOT, deferred_refills=deferred_refills)
        self.ledger = Ledger(name, rules=rules, weights=Weighed())
        self.ledger.members = members
        self.accounting = Accounting(self.ledger, cost=COST)
        self.policy = D2lpm(worker_quantum=4 * QUANTUM, cost=COST)
        self.replicas: list[Replica] = []
        """By slot."""
        self._load: list[int] = []
        self._routable = ReplicaSet(0)
        self.held: list[tuple[str, int, Paid]] = []

    def meet(self, replica: Replica) -> None:
        """The configuration names a replica."""
        self.accounting.meets(replica.name, replica.name, policy="DLPM", now_s=self._fleet.now_s)
        slot = len(self.replicas)
        self.replicas.append(replica)
        self._load.append(0)
        self.policy.joined(slot)
        self._routable = ReplicaSet(self._routable | 1 << slot)
        self._ask_on(replica)
        held, self.held = self.held, []
        for waiting in held:
            self.send(*waiting)

    def drain(self, replica: Replica) -> None:
        """The configuration names it no longer."""
        slot = self.replicas.index(replica)
        self._routable = ReplicaSet(self._routable & ~(1 << slot))
        self.policy.left(slot)
        self.accounting.drains(replica.name)
        self.accounting.leaves(replica.name, self._fleet.now_s)

    def exchange(self) -> None:
        """Pull what all peers know."""
        for peer in self._fleet.routers:
            if peer is not self:
                self.ledger.merge(peer.ledger.delta(self.ledger.digest()))
        self.accounting.close(self._fleet.now_s, settled=True)
        self._fleet.later(REPORT_S, self.exchange)

    def send(self, who: str, input_tokens: int, paid: Paid) -> None:
        """Choose a replica for a request."""
        if not self._routable:
            self.held.append((who, input_tokens, paid))
            return
        client = CLIENTS[who]
        dispatch = Dispatch(
            client=client.identity, input_tokens=input_tokens, weight=client.weight,
            longest=self._routable,
        )  # fmt: skip
        slot = self.policy.select(dispatch, self._routable, self._load)
        assert slot is not None
        replica = self.replicas[slot]
        self._load[slot] += 1
        self.policy.dispatched(dispatch, slot)
        booking = self.accounting.sends(
            replica.name, client, paid=paid,
            now_s=self._fleet.now_s,
        )  # fmt: skip
        request = self._fleet.request(client, input_tokens, booking.key)
        open_request = OpenRequest(
            who, input_tokens, request, self, replica, slot, dispatch, booking
        )
        replica.open_requests[request.id] = open_request
        self._fleet.later(self._fleet.lag_s(), self._arrive, open_request)

    def ended(self, open_request: OpenRequest) -> None:
        """A request was served."""
        self._load[open_request.slot] -= 1
        usage = Usage(open_request.input_tokens, 0, open_request.request.output_tokens)
        self.policy.finished(open_request.dispatch, open_request.slot, usage)
        self.accounting.ended(open_request.booking, usage)

    def _arrive(self, open_request: OpenRequest) -> None:
        if open_request.request.id in open_request.replica.open_requests:
            open_request.replica.engine.submit(open_request.request, self._fleet.now_s)

    def _ask_on(self, replica: Replica) -> None:
        """A report, and on with the next."""
        if replica not in self._fleet.living:
            return
        replica.book.update(replica.engine.accounts.clients, replica.policy.clients())
        since = int(self.ledger.sequence(replica.name))
        report = replica.book.answer(ReportRequest(REPORT_VERSION, replica.name, since))
        self.accounting.observe(
            replica.name, report.clients, policy="DLPM", sequence=report.sequence,
            since=report.since,
        )  # fmt: skip
        drains = self.accounting.is_draining(replica.name)
        if drains:
            self._take_back(replica)
        self._fleet.later(DRAINING_S if drains else REPORT_S, self._ask_on, replica)

    def _take_back(self, replica: Replica) -> None:
        theirs: defaultdict[str, list[OpenRequest]] = defaultdict(list)
        for open_request in replica.open_requests.values():
            if open_request.router is self and not open_request.request.output_tokens:
                theirs[open_request.who].append(open_request)
        for who, unanswered in theirs.items():
            identity = CLIENTS[who].identity
            held = self.accounting.held(replica.name, identity)
            count = held.waiting_here(
                self.accounting.open_at(replica.name, identity), len(unanswered)
            )
            for open_request in unanswered[len(unanswered) - count :]:
                del replica.open_requests[open_request.request.id]
                self._fleet.later(self._fleet.lag_s(), self._moved, open_request)

    def _moved(self, open_request: OpenRequest) -> None:
        open_request.replica.engine.abort(open_request.request.id, self._fleet.now_s)
        self._load[open_request.slot] -= 1
        began = open_request.request.admitted_s is not None
        made = open_request.request.output_tokens
        usage = Usage(open_request.input_tokens, 0, made) if began else NOTHING
        self.accounting.ended(open_request.booking, usage)
        before = open_request.booking.paid
        paid = Paid(True, max(before.output_tokens, made)) if began else before
        self._fleet.later(DRAINING_S, self.send, open_request.who, open_request.input_tokens, paid)


@dataclass(eq=False)
class Fleet:
    """Everything, and the time. Clients keep as many requests open as `opened` says."""

    rng: Random
    opened: dict[str, int]
    warmup_s: float
    ingress: tuple[float, ...] = (95.0, 5.0)
    """Of each router."""
    most_lag_s: float = 0.2
    """Of requests and answers on their way, on a machine that has much to do."""
    now_s: float = 0.0
    living: list[Replica] = field(default_factory=list)
    gone: Counter[str] = field(default_factory=Counter)
    """Served by replicas that are gone."""

    def __post_init__(self) -> None:
        self._news: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0
        members = frozenset(f"router-{n}" for n in range(len(self.ingress)))
        self.routers = [Router(self, name, members) for name in sorted(members)]
        for router in self.routers:
            self.later(self.rng.random(), router.exchange)

    def later(self, after_s: float, do: Callable[..., None], *what: object) -> None:
        """Let something happen."""
        self._count += 1
        heappush(self._news, (self.now_s + after_s, self._count, do, what))

    def lag_s(self) -> float:
        return 0.002 + self.rng.random() * self.most_lag_s

    def request(self, client: Client, input_tokens: int, key: str) -> EngineRequest:
        """As the replica reads it."""
        self._count += 1
        said = decode(key)
        made = make_request(
            str(self._count), tail=input_tokens, output=OUTPUT_TOKENS, max_output=OUTPUT_TOKENS,
            client=client.identity,
        )  # fmt: skip
        made.client_weight, made.tenant_weight = said.client_weight, said.tenant_weight
        made.seed, made.tenant_seed = said.seed, said.tenant_seed
        made.charge_input = not said.retried_by_fleet
        made.paid_output_tokens = said.paid_output_tokens
        return made

    def add(self) -> Replica:
        """A replica joins; every router hears of it within a second."""
        self._count += 1
        replica = Replica(f"r{self._count}", warmup_s=self.warmup_s)
        self.living.append(replica)
        for router in self.routers:
            self.later(self.rng.random(), router.meet, replica)
        return replica

    def begin(self, replicas: int = 2) -> None:
        """So many replicas, everybody's requests, and time for them to queue."""
        for _ in range(replicas):
            self.add()
        self.run(2.5)
        for who, count in self.opened.items():
            for _ in range(count):
                self._ask(who)
        self.run(6.0)

    def replace(self, between_s: float) -> None:
        """A replica joins, the oldest drains, serves what runs there, and is gone."""
        oldest = self.living[0]
        self.add()
        self.run(between_s)
        for router in self.routers:
            self.later(self.rng.random(), router.drain, oldest)
        self.run(4.0)
        while oldest.open_requests:
            self.run(0.2)
        self.living.remove(oldest)
        self.gone.update(oldest.service)
        self.run(between_s)

    def lead(self) -> float:
        """Gold's service over its weight, less bronze's."""
        served = self.gone.copy()
        for replica in self.living:
            served.update(replica.service)
        return served["gold"] / WEIGHTS["gold"] - served["bronze"] / WEIGHTS["bronze"]

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until_s = self.now_s + seconds
        while True:
            step_s, replica = min(self._steps(), default=(until_s, None), key=lambda one: one[0])
            news_s = self._news[0][0]
            if min(step_s, news_s) > until_s or (replica is None and news_s > until_s):
                self.now_s = until_s
                return
            if replica is not None and step_s <= news_s:
                self.now_s = step_s
                self._step(replica)
            else:
                self.now_s, _, do, what = heappop(self._news)
                do(*what)

    def _steps(self) -> list[tuple[float, Replica | None]]:
        found: list[tuple[float, Replica | None]] = []
        for replica in self.living:
            if replica.engine.busy_until_s is None:
                replica.engine.start(self.now_s, self.now_s)
            if (end_s := replica.engine.busy_until_s) is not None:
                found.append((end_s, replica))
        return found

    def _step(self, replica: Replica) -> None:
        for request in replica.engine.finish().finished:
            open_request = replica.open_requests.pop(request.id, None)
            if open_request is not None:
                open_request.router.ended(open_request)
                self.later(self.lag_s(), self._ask, open_request.who)

    def _ask(self, who: str) -> None:
        (router,) = self.rng.choices(self.routers, self.ingress)
        router.send(who, self.rng.randint(*INPUT_TOKENS), UNPAID)
