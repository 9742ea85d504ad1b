"""Fleets under churn: replicas that come, go and crash under an adversary, with the real ledger between them.

Every client is backlogged on every live replica all the time, which is the premise of the bound (design R7). Two
kinds of replica: `GameReplica` lets the adversary choose every admission and overshoot that the deficit rules
allow; `DlpmReplica` runs the real policy over a small memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import Protocol

from evenkeel_fairshare.ledger import (
    CarryRules,
    CompactionRules,
    Compactor,
    Ledger,
    ReplicaRow,
    promise,
    tenant_of,
)
from evenkeel_fairshare.replica.contract import AdmissionResult, ClientDeficits, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_laboratory.policies.registry import PrintedDlpm


@dataclass(frozen=True, slots=True)
class Seeds:
    client: float = 0.0
    tenant: float = 0.0


class Weighing(Protocol):
    def client(self, client: str) -> float: ...

    def tenant(self, tenant: str) -> float: ...


@dataclass
class Client:
    """What a replica knows of a client."""

    served: float = 0.0
    normalised: float = 0.0
    tenant_normalised: float = 0.0
    deficit: float = 0.0
    tenant_deficit: float = 0.0
    seed: float = 0.0
    tenant_seed: float = 0.0


class Replica(Protocol):
    clients: dict[str, Client]
    away: set[str]
    sequence: int

    def meet(self, client: str, seeds: Seeds) -> None: ...

    def progress(self, rng: Random, favourite: str | None) -> None: ...


class GameReplica:
    """One level, no engine: any client with credit may be served, down to just above -U.

    While refills are deferred, so many quanta of debt count as credit. Who joins without a debt gets the quantum of the current
    round, once (R17).
    """

    def __init__(
        self, *, quantum: float, overshoot: float, weights: Weighing, deferred_refills: int = 0
    ) -> None:
        self.quantum = quantum
        self.overshoot = overshoot
        self.weights = weights
        self.deferred_refills = deferred_refills
        self.clients: dict[str, Client] = {}
        self.away: set[str] = set()
        self.round = 0
        self.last_round: dict[str, int] = {}
        """The last round of which a client that is away got the quantum."""
        self.sequence = 0

    def leave(self, client: str) -> None:
        """Nothing waits, nothing runs: credit is forfeited (R4); a debt stays, and fades (R15)."""
        self.away.add(client)
        known = self.clients[client]
        known.deficit = min(known.deficit, 0.0)
        self.last_round[client] = self.round
        self.sequence += 1

    def come_back(self, client: str) -> None:
        self.away.discard(client)
        known = self.clients[client]
        if known.deficit == 0 and self.last_round[client] < self.round:
            known.deficit = self.quantum * self.weights.client(client)
        self.sequence += 1

    def meet(self, client: str, seeds: Seeds) -> None:
        deficit = seeds.client
        if deficit >= 0 and self.round:
            deficit = max(deficit, self.quantum * self.weights.client(client))
        self.clients[client] = Client(deficit=deficit, seed=seeds.client)
        self.sequence += 1

    def progress(self, rng: Random, favourite: str | None) -> None:
        """Serve the favourite whenever that is allowed, all that is allowed; else anybody anything."""
        self.sequence += 1
        self._refill()
        positive = [name for name, client in self._waiting() if self._credit(name) > 0]
        name = favourite if favourite in positive else rng.choice(positive)
        most = self._credit(name) + self.overshoot - 1
        self.serve(name, most if name == favourite else float(rng.randint(1, max(1, int(most)))))
        self._refill()

    def serve(self, name: str, amount: float) -> None:
        """Without asking whether it is allowed."""
        client = self.clients[name]
        client.deficit -= amount
        client.served += amount
        client.normalised += amount / self.weights.client(name)

    def _credit(self, name: str) -> float:
        given = self.deferred_refills * self.quantum * self.weights.client(name)
        return self.clients[name].deficit + given

    def _waiting(self) -> list[tuple[str, Client]]:
        return [item for item in self.clients.items() if item[0] not in self.away]

    def _refill(self) -> None:
        waiting = self._waiting()
        if any(self._credit(name) > 0 for name, _ in waiting):
            return
        rounds = min(
            int(-self._credit(name) // (self.quantum * self.weights.client(name))) + 1
            for name, _ in waiting
        )
        for name, client in waiting:
            client.deficit += rounds * self.quantum * self.weights.client(name)
        for name in self.away:  # debts fade, to less than a quantum (R15)
            client, quantum = self.clients[name], self.quantum * self.weights.client(name)
            if paid := min(rounds, int(-client.deficit // quantum)):
                client.deficit += paid * quantum
                self.last_round[name] = self.round + paid
        self.round += rounds


@dataclass
class DlpmReplica:
    """The real policy, one token per running request and step; memory is reserved (ALGORITHMS §7 A1)."""

    quantum: float
    memory_tokens: int
    max_input: int
    max_output: int
    weights: Weighing
    warmup_s: float = 0.0
    """Steps."""
    longest_first: bool = False
    clients: dict[str, Client] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    sequence: int = 0

    def __post_init__(self) -> None:
        make = Dlpm if self.longest_first else PrintedDlpm
        self.policy = make(rules=DeficitRules(quantum=self.quantum), warmup_s=self.warmup_s)
        self._now_s = 0.0
        self._seeds: dict[str, Seeds] = {}
        self._lengths: dict[Request, int] = {}
        self._running: list[Request] = []
        self._names = 0

    @property
    def overshoot(self) -> float:
        return self.max_input + 2 * self.memory_tokens

    def meet(self, client: str, seeds: Seeds) -> None:
        self.clients[client] = Client()
        self._seeds[client] = seeds
        self._submit(client, Random(self._names), long=False)
        self._note_state()

    def leave(self, client: str) -> None:
        """Abort everything: what was computed stays charged (R11)."""
        for request in [one for one in self._lengths if one.client == client]:
            del self._lengths[request]
            self.policy.leave(request, self._now_s)
        self._running = [one for one in self._running if one.client != client]
        self.away.add(client)
        self._note_state()

    def come_back(self, client: str) -> None:
        self.away.discard(client)
        self._submit(client, Random(self._names), long=False)
        self._note_state()

    def progress(self, rng: Random, favourite: str | None) -> None:
        """One batching step. The favourite's requests are long; everybody always waits."""
        self._now_s += 1.0
        self._fill_queues(rng, favourite)
        self._admit()
        for request in list(self._running):
            request.output_tokens += 1
            self.policy.progress(request, 1)
            self._charge(request, 2.0)
            if request.output_tokens == self._lengths[request]:
                self._running.remove(request)
                del self._lengths[request]
                self.policy.leave(request, self._now_s)
        self._note_state()

    def _fill_queues(self, rng: Random, favourite: str | None) -> None:
        waiting = Counter(request.client for request in self.policy.waiting())
        # More than one pass can admit, so that everybody still waits whenever there is a refill.
        enough = self.memory_tokens // (1 + self.max_output) + 1
        for name in [name for name in self.clients if name not in self.away]:
            for _ in range(enough - waiting[name]):
                self._submit(name, rng, long=name == favourite)

    def _submit(self, name: str, rng: Random, *, long: bool) -> None:
        self._names += 1
        request = Request(
            id=str(self._names),
            client=name,
            tenant=tenant_of(name),
            arrival_s=self._now_s,
            input_tokens=self.max_input if long else rng.randint(1, self.max_input),
            max_output_tokens=self.max_output,
            client_weight=self.weights.client(name),
            tenant_weight=self.weights.tenant(tenant_of(name)),
            seed=self._seeds[name].client,
            tenant_seed=self._seeds[name].tenant,
        )
        request.matched_tokens = rng.choice([0, request.input_tokens - 1])
        self._lengths[request] = self.max_output if long else rng.randint(1, self.max_output)
        self.policy.arrive(request, self._now_s)

    def _admit(self) -> None:
        conversation = self.policy.admissions(self._now_s)
        request = next(conversation, None)
        while request is not None:
            outcome = self._offer(request)
            try:
                request = conversation.send(outcome)
            except StopIteration:
                return

    def _offer(self, request: Request) -> AdmissionResult:
        reserved = sum(one.input_tokens + one.max_output_tokens for one in self._running)
        if reserved + request.input_tokens + request.max_output_tokens > self.memory_tokens:
            return AdmissionResult.NO_ROOM
        request.extend_tokens = request.input_tokens - request.matched_tokens
        self._running.append(request)
        self._charge(request, float(request.extend_tokens))
        return AdmissionResult.ADMITTED

    def _charge(self, request: Request, cost: float) -> None:
        client = self.clients[request.client]
        client.served += cost
        client.normalised += cost / request.client_weight
        client.tenant_normalised += cost / request.tenant_weight

    def _note_state(self) -> None:
        self.sequence += 1
        states = self.policy.clients()
        for name, client in self.clients.items():
            state = states.get(name, ClientDeficits(deficit=0.0, tenant_deficit=0.0, waiting=0))
            client.deficit, client.seed = state.deficit, state.seed
            client.tenant_deficit, client.tenant_seed = state.tenant_deficit, state.tenant_seed


