"""Computes rates and shares from two readings of a router's state. Pure.

A rate is the difference of two totals over the time between the readings. If the router restarted in between, the
earlier reading is ignored. Service, fair shares and leads come from the ledger, so every router of a fleet reports the
same ones. Requests are those of this router only: in flight, those that wait because their answer has not begun, and those of the last
minute that were lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec
from evenkeel_contract.adminstate import (
    ClientAtReplica,
    ClientState,
    ReplicaCounts,
    ReplicaState,
    RouterState,
    RouterSummary,
    ServiceState,
    TenantState,
    fields_of,
)
from evenkeel_contract.figures import grown, mean


class ReplicaRow(ReplicaCounts, frozen=True, kw_only=True):
    """One replica."""

    state: str
    """State of the replica: `ready`, `silent` (it gives no token while requests wait there), `loading` (its process answers, and was not ready yet), `not ready`, `gone`, or its suspicion."""
    service_per_s: float
    """Service per second, weighted tokens."""
    hit_rate: float | None
    """The part of the input tokens that was cached, of requests that ended in the window; None without any."""


class ClientRow(msgspec.Struct, frozen=True, kw_only=True):
    """One client."""

    tenant: str
    client: str
    """Name of the client; empty: the clients of the tenant that have no row of their own."""
    weight: str
    """Weight of the tenant · weight of the client."""
    share: float | None
    """The client's part of the service in the window, 0 to 1; None if the fleet served no client."""
    owed: float | None
    """What the client was owed in the window, as a part of all service, 0 to 1; None if no request of it waits."""
    service_per_s: float
    """Service per second, weighted tokens."""
    in_flight: int
    waiting: int
    """Requests at this router whose answer has not begun; of older routers, those in the queues of replicas."""
    running: int
    """Requests at this router whose answer has begun; of older routers, those in the batches of replicas."""
    lost: int | None
    """Requests of the last minute that ended without an answer; None from older routers."""
    deficit_min: float | None
    """Least deficit over the replicas, weighted tokens; None without a report."""
    deficit_max: float | None
    """Greatest deficit over the replicas."""
    behind: float
    """The client's fair share minus the service that it received, weighted tokens; negative if it received more."""
    lead_s: float
    """The client's lead over the least served backlogged client of its tenant, in seconds of fair service."""
    credit: float
    """Σ over replicas of q_{i,w}, weighted tokens. With `workerQuantum: Auto` minus its open work."""
    itl_s: float | None
    """Mean inter-token latency in the window, over the replicas that report it; None without tokens."""
    hit_rate: float | None
    requests: int
    """Since the router started; so are the errors."""
    errors: int


class View(RouterSummary, frozen=True, kw_only=True):
    """Everything that `evenkeel top` shows."""

    window_s: float
    """The time between the readings; the uptime of the router for a single reading."""
    replicas: tuple[ReplicaRow, ...]
    clients: tuple[ClientRow, ...]
    qoe: dict[str, float]
    """Mean QoE, 0 to 1, of the streams that ended in the window, by tenant; without tenants that had none."""


class Views(msgspec.Struct, frozen=True, kw_only=True):
    """A router of several services."""

    services: tuple[View, ...]


class UnknownModelError(ValueError):
    """The router has no such model; the message names those that it has."""


def make_views(
    now: RouterState, before: RouterState | None, model: str | None = None
) -> View | Views:
    """The view of a router, or the views of its services where it has several. `model`: show only the one of that name, alias or
    service; raises `UnknownModelError`."""
    services = now.services or (now,)
    if model is not None:
        services = tuple(one for one in services if model in _names(one))
        if not services:
            known = ", ".join((one.names or (one.model,))[0] for one in now.services or (now,))
            raise UnknownModelError(f"must be one of {known}, not {model!r}")
    earlier = {one.service: one for one in (before.services or (before,))} if before else {}
    views = tuple(make_view(one, earlier.get(one.service)) for one in services)
    return views[0] if model is not None or not now.services else Views(services=views)


def _names(service: ServiceState) -> tuple[str, ...]:
    return (*service.names, service.model, service.service)


def make_view(now: ServiceState, before: ServiceState | None) -> View:
    """The view of the time since `before`, or since the start of the router without it."""
    if before is not None and not _is_same_process(now, before):
        before = None
    window_s = max(now.time_s - before.time_s if before else now.uptime_s, 1e-9)
    plain = fields_of(RouterSummary, now) | {
        "service": f"{now.namespace}/{now.service}",
        "waiting": _known(now.here.unanswered, now.waiting + sum(map(_waiting, now.replicas))),
    }
    return View(
        **plain,
        window_s=window_s,
        replicas=tuple(_replicas(now, before, window_s)),
        clients=tuple(_clients(now, before, window_s)),
        qoe=_qoe(now, before),
    )


