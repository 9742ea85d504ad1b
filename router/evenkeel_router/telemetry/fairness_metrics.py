"""The ledger's metrics: what each client was served against what it was owed, fleet-wide (design §7).

Every router exports the same fleet-wide figures, from the same ledger: aggregate them over routers by maximum, not by
sum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from evenkeel_router.api.identity import names_of, other_clients
from evenkeel_router.ledger.fairness import FleetFigures, MemberFigures
from evenkeel_router.ledger.persistence import Persistence
from evenkeel_router.telemetry.exposition import Lines, counter, gauge, labels
from evenkeel_router.telemetry.rooms import Rooms

_Table = tuple[tuple[Callable[..., Lines], str, str, Callable[[MemberFigures], float]], ...]
_CLIENTS: Final[_Table] = (
    (counter, "service", "Weighted tokens that the whole fleet served to the client.",
     lambda own: own.service),
    (counter, "service_owed", "Weighted tokens that the fleet should have served to the client.",
     lambda own: own.owed),
    (gauge, "service_requested", "Weighted tokens per second that the client requests of all routers.",
     lambda own: own.requested_per_s),
    (gauge, "lead_seconds", "Seconds of fair service ahead of the tenant's least served client. 0 without a waiting request.",
     lambda own: own.lead_s),
    (gauge, "backlogged", "1 if a request of the client waits at a replica.", lambda own: own.backlogged),
)  # fmt: skip
_TENANTS: Final[_Table] = (
    (counter, "tenant_service", "Weighted tokens that the whole fleet served to the tenant's clients.",
     lambda own: own.service),
    (counter, "tenant_service_owed", "Weighted tokens that the fleet should have served to the tenant's clients.",
     lambda own: own.owed),
    (gauge, "tenant_lead_seconds", "Seconds of fair service ahead of the least served tenant.",
     lambda own: own.lead_s),
)  # fmt: skip
_FLEET: Final[tuple[tuple[str, str, Callable[[FleetFigures], float]], ...]] = (
    ("fleet_share_error_ratio", "Largest shortfall of a backlogged client, over what it was owed in the last minute.",
     lambda now: now.share_error),
    ("fleet_lead_seconds", "Seconds of fair service between the most and the least served backlogged client.",
     lambda now: now.lead_s),
    ("fleet_jain_index", "Jain's index of service over share, of backlogged clients over the last minute.",
     lambda now: now.jain),
    ("fleet_bound_ratio", "Largest difference in service over its proven bound. Above 1 the fleet has a fault.",
     lambda now: now.bound_ratio),
    ("fleet_backlogged_clients", "Clients with a request that waits at a replica.",
     lambda now: now.backlogged),
    ("within_share_waiting", "Requests that wait at replicas, of clients that request at most their share.",
     lambda now: now.waiting_within_share),
)  # fmt: skip


def fairness_metrics(model: str, now: FleetFigures) -> Lines:
    """Clients, tenants and the fleet, all of one moment."""
    clients: list[tuple[str, MemberFigures]] = []
    for identity, figures in now.clients.items():
        tenant, client = names_of(identity)
        clients.append((labels(client=client, model_name=model, tenant=tenant), figures))
        yield ""
    for family, name, help_text, of in _CLIENTS:
        yield from family(name, help_text, ((own, of(figures)) for own, figures in clients))
    tenants: list[tuple[str, MemberFigures]] = []
    for identity, figures in now.tenants.items():
        tenant, _ = names_of(other_clients(identity))
        tenants.append((labels(model_name=model, tenant=tenant), figures))
        yield ""
    for family, name, help_text, of in _TENANTS:
        yield from family(name, help_text, ((own, of(figures)) for own, figures in tenants))
    for name, help_text, value in _FLEET:
        yield from gauge(name, help_text, [(labels(model_name=model), value(now))])


def ledger_metrics(rooms: Rooms) -> Lines:
    """What the ledger contains, and how old its inputs are."""
    model, now_s = rooms.settings.config.model, asyncio.get_running_loop().time()
    for name, help_text, value in (
        ("ledger_incarnations", "Replica processes whose accounts are still open.",
         sum(1 for _ in rooms.service_ledger.ledger.open_accounts())),
        ("ledger_clients", "Clients in the ledger.", rooms.service_ledger.fairness.known),
        ("ledger_closed_totals_version", "Version of the closed totals that this router has.",
         rooms.service_ledger.ledger.closed_totals.rank.height),
        ("ledger_store_up", "0 if the ledger's store is unreachable.", not rooms.service_ledger.store_trouble),
        ("ledger_uncounted_replicas", "Replicas whose service is in no ledger.",
         sum(1 for _ in rooms.uncounted())),
    ):  # fmt: skip
        yield from gauge(name, help_text, [(labels(model_name=model), value)])
    reports = (
        (labels(model_name=model, replica=replica), max(0.0, now_s - report.received_s))
        for replica, report in list(rooms.replicas.reports.items())
    )
    yield from gauge("ledger_report_age_seconds", "Time since the replica's last report.", reports)
    peers: list[tuple[str, float]] = []
    for peer, contact in rooms.service_ledger.peer_contacts.items():
        since_s = contact.since_s if contact.answered_s is None else contact.answered_s
        peers.append((labels(model_name=model, peer=peer.name), max(0.0, now_s - since_s)))
    yield from gauge("ledger_peer_age_seconds", "Time since the other router's last answer.", peers)
    yield from gauge(
        "ledger_store_age_seconds",
        "Time since the last successful operation at the ledger's store, or since the start.",
        _store_ages(model, rooms.service_ledger.persistence, now_s),
    )


def _store_ages(
    model: str, persistence: Persistence | None, now_s: float
) -> Iterator[tuple[str, float]]:
    if persistence is not None:
        for operation, done_s in (("load", persistence.loaded_s), ("save", persistence.saved_s)):
            since_s = persistence.began_s if done_s is None else done_s
            yield labels(model_name=model, operation=operation), max(0.0, now_s - since_s)