LOST_STEPS = 12
"""Steps of which a client receives nothing when it loses what a crash destroys."""
LOOK_CHANCE = 0.2
"""How often a router looks at what reports cover after a step of a replica."""


class Fleet:
    """Live replicas, the ledgers of the routers, and what was truly served."""

    def __init__(
        self,
        rng: Random,
        clients: Iterable[str],
        *,
        rules: CarryRules,
        weights: Weighing,
        new_replica: Callable[[], Replica],
        seeding: Callable[[Fleet, str, str], Seeds] | None = None,
        routers: int = 1,
        affinity: bool = True,
        report_chance: float = 0.3,
        compaction: CompactionRules | None = None,
    ) -> None:
        self.rng = rng
        self.clients = tuple(clients)
        self.weights = weights
        self.ledgers = [Ledger(f"router-{i}", rules=rules, weights=weights) for i in range(routers)]
        self.live: dict[str, Replica] = {}
        self.departed = dict.fromkeys(self.clients, 0.0)
        """Normalised service of incarnations that are gone, as the ledgers count it."""
        self.departed_tenant = dict.fromkeys(self.clients, 0.0)
        self.events = 0
        self.names = 0
        self.away: set[str] = set()
        self.joining: list[str] = []
        """The replicas that are joining together."""
        self._new_replica = new_replica
        self._seeding = seeding or seeds_from_ledger
        self._affinity = affinity
        self._report_chance = report_chance
        self._received: dict[tuple[str, str], Client] = {}
        self._compaction = compaction
        self._compactors = [Compactor(ledger, compaction) for ledger in self.ledgers]
        self._restarts = 0

    # What the adversary does.

    def join(self, count: int = 1) -> list[str]:
        """Replicas that join together; every client comes to them at once."""
        names = []
        for _ in range(count):
            self.names += 1
            names.append(f"replica-{self.names:05}")
            self.live[names[-1]] = self._new_replica()
        self.joining = names
        for name in names:
            for client in self.clients:
                if client not in self.away:
                    self._meet(client, name)
        self.events += count
        return names

    def leave(self, client: str) -> None:
        """Everywhere at once."""
        self.away.add(client)
        for replica in self.live.values():
            if client in replica.clients and client not in replica.away:
                replica.leave(client)

    def come_back(self, client: str) -> None:
        """To every live replica, also to those that never saw it."""
        self.away.discard(client)
        for name, replica in self.live.items():
            if client in replica.clients:
                replica.come_back(client)
            else:
                self._meet(client, name)

    def kill(self, name: str, *, losing: str | None = None) -> None:
        """When all that was computed was received; but for what `losing` got in some last steps."""
        replica = self.live.pop(name)
        for _ in range(LOST_STEPS if losing is not None else 0):
            replica.progress(self.rng, losing)
        for client, known in replica.clients.items():
            if client != losing:
                self._receive(name, client, known)
            counted = self._received.get((name, client), Client())
            self.departed[client] += counted.normalised
            self.departed_tenant[client] += counted.tenant_normalised
        for ledger in self.ledgers:
            ledger.closed(name)
        self.events += 1

    def drain(self, name: str) -> None:
        """Out of the rotation: what waits is moved, what runs is finished, and everybody leaves."""
        replica = self.live[name]
        for ledger in self.ledgers:
            ledger.drained(name)
        for client, known in replica.clients.items():
            running = max(0.0, known.deficit + self._max_debt(client) - 1)
            amount = float(int(running * self.rng.random()))
            known.served += amount
            known.normalised += amount / self.weights.client(client)
            known.deficit = min(known.deficit - amount, 0.0)
        replica.sequence += 1
        for ledger in self.ledgers:
            self.report(name, ledger)
        self.kill(name)

    def progress(self, name: str, favourite: str | None = None) -> None:
        """One step of one replica; its routers receive, and some of them get a report."""
        replica = self.live[name]
        for client in replica.clients:
            for ledger in self.ledgers:
                ledger.begins(name, client)
        replica.progress(self.rng, favourite)
        for client, known in replica.clients.items():
            self._receive(name, client, known)
        for ledger in self.ledgers:
            if self.rng.random() < self._report_chance:
                self.report(name, ledger)
            if self.rng.random() < LOOK_CHANCE:
                for _ in ledger.drop_covered(self.live, lambda *_: False):
                    pass

    def report(self, name: str, ledger: Ledger) -> None:
        replica = self.live[name]
        ledger.observe(
            name,
            since=ledger.sequence(name),
            sequence=replica.sequence,
            rows=[
                ReplicaRow(
                    client,
                    service=known.served,
                    normalised=known.normalised,
                    deficit=known.deficit,
                    tenant_deficit=known.tenant_deficit,
                    seed=known.seed,
                    tenant_seed=known.tenant_seed,
                    waiting=client not in replica.away,
                )
                for client, known in replica.clients.items()
            ],
        )

    def exchange(self) -> None:
        for here in self.ledgers:
            for there in self.ledgers:
                if here is not there:
                    here.merge(there.delta(here.digest()))

    def housekeep(self) -> None:
        """Routers exchange what they know, fold what is gone, and forget it."""
        members = [ledger.router for ledger in self.ledgers]
        for ledger in self.ledgers:
            ledger.members = frozenset(members)
        self.exchange()
        for compactor in self._compactors:
            compactor.compact(members, live=self.live.keys(), now_s=float(self.events))
            compactor.collect(members)

    def lose_all_routers(self) -> None:
        """At once, and others start with empty ledgers: they hear from the replicas that live, and of nothing else."""
        self._restarts += 1
        self.ledgers = [
            Ledger(f"router-{i}.{self._restarts}", rules=ledger.rules, weights=ledger.weights)
            for i, ledger in enumerate(self.ledgers)
        ]
        self._compactors = [Compactor(ledger, self._compaction) for ledger in self.ledgers]
        for name in self.live:
            for ledger in self.ledgers:
                self.report(name, ledger)

    def _meet(self, client: str, name: str) -> None:
        self.live[name].meet(client, self._seeding(self, client, name))

    def _max_debt(self, client: str) -> float:
        return self.ledgers[0].rules.max_debt(self.weights.client(client))

    # What is true.

    def served(self, client: str) -> float:
        """Normalised service over all incarnations."""
        return self.departed[client] + sum(
            replica.clients[client].normalised
            for replica in self.live.values()
            if client in replica.clients
        )

    def served_tenants(self) -> dict[str, float]:
        figures: dict[str, float] = {}
        for client in self.clients:
            served = self.departed_tenant[client] + sum(
                replica.clients[client].tenant_normalised
                for replica in self.live.values()
                if client in replica.clients
            )
            figures[tenant_of(client)] = figures.get(tenant_of(client), 0.0) + served
        return figures

    def router_of(self, client: str) -> Ledger:
        """Every client has its router, or any request may come to any."""
        if not self._affinity:
            return self.rng.choice(self.ledgers)
        return self.ledgers[self.clients.index(client) % len(self.ledgers)]

    def _receive(self, name: str, client: str, known: Client) -> None:
        before = self._received.get((name, client), Client())
        if known.served == before.served:
            return
        self.router_of(client).received(name, client, known.served - before.served)
        self._received[name, client] = Client(
            known.served, known.normalised, known.tenant_normalised
        )


