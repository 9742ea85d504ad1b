"""Two readings of a router's state → what a person wants to see. Pure.

Place in the flow: admin port → readings → **view** → table or JSON. Totals never fall, so a rate is a difference
over the time between; where a router started anew in between, the earlier reading is left out.

The surprising thing: service, what is owed and leads are those of the whole fleet, whichever of several routers is
asked: they come from the ledger. Requests, errors and what is in flight are this router's.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from evenkeel_contract.adminstate import (
    ClientAtReplica,
    ClientState,
    FleetState,
    LedgerState,
    PeerState,
    ReplicaState,
    RouterState,
    TenantState,
)
from evenkeel_fairshare.tenancy import Identity, Tenancy, TenantWeights


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One replica."""

    name: str
    state: str
    """`ready`, `not ready` or `gone`."""
    policy: str
    in_flight: int
    """Requests that this router has there."""
    running: int
    waiting: int
    service_per_s: float
    """Weighted tokens."""
    hit_rate: float | None
    """Input tokens found in the cache, of all, of requests that ended in the window; None without any."""
    requests: int
    failures: int
    report_age_s: float | None


class ClientRow(msgspec.Struct, frozen=True, kw_only=True):
    """One client."""

    tenant: str
    client: str
    """Empty: the clients of the tenant that have no row of their own."""
    weight: str
    """Tenant's · client's."""
    share: float | None
    """Of the service in the window, 0 to 1; None where nobody was served."""
    owed: float | None
    """Its share among the clients that had work; None where it had none."""
    service_per_s: float
    """Weighted tokens."""
    in_flight: int
    waiting: int
    running: int
    deficit_min: float | None
    """Least and greatest over the replicas that know it, weighted tokens; None where none reports."""
    deficit_max: float | None
    behind: float
    """What it was owed and not given, weighted tokens; negative: it was given more."""
    lead_s: float
    """Seconds of fair service ahead of the least served backlogged client of its tenant."""
    credit: float
    """Σ over replicas of q_{i,w}, weighted tokens."""
    hit_rate: float | None
    requests: int
    errors: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    service: str
    model: str
    fleet_policy: str
    uptime_s: float
    window_s: float
    """What the rates are over; the whole uptime for a single reading."""
    draining: bool
    in_flight: int
    held: int
    prefix_blocks: int
    config_faults: tuple[str, ...]
    fleet: FleetState
    ledger: LedgerState
    peers: tuple[PeerState, ...]
    replicas: tuple[ReplicaRow, ...]
    clients: tuple[ClientRow, ...]


def make_view(now: RouterState, before: RouterState | None) -> View:
    """What changed since `before`; since the router's start without it."""
    if before is not None and not _is_same_life(now, before):
        before = None
    window_s = max(now.time_s - before.time_s if before else now.uptime_s, 1e-9)
    return View(
        service=f"{now.namespace}/{now.service}",
        model=now.model,
        fleet_policy=now.fleet_policy,
        uptime_s=now.uptime_s,
        window_s=window_s,
        draining=now.draining,
        in_flight=now.in_flight,
        held=now.held,
        prefix_blocks=now.prefix_blocks,
        config_faults=now.config_faults,
        fleet=now.fleet,
        ledger=now.ledger,
        peers=now.peers,
        replicas=tuple(_replicas(now, before, window_s)),
        clients=tuple(_clients(now, before, window_s)),
    )


def _is_same_life(now: RouterState, before: RouterState) -> bool:
    """Whether one process said both. By its name, since clocks that are set tell nothing; older routers have none."""
    if now.ledger.router or before.ledger.router:
        return now.ledger.router == before.ledger.router
    return before.uptime_s <= now.uptime_s


