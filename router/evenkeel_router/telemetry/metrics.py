"""`evenkeel_router_*`: the router's metrics, rendered for each scrape (design §8).

Totals are exported by client, distributions by tenant: a histogram by client would be a hundred series for each name
that a trusted proxy sends. Requests run while a scrape is rendered: a series is exact when its line is written, two
series may be some milliseconds apart. The counts and the sum of one histogram agree, and so do all fleet-wide series.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

from evenkeel_router.api.errors import Outcome
from evenkeel_router.api.identity import names_of, other_clients
from evenkeel_router.fleet.health import FOR_GOOD
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.ledger.fairness import FleetFigures, MemberFigures
from evenkeel_router.ledger.persistence import Persistence
from evenkeel_router.ledger.totals import ClientTotals, RequestTotals
from evenkeel_router.prefix.kv_follower import Follower, SyncState
from evenkeel_router.request.own_answers import INTERNAL
from evenkeel_router.request.request_state import RequestLog
from evenkeel_router.telemetry.exposition import Lines, counter, gauge, histogram, labels, summary
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.tracing import DroppedSpans

_Rows = tuple[tuple[str, str, str], ...]
"""Name of a metric, the attribute with its value, and its help."""
_CLIENT_COUNTERS: Final[_Rows] = (
    ("request", "requests", "Requests of identified clients."),
    ("request_retry", "retries", "Requests that were sent again after a replica failed."),
    ("request_relocation", "relocations", "Requests that were waiting at a draining replica and were sent to another one."),
    ("client_input_tokens", "input_tokens", "Input tokens of served requests, cached tokens included."),
    ("client_cached_tokens", "cached_tokens", "Input tokens that replicas found in their caches."),
    ("client_output_tokens", "output_tokens", "Output tokens of served requests."),
)  # fmt: skip
_TENANT_HISTOGRAMS: Final[_Rows] = (
    ("request_ttft_seconds", "ttft_s", "Time from a request's head to the first event sent, or to the whole answer."),
    ("request_itl_seconds", "itl_s", "Inter-token latency: mean time between the tokens of a stream after its first event."),
    ("request_duration_seconds", "duration_s", "Time from a request's head to the end of its answer."),
    ("request_input_tokens", "input_tokens", "Input tokens of a served request, cached tokens included."),
    ("request_cached_tokens", "cached_tokens", "Input tokens of a served request that the replica found in its cache."),
    ("request_output_tokens", "output_tokens", "Output tokens of a served request."),
)  # fmt: skip
_REPLICA_COUNTERS: Final[_Rows] = (
    ("replica_request", "requests", "Requests that were sent to the replica."),
    ("replica_failure", "failures", "Requests that failed at the replica."),
    ("replica_backoff", "backoffs", "Pauses of new requests after the replica failed requests that another one answered."),
    ("replica_input_tokens", "input_tokens", "Input tokens of requests that the replica served."),
    ("replica_cached_tokens", "cached_tokens", "Input tokens that the replica found in its cache."),
    ("replica_output_tokens", "output_tokens", "Output tokens that the replica generated."),
)  # fmt: skip
_KV_COUNTERS: Final[_Rows] = (
    ("replica_kv_batches", "batches", "Batches of KV events that were applied."),
    ("replica_kv_gaps", "gaps", "Times that a batch of KV events was missing and was requested again."),
    ("replica_kv_replays", "replays", "Replays that the router requested, those that only confirm its view included."),
    ("replica_kv_overruns", "overruns", "Times that the replica had already discarded the missing batches."),
    ("replica_kv_takeovers", "takeovers", "Times that the router replaced its view by the pages that the replica reported."),
    ("replica_kv_unreadable", "unreadable", "Batches of KV events that were invalid."),
)  # fmt: skip
_CLIENT_SERVICE: Final[_Rows] = (
    ("service", "service", "Weighted tokens that the whole fleet served to the client."),
    ("service_owed", "owed", "Weighted tokens that the fleet should have served to the client."),
)
_CLIENT_GAUGES: Final[_Rows] = (
    ("service_requested", "requested_per_s", "Weighted tokens per second that the client requests of all routers."),
    ("lead_seconds", "lead_s", "Seconds of fair service ahead of the tenant's least served client. 0 without a waiting request."),
    ("backlogged", "backlogged", "1 if a request of the client waits at a replica."),
)  # fmt: skip
_TENANT_SERVICE: Final[_Rows] = (
    ("tenant_service", "service", "Weighted tokens that the whole fleet served to the tenant's clients."),
    ("tenant_service_owed", "owed", "Weighted tokens that the fleet should have served to the tenant's clients."),
)  # fmt: skip
_TENANT_GAUGES: Final[_Rows] = (
    ("tenant_lead_seconds", "lead_s", "Seconds of fair service ahead of the least served tenant."),
)
_FLEET: Final[_Rows] = (
    ("fleet_share_error_ratio", "share_error", "Largest shortfall of a backlogged client, over what it was owed in the last minute."),
    ("fleet_lead_seconds", "lead_s", "Seconds of fair service between the most and the least served backlogged client."),
    ("fleet_jain_index", "jain", "Jain's index of service over share, of backlogged clients over the last minute."),
    ("fleet_bound_ratio", "bound_ratio", "Largest difference in service over its proven bound. Above 1 the fleet has a fault."),
    ("fleet_backlogged_clients", "backlogged", "Clients with a request that waits at a replica."),
    ("within_share_waiting", "waiting_within_share", "Requests that wait at replicas, of clients that request at most their share."),
)  # fmt: skip

_SATURATION: Final[_Rows] = (
    ("saturated_seconds", "saturated_s", "Seconds in which requests waited at a replica, from the sixth in a row on, over all replicas."),
    ("saturated_service", "saturated_service", "Weighted tokens that replicas served in those seconds."),
)  # fmt: skip


def _table(
    family: Callable[..., Lines], rows: _Rows, series: Sequence[tuple[str, object]]
) -> Lines:
    """A family for each row; `series` are labels, and the object with the attributes."""
    for name, attribute, help_text in rows:
        value = attrgetter(attribute)
        yield from family(name, help_text, ((own, value(one)) for own, one in series))


def metrics(rooms: Rooms, log: RequestLog, spans: DroppedSpans) -> Lines:
    """A whole scrape."""
    model = rooms.settings.config.model
    yield from client_metrics(model, rooms.totals)
    yield from tenant_metrics(model, rooms.totals)
    yield from error_metrics(model, rooms.totals)
    yield from fairness_metrics(model, rooms.service_ledger.fairness.now)
    yield from ledger_metrics(rooms)
    yield from replica_metrics(model, rooms.replicas)
    yield from gate_metrics(model, rooms)
    yield from prediction_metrics(model, rooms.totals)
    yield from kv_metrics(model, rooms.prefixes.followers)
    yield from router_metrics(rooms, log, spans)


def client_metrics(model: str, totals: RequestTotals) -> Lines:
    """Totals of clients."""
    clients: list[tuple[str, ClientTotals]] = []
    for client in list(totals.clients()):  # a client may come while this pauses
        own = labels(client=client.client, model_name=model, tenant=client.tenant)
        clients.append((own, client))
        yield ""
    yield from _table(counter, _CLIENT_COUNTERS, clients)
    in_flight = ((own, client.in_flight) for own, client in clients)
    yield from gauge("requests_in_flight", "Admitted requests that have not ended.", in_flight)
    ttft = ((own, client.ttft_s, client.answers) for own, client in clients)
    yield from summary("client_ttft_seconds", "As request_ttft_seconds: sum and count.", ttft)
    itl = ((own, client.itl_s, client.itl_tokens) for own, client in clients)
    yield from summary(
        "client_itl_seconds", "Time between tokens of streams: sum, and count of tokens.", itl
    )


def tenant_metrics(model: str, totals: RequestTotals) -> Lines:
    """Distributions over the requests of each tenant, and of all clients within their share."""
    tenants = [
        (labels(model_name=model, tenant=tenant.tenant), tenant)
        for tenant in totals.distributions()
    ]
    yield from _table(histogram, _TENANT_HISTOGRAMS, tenants)
    yield from histogram(
        "request_qoe_ratio",
        "Quality of experience of a stream, from 0 to 1, with router.qoe in the spec.",
        [(own, tenant.qoe) for own, tenant in tenants if any(tenant.qoe.counts)],
    )
    yield from histogram(
        "within_share_ttft_seconds",
        "As request_ttft_seconds, of clients that request at most their share. A request without a token is in +Inf.",
        [(labels(model_name=model), totals.within_share_ttft_s)],
    )


def error_metrics(model: str, totals: RequestTotals) -> Lines:
    """Failed requests, and what was removed from requests."""
    yield from counter("request_error", "Requests that failed, by outcome.", _errors(model, totals))
    stripped = [
        (labels(field=field, model_name=model), count) for field, count in totals.stripped.items()
    ]
    help_text = "Fields and headers removed from requests, because clients may not send them."
    yield from counter("stripped", help_text, stripped)


def _errors(model: str, totals: RequestTotals) -> Iterator[tuple[str, float]]:
    def series(client: str, tenant: str, code: str) -> str:
        return labels(client=client, error_code=code, model_name=model, tenant=tenant)

    for one in list(totals.clients()):
        for outcome, count in list(one.errors.items()):
            yield series(one.client, one.tenant, outcome.value), count
    unidentified: Mapping[Outcome, int] = dict(totals.refused)
    for outcome, count in unidentified.items():
        yield series("", "", outcome.value), count
    if totals.faults:
        yield series("", "", INTERNAL), totals.faults


def replica_metrics(model: str, replicas: Replicas) -> Lines:
    """Replicas as this router uses them."""
    members = [(labels(model_name=model, replica=one.name), one) for one in list(replicas.fleet)]
    for name, help_text, value in (
        ("replica_routable", "1 if the replica can receive requests.", lambda one: one.routable),
        ("replica_draining", "1 if the replica is leaving and receives no new requests.",
         lambda one: one.unschedulable in FOR_GOOD),
        ("replica_requests_in_flight", "Requests of this router at the replica.", replicas.fleet.load),
        ("replica_prefix_blocks", "Prompt blocks that this router expects in the replica's cache.",
         replicas.fleet.blocks),
    ):  # fmt: skip
        yield from gauge(name, help_text, ((own, value(one)) for own, one in members))
    listed = [
        (labels(model_name=model, replica=name), own) for name, own in list(replicas.totals.items())
    ]
    yield from _table(counter, _REPLICA_COUNTERS, listed)


def gate_metrics(model: str, rooms: Rooms) -> Lines:
    """The gates of replicas whose queues the router orders."""
    gates = [
        (labels(model_name=model, replica=member.name), gate)
        for member in list(rooms.replicas.fleet)
        if (gate := rooms.gates.gate(member.name)) is not None
    ]
    for name, help_text, value in (
        ("replica_gate_waiting", "Requests that wait in the router until the replica can start them.", len),
        ("replica_gate_unanswered", "Requests at the replica whose answer has not begun.",
         lambda gate: gate.unanswered),
        ("replica_gate_limit", "Largest number of streamed requests at the replica whose answer has not begun.",
         lambda gate: gate.limit),
        ("replica_gate_part", "Part of the replica, from 0 to 1, that this router may use while requests also wait at other routers.",
         lambda gate: gate.streamed.part),
        ("replica_gate_engine_limit", "Requests of all routers that may be at the replica, by its own metrics. 0 if it has none.",
         lambda gate: int(gate.engine.limit) if gate.engine.load is not None else 0),
        ("replica_gate_held", "1 if requests wait here for requests at other routers whose clients received less service.",
         lambda gate: len(gate) > 0 and gate.is_held),
    ):  # fmt: skip
        yield from gauge(name, help_text, ((own, value(gate)) for own, gate in gates))
    help_text = "Requests that moved from the queue of a busy replica to an idle replica."
    yield from counter("gate_moved", help_text, [(labels(model_name=model), rooms.gates.moved)])


def prediction_metrics(model: str, totals: RequestTotals) -> Lines:
    """Cached tokens: predicted and reported."""
    bases = [
        (labels(mode=basis, model_name=model), own) for basis, own in totals.predictions.items()
    ]
    yield from counter(
        "prefix_predicted_tokens",
        "Input tokens that the router expected in the chosen replica's cache.",
        ((own, one.predicted_tokens) for own, one in bases),
    )
    yield from counter(
        "prefix_reported_tokens",
        "Input tokens of the same requests that the replica found in its cache.",
        ((own, one.reported_tokens) for own, one in bases),
    )
    yield from histogram(
        "prefix_error_tokens",
        "Absolute difference between predicted and reported cached tokens of a request.",
        ((own, one.error_tokens) for own, one in bases),
    )


def kv_metrics(model: str, followers: Mapping[str, Follower]) -> Lines:
    """The router's view of its replicas' caches, in tokens mode."""
    listed = [(labels(model_name=model, replica=name), own) for name, own in followers.items()]
    yield from gauge(
        "replica_kv_in_sync",
        "1 if the router's view of the replica's cache is exact.",
        ((own, one.sync_state is SyncState.IN_SYNC) for own, one in listed),
    )
    yield from gauge(
        "replica_kv_state",
        "1 for the current state of the router's view of the replica's cache, else 0.",
        (
            (f"{own},{labels(state=state.value)}", one.sync_state is state)
            for own, one in listed
            for state in SyncState
        ),
    )
    now_s = time.time()
    yield from gauge(
        "replica_kv_batch_age_seconds",
        "Time since the last batch of KV events, by the replica's clock.",
        (
            (own, now_s - one.last_batch_unix_s)
            for own, one in listed
            if one.last_batch_unix_s is not None
        ),
    )
    yield from _table(counter, _KV_COUNTERS, [(own, one.counts) for own, one in listed])


def router_metrics(rooms: Rooms, log: RequestLog, spans: DroppedSpans) -> Lines:
    """The router itself."""
    own = labels(model_name=rooms.settings.config.model)
    for name, help_text, value in (
        ("requests_held", "Requests that wait until a replica is routable.", len(rooms.replicas.wait_queue)),
        ("activation_wanted", "1 if a request waits for the first replica of a service with zero replicas.",
         rooms.replicas.activation.wanted),
        ("prefix_index_entries", "Prefixes in memory. The limit is prefix.maxBlocks.",
         len(rooms.replicas.fleet.index)),
        ("buffered_bytes", "Bytes of request bodies in memory.", rooms.intake.body_memory.used_bytes),
        ("requests_in_flight_limit", "Value of limits.maxConcurrent.",
         rooms.settings.config.limits.max_concurrent),
        ("draining", "1 if the router is shutting down.", rooms.intake.draining),
        ("config_faulty", "1 if the newest configuration is invalid and the previous one is in use.",
         bool(rooms.settings.faults)),
    ):  # fmt: skip
        yield from gauge(name, help_text, [(own, value)])
    reasons = [
        (labels(model_name=rooms.settings.config.model, reason=reason.value), count)
        for reason, count in rooms.prefixes.untokenised.counts.items()
    ]
    yield from counter(
        "untokenised", "Requests in tokens mode that were matched by their text.", reasons
    )
    help_text = "Dropped lines of the request log: they came too fast, or could not be written."
    yield from counter("log_lines_dropped", help_text, [(own, log.dropped)])
    help_text = "Spans that were not sent: too many waited, or the collector did not answer."
    yield from counter("trace_spans_dropped", help_text, [(own, spans.total)])
    # Of this thread alone, which runs the event loop; tokenising has threads of its own.
    help_text = "CPU time of the thread that serves requests. If it grows by 1 second per second, requests wait for the thread."
    yield from counter("loop_cpu_seconds", help_text, [(own, time.thread_time())])
    help_text = "Time from the first request for a service with zero replicas until a replica accepts requests."
    yield from histogram("activation_seconds", help_text, [(own, rooms.replicas.activation.took_s)])


def fairness_metrics(model: str, now: FleetFigures) -> Lines:
    """Clients, tenants and the fleet, all of one moment."""
    clients: list[tuple[str, MemberFigures]] = []
    for identity, figures in now.clients.items():
        tenant, client = names_of(identity)
        clients.append((labels(client=client, model_name=model, tenant=tenant), figures))
        yield ""
    yield from _table(counter, _CLIENT_SERVICE, clients)
    yield from _table(gauge, _CLIENT_GAUGES, clients)
    help_text = "Weighted tokens that the client's waiting requests will cost, by the mean of its earlier requests. No series without one."
    waiting = ((own, figures.waiting) for own, figures in clients if figures.waiting > 0)
    yield from gauge("service_waiting", help_text, waiting)
    tenants: list[tuple[str, MemberFigures]] = []
    for identity, figures in now.tenants.items():
        tenant, _ = names_of(other_clients(identity))
        tenants.append((labels(model_name=model, tenant=tenant), figures))
        yield ""
    yield from _table(counter, _TENANT_SERVICE, tenants)
    yield from _table(gauge, _TENANT_GAUGES, tenants)
    fleet = [(labels(model_name=model), now)]
    yield from _table(gauge, _FLEET, fleet)
    yield from _table(counter, _SATURATION, fleet)


def ledger_metrics(rooms: Rooms) -> Lines:
    """What the ledger contains, and how old its inputs are."""
    model, now_s = rooms.settings.config.model, asyncio.get_running_loop().time()
    for name, help_text, value in (
        ("ledger_incarnations", "Replica processes whose accounts are still open.",
         sum(1 for _ in rooms.service_ledger.ledger.open_accounts())),
        ("ledger_clients", "Clients in the ledger.", rooms.service_ledger.fairness.known),
        ("ledger_closed_totals_version", "Version of the closed totals that this router has.",
         rooms.service_ledger.ledger.closed_totals.rank.height),
        ("ledger_store_up", "0 if the ledger's store is unreachable.", not rooms.service_ledger.store_error),
        ("ledger_uncounted_replicas", "Replicas whose service the ledger does not count.",
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