# Where a new replica starts a client from.


def seeds_from_ledger(fleet: Fleet, client: str, name: str) -> Seeds:
    """R5 as built."""
    ledger = fleet.router_of(client)
    seed = promise(ledger, client, name, live=fleet.live.keys())
    return Seeds(seed.client, seed.tenant)


def no_seeds(fleet: Fleet, client: str, name: str) -> Seeds:
    """No R5."""
    return Seeds()


def full_lead(fleet: Fleet, client: str, name: str) -> Seeds:
    """Known wrong: the whole lead at each of several joiners."""
    return Seeds(-_lead(fleet, client) * fleet.weights.client(client))


def capped_lead(cap: float) -> Callable[[Fleet, str, str], Seeds]:
    """Known wrong: every lead capped."""
    return lambda fleet, client, name: Seeds(
        -min(cap, _lead(fleet, client)) * fleet.weights.client(client)
    )


def lead_less_seeds_elsewhere(fleet: Fleet, client: str, name: str) -> Seeds:
    """R5 as DESIGN words it: (lead - what of the seeds elsewhere is not settled) / joiners, without a limit."""
    unsettled = sum(
        min(-known.seed, max(0.0, -known.deficit))
        for other, replica in fleet.live.items()
        if other not in fleet.joining
        and (known := replica.clients.get(client)) is not None
        and known.seed < 0
    )
    lead = _lead(fleet, client) * fleet.weights.client(client)
    return Seeds(min(0.0, unsettled - lead) / len(fleet.joining))


