"""`evenkeel_router_*`: the router's metrics, rendered for each scrape (design §8).

Totals are exported by client, distributions by tenant: a histogram by client would be a hundred series for each name
that a trusted proxy sends. Requests run while a scrape is rendered: all series of a client are of one moment, two
clients may be some milliseconds apart. The counts and the sum of one histogram agree, and so do all fleet-wide series.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from evenkeel_contract.names import SERVICE_SERIES_LABEL

from evenkeel_router.api.identity import names_of, other_clients
from evenkeel_router.fleet.health import FOR_GOOD
from evenkeel_router.ledger.clients import ClientFigures, client_figures
from evenkeel_router.ledger.fairness import NO_FIGURES
from evenkeel_router.ledger.totals import NO_TOTALS
from evenkeel_router.prefix.kv_follower import SyncState
from evenkeel_router.request.own_answers import INTERNAL
from evenkeel_router.telemetry.exposition import (
    Lines,
    counter,
    gauge,
    histogram,
    labels,
    merged,
    summary,
)
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.served import AllServed

_Value = str | Callable[[Any], Any]
"""An attribute, or what computes a value. A value of None has no series."""
_Rows = tuple[tuple[Callable[..., Lines], str, _Value, str], ...]
"""Kind of a metric, its name, its value, and its help."""

_CLIENTS: Final[_Rows] = (
    (counter, "request", "here.requests", "Requests of identified clients."),
    (counter, "request_given_up", "here.given_up",
     "Requests that clients within their share gave up."),
    (counter, "request_retry", "here.retries", "Requests that were sent again after a replica failed."),
    (counter, "request_relocation", "here.relocations", "Waiting requests that moved from a draining replica, or to an idle one."),
    (counter, "client_input_tokens", "here.input_tokens", "Input tokens of served requests, cached tokens included."),
    (counter, "client_cached_tokens", "here.cached_tokens", "Input tokens that replicas found in their caches."),
    (counter, "client_output_tokens", "here.output_tokens", "Output tokens of served requests."),
    (gauge, "requests_in_flight", "here.in_flight", "Sequences (prompts times answers) of admitted requests that have not ended."),
    (summary, "client_ttft_seconds", attrgetter("here.ttft_s", "here.answers"), "As request_ttft_seconds: sum and count."),
    (summary, "client_itl_seconds", attrgetter("here.itl_s", "here.itl_tokens"), "Time between tokens of streams: sum, and count of tokens."),
)  # fmt: skip
_CLIENTS_OF_LEDGER: Final[_Rows] = (
    (counter, "service", "fleet.service", "Weighted tokens that the whole fleet served to the client."),
    (counter, "service_owed", "fleet.owed", "Weighted tokens that the fleet should have served to the client."),
    (gauge, "service_requested", "fleet.requested_per_s", "Weighted tokens per second that the client requests of all routers."),
    (gauge, "lead_seconds", "fleet.lead_s", "Seconds of fair service ahead of the tenant's least served client. 0 without a waiting request."),
    (gauge, "backlogged", "fleet.backlogged", "1 if a request of the client waits at a replica."),
    (gauge, "service_waiting", lambda own: own.fleet.waiting or None,
     "Weighted tokens that the client's waiting requests will cost, by the mean of its earlier requests. No series without one."),
)  # fmt: skip
_TENANTS: Final[_Rows] = (
    (counter, "tenant_service", "service", "Weighted tokens that the whole fleet served to the tenant's clients."),
    (counter, "tenant_service_owed", "owed", "Weighted tokens that the fleet should have served to the tenant's clients."),
    (gauge, "tenant_lead_seconds", "lead_s", "Seconds of fair service ahead of the least served tenant."),
)  # fmt: skip
_DISTRIBUTIONS: Final[_Rows] = (
    (histogram, "request_ttft_seconds", "ttft_s", "Time from a request's head to the first event sent, or to the whole answer."),
    (histogram, "request_itl_seconds", "itl_s", "Inter-token latency: mean time between the tokens of a stream after its first event."),
    (histogram, "request_duration_seconds", "duration_s", "Time from a request's head to the end of its answer."),
    (histogram, "request_input_tokens", "input_tokens", "Input tokens of a served request, cached tokens included."),
    (histogram, "request_cached_tokens", "cached_tokens", "Input tokens of a served request that the replica found in its cache."),
    (histogram, "request_output_tokens", "output_tokens", "Output tokens of a served request."),
    (histogram, "request_qoe_ratio", lambda own: own.qoe if any(own.qoe.counts) else None,
     "Quality of experience of a stream, from 0 to 1, with router.qoe in the spec."),
)  # fmt: skip
_FLEET: Final[_Rows] = (
    (gauge, "fleet_share_error_ratio", "share_error", "Largest shortfall of a backlogged client, over what it was owed in the last minute."),
    (gauge, "fleet_lead_seconds", "lead_s", "Seconds of fair service between the most and the least served backlogged client."),
    (gauge, "fleet_jain_index", "jain", "Jain's index of service over share, of backlogged clients over the last minute."),
    (gauge, "fleet_bound_ratio", "bound_ratio", "Largest difference in service over its proven bound. Above 1 the fleet has a fault."),
    (gauge, "fleet_backlogged_clients", "backlogged", "Clients with a request that waits at a replica."),
    (gauge, "within_share_waiting", "waiting_within_share", "Requests that wait at replicas, of clients that request at most their share."),
    (counter, "saturated_seconds", "saturated_s", "Seconds in which requests waited at a replica, from the sixth in a row on, over all replicas."),
    (counter, "saturated_service", "saturated_service", "Weighted tokens that replicas served in those seconds."),
)  # fmt: skip
_MEMBERS: Final[_Rows] = (
    (gauge, "replica_routable", "routable", "1 if the replica can receive requests."),
    (gauge, "replica_returning", lambda one: bool(one.standing.allowed and one.standing.evidence), "1 if the replica was suspect and gets few requests at a time."),
    (gauge, "replica_draining", lambda one: one.unschedulable in FOR_GOOD, "1 if the replica is leaving and receives no new requests."),
)  # fmt: skip
_REPLICAS: Final[_Rows] = (
    (counter, "replica_request", "requests", "Requests that were sent to the replica."),
    (counter, "replica_failure", "failures", "Requests that failed at the replica."),
    (counter, "replica_backoff", "backoffs", "Times that the replica became suspect and received nothing but probes."),
    (counter, "replica_usage_rejected", "rejected_usage",
      "Reports of usage that were impossible for their request. The bound or the estimate was charged instead."),
    (counter, "replica_input_tokens", "input_tokens", "Input tokens of requests that the replica served."),
    (counter, "replica_cached_tokens", "cached_tokens", "Input tokens that the replica found in its cache."),
    (counter, "replica_output_tokens", "output_tokens", "Output tokens that the replica generated."),
)  # fmt: skip
_GATES: Final[_Rows] = (
    (gauge, "replica_gate_waiting", lambda gate: gate.clients.total(),
     "Sequences of the requests that wait in the router until the replica can start them."),
    (gauge, "replica_gate_unanswered", "unanswered", "Sequences of the requests at the replica whose answer has not begun."),
    (gauge, "replica_gate_limit", "limit", "Largest number of sequences of streams at the replica whose answer has not begun."),
    (gauge, "replica_gate_part", "streamed.part", "Part of the replica, from 0 to 1, that this router may use while requests also wait at other routers."),
    (gauge, "replica_gate_engine_limit", lambda gate: int(gate.engine.limit) if gate.engine.load is not None else 0,
     "Sequences of all routers that may be at the replica, by its own metrics. 0 if it has none."),
    (gauge, "replica_gate_held", lambda gate: len(gate) > 0 and gate.is_held,
     "1 if requests wait here for requests at other routers whose clients received less service."),
)  # fmt: skip
_PREDICTIONS: Final[_Rows] = (
    (counter, "prefix_predicted_tokens", "predicted_tokens", "Input tokens that the router expected in the chosen replica's cache."),
    (counter, "prefix_reported_tokens", "reported_tokens", "Input tokens of the same requests that the replica found in its cache."),
    (histogram, "prefix_error_tokens", "error_tokens", "Absolute difference between predicted and reported cached tokens of a request."),
)  # fmt: skip
_KV_EVENTS: Final[_Rows] = (
    (gauge, "replica_kv_in_sync", lambda one: one.sync_state is SyncState.IN_SYNC, "1 if the router's view of the replica's cache is exact."),
    (gauge, "replica_kv_batch_age_seconds", lambda one: None if one.last_batch_unix_s is None else time.time() - one.last_batch_unix_s,
     "Time since the last batch of KV events, by the replica's clock."),
    (counter, "replica_kv_batches", "counts.batches", "Batches of KV events that were applied."),
    (counter, "replica_kv_gaps", "counts.gaps", "Times that a batch of KV events was missing and was requested again."),
    (counter, "replica_kv_replays", "counts.replays", "Replays that the router requested, those that only confirm its view included."),
    (counter, "replica_kv_overruns", "counts.overruns", "Times that the replica had already discarded the missing batches."),
    (counter, "replica_kv_takeovers", "counts.takeovers", "Times that the router replaced its view by the pages that the replica reported."),
    (counter, "replica_kv_unreadable", "counts.unreadable", "Batches of KV events that were invalid."),
)  # fmt: skip
_LEDGER: Final[_Rows] = (
    (gauge, "ledger_incarnations", lambda rooms: sum(1 for _ in rooms.service_ledger.ledger.open_accounts()),
     "Replica processes whose accounts are still open."),
    (gauge, "ledger_clients", "service_ledger.fairness.known", "Clients in the ledger."),
    (gauge, "ledger_closed_totals_version", "service_ledger.ledger.closed_totals.rank.height", "Version of the closed totals that this router has."),
    (gauge, "ledger_store_up", lambda rooms: not rooms.service_ledger.store_error, "0 if the ledger's store is unreachable."),
    (gauge, "ledger_uncounted_replicas", lambda rooms: sum(1 for _ in rooms.uncounted()), "Replicas whose service the ledger does not count."),
)  # fmt: skip
_CELLS: Final[_Rows] = (
    (gauge, "cell_counted", "counts", "1 if the other cell's figures count."),
)  # fmt: skip
_ROUTER: Final[_Rows] = (
    (histogram, "within_share_ttft_seconds", "totals.within_share_ttft_s",
     "As request_ttft_seconds, of clients that request at most their share. A request without a token is in +Inf."),
    (counter, "gate_moved", "gates.moved", "Requests that moved from the queue of a busy replica to an idle replica."),
    (gauge, "requests_held", lambda rooms: len(rooms.replicas.wait_queue), "Requests that wait until a replica is routable."),
    (gauge, "activation_wanted", "replicas.activation.wanted", "1 if a request waits for the first replica of a service with zero replicas."),
    (gauge, "prefix_index_entries", lambda rooms: len(rooms.replicas.fleet.index), "Prefixes in memory. The limit is prefix.maxBlocks."),
    (histogram, "activation_seconds", "replicas.activation.took_s",
     "Time from the first request for a service with zero replicas until a replica accepts requests."),
)  # fmt: skip
_PROCESS: Final[_Rows] = (
    (gauge, "connections", lambda rooms: len(rooms.connections.open), "Open connections of clients."),
    (gauge, "connections_limit", "connections.bound", "Most open connections of clients. Beyond it the tenant with most of them loses one."),
    (gauge, "buffered_bytes", "intake.body_memory.used_bytes", "Bytes of request bodies in memory."),
    (gauge, "requests_in_flight_limit", "settings.config.limits.max_concurrent", "Value of limits.maxConcurrent, which counts sequences."),
    (gauge, "draining", "intake.draining", "1 if the router is shutting down."),
    (gauge, "config_faulty", lambda rooms: bool(rooms.settings.faults), "1 if the newest configuration is invalid and the previous one is in use."),
    # Of this thread alone, which runs the event loop; tokenising has threads of its own.
    (counter, "loop_cpu_seconds", lambda _: time.thread_time(),
     "CPU time of the thread that serves requests. If it grows by 1 second per second, requests wait for the thread."),
)  # fmt: skip


def _table(rows: _Rows, series: Sequence[tuple[str, Any]]) -> Lines:
    """A metric for each row; `series` are labels, and the object with the values."""
    owns, ones = [own for own, _ in series], [one for _, one in series]
    for kind, name, of, help_text in rows:
        value = attrgetter(of) if isinstance(of, str) else of
        yield from kind(name, help_text, zip(owns, map(value, ones), strict=True))


def all_metrics(served: AllServed, dropped_lines: int, dropped_spans: int) -> Lines:
    """A whole scrape of the router: what its services share, and each service."""
    rooms = served.all_rooms()
    yield from merged([metrics(one, dropped_lines, dropped_spans) for one in rooms])
    if served.several:
        yield from of_several(served)


def of_several(served: AllServed) -> Lines:
    """What a router of several services has besides."""
    fallen_back = [
        (labels(fallback=to, model_name=name), n) for (name, to), n in served.fallen_back.items()
    ]
    help_text = "Requests that another model served, by the names of both."
    yield from counter("fallback", help_text, fallen_back)
    weights = [
        (labels(**_labels_of(one.rooms), tenant=names_of(other_clients(tenant))[0]), weight)
        for one in served.services.values()
        for tenant, weight in one.rooms.intake.local_weights.items()
    ]
    help_text = "Weight of the tenant in one model, with shareAcross of a gateway. No series while it is the configured one."
    yield from gauge("tenant_weight", help_text, weights)


def _labels_of(rooms: Rooms) -> dict[str, str]:
    """The labels of all series. Those of one of several services name it, as a PodMonitor does for routers of one."""
    config = rooms.settings.config
    if rooms.shared is None:
        return {"model_name": config.model if rooms.has_service else ""}
    return {SERVICE_SERIES_LABEL: config.service, "model_name": config.model}


def metrics(rooms: Rooms, dropped_lines: int = 0, dropped_spans: int = 0) -> Lines:
    """A whole scrape. Lines of the request log and spans of traces are dropped by those who write them."""
    of, totals = _labels_of(rooms), rooms.totals
    own = labels(**of)
    service = [(own, rooms)] if rooms.has_service else []
    process = [(own, rooms)] if rooms.has_process else []
    yield from _of_clients(of, rooms)
    yield from _of_replicas(of, rooms)
    tenants = [(labels(**of, tenant=tenant.tenant), tenant) for tenant in totals.distributions()]
    yield from _table(_DISTRIBUTIONS, tenants)
    bases = [(labels(mode=basis, **of), one) for basis, one in totals.predictions.items()]
    yield from _table(_PREDICTIONS, bases)
    yield from _table(_LEDGER, service)
    yield from _ages(of, rooms)
    cells = [
        (labels(cell=cell.name, **of), contact)
        for cell, contact in rooms.service_ledger.cell_contacts.items()
    ]
    yield from _table(_CELLS, cells)
    yield from _table(_ROUTER, service)
    yield from _table(_PROCESS, process)
    stripped = [(labels(field=field, **of), n) for field, n in totals.stripped.items()]
    help_text = "Fields, headers and volatile lines of agents that were removed from requests."
    yield from counter("stripped", help_text, stripped)
    refused = [
        (labels(**of, reason=reason), n)
        for reason, n in (rooms.intake.audit.refused_by_reason.items() if process else ())
    ]
    help_text = (
        "Keys and tokens that were refused, by reason. The log names identities and addresses."
    )
    yield from counter("credentials_refused", help_text, refused)
    by_tenant: Counter[tuple[str, str]] = Counter()
    for (party, why), n in rooms.connections.closed.items() if process else ():
        tenant = names_of(other_clients(party))[0] if "/" in party else ""
        by_tenant[why.value, tenant] += n
    closed = [
        (labels(**of, reason=why, tenant=tenant), n) for (why, tenant), n in by_tenant.items()
    ]
    help_text = "Connections of clients that the router closed, by reason. The tenant is empty without a valid key."
    yield from counter("connections_closed", help_text, closed)
    untokenised = rooms.prefixes.untokenised.counts.items()
    reasons = [(labels(**of, reason=reason.value), n) for reason, n in untokenised]
    help_text = "Requests in tokens mode that were matched by their text."
    yield from counter("untokenised", help_text, reasons)
    help_text = "Dropped lines of the request log: they came too fast, or could not be written."
    yield from counter("log_lines_dropped", help_text, [(own, dropped_lines)][: len(process)])
    help_text = "Spans that were not sent: too many waited, or the collector did not answer."
    yield from counter("trace_spans_dropped", help_text, [(own, dropped_spans)][: len(process)])


def _of_clients(of: Mapping[str, str], rooms: Rooms) -> Lines:
    """Clients, tenants and the fleet: all fleet-wide figures of one moment."""
    now = rooms.service_ledger.fairness.now
    clients: list[tuple[str, ClientFigures]] = []
    for one in client_figures(now, rooms.totals):
        clients.append((labels(client=one.name, **of, tenant=one.tenant), one))
        yield ""
    yield from _table(_CLIENTS, [pair for pair in clients if pair[1].here is not NO_TOTALS])
    yield from _table(
        _CLIENTS_OF_LEDGER, [pair for pair in clients if pair[1].fleet is not NO_FIGURES]
    )
    errors = _errors(of, rooms, [one for _, one in clients])
    yield from counter("request_error", "Requests that failed, by outcome.", errors)
    tenants = []
    for identity, figures in now.tenants.items():
        tenant, _ = names_of(other_clients(identity))
        tenants.append((labels(**of, tenant=tenant), figures))
        yield ""
    yield from _table(_TENANTS, tenants)
    yield from _table(_FLEET, [(labels(**of), now)] if rooms.has_service else [])


def _errors(
    of: Mapping[str, str], rooms: Rooms, clients: Sequence[ClientFigures]
) -> Iterator[tuple[str, float]]:
    def series(client: str, tenant: str, code: str) -> str:
        return labels(client=client, error_code=code, **of, tenant=tenant)

    for one in clients:
        for outcome, count in list(one.here.errors.items()):
            yield series(one.name, one.tenant, outcome.value), count
    for refused, count in list(rooms.totals.refused.items()):
        yield series("", "", refused.value), count
    if rooms.totals.faults:
        yield series("", "", INTERNAL), rooms.totals.faults


def _of_replicas(of: Mapping[str, str], rooms: Rooms) -> Lines:
    """Replicas as this router uses them, their gates, and its view of their caches."""
    replicas, fleet = rooms.replicas, rooms.replicas.fleet

    def named(name: str) -> str:
        return labels(**of, replica=name)

    members = [(named(one.name), one) for one in fleet]
    yield from _table(_MEMBERS, members)
    suspects = (
        (
            f"{own},{labels(reason=evidence.kind)}"
            if one.suspect and (evidence := one.standing.evidence) is not None
            else f'{own},reason=""',
            int(one.suspect),
        )
        for own, one in members
    )
    help_text = "1 while the replica is suspect and receives probes only. Else 0, without a reason."
    yield from gauge("replica_suspect", help_text, suspects)
    loads = ((own, fleet.load(one)) for own, one in members)
    yield from gauge(
        "replica_requests_in_flight", "Sequences of this router's requests at the replica.", loads
    )
    help_text = "Prompt blocks that this router expects in the replica's cache."
    blocks = ((own, fleet.blocks(one)) for own, one in members)
    yield from gauge("replica_prefix_blocks", help_text, blocks)
    yield from _table(_REPLICAS, [(named(name), own) for name, own in replicas.totals.items()])
    gates = [(own, rooms.gates.gate(one.name)) for own, one in members]
    yield from _table(_GATES, [(own, gate) for own, gate in gates if gate is not None])
    views = [(named(name), own) for name, own in rooms.prefixes.followers.items()]
    yield from _table(_KV_EVENTS, views)
    yield from gauge(
        "replica_kv_state",
        "1 for the current state of the router's view of the replica's cache, else 0.",
        (
            (f"{own},{labels(state=state.value)}", one.sync_state is state)
            for own, one in views
            for state in SyncState
        ),
    )


def _ages(of: Mapping[str, str], rooms: Rooms) -> Lines:
    """How old the inputs of the ledger are."""
    now_s, ledger = asyncio.get_running_loop().time(), rooms.service_ledger
    reports = [
        (labels(**of, replica=replica), max(0.0, now_s - report.received_s))
        for replica, report in rooms.replicas.reports.items()
    ]
    yield from gauge("ledger_report_age_seconds", "Time since the replica's last report.", reports)
    peers = []
    for peer, contact in ledger.peer_contacts.items():
        since_s = contact.since_s if contact.answered_s is None else contact.answered_s
        peers.append((labels(**of, peer=peer.name), max(0.0, now_s - since_s)))
    yield from gauge("ledger_peer_age_seconds", "Time since the other router's last answer.", peers)
    stores = []
    if (kept := ledger.persistence) is not None:
        for operation, done_s in (("load", kept.loaded_s), ("save", kept.saved_s)):
            since_s = kept.began_s if done_s is None else done_s
            stores.append((labels(**of, operation=operation), max(0.0, now_s - since_s)))
    yield from gauge(
        "ledger_store_age_seconds",
        "Time since the last successful operation at the ledger's store, or since the start.",
        stores,
    )
