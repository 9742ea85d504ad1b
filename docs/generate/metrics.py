"""The page of metrics: names, kinds and help from what the processes export, labels and numbers of series from here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import evenkeel_operator.metrics
import evenkeel_plugin.metrics
from evenkeel_contract.routerconfig import PoolConfig, RouterConfig
from evenkeel_router.telemetry.metrics import metrics, of_several
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.served import AllServed
from prometheus_client import Counter, Gauge, Metric

from docs.generate.pages import code, codes, entry, page

_FOLDER: Final = "reference/metrics"


class Family(NamedTuple):
    """A metric as it is exported."""

    name: str
    kind: str
    help: str


class Labels(NamedTuple):
    """The labels of metrics with the same shape."""

    title: str
    names: tuple[str, ...]
    series: str
    """Most series of one metric, in words."""


CLIENT: Final = Labels(
    "Clients",
    ("model_name", "tenant", "client"),
    "one for each of 1000 clients, and one for each tenant",
)
TENANT: Final = Labels(
    "Tenants", ("model_name", "tenant"), "one for each of 100 tenants, and one for the others"
)
ALL_TENANTS: Final = Labels(
    "Service of tenants", ("model_name", "tenant"), "one for each tenant with clients in the ledger"
)
ERROR: Final = Labels(
    "Errors", (*CLIENT.names, "error_code"), "those of clients, times eleven outcomes"
)
REPLICA: Final = Labels("Replicas", ("model_name", "replica"), "one for each replica")
MODEL: Final = Labels("The fleet and this router", ("model_name",), "one")
SERVICE: Final = ("service_namespace", "service_name")

ROUTER: Final[tuple[tuple[str, Labels], ...]] = (
    (r"request_error_total", ERROR),
    (r"tenant_weight", Labels("Weights of tenants in a model", TENANT.names, "one for each tenant and model; behind a router of several models only")),
    (r"tenant_.*", ALL_TENANTS),
    (r"request_(ttft|itl|duration)_seconds|request_qoe_ratio|request_(input|cached|output)_tokens", TENANT),
    (r"(request|client|service)_.*|requests_in_flight|lead_seconds|backlogged", CLIENT),
    (r"replica_kv_state", Labels("State of KV events", (*REPLICA.names, "state"), "four for each replica")),
    (r"replica_suspect", Labels("Suspects", (*REPLICA.names, "reason"), "one for each replica")),
    (r"replica_.*|ledger_report_age_seconds", REPLICA),
    (r"ledger_peer_age_seconds", Labels("Other routers", ("model_name", "peer"), "one for each other router")),
    (r"ledger_store_age_seconds", Labels("Store", ("model_name", "operation"), "two: `load` and `save`")),
    (r"stripped_total", Labels("Removed fields", ("model_name", "field"), "one for each field and header that is known, and `other`")),
    (r"prefix_(predicted|reported|error)_.*", Labels("Predictions", ("model_name", "mode"), "three: `text`, `estimated`, `exact`")),
    (r"fallback_total", Labels("Fallbacks", ("model_name", "fallback"), "one for each two models; behind a router of several models only")),
    (r"untokenised_total", Labels("Prompts without tokens", ("model_name", "reason"), "one for each of nine reasons")),
    (r".*", MODEL),
)  # fmt: skip
"""Pattern of a name without its prefix → its labels; the first match counts. A scrape of a live fleet checks it."""
OPERATOR: Final[tuple[tuple[str, Labels], ...]] = (
    (r"pass_total", Labels("Passes", ("kind", "outcome"), "one for each kind and outcome")),
    (r"pass_seconds", Labels("Duration of passes", ("kind",), "one for each kind")),
    (r"watch_failing", Labels("Failing watches", ("watch",), "one for each failing watch")),
    (r"write_total", Labels("Writes", ("verb",), "one for each verb")),
    (r"replicas_.*", Labels("Replicas of services", (*SERVICE, "component"), "two for each service")),
    (r"config_fill_ratio", Labels("Room for tenants", SERVICE, "one for each service")),
    (r"condition", Labels("Conditions of services", (*SERVICE, "type", "status", "reason"), "one for each condition of a service")),
    (r".*", Labels("The operator", (), "one")),
)  # fmt: skip
ENGINE: Final[tuple[tuple[str, Labels], ...]] = (
    (r"policy_active", Labels("Policy", ("policy",), "one")),
    (r"(requests|stalls|policy_bypassed)_total", Labels("Requests in an engine", (), "one")),
    (r".*", Labels("Client keys", ("reason",), "one for each reason")),
)


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of each page."""
    intro = (
        "Every Prometheus metric of a router, its labels, and how many series it has. "
        "[How to read the figures](../../explanation/figures.md) explains what they count."
    )
    router, prefix = families(), "evenkeel_router_"
    yield (
        f"{_FOLDER}/router.md",
        page(
            "Metrics of routers: queues, waits, service", intro, *_sections(router, prefix, ROUTER)
        ),
    )
    intro = (
        "The Prometheus metrics of the operator and of the plug-in in an engine. An engine exports "
        "its own metrics too: `sglang:…` for SGLang."
    )
    yield (
        f"{_FOLDER}/operator-and-engine.md",
        page(
            "Metrics of operator and engines",
            intro,
            *_sections(operator_families(), "evenkeel_operator_", OPERATOR),
            *_sections(engine_families(), "evenkeel_engine_", ENGINE),
        ),
    )


def labels_of(name: str, table: Iterable[tuple[str, Labels]] = ROUTER) -> Labels:
    """The labels of a metric; `name` is without its prefix."""
    return next(labels for pattern, labels in table if re.fullmatch(pattern, name))


def _sections(
    found: Iterable[Family], prefix: str, table: tuple[tuple[str, Labels], ...]
) -> Iterator[str]:
    grouped: dict[Labels, list[Family]] = {}
    for family in found:
        grouped.setdefault(labels_of(family.name.removeprefix(prefix), table), []).append(family)
    for labels in dict.fromkeys(labels for _, labels in table):
        own = grouped.get(labels, [])
        names = f"Labels: {codes(labels.names)}." if labels.names else "No labels."
        lines = [f"- {code(one.name)} ({one.kind}): {one.help}" for one in own]
        if own:
            yield entry(
                labels.title, f"{names} Series: {labels.series}.", "\n".join(lines), level=2
            )


def families() -> list[Family]:
    """The metrics of a router, from a scrape of one without replicas."""

    async def scraped() -> str:
        config = RouterConfig(namespace="team", service="service", model="model")
        rooms = Rooms.make(replace(config, pools=(PoolConfig(service="s", model="m"),)))
        return "".join((*metrics(Rooms.make(config)), *of_several(AllServed(rooms))))

    text = asyncio.run(scraped())
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    kinds = re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE)
    return [Family(name, kind, helps[name]) for name, kind in kinds]


def operator_families() -> list[Family]:
    """The metrics of the operator; those of its process are left out."""
    registry = evenkeel_operator.metrics.REGISTRY
    return [_exported(one) for one in registry.collect() if one.name.startswith("evenkeel_")]


def engine_families() -> list[Family]:
    """The metrics that the plug-in adds to those of SGLang."""
    return [
        _exported(family)
        for one in vars(evenkeel_plugin.metrics).values()
        if isinstance(one, Counter | Gauge)
        for family in one.describe()
    ]


def _exported(one: Metric) -> Family:
    name = f"{one.name}_total" if one.type == "counter" else one.name
    return Family(name, one.type, one.documentation)