def _lead(fleet: Fleet, client: str) -> float:
    return fleet.served(client) - min(map(fleet.served, fleet.clients))


class Gaps:
    """The largest |ΔW_f - ΔW_g| over any interval so far, for each pair of members."""

    def __init__(self) -> None:
        self._range: dict[tuple[str, str], tuple[float, float]] = {}
        self.largest = 0.0

    def note(self, served: dict[str, float]) -> None:
        for pair in combinations(sorted(served), 2):
            gap = served[pair[0]] - served[pair[1]]
            low, high = self._range.get(pair, (gap, gap))
            low, high = self._range[pair] = min(low, gap), max(high, gap)
            self.largest = max(self.largest, high - low)


class Gain:
    """The most that one had over another over any interval so far."""

    def __init__(self) -> None:
        self._least = 0.0
        self.largest = 0.0

    def note(self, ahead: float) -> None:
        self._least = min(self._least, ahead)
        self.largest = max(self.largest, ahead - self._least)


# Adversaries. Each is one deed; who calls it decides how often.


def random_churn(fleet: Fleet, most: int) -> None:
    """Kill and join anybody, one or several at a time."""
    if len(fleet.live) == most or (fleet.live and fleet.rng.random() < 0.5):
        for name in fleet.rng.sample(sorted(fleet.live), fleet.rng.randint(1, len(fleet.live))):
            fleet.kill(name)
    else:
        fleet.join(fleet.rng.randint(1, most - len(fleet.live)))