def _replicas(
    now: RouterState, before: RouterState | None, window_s: float
) -> Iterator[ReplicaRow]:
    earlier = {replica.name: replica for replica in before.replicas} if before else {}
    served = _served_by_pair(now, before)
    for replica in now.replicas:
        past = earlier.get(replica.name)
        yield ReplicaRow(
            name=replica.name,
            state="ready" if replica.routable else "not ready" if replica.joined else "gone",
            policy=replica.policy,
            in_flight=replica.in_flight,
            running=replica.running,
            waiting=replica.waiting,
            service_per_s=sum(
                served[pair] / window_s for pair in served if pair[1] == replica.name
            ),
            hit_rate=_hit_rate(replica, past),
            requests=replica.requests,
            failures=replica.failures,
            report_age_s=replica.report_age_s,
        )


def _clients(now: RouterState, before: RouterState | None, window_s: float) -> Iterator[ClientRow]:
    earlier = {client.identity: client for _, client in _each(before)} if before else {}
    pairs = list(_each(now))
    served = _served(now, before)
    total = sum(served.values())
    owed = _owed(now)
    for tenant, client in pairs:
        past = earlier.get(client.identity)
        deficits = [at.deficit for at in client.replicas]
        yield ClientRow(
            tenant=tenant.name,
            client=client.name,
            weight=f"{tenant.weight}·{client.weight}",
            share=served[client.identity] / total if total > 0 else None,
            owed=owed.get((tenant.namespace, tenant.name, client.name)),
            service_per_s=served[client.identity] / window_s,
            in_flight=client.in_flight,
            waiting=sum(at.waiting for at in client.replicas),
            running=sum(at.running for at in client.replicas),
            deficit_min=min(deficits, default=None),
            deficit_max=max(deficits, default=None),
            behind=client.owed - client.service,
            lead_s=client.lead_s,
            credit=sum(at.credit for at in client.replicas),
            hit_rate=_hit_rate(client, past),
            requests=client.requests,
            errors=client.errors,
        )


def _served(now: RouterState, before: RouterState | None) -> dict[str, float]:
    """Weighted tokens that each client was served in the window."""
    earlier = {client.identity: client for _, client in _each(before)} if before else {}
    return {
        client.identity: _grown(client, earlier.get(client.identity), "service")
        for _, client in _each(now)
    }


def _served_by_pair(now: RouterState, before: RouterState | None) -> dict[tuple[str, str], float]:
    """Weighted tokens in the window by (client, replica), as replicas report them."""
    earlier = {
        (client.identity, at.replica): at
        for _, client in (_each(before) if before else ())
        for at in client.replicas
    }
    return {
        (client.identity, at.replica): _grown(
            at, earlier.get((client.identity, at.replica)), "service"
        )
        for _, client in _each(now)
        for at in client.replicas
    }


def _owed(now: RouterState) -> dict[tuple[str, str, str], float]:
    """What each client that has work is owed of the fleet, among those that have."""
    tenancy = Tenancy(
        {
            (tenant.namespace, tenant.name): TenantWeights(
                weight=max(tenant.weight, 1),
                clients={client.name: max(client.weight, 1) for client in tenant.clients},
            )
            for tenant in now.tenants
        }
    )
    busy = [
        Identity(tenant.namespace, tenant.name, client.name)
        for tenant, client in _each(now)
        if client.in_flight > 0 or client.backlogged
    ]
    shares = tenancy.shares(busy)
    return {(who.namespace, who.tenant, who.client): share for who, share in shares.items()}


def _each(state: RouterState) -> Iterator[tuple[TenantState, ClientState]]:
    return ((tenant, client) for tenant in state.tenants for client in tenant.clients)


_Totals = ClientState | ReplicaState | ClientAtReplica


def _grown(now: _Totals, past: _Totals | None, name: str) -> float:
    """By how much a total grew; from nothing where it fell, as after a restart."""
    value: float = getattr(now, name)
    earlier: float = getattr(past, name) if past is not None else 0.0
    return value - earlier if value >= earlier else value


def _hit_rate(now: _Totals, past: _Totals | None) -> float | None:
    inputs = _grown(now, past, "input_tokens")
    return _grown(now, past, "cached_tokens") / inputs if inputs > 0 else None
