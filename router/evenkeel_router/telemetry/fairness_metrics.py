"""The fleet's fairness as metrics: what each client was served against what it was owed (design §7).

Place in the flow: truth → **metrics** → `/metrics`. Every router exports the same figures of the whole fleet, from
the same ledger: aggregate them over routers by maximum, never by sum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client.core import Metric

from evenkeel_router.api.identity import names_of
from evenkeel_router.telemetry.families import counter, gauge
from evenkeel_router.telemetry.rooms import Rooms

_CLIENT = ("model_name", "tenant", "client")
_TENANT = ("model_name", "tenant")
_MODEL = ("model_name",)


def truth_metrics(rooms: Rooms) -> Iterator[Metric]:
    """Clients, tenants, the fleet, and how sure the ledger is."""
    yield from _clients(rooms)
    yield from _tenants(rooms)
    yield from _fleet(rooms)
    yield from _ledger(rooms)


def _clients(rooms: Rooms) -> Iterator[Metric]:
    model = rooms.settings.config.model
    service = counter("service", "Weighted tokens given, by the whole fleet, since ever.", _CLIENT)
    owed = counter("service_owed", "Weighted tokens that should have been given.", _CLIENT)
    asked = gauge("service_requested", "Weighted tokens asked for per second.", _CLIENT)
    lead = gauge("lead_seconds", "Fair service ahead of the least served of the tenant.", _CLIENT)
    waits = gauge("backlogged", "1 while a request of the client waits at a replica.", _CLIENT)
    for identity, own in rooms.service_ledger.fairness.now.clients.items():
        labels = (model, *names_of(identity))
        service.add_metric(labels, own.service)
        owed.add_metric(labels, own.owed)
        asked.add_metric(labels, own.requested_per_s)
        lead.add_metric(labels, own.lead_s)
        waits.add_metric(labels, float(own.backlogged))
    yield from (service, owed, asked, lead, waits)


def _tenants(rooms: Rooms) -> Iterator[Metric]:
    model = rooms.settings.config.model
    service = counter("tenant_service", "Weighted tokens given to all its clients.", _TENANT)
    owed = counter("tenant_service_owed", "Weighted tokens that should have been given.", _TENANT)
    lead = gauge("tenant_lead_seconds", "Fair service ahead of the least served tenant.", _TENANT)
    for identity, own in rooms.service_ledger.fairness.now.tenants.items():
        labels = (model, names_of(f"{identity}/")[0])
        service.add_metric(labels, own.service)
        owed.add_metric(labels, own.owed)
        lead.add_metric(labels, own.lead_s)
    yield from (service, owed, lead)


def _fleet(rooms: Rooms) -> Iterator[Metric]:
    now = rooms.service_ledger.fairness.now
    for name, help_text, value in (
        ("fleet_share_error_ratio",
         "How much less than owed the worst treated backlogged client got, over a minute.",
         now.share_error),
        ("fleet_lead_seconds",
         "The most over the least served backlogged client, in seconds of fair service.",
         now.lead_s),
        ("fleet_jain_index", "Of service over share, between backlogged clients.", now.jain),
        ("fleet_bound_ratio",
         "Difference of standing over what is proven: above 1 something is broken.",
         now.bound_ratio),
        ("fleet_backlogged_clients", "Clients with a request that waits.", now.backlogged),
        ("within_share_waiting",
         "Requests that wait at replicas, of clients that asked for no more than their share.",
         now.waiting_within_share),
    ):  # fmt: skip
        family = gauge(name, help_text, _MODEL)
        family.add_metric((rooms.settings.config.model,), float(value))
        yield family


def _ledger(rooms: Rooms) -> Iterator[Metric]:
    model, now_s = rooms.settings.config.model, asyncio.get_running_loop().time()
    for name, help_text, value in (
        ("ledger_incarnations", "Replica processes that are in no book yet.",
         sum(1 for _ in rooms.service_ledger.ledger.open_pages())),
        ("ledger_clients", "Clients that the ledger knows.", rooms.service_ledger.fairness.known),
        ("ledger_book", "Number of the book that this router holds.",
         rooms.service_ledger.ledger.book.rank.height),
        ("ledger_store_up", "0 while the ledger's store is away.", not rooms.service_ledger.store_trouble),
        ("ledger_uncounted_replicas", "Replicas whose service is in no ledger.",
         sum(1 for _ in rooms.uncounted())),
    ):  # fmt: skip
        family = gauge(name, help_text, _MODEL)
        family.add_metric((model,), float(value))
        yield family
    reports = gauge(
        "ledger_report_age_seconds", "Since the last report.", ("model_name", "replica")
    )
    for replica, seen in rooms.replicas.reports.items():
        reports.add_metric((model, replica), max(0.0, now_s - seen.received_s))
    peers = gauge("ledger_peer_age_seconds", "Since the last answer.", ("model_name", "peer"))
    for peer, heard in rooms.service_ledger.peer_contacts.items():
        began_s = heard.answered_s if heard.answered_s is not None else heard.since_s
        peers.add_metric((model, peer.name), max(0.0, now_s - began_s))
    yield from (reports, peers, _store_age(rooms, now_s))


def _store_age(rooms: Rooms, now_s: float) -> Metric:
    age = gauge(
        "ledger_store_age_seconds",
        "Since the ledger's store was last read or written; since the start while it never was.",
        ("model_name", "operation"),
    )
    keeping = rooms.service_ledger.persistence
    if keeping is not None:
        for operation, done_s in (("load", keeping.loaded_s), ("save", keeping.saved_s)):
            since_s = keeping.began_s if done_s is None else done_s
            age.add_metric((rooms.settings.config.model, operation), max(0.0, now_s - since_s))
    return age
