"""`evenkeel_router_*`: the totals of `request.totals`, rendered when somebody scrapes (design §8).

Place in the flow: account → **collect** → `/metrics` on the probe port. The hot path touches plain numbers
only; a scrape pays for turning them into metric families.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from evenkeel_router.fleet.health import FOR_GOOD
from evenkeel_router.histogram import Histogram
from evenkeel_router.request.totals import ClientTotals
from evenkeel_router.telemetry.fairness_metrics import truth_metrics
from evenkeel_router.telemetry.families import counter, gauge, name_of
from evenkeel_router.telemetry.kv_metrics import kv_metrics
from evenkeel_router.telemetry.logs import RequestLog
from evenkeel_router.telemetry.rooms import Rooms

_CLIENT = ("model_name", "tenant", "client")
_REPLICA = ("model_name", "replica")
_HISTOGRAMS: tuple[tuple[str, str, Callable[[ClientTotals], Histogram]], ...] = (
    ("request_ttft_seconds", "From a request's head to the first event sent, or the whole answer.",
     lambda totals: totals.ttft_s),
    ("request_duration_seconds", "From a request's head to the end of its answer.",
     lambda totals: totals.duration_s),
    ("request_input_tokens", "Input tokens of a request, cached ones included.",
     lambda totals: totals.input_tokens),
    ("request_cached_tokens", "Input tokens of a request that a replica found cached.",
     lambda totals: totals.cached_tokens),
    ("request_output_tokens", "Output tokens of a request.",
     lambda totals: totals.output_tokens),
)  # fmt: skip


def registry(rooms: Rooms, log: RequestLog) -> CollectorRegistry:
    """A registry of the router's own metrics; no process-wide state."""
    own = CollectorRegistry(auto_describe=False)
    own.register(_RouterCollector(rooms, log))
    return own


