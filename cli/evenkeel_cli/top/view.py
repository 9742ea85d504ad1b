"""Computes rates and shares from two readings of a router's state. Pure.

A rate is the difference of two totals over the time between the readings. If the router restarted in between, the
earlier reading is ignored. Service, fair shares and leads come from the ledger, so every router of a fleet reports the
same ones. Requests, errors and requests in flight are those of this router only.
"""

from __future__ import annotations

from collections import defaultdict
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


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One replica."""

    name: str
    state: str
    """`ready`, `not ready` or `gone`."""
    policy: str
    quantum: float
    """Q^u in force, in weighted tokens; 0 if the replica reports none."""
    in_flight: int
    """Requests of this router at the replica."""
    running: int
    waiting: int
    service_per_s: float
    """Weighted tokens."""
    hit_rate: float | None
    """The part of the input tokens that was cached, of requests that ended in the window; None without any."""
    requests: int
    failures: int
    report_age_s: float | None


class ClientRow(msgspec.Struct, frozen=True, kw_only=True):
    """One client."""

    tenant: str
    client: str
    """Empty: the clients of the tenant that have no row of their own."""
    weight: str
    """Weight of the tenant · weight of the client."""
    share: float | None
    """Its part of the service in the window, 0 to 1; None if the fleet served no client."""
    owed: float | None
    """What it was owed in the window, as a part of all service, 0 to 1; None if no request of it waits."""
    service_per_s: float
    """Weighted tokens."""
    in_flight: int
    waiting: int
    running: int
    deficit_min: float | None
    """Least deficit over the replicas, weighted tokens; None without a report."""
    deficit_max: float | None
    """Greatest deficit over the replicas."""
    behind: float
    """Its fair share minus the service that it received, weighted tokens; negative if it received more."""
    lead_s: float
    """Its lead over the least served backlogged client of its tenant, in seconds of fair service."""
    credit: float
    """Σ over replicas of q_{i,w}, weighted tokens. With `workerQuantum: Auto` minus its open work."""
    itl_s: float | None
    """Mean inter-token latency in the window, over the replicas that report it; None without tokens."""
    hit_rate: float | None
    requests: int
    errors: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `evenkeel top` shows."""

    service: str
    model: str
    fleet_policy: str
    uptime_s: float
    window_s: float
    """The time between the readings; the uptime of the router for a single reading."""
    draining: bool
    in_flight: int
    waiting: int
    prefix_blocks: int
    config_faults: tuple[str, ...]
    fleet: FleetState
    ledger: LedgerState
    peers: tuple[PeerState, ...]
    replicas: tuple[ReplicaRow, ...]
    clients: tuple[ClientRow, ...]
    qoe: dict[str, float]
    """Mean QoE, 0 to 1, of the streams that ended in the window, by tenant; without tenants that had none."""


def make_view(now: RouterState, before: RouterState | None) -> View:
    """The view of the time since `before`, or since the start of the router without it."""
    if before is not None and not _is_same_process(now, before):
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
        waiting=now.waiting + sum(map(_waiting, now.replicas)),
        prefix_blocks=now.prefix_blocks,
        config_faults=now.config_faults,
        fleet=now.fleet,
        ledger=now.ledger,
        peers=now.peers,
        replicas=tuple(_replicas(now, before, window_s)),
        clients=tuple(_clients(now, before, window_s)),
        qoe=_qoe(now, before),
    )


def _is_same_process(now: RouterState, before: RouterState) -> bool:
    """Whether both readings are of the same process. Clocks may be set, so the id decides; older routers have none."""
    if now.ledger.router or before.ledger.router:
        return now.ledger.router == before.ledger.router
    return before.uptime_s <= now.uptime_s


def _waiting(replica: ReplicaState) -> int:
    """Requests that wait for a replica. The gate puts those that wait there into the ledger too, each second."""
    return max(replica.waiting, replica.gate_waiting)