def favour_by_churn(fleet: Fleet, most: int) -> None:
    """Kill where the favourite is deepest in debt, relative to the others; join at once."""
    favourite = fleet.clients[0]

    def advantage(name: str) -> float:
        clients = fleet.live[name].clients
        others = [known.deficit for client, known in clients.items() if client != favourite]
        return max(others) - clients.get(favourite, Client()).deficit

    if len(fleet.live) < most:
        fleet.join()
    else:
        fleet.kill(max(sorted(fleet.live), key=advantage))


def replace_all(fleet: Fleet, most: int) -> None:
    """The whole fleet at once."""
    for name in list(fleet.live):
        fleet.kill(name)
    fleet.join(most)


def join_and_die(fleet: Fleet, most: int) -> None:
    """Newcomers die before they settle what they were seeded with."""
    if len(fleet.live) < most:
        fleet.join()
    else:
        fleet.kill(max(fleet.live))


def concentrate(fleet: Fleet, most: int) -> None:
    """Kill two, join one, and later one more: what two held is charged to one, the other starts level."""
    match fleet.events % 4:
        case 0 | 1 if fleet.live:
            fleet.kill(min(fleet.live))
        case _ if len(fleet.live) < most:
            fleet.join()
        case _:
            fleet.kill(max(fleet.live))


def pile_up(fleet: Fleet, most: int) -> None:
    """The whole fleet at once, but one comes first and takes what all held; then the others, who start at zero."""
    for name in list(fleet.live):
        fleet.kill(name)
    fleet.join()
    if most > 1:
        fleet.join(most - 1)


ADVERSARIES = (random_churn, favour_by_churn, replace_all, join_and_die, concentrate, pile_up)