class _RouterCollector(Collector):
    def __init__(self, rooms: Rooms, log: RequestLog) -> None:
        self._rooms = rooms
        self._log = log

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._by_client()
        yield self._objective()
        yield self._activations()
        yield from truth_metrics(self._rooms)
        yield from self._errors()
        yield from self._by_replica()
        yield from self._prefixes()
        yield from kv_metrics(self._rooms)
        yield from self._router()

    def _by_client(self) -> Iterator[Metric]:
        clients = [(self._labels(totals), totals) for totals in self._rooms.totals.clients()]
        requests = counter("request", "Requests of identified clients.", _CLIENT)
        retries = counter("request_retry", "Further dispatches after a replica failed.", _CLIENT)
        moves = counter(
            "request_move",
            "Requests that waited at a replica that drains, sent elsewhere.",
            _CLIENT,
        )
        in_flight = gauge("requests_in_flight", "Admitted requests that have not ended.", _CLIENT)
        for labels, totals in clients:
            requests.add_metric(labels, totals.requests)
            retries.add_metric(labels, totals.retries)
            moves.add_metric(labels, totals.moves)
            in_flight.add_metric(labels, totals.in_flight)
        yield from (requests, retries, moves, in_flight)
        for name, help_text, of in _HISTOGRAMS:
            family = HistogramMetricFamily(name_of(name), help_text, labels=_CLIENT)
            for labels, totals in clients:
                family.add_metric(labels, buckets=_buckets(of(totals)), sum_value=of(totals).total)
            yield family

    def _objective(self) -> Metric:
        seen = self._rooms.totals.within_share_ttft_s
        family = HistogramMetricFamily(
            name_of("within_share_ttft_seconds"),
            "As request_ttft_seconds, of clients that asked for no more than their share; +Inf: no token ever came.",
            labels=("model_name",),
        )
        labels = (self._rooms.settings.config.model,)
        family.add_metric(labels, buckets=_buckets(seen), sum_value=seen.total)
        return family

    def _activations(self) -> Metric:
        took = self._rooms.replicas.activation.took_s
        family = HistogramMetricFamily(
            name_of("activation_seconds"),
            "From the first request that found a service at zero to its first replica that takes requests.",
            labels=("model_name",),
        )
        family.add_metric(
            (self._rooms.settings.config.model,), buckets=_buckets(took), sum_value=took.total
        )
        return family

    def _labels(self, totals: ClientTotals) -> tuple[str, str, str]:
        return (self._rooms.settings.config.model, totals.tenant, totals.client)

    def _errors(self) -> Iterator[Metric]:
        errors = counter(
            "request_error", "Requests that failed, by outcome.", (*_CLIENT, "error_code")
        )
        for totals in self._rooms.totals.clients():
            for outcome, count in totals.errors.items():
                errors.add_metric((*self._labels(totals), outcome.value), count)
        nobody = (self._rooms.settings.config.model, "", "")
        for outcome, count in self._rooms.totals.refused.items():
            errors.add_metric((*nobody, outcome.value), count)
        if self._rooms.totals.faults:
            errors.add_metric((*nobody, "internal"), self._rooms.totals.faults)
        yield errors
        stripped = counter(
            "stripped", "Fields and headers that clients may not send, taken out.",
            ("model_name", "field"),
        )  # fmt: skip
        for field, count in self._rooms.totals.stripped.items():
            stripped.add_metric((self._rooms.settings.config.model, field), count)
        yield stripped

    def _by_replica(self) -> Iterator[Metric]:
        model = self._rooms.settings.config.model
        routable = gauge("replica_routable", "1 where requests may go to the replica.", _REPLICA)
        leaving = gauge(
            "replica_draining", "1 while the replica gets nothing new because it leaves.", _REPLICA
        )
        load = gauge("replica_requests_in_flight", "Requests at the replica (s_w).", _REPLICA)
        blocks = gauge(
            "replica_prefix_blocks", "Blocks of prompts counted on being cached there.", _REPLICA
        )
        for member in self._rooms.replicas.fleet:
            labels = (model, member.name)
            blocks.add_metric(labels, self._rooms.replicas.fleet.blocks(member))
            routable.add_metric(labels, float(member.routable))
            leaving.add_metric(labels, float(member.unschedulable in FOR_GOOD))
            load.add_metric(labels, self._rooms.replicas.fleet.load(member))
        yield from (routable, leaving, load, blocks)
        sent = counter("replica_request", "Requests sent to the replica.", _REPLICA)
        failed = counter("replica_failure", "Requests that failed at the replica.", _REPLICA)
        rests = counter(
            "replica_rest",
            "Times that it got nothing for a while, failing what others answer.",
            _REPLICA,
        )
        given = counter("replica_input_tokens", "Input tokens.", _REPLICA)
        cached = counter("replica_cached_tokens", "Input tokens found cached.", _REPLICA)
        output = counter("replica_output_tokens", "Output tokens.", _REPLICA)
        for name, totals in self._rooms.replicas.all_totals():
            labels = (model, name)
            sent.add_metric(labels, totals.requests)
            failed.add_metric(labels, totals.failures)
            rests.add_metric(labels, totals.backoffs)
            given.add_metric(labels, totals.input_tokens)
            cached.add_metric(labels, totals.cached_tokens)
            output.add_metric(labels, totals.output_tokens)
        yield from (sent, failed, rests, given, cached, output)

    def _prefixes(self) -> Iterator[Metric]:
        """What was foretold of caches, and what came of it."""
        model, labels = self._rooms.settings.config.model, ("model_name", "mode")
        predicted = counter(
            "prefix_predicted_tokens", "Input tokens counted on being cached.", labels
        )
        reported = counter(
            "prefix_reported_tokens", "Input tokens of the same requests found cached.", labels
        )
        error = HistogramMetricFamily(
            name_of("prefix_error_tokens"),
            "How far off the prediction of a request's cached tokens was.",
            labels=labels,
        )
        for basis, foretold in self._rooms.totals.predictions.items():
            predicted.add_metric((model, basis), foretold.predicted_tokens)
            reported.add_metric((model, basis), foretold.reported_tokens)
            off = foretold.error_tokens
            error.add_metric((model, basis), buckets=_buckets(off), sum_value=off.total)
        yield from (predicted, reported, error)
        untokenised = counter(
            "untokenised",
            "Requests matched by their text in tokens mode.",
            ("model_name", "reason"),
        )
        for reason, count in self._rooms.prefixes.untokenised.counts.items():
            untokenised.add_metric((model, reason.value), count)
        yield untokenised

    def _router(self) -> Iterator[Metric]:
        for name, help_text, value in (
            ("requests_held", "Requests waiting for any replica to be routable.", len(self._rooms.replicas.wait_queue)),
            ("activation_wanted", "1 while a request waits for the first replica of a service at zero.",
             self._rooms.replicas.activation.wanted),
            ("prefix_index_entries", "Prefixes in memory, at most prefix.maxBlocks.",
             len(self._rooms.replicas.fleet.index)),
            ("buffered_bytes", "Bodies of requests in memory.", self._rooms.intake.body_budget.used_bytes),
            ("requests_in_flight_limit", "What it takes at a time: limits.maxConcurrent.",
             self._rooms.settings.config.limits.max_concurrent),
            ("draining", "1 while the router finishes what it has.", self._rooms.intake.draining),
            ("config_faulty", "1 while a newer configuration did not hold.",
             bool(self._rooms.settings.faults)),
        ):  # fmt: skip
            family = gauge(name, help_text, ("model_name",))
            family.add_metric((self._rooms.settings.config.model,), float(value))
            yield family
        dropped = counter("log_lines_dropped", "Request lines that came too fast.", ("model_name",))
        dropped.add_metric((self._rooms.settings.config.model,), self._log.dropped)
        # Of this thread, the event loop's, and not of those beside it that tokenise: where it grows by a second per
        # second, requests wait for the router.
        busy = counter("loop_cpu_seconds", "CPU time of the thread that serves.", ("model_name",))
        busy.add_metric((self._rooms.settings.config.model,), time.thread_time())
        yield from (dropped, busy)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as the text format wants them."""
    buckets, below = [], 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound == float("inf") else f"{float(bound)}", float(below)))
    return buckets
