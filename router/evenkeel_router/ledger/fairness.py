"""Service and owed service of each client, over the whole fleet (design §7).

Every router computes the same from the same ledger: aggregate over routers by maximum. While several clients are backlogged, each is
owed its share of what they received together, but no more than it received and its waiting requests cost (`tenancy.divided`).
A client that is not backlogged is owed what it received. Experiments compute it by the same rule (`evenkeel_simulator.traffic.owed`).

The values are computed in steps and replaced as a whole. Requests are served between steps, since a large fleet takes
longer than a request may wait.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec
from evenkeel_contract.adminstate import Demand, FleetState
from evenkeel_fairshare.bounds import Churn, churn_gap
from evenkeel_fairshare.idle import NO_LOAD, IdleReplicas, ReplicaLoad
from evenkeel_fairshare.ledger import Ledger, position, position_of_tenant, tenant_of
from evenkeel_fairshare.measures import jain_index
from evenkeel_fairshare.saturation import Saturation
from evenkeel_fairshare.tenancy import divided
from evenkeel_fairshare.verdict import AS_OWED
from evenkeel_fairshare.window import Moment, Taken, Window

from evenkeel_router.api.identity import MAX_CLIENTS, other_clients
from evenkeel_router.ledger.backlog import Backlog, look
from evenkeel_router.ledger.unreported import replica_of
from evenkeel_router.ledger.weights import ConfiguredWeights

SERVICE: Final = ""
"""The level whose members are the tenants; a tenant is the level of its clients."""
STRIDE: Final = 20
"""Clients per step; requests may be served between steps."""


class MemberFigures(Demand, frozen=True, kw_only=True, gc=False):
    """A client or a tenant. Before this router started, it was owed what it received."""

    waiting: float = 0.0
    """Weighted tokens that its requests at replicas will cost which wait."""

    def __add__(self, other: MemberFigures) -> MemberFigures:
        return MemberFigures(
            service=self.service + other.service,
            owed=self.owed + other.owed,
            requested_per_s=self.requested_per_s + other.requested_per_s,
            waiting=self.waiting + other.waiting,
            lead_s=other.lead_s if self is NO_FIGURES else max(self.lead_s, other.lead_s),
            backlogged=self.backlogged or other.backlogged,
        )


NO_FIGURES: Final = MemberFigures()


class FleetFigures(FleetState, frozen=True, kw_only=True):
    """The whole fleet, and its members. The leads are of all levels, share errors and Jain's index over the window."""

    clients: Mapping[str, MemberFigures] = {}
    """Identity → figures; clients without an entry share the entry `other_clients` of their tenant."""
    tenants: Mapping[str, MemberFigures] = {}
    given: float = 0.0
    """Service of the whole fleet in the window, weighted tokens."""
    given_over_owed: Mapping[str, float] = {}
    """Service over owed service of each client that was backlogged for at least half of the window."""
    took: Mapping[str, Taken] = {}
    """Clients that were given more than they were owed, the largest surplus first."""
    beyond_share: frozenset[str] = frozenset()
    """Clients that were backlogged for most of the window and received their share (`AS_OWED`): they cause their own waiting.
    Latency objectives exclude them."""
    waiting_within_share: float = 0.0
    """Waiting requests of all other clients at replicas."""
    saturated_s: float = 0.0
    """Seconds in which requests waited at a replica without a break, over all replicas since this router started."""
    saturated_service: float = 0.0
    """Weighted tokens that those replicas served in those seconds."""


@dataclass(slots=True)
class KnownClients:
    """The clients of a tenant that have service and are not aged out."""

    count: int = 0
    service: float = 0.0
    owed: float = 0.0


