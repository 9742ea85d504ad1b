"""The PrometheusRule of a service: the alerts of monitoring/alerts/service.yaml, with its names and its `spec.slo`.

Place in the pass: subject → **rules** → plan. The alerts are data (`alerts.json`, written by `make monitoring`); here
is what is filled in.

The surprising thing: the windows of the error budget follow `slo.ttft.window`. What is an hour in thirty days is a
quarter of an hour in a week, so that the same part of the budget is gone when somebody is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final

import msgspec
from evenkeel_contract.names import (
    ROUTER_COMPONENT,
    alerts_name,
    engine_name,
    router_name,
)
from evenkeel_contract.spec.scaling import Slo, TtftObjective

from evenkeel_operator.core.queries import series_of
from evenkeel_operator.manifests.metadata import manifest
from evenkeel_operator.manifests.monitoring import PROMETHEUS_GROUP, with_selection_labels
from evenkeel_operator.manifests.subject import Manifest, Subject

_GROUPS: Final[list[Any]] = msgspec.json.decode(
    files(__package__).joinpath("alerts.json").read_bytes()
)["groups"]
_TTFT_GROUP: Final = "evenkeel-ttft"
_PLACE: Final = re.compile(r"@\{(\w+)\}")

_HOUR_S: Final = 3600.0
_MONTH_S: Final = 720 * _HOUR_S
# How fast the budget burns, and over which part of a month that is looked at (SRE workbook, chapter 5): 2 % of the
# budget in an hour, 5 % in six, then 10 % in one day and in three.
BURNING: Final = ((14.4, _HOUR_S), (6.0, 6 * _HOUR_S), (3.0, 24 * _HOUR_S), (1.0, 72 * _HOUR_S))
_SHORT_PART: Final = 12
# Rates need a few scrapes, which come once a minute at worst.
_LEAST_SHORT_S: Final = 300.0
_LEAST_LONG_S: Final = 900.0
_LATE_S: Final = 300.0
"""How long after its time a replica may be leaving before somebody is told."""
_NEARLY_ALL: Final = 0.9
"""A budget of a fifth cannot burn fourteen times as fast: where nine of ten miss, it burns as fast as it can."""


def prometheus_rule(subject: Subject) -> Manifest | None:
    """The alerts of the service; None where the cluster has no API for them."""
    if "PrometheusRule" not in subject.apis:
        return None
    found = manifest(
        subject.owner,
        api=f"{PROMETHEUS_GROUP}/v1",
        kind="PrometheusRule",
        name=alerts_name(subject.name),
        component=ROUTER_COMPONENT,
    )
    found["spec"] = {"groups": alert_groups(subject)}
    return with_selection_labels(found, subject)


def alert_groups(subject: Subject) -> list[Manifest]:
    """Groups of rules, as Prometheus reads them."""
    slo = subject.spec.slo
    values = dict(_values(subject))
    labels = {
        **slo.alert_labels,
        "namespace": subject.namespace,
        "service": subject.name,
    }
    groups = []
    for group in _GROUPS:
        if group["name"] == _TTFT_GROUP and slo.ttft is None:
            continue
        rules = [_filled(rule, values) for rule in group["rules"]]
        for rule in rules:
            rule["labels"] = {**labels, **rule["labels"]}
        groups.append({"name": group["name"], "rules": rules})
    return groups


def _filled(plain: Any, values: Mapping[str, str]) -> Any:
    """A copy with every `@{place}` taken from `values`; raises `KeyError` for one that nobody knows."""
    if isinstance(plain, str):
        return _PLACE.sub(lambda place: values[place[1]], plain)
    return {key: _filled(value, values) for key, value in plain.items()}


def _values(subject: Subject) -> Iterator[tuple[str, str]]:
    namespace, name = subject.namespace, subject.name
    yield "of", series_of(namespace, name)
    yield "operator", f'service_namespace="{namespace}",service_name="{name}"'
    # What the Prometheus operator calls the scrapes of a PodMonitor.
    yield "routers", f"{namespace}/{router_name(name)}"
    yield "engines", f"{namespace}/{engine_name(name)}"
    yield "drained_by", _span(subject.drain_s + _LATE_S)
    yield "runbooks", subject.monitoring.runbooks.rstrip("/")
    yield from _thresholds(subject.spec.slo)


def _thresholds(slo: Slo) -> Iterator[tuple[str, str]]:
    percent = slo.fairness.max_share_error_percent
    yield "max_share_error_percent", str(percent)
    yield "max_share_error", _number(percent / 100)
    yield "max_lead_s", _number(slo.fairness.max_lead.seconds)
    if slo.ttft is not None:
        yield from _ttft(slo.ttft)


def _ttft(objective: TtftObjective) -> Iterator[tuple[str, str]]:
    budget = 1 - objective.objective_percent / 100
    yield "ttft_threshold", str(float(objective.threshold.seconds))  # as routers spell the bound
    yield "ttft_objective", str(objective.objective_percent)
    stretch = objective.window.seconds / _MONTH_S
    for number, (rate, window_s) in enumerate(BURNING, start=1):
        long_s = max(_LEAST_LONG_S, window_s * stretch)
        yield f"long_{number}", _span(long_s)
        yield f"short_{number}", _span(max(_LEAST_SHORT_S, long_s / _SHORT_PART))
        yield f"limit_{number}", _number(min(rate * budget, max(_NEARLY_ALL, budget)))


def _number(value: float) -> str:
    return f"{value:.6g}"


def _span(duration_s: float) -> str:
    """As PromQL writes it, to the minute."""
    minutes = round(duration_s / 60)
    return f"{minutes // 60}h" if minutes % 60 == 0 else f"{minutes}m"