def _is_same_process(now: ServiceState, before: ServiceState) -> bool:
    """Whether both readings are of the same process. Clocks may be set, so the id decides; older routers have none."""
    if now.ledger.router or before.ledger.router:
        return now.ledger.router == before.ledger.router
    return before.uptime_s <= now.uptime_s


def _waiting(replica: ReplicaState) -> int:
    """Requests that wait for a replica. The gate puts those that wait there into the ledger too, each second."""
    return max(replica.waiting, replica.gate_waiting)


def _known(count: int | None, of_older: int) -> int:
    return of_older if count is None else count


def _replicas(
    now: ServiceState, before: ServiceState | None, window_s: float
) -> Iterator[ReplicaRow]:
    earlier = {replica.name: replica for replica in before.replicas} if before else {}
    served = _served_by_replica(now, before)
    for replica in now.replicas:
        plain = fields_of(ReplicaCounts, replica) | {
            "waiting": _known(replica.here.unanswered, _waiting(replica)),
            "running": _known(replica.here.begun, replica.running),
        }
        past = earlier.get(replica.name)
        yield ReplicaRow(
            **plain,
            state=_state(replica),
            service_per_s=served[replica.name] / window_s,
            hit_rate=_mean(replica, past, "cached_tokens", "input_tokens"),
        )


def _clients(
    now: ServiceState, before: ServiceState | None, window_s: float
) -> Iterator[ClientRow]:
    earlier = {client.identity: client for _, client in _each(before)}
    rows = [(tenant, client, earlier.get(client.identity)) for tenant, client in _each(now)]
    total = sum(_grown(client, past, "service") for _, client, past in rows)
    for tenant, client, past in rows:
        service, owed = _grown(client, past, "service"), _grown(client, past, "owed")
        deficits = [at.deficit for at in client.replicas]
        yield ClientRow(
            tenant=tenant.name,
            client=client.name,
            weight=f"{tenant.weight:g}·{client.weight}",
            share=mean(service, total),
            owed=mean(owed, total) if client.backlogged else None,
            service_per_s=service / window_s,
            in_flight=client.in_flight,
            waiting=_known(client.here.unanswered, sum(at.waiting for at in client.replicas)),
            running=_known(client.here.begun, sum(at.running for at in client.replicas)),
            lost=client.here.lost,
            deficit_min=min(deficits, default=None),
            deficit_max=max(deficits, default=None),
            behind=client.owed - client.service,
            lead_s=client.lead_s,
            credit=sum(at.credit for at in client.replicas),
            itl_s=_itl_s(client, past),
            hit_rate=_mean(client, past, "cached_tokens", "input_tokens"),
            requests=client.requests,
            errors=client.errors,
        )


def _qoe(now: ServiceState, before: ServiceState | None) -> dict[str, float]:
    earlier = {(one.namespace, one.name): one for one in before.tenants} if before else {}
    means = (
        (one.name, _mean(one, earlier.get((one.namespace, one.name)), "qoe", "qoe_streams"))
        for one in now.tenants
    )
    return {name: value for name, value in means if value is not None}


def _itl_s(now: ClientState, before: ClientState | None) -> float | None:
    earlier = {at.replica: at for at in before.replicas} if before else {}
    pairs = [(at, earlier.get(at.replica)) for at in now.replicas]
    seconds, tokens = (
        sum(_grown(at, past, name) for at, past in pairs) for name in ("itl_s", "itl_tokens")
    )
    return mean(seconds, tokens)


def _served_by_replica(now: ServiceState, before: ServiceState | None) -> Mapping[str, float]:
    """Weighted tokens of all clients in the window, as replicas report them."""
    earlier = {
        (client.identity, at.replica): at for _, client in _each(before) for at in client.replicas
    }
    served: defaultdict[str, float] = defaultdict(float)
    for _, client in _each(now):
        for at in client.replicas:
            past = earlier.get((client.identity, at.replica))
            served[at.replica] += _grown(at, past, "service")
    return served


def _state(replica: ReplicaState) -> str:
    if replica.suspicion:
        return replica.suspicion.partition(":")[0]
    if replica.loads:
        return "loading"
    if replica.silent_s:
        return "silent"
    return "ready" if replica.routable else "not ready" if replica.joined else "gone"


def _each(state: ServiceState | None) -> Iterator[tuple[TenantState, ClientState]]:
    tenants = () if state is None else state.tenants
    return ((tenant, client) for tenant in tenants for client in tenant.clients)


_Totals = ClientState | ReplicaState | ClientAtReplica | TenantState


def _grown(now: _Totals, past: _Totals | None, name: str) -> float:
    return grown(getattr(now, name), 0.0 if past is None else getattr(past, name))


def _mean(now: _Totals, past: _Totals | None, total: str, count: str) -> float | None:
    return mean(_grown(now, past, total), _grown(now, past, count))
