"""Metrics under SGLang's names, and Evenkeel's own (design §8).

A scrape reads the gauges off the engine. Each server has a registry of its own, so several of them can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evenkeel_simulator.engine.step import Loads, Step
from evenkeel_simulator.server.served import ServedRequest

# SGLang's buckets, in seconds.
_TTFT_BUCKETS: Final = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_LATENCY_BUCKETS: Final = (*_TTFT_BUCKETS, 600, 1200, 1800, 2400)
_TOKEN_BUCKETS: Final = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
_QUEUE_BUCKETS: Final = (
    *(0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70),
    *(80, 90, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000),
    *(2500, 3000),
)


@dataclass(slots=True)
class LastStep:
    """What SGLang reports of the latest batches."""

    cache_hit_rate: float = 0.0
    """Cached part of the input tokens of the last prefill, 0 to 1."""
    gen_throughput: float = 0.0
    """Output tokens per second of the wall clock in the last step."""


class EngineMetrics:
    """All metrics of one replica."""

    def __init__(self, *, model: str, policy: str) -> None:
        self.registry = CollectorRegistry()
        self.last = LastStep()
        self._labels = (model, "unified")
        self._prompt_tokens = self._counter(
            "prompt_tokens_total", "Prefill tokens.", "is_streaming"
        )
        self._generation_tokens = self._counter(
            "generation_tokens_total", "Tokens generated.", "is_streaming"
        )
        self._cached_tokens = self._counter(
            "cached_tokens_total", "Prompt tokens found in the cache.", "cache_source"
        )
        self._requests = self._counter("num_requests_total", "Requests finished.", "is_streaming")
        self._aborted = self._counter("num_aborted_requests_total", "Requests aborted.")
        self._retracted = self._counter("num_retracted_requests_total", "Requests retracted.")
        self._ttft = self._histogram("time_to_first_token_seconds", _TTFT_BUCKETS, "is_streaming")
        self._inter_token = self._histogram("inter_token_latency_seconds", _TOKEN_BUCKETS)
        self._e2e = self._histogram("e2e_request_latency_seconds", _LATENCY_BUCKETS, "is_streaming")
        self._queue = self._histogram("queue_time_seconds", _QUEUE_BUCKETS)
        self._refused_keys = Counter(
            "evenkeel_engine_client_key_refused_total",
            "Requests served as the unknown client because their client key is missing or invalid.",
            ("model_name", "reason"),
            registry=self.registry,
        )
        self._requests_received = Counter(
            "evenkeel_engine_requests_total",
            "Requests that came into the waiting queue, probes of the engine excepted.",
            ("model_name",),
            registry=self.registry,
        ).labels(model)
        Counter(
            "evenkeel_engine_policy_bypassed_total",
            "Requests that entered the batch although the policy did not propose them. Always 0 here.",
            ("model_name",),
            registry=self.registry,
        ).labels(model)
        Counter(
            "evenkeel_engine_stalls_total",
            "Times that the plug-in rebuilt its books, since requests waited and the policy proposed none. Always 0 here.",
            ("model_name",),
            registry=self.registry,
        ).labels(model)
        self._refused_questions = Counter(
            "evenkeel_engine_report_request_refused_total",
            "Messages on the reports port that were refused: invalid, or of an unknown version.",
            ("model_name",),
            registry=self.registry,
        )
        Gauge(
            "evenkeel_engine_policy_active",
            "1 for the replica policy that orders the waiting queue.",
            ("model_name", "policy"),
            registry=self.registry,
        ).labels(model, policy).set(1)

    def watch(self, loads: Callable[[], Loads]) -> None:
        """Export the engine's gauges, read at each scrape."""
        self.registry.register(_LoadGauges(self._labels, loads, self.last))

    def expose(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    # What happens

    def received(self) -> None:
        """A request came into the waiting queue."""
        self._requests_received.inc()

    def key_refused(self, reason: str) -> None:
        self._refused_keys.labels(self._labels[0], reason).inc()

    def question_refused(self) -> None:
        self._refused_questions.labels(self._labels[0]).inc()

    def stepped(self, step: Step, *, speed: float) -> None:
        """Record a finished step. Its times are engine time, `speed` seconds of which are one of the wall clock."""
        if step.admitted:
            found = sum(request.matched_tokens for request in step.admitted)
            computed = sum(request.extend_tokens for request in step.admitted)
            self.last.cache_hit_rate = found / (found + computed)
        for request in step.admitted:
            if not request.retractions and request.admitted_s is not None:
                waited_s = request.admitted_s - request.arrival_s
                self._queue.labels(*self._labels).observe(max(0.0, waited_s / speed))
        if step.retracted:
            self._retracted.labels(*self._labels).inc(len(step.retracted))
        if step.produced:
            tokens = step.tokens_each * len(step.produced)
            self.last.gen_throughput = tokens * speed / max(step.end_s - step.start_s, 1e-9)

    def produced(self, request: ServedRequest, tokens: int, *, now_s: float) -> None:
        """Record tokens of a request."""
        if request.last_token_s is None:
            labels = (*self._labels, _streaming(request))
            self._ttft.labels(*labels).observe(now_s - request.received_s)
        else:
            apart_s = (now_s - request.last_token_s) / tokens
            self._inter_token.labels(*self._labels).observe(apart_s)

    def finished(self, request: ServedRequest, *, now_s: float) -> None:
        """Record a request that finished."""
        labels = (*self._labels, _streaming(request))
        self._requests.labels(*labels).inc()
        self._prompt_tokens.labels(*labels).inc(request.input_tokens)
        self._generation_tokens.labels(*labels).inc(request.output_tokens)
        self._cached_tokens.labels(*self._labels, "device").inc(request.cached_tokens)
        self._e2e.labels(*labels).observe(now_s - request.received_s)

    def aborted(self) -> None:
        self._aborted.labels(*self._labels).inc()

    def _counter(self, name: str, text: str, *more: str) -> Counter:
        return Counter(f"sglang:{name}", text, (*_LABELS, *more), registry=self.registry)

    def _histogram(self, name: str, buckets: Sequence[float], *more: str) -> Histogram:
        text = f"Distribution of {name.removesuffix('_seconds').replace('_', ' ')}, in seconds."
        return Histogram(
            f"sglang:{name}", text, (*_LABELS, *more), buckets=buckets, registry=self.registry
        )


_LABELS: Final = ("model_name", "engine_type")


class _LoadGauges(Collector):
    """The engine's gauges."""

    def __init__(self, labels: tuple[str, str], loads: Callable[[], Loads], last: LastStep) -> None:
        self._labels = labels
        self._loads = loads
        self._last = last

    def collect(self) -> Iterable[Metric]:
        loads = self._loads()
        for name, text, value in (
            ("num_running_reqs", "Requests in the running batch.", loads.running),
            ("num_queue_reqs", "Requests in the waiting queue.", loads.waiting),
            ("num_used_tokens", "Tokens of the KV pool in use.", loads.used_tokens),
            ("kv_available_tokens", "Free tokens of the KV pool.", loads.free_tokens),
            ("kv_evictable_tokens", "Cached tokens that can be evicted.", loads.evictable_tokens),
            ("kv_used_tokens", "Tokens of the KV pool in use.", loads.used_tokens),
            (
                "token_usage",
                "Share of the KV pool in use.",
                loads.used_tokens / loads.capacity_tokens,
            ),
            ("max_total_num_tokens", "Size of the KV pool in tokens.", loads.capacity_tokens),
            (
                "cache_hit_rate",
                "Cached share of the last prefill's input.",
                self._last.cache_hit_rate,
            ),
            (
                "gen_throughput",
                "Output tokens per second of the last step.",
                self._last.gen_throughput,
            ),
        ):
            family = GaugeMetricFamily(f"sglang:{name}", text, labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family


def _streaming(request: ServedRequest) -> str:
    return "true" if request.streaming else "false"
