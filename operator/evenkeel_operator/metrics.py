"""The operator's own metrics, `evenkeel_operator_*` (design §8), and the server of `/livez`, `/readyz` and `/metrics`.

A standby is ready too. The metric `evenkeel_operator_leader` shows which process leads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web
from evenkeel_contract.listening import addresses
from evenkeel_contract.names import ENGINE_COMPONENT, ROUTER_COMPONENT
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from evenkeel_operator.core.status import Findings

HEAD_S: Final = 60.0
"""Time for each head, idle time before it included."""
REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

PASSES: Final = Counter(
    "evenkeel_operator_pass_total",
    "Passes over a resource, by kind and outcome.",
    ["kind", "outcome"],
    registry=REGISTRY,
)
PASS_SECONDS: Final = Histogram(
    "evenkeel_operator_pass_seconds",
    "Duration of a pass, including the time in which it waits for the API server.",
    ["kind"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)
WRITES: Final = Counter(
    "evenkeel_operator_write_total",
    "Writes to the API server, including dry runs. At rest only the Lease is written.",
    ["verb"],
    registry=REGISTRY,
)
WAITING: Final = Gauge(
    "evenkeel_operator_waiting",
    "Resources that wait for a pass.",
    registry=REGISTRY,
)
LOOKS_WAITING: Final = Gauge(
    "evenkeel_operator_looks_waiting",
    "Services that the built-in scaler queries Prometheus for, every 15 seconds each.",
    registry=REGISTRY,
)
WATCH_FAILING: Final = Gauge(
    "evenkeel_operator_watch_failing",
    "1 for each watch that the API server refuses or fails, by its objects and namespace. The log has the answer, such as a missing right.",
    ["watch"],
    registry=REGISTRY,
)
LEADER: Final = Gauge(
    "evenkeel_operator_leader",
    "1 if this process is the leader.",
    registry=REGISTRY,
)


class ServiceCollector(Collector):
    """One set of series per service; those of a service that is gone end.

    Not `namespace`: Prometheus would take that for the operator's own, and rename ours.
    """

    _SERVICE: Final = ("service_namespace", "service_name")

    def __init__(self) -> None:
        self._services: dict[tuple[str, str], tuple[Findings, Mapping[str, Any]]] = {}

    def found(
        self, namespace: str, name: str, findings: Findings, status: Mapping[str, Any]
    ) -> None:
        """The results of the last pass, and the status that they gave."""
        self._services[namespace, name] = findings, status

    def gone(self, namespace: str, name: str) -> None:
        """The service is deleted."""
        self._services.pop((namespace, name), None)

    def collect(self) -> Iterator[Metric]:
        wanted = self._family(
            "replicas_wanted", "Number of pods that the spec asks for.", "component"
        )
        ready = self._family("replicas_ready", "Number of pods that are ready.", "component")
        condition = self._family(
            "condition",
            "1 for each condition in the status of the service.",
            "type",
            "status",
            "reason",
        )
        fill = self._family(
            "config_fill_ratio",
            "Part of the room for tenants in the configuration of the routers that is used; above 1, some are left out.",
        )
        for service, (found, status) in self._services.items():
            fill.add_metric(service, found.fill)
            for component, load in (
                (ENGINE_COMPONENT, found.engines),
                (ROUTER_COMPONENT, found.routers),
            ):
                wanted.add_metric((*service, component), load.wanted)
                ready.add_metric((*service, component), load.ready)
            for one in status["conditions"]:
                condition.add_metric((*service, one["type"], one["status"], one["reason"]), 1)
        yield from (wanted, ready, condition, fill)

    def _family(self, name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            f"evenkeel_operator_{name}", help_text, labels=(*self._SERVICE, *labels)
        )


SERVICES: Final = ServiceCollector()
REGISTRY.register(SERVICES)


@asynccontextmanager
async def serving(host: str, port: int) -> AsyncIterator[int]:
    """Serve for the time of the context; the port that was taken."""
    app = web.Application()
    app.add_routes(
        [web.get("/livez", _fine), web.get("/readyz", _fine), web.get("/metrics", _metrics)]
    )
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=HEAD_S)
    await runner.setup()
    try:
        for address in addresses(host):
            await web.TCPSite(runner, address, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def _fine(_: web.Request) -> web.Response:
    """An answer proves that the event loop runs. A failed pass is repeated, so it is no failure of the process."""
    return web.Response(text="ok\n")


async def _metrics(_: web.Request) -> web.Response:
    body = generate_latest(REGISTRY)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