def _replicas(
    now: RouterState, before: RouterState | None, window_s: float
) -> Iterator[ReplicaRow]:
    earlier = {replica.name: replica for replica in before.replicas} if before else {}
    served = _served_by_replica(now, before)
    for replica in now.replicas:
        past = earlier.get(replica.name)
        yield ReplicaRow(
            name=replica.name,
            state="ready" if replica.routable else "not ready" if replica.joined else "gone",
            policy=replica.policy,
            quantum=replica.quantum,
            in_flight=replica.in_flight,
            running=replica.running,
            waiting=_waiting(replica),
            service_per_s=served[replica.name] / window_s,
            hit_rate=_hit_rate(replica, past),
            requests=replica.requests,
            failures=replica.failures,
            report_age_s=replica.report_age_s,
        )


def _clients(now: RouterState, before: RouterState | None, window_s: float) -> Iterator[ClientRow]:
    earlier = {client.identity: client for _, client in _each(before)} if before else {}
    rows = [(tenant, client, earlier.get(client.identity)) for tenant, client in _each(now)]
    total = sum(_grown(client, past, "service") for _, client, past in rows)
    for tenant, client, past in rows:
        service, owed = _grown(client, past, "service"), _grown(client, past, "owed")
        deficits = [at.deficit for at in client.replicas]
        yield ClientRow(
            tenant=tenant.name,
            client=client.name,
            weight=f"{tenant.weight}·{client.weight}",
            share=service / total if total > 0 else None,
            owed=owed / total if client.backlogged and total > 0 else None,
            service_per_s=service / window_s,
            in_flight=client.in_flight,
            waiting=sum(at.waiting for at in client.replicas),
            running=sum(at.running for at in client.replicas),
            deficit_min=min(deficits, default=None),
            deficit_max=max(deficits, default=None),
            behind=client.owed - client.service,
            lead_s=client.lead_s,
            credit=sum(at.credit for at in client.replicas),
            itl_s=_itl_s(client, past),
            hit_rate=_hit_rate(client, past),
            requests=client.requests,
            errors=client.errors,
        )


def _qoe(now: RouterState, before: RouterState | None) -> dict[str, float]:
    earlier = {(one.namespace, one.name): one for one in before.tenants} if before else {}
    found = {}
    for tenant in now.tenants:
        past = earlier.get((tenant.namespace, tenant.name))
        if streams := _grown(tenant, past, "qoe_streams"):
            found[tenant.name] = _grown(tenant, past, "qoe") / streams
    return found


def _itl_s(now: ClientState, before: ClientState | None) -> float | None:
    earlier = {at.replica: at for at in before.replicas} if before else {}
    pairs = [(at, earlier.get(at.replica)) for at in now.replicas]
    tokens = sum(_grown(at, past, "itl_tokens") for at, past in pairs)
    return sum(_grown(at, past, "itl_s") for at, past in pairs) / tokens if tokens else None


def _served_by_replica(now: RouterState, before: RouterState | None) -> defaultdict[str, float]:
    """Weighted tokens of all clients in the window, as replicas report them."""
    earlier = {
        (client.identity, at.replica): at
        for _, client in (_each(before) if before else ())
        for at in client.replicas
    }
    served: defaultdict[str, float] = defaultdict(float)
    for _, client in _each(now):
        for at in client.replicas:
            past = earlier.get((client.identity, at.replica))
            served[at.replica] += _grown(at, past, "service")
    return served


def _each(state: RouterState) -> Iterator[tuple[TenantState, ClientState]]:
    return ((tenant, client) for tenant in state.tenants for client in tenant.clients)


_Totals = ClientState | ReplicaState | ClientAtReplica | TenantState


def _grown(now: _Totals, past: _Totals | None, name: str) -> float:
    """The growth of a total. After a restart the total is smaller than before; then it counts from 0."""
    value: float = getattr(now, name)
    earlier: float = getattr(past, name) if past is not None else 0.0
    return value - earlier if value >= earlier else value


def _hit_rate(now: _Totals, past: _Totals | None) -> float | None:
    inputs = _grown(now, past, "input_tokens")
    return _grown(now, past, "cached_tokens") / inputs if inputs > 0 else None