class Fairness:
    """Fairness figures of one router's ledger, updated by `steps`."""

    def __init__(self, ledger: Ledger, *, max_clients: int = MAX_CLIENTS) -> None:
        self.now = FleetFigures()
        """The last complete value."""
        self._ledger = ledger
        self._max_clients = max_clients
        self._owed: dict[str, float] = {}
        """Client with service → owed service."""
        self._unserved: dict[str, float] = {}
        """Client that waits and never had service → what it was owed meanwhile."""
        self._known: dict[str, KnownClients] = {}
        """Tenant → its clients with service, together."""
        self._named: dict[str, float] = {}
        """The most served clients, as far as they had service since a place was free → service. They have figures of their own."""
        self._ahead: dict[str, float] = {}
        """Client or tenant → (service − owed service while backlogged) / weight."""
        self._window = Window()
        self._waited: Mapping[str, Backlog] = {}
        """Clients that were backlogged at the last moment, and with what."""
        self._total = 0.0
        self._rate = 0.0
        """Service per second of the whole fleet while clients wait; the last known one."""
        self._most_alive = 1
        self._saturation = Saturation()
        self._speeds: Mapping[str, float] = {}
        self._idle = IdleReplicas()
        self._idle_total_s = 0.0

    @property
    def known(self) -> int:
        """Clients with service that are not aged out."""
        return len(self._ledger.service)

    def speed(self, incarnation: str) -> float | None:
        """Weighted tokens per second of an incarnation's replica while requests waited there; None: not measured."""
        return self._speeds.get(replica_of(incarnation))

    @property
    def replica_speed(self) -> float | None:
        """Mean weighted tokens per second of a replica while requests waited there; None: no replica was measured."""
        return sum(self._speeds.values()) / len(self._speeds) if self._speeds else None

    def steps(
        self,
        alive: Collection[str],
        weights: ConfiguredWeights,
        now_s: float,
        *,
        routable: Collection[str] | None = None,
    ) -> Iterator[None]:
        """Compute `now` in steps; the caller may serve requests between them. `alive`: incarnations that count as alive; `routable`:
        those that may get requests, None: all. Others are not idle."""
        self._most_alive = max(self._most_alive, len(alive))
        grown = self._ledger.grown()
        waiting: Counter[str] = Counter()
        queued: defaultdict[str, float] = defaultdict(float)
        replicas: dict[str, ReplicaLoad] = {}
        for incarnation, account in list(self._ledger.open_accounts()):
            if incarnation in alive:
                own = ReplicaLoad(
                    account.service, waits=bool(account.waiting), runs=bool(account.running)
                )
                replica = replica_of(incarnation)
                replicas[replica] = own.beside(replicas.get(replica, NO_LOAD))
                for name, count in account.waiting.items():
                    waiting[name] += 1
                    queued[name] += count
                yield
        for replica, load in replicas.items():
            self._saturation.observe(replica, service=load.service, waits=load.waits, now_s=now_s)
        self._saturation.retain(replicas)
        self._speeds = self._saturation.speeds()
        able = replicas if routable is None else {*map(replica_of, routable)}
        idle_s = self._idle.observe(replicas, now_s, able=able)
        self._idle_total_s += idle_s
        backlogs = yield from self._backlogs(waiting, alive, now_s)
        competed = self._owe(grown, backlogs, weights)
        self._waited = backlogs
        self._window.add(Moment(now_s, competed, self._total, idle_s))
        yield
        everywhere = {client for client, count in waiting.items() if count == len(alive)}
        ratio = yield from self._bound_ratio(everywhere, alive)
        found = yield from self._conclude(waiting, weights, ratio)
        within = (count for name, count in queued.items() if name not in found.beyond_share)
        self.now = msgspec.structs.replace(
            found,
            waiting_within_share=sum(within),
            saturated_s=self._saturation.seconds,
            saturated_service=self._saturation.service,
        )

    def _backlogs(
        self, waiting: Collection[str], alive: Collection[str], now_s: float
    ) -> Generator[None, None, dict[str, Backlog]]:
        before, found = self._waited, {}
        accounts = [account for name, account in self._ledger.open_accounts() if name in alive]
        for n, client in enumerate(waiting):
            found[client] = look(client, accounts, before.get(client), now_s)
            if n % STRIDE == 0:
                yield
        return found

    def _owe(
        self,
        grown: Mapping[str, float],
        backlogs: Mapping[str, Backlog],
        weights: ConfiguredWeights,
    ) -> dict[str, tuple[float, float]]:
        """Divide the service since the last moment by shares. Returns client → (owed service, service)."""
        before = self._waited
        given = {client: grown.get(client, 0.0) for client in backlogs if client in before}
        most = {
            client: own + backlogs[client].asked_since(before[client])
            for client, own in given.items()
        }
        parts = divided(sum(given.values()), most, weights.client, weights.tenant)
        competed = {client: (parts[client], own) for client, own in given.items()}
        self._advance(competed, {*map(tenant_of, backlogs)}, weights)
        for client, (owed, _) in competed.items():
            if client in self._ledger.service:
                self._take(client, grown.get(client, 0.0), owed)
            else:
                self._unserved[client] = self._unserved.get(client, 0.0) + owed
        for client, more in grown.items():
            if client not in self._ledger.service:
                if client in self._owed:  # else it was never served, and is owed what it waits for
                    self._forget(client, more)
            elif client not in competed:
                self._take(client, more, more)
        self._unserved = {one: owed for one, owed in self._unserved.items() if one in backlogs}
        self._name([client for client in (*competed, *grown) if client in self._owed])
        self._total += sum(grown.values())
        return competed

    def _take(self, client: str, given: float, owed: float) -> None:
        """A client with service received so much, and was owed so much."""
        owed += self._unserved.pop(client, 0.0)
        known = self._known.setdefault(tenant_of(client), KnownClients())
        known.count += client not in self._owed
        known.service += given
        known.owed += owed
        self._owed[client] = self._owed.get(client, 0.0) + owed

    def _forget(self, client: str, given: float) -> None:
        """A client that was served is aged out, or has no service any more."""
        for of in (self._ahead, self._named):
            of.pop(client, None)
        known = self._known[tenant_of(client)]
        known.count -= 1
        known.service += given
        known.owed -= self._owed.pop(client)
        if not known.count:
            del self._known[tenant_of(client)]

    def _name(self, clients: Collection[str]) -> None:
        """The service of clients grew: the most served ones get figures of their own."""
        named = self._named
        named |= {client: self._ledger.counted_of(client) for client in clients}
        if len(named) > self._max_clients:
            most = heapq.nlargest(self._max_clients, named, key=named.__getitem__)
            self._named = {client: named[client] for client in most}

    def _advance(
        self,
        competed: Mapping[str, tuple[float, float]],
        waiting: Collection[str],
        weights: ConfiguredWeights,
    ) -> None:
        """Bring `_ahead` up to date, level by level. `waiting`: tenants with a client that waits."""
        levels: defaultdict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
        tenants: defaultdict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        for client, (owed, given) in competed.items():
            tenant = tenant_of(client)
            levels[tenant][client] = owed / weights.client(client), given / weights.client(client)
            before, weight = tenants[tenant], weights.tenant(tenant)
            tenants[tenant] = before[0] + owed / weight, before[1] + given / weight
        levels[SERVICE] = dict(tenants)
        ahead: dict[str, float] = {}
        for name, before_ahead in self._ahead.items():
            level = tenant_of(name) if name.count("/") > 1 else SERVICE
            members = levels.get(level, {})
            # As at the replicas, a lead ends once nothing waits at its level (R15).
            if name not in members and (level in waiting or (level == SERVICE and waiting)):
                # Service of the others reduces the lead of an idle member, which is owed nothing for this time (R4).
                least = min((given for _, given in members.values()), default=0.0)
                if before_ahead > least:
                    ahead[name] = before_ahead - least
        for members in levels.values():
            # A new member starts at the least value of the members that were there (R4).
            least = min((self._ahead[name] for name in members if name in self._ahead), default=0.0)
            for name, (owed, given) in members.items():
                ahead[name] = self._ahead.get(name, least) + given - owed
        self._ahead = ahead

    def _conclude(
        self, waiting: Collection[str], weights: ConfiguredWeights, bound_ratio: float
    ) -> Generator[None, None, FleetFigures]:
        shares = self._window.shares()
        ratios = shares.given_over_owed
        contended = [(one, now) for one, now in pairwise(self._window.moments) if now.competed]
        if contended:
            self._rate = _over(
                sum(now.total - before.total for before, now in contended),
                sum(now.at_s - before.at_s for before, now in contended),
            )
        leads = yield from self._leads(waiting, weights, self._rate)
        clients = yield from self._members(waiting, leads)
        backlogged = {*waiting, *map(tenant_of, waiting)}
        return FleetFigures(
            clients=clients,
            tenants=self._tenants(clients, leads),
            window_s=self._window.span_s,
            share_error=max(0.0, 1.0 - shares.least),
            lead_s=max((leads.get(name, 0.0) for name in backlogged), default=0.0),
            jain=jain_index(list(ratios.values())),
            bound_ratio=bound_ratio,
            backlogged=len(waiting),
            idle_s=shares.idle_s,
            idle_total_s=self._idle_total_s,
            given=self._total - self._window.moments[0].total,
            given_over_owed=ratios,
            took=shares.took,
            beyond_share=frozenset(name for name, ratio in ratios.items() if ratio >= AS_OWED),
        )

    def _leads(
        self, waiting: Collection[str], weights: ConfiguredWeights, rate: float
    ) -> Generator[None, None, dict[str, float]]:
        """Backlogged client or tenant → lead in seconds: its lead times the active weights of the level, over the level's rate."""
        beside: defaultdict[str, float] = defaultdict(float)
        for client in waiting:
            beside[tenant_of(client)] += weights.client(client)
        all_tenants = sum(map(weights.tenant, beside))
        ahead = {name: self._ahead[name] for name in (*beside, *waiting) if name in self._ahead}
        least: dict[str, float] = {}
        for name, own in ahead.items():
            level = SERVICE if name in beside else tenant_of(name)
            least[level] = min(least.get(level, own), own)
        leads: dict[str, float] = {}
        for n, (name, own) in enumerate(ahead.items()):
            if name in beside:
                leads[name] = _over((own - least[SERVICE]) * all_tenants, rate)
            else:
                tenant = tenant_of(name)
                part = weights.tenant(tenant) / all_tenants
                leads[name] = _over((own - least[tenant]) * beside[tenant], rate * part)
            if n % (10 * STRIDE) == 0:
                yield
        return leads

    def _members(
        self, waiting: Collection[str], leads: Mapping[str, float]
    ) -> Generator[None, None, dict[str, MemberFigures]]:
        """The most served clients one by one, and while there is place those that wait and were never served; the others of a tenant
        together. Of these only those are looked at that wait or request something."""
        known, named = self._known, self._named
        starved = [client for client in waiting if client not in self._owed]
        own_names = named.keys() | starved[: max(0, self._max_clients - len(named))]
        others = {tenant: [of.count, of.service, of.owed] for tenant, of in known.items()}
        for client, service in named.items():
            of_tenant = others[tenant_of(client)]
            of_tenant[0] -= 1
            of_tenant[1] -= service
            of_tenant[2] -= self._owed[client]
        found = {
            other_clients(tenant): MemberFigures(service=max(0.0, service), owed=max(0.0, owed))
            for tenant, (count, service, owed) in others.items()
            if count
        }
        yield
        requesting = self._ledger.requesting(self._ledger.members)
        active = {client for client in requesting if client in self._owed}.union(waiting, named)
        for n, client in enumerate(active):
            own = MemberFigures(
                service=named.get(client, 0.0),
                owed=self._owed_of(client) if client in own_names else 0.0,
                requested_per_s=self._ledger.requested_rate(client, self._ledger.members),
                waiting=self._waited[client].work if client in self._waited else 0.0,
                lead_s=leads.get(client, 0.0),
                backlogged=client in waiting,
            )
            name = client if client in own_names else other_clients(tenant_of(client))
            found[name] = found.get(name, NO_FIGURES) + own
            if n % (5 * STRIDE) == 0:
                yield
        return found

    def _owed_of(self, client: str) -> float:
        return self._owed[client] if client in self._owed else self._unserved.get(client, 0.0)

    def _tenants(
        self, clients: Mapping[str, MemberFigures], leads: Mapping[str, float]
    ) -> dict[str, MemberFigures]:
        found: dict[str, MemberFigures] = dict.fromkeys(
            self._ledger.closed_totals.tenants, NO_FIGURES
        )
        for client, own in clients.items():
            tenant = tenant_of(client)
            # It may leave unserved, and what its tenant is owed never falls.
            if client in self._unserved:
                own = msgspec.structs.replace(own, owed=0.0)
            found[tenant] = found.get(tenant, NO_FIGURES) + own
        # The closed totals include clients that have aged out since.
        return {
            tenant: msgspec.structs.replace(
                own,
                service=own.service + self._ledger.closed_totals.tenant(tenant).service,
                owed=own.owed + self._ledger.closed_totals.tenant(tenant).service,
                lead_s=leads.get(tenant, 0.0),
            )
            for tenant, own in found.items()
        }

    def _bound_ratio(
        self, everywhere: Collection[str], alive: Collection[str]
    ) -> Generator[None, None, float]:
        """The largest difference over its bound in theorem 2, over all levels."""
        ledger, rules = self._ledger, self._ledger.rules
        churn = Churn(
            replicas=self._most_alive,
            overshoot=rules.overshoot,
            quantum=rules.quantum,
            crash_loss=rules.crash_loss,
            deferred_refills=rules.deferred_refills,
        )
        levels: defaultdict[str, list[str]] = defaultdict(list)
        for client in everywhere:
            levels[tenant_of(client)].append(client)
        worst = 0.0
        for names, of, weight in (
            (list(levels), position_of_tenant, ledger.weights.tenant),
            *((clients, position, ledger.weights.client) for clients in levels.values()),
        ):
            positions: dict[str, float] = {}
            for name in names:
                positions[name] = of(ledger, name, alive)
                yield
            most = max(positions, key=positions.__getitem__, default="")
            least = min(positions, key=positions.__getitem__, default="")
            if most != least:
                gap = churn_gap(churn, (weight(most), weight(least)))
                worst = max(worst, (positions[most] - positions[least]) / gap)
        return worst


def _over(amount: float, rate: float) -> float:
    return amount / rate if rate > 0 else 0.0
