"""PodMonitors and alerts for the Prometheus operator, where the cluster has its API; alerts as plain rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final

import msgspec
from evenkeel_contract.names import (
    ENGINE_COMPONENT,
    GATEWAY_LABEL,
    HTTP_PORT_NAME,
    PROBE_PORT_NAME,
    ROUTER_COMPONENT,
    RULES_LABEL,
    SERVICE_LABEL,
    alerts_name,
    engine_name,
    gateway_base,
    router_name,
)
from evenkeel_contract.spec.parts import Slo, TtftObjective

from evenkeel_operator.core.literal import Language, literal
from evenkeel_operator.core.objects import Manifest
from evenkeel_operator.core.recommendation import series_of
from evenkeel_operator.manifests.context import BuildContext, drain_s, manifest, selector


def pod_monitors(context: BuildContext) -> list[Manifest]:
    """One for engines, unless another owner made them, and one for routers; none without the API."""
    if "PodMonitor" not in context.apis:
        return []
    found = []
    if context.spec.engine.pods_of_others is None:
        found.append(_monitor(context, ENGINE_COMPONENT, HTTP_PORT_NAME))
    if context.has_routers:
        found.append(_monitor(context, ROUTER_COMPONENT, PROBE_PORT_NAME))
    return found


def gateway_monitor(context: BuildContext) -> Manifest | None:
    """The monitor of a gateway's routers. Their series name the service themselves."""
    if "PodMonitor" not in context.apis:
        return None
    found = _monitor(context, ROUTER_COMPONENT, PROBE_PORT_NAME)
    found["spec"]["podTargetLabels"] = [GATEWAY_LABEL]
    return found


def _monitor(context: BuildContext, component: str, port: str) -> Manifest:
    selected = context.defaults.monitoring.labels
    found = manifest(context, "PodMonitor", component, given_labels=selected)
    found["spec"] = {
        "selector": {"matchLabels": selector(context.name, component)},
        "podTargetLabels": [SERVICE_LABEL],
        "podMetricsEndpoints": [{"port": port, "path": "/metrics"}],
    }
    return found


_GROUPS: Final[list[Any]] = msgspec.json.decode(
    files(__package__).joinpath("alerts.json").read_bytes()
)["groups"]
_TTFT_GROUP: Final = "evenkeel-ttft"
_PLACE: Final = re.compile(r"@\{(\w+)\}")

_HOUR_S: Final = 3600.0
_MONTH_S: Final = 720 * _HOUR_S
# Burn rates of the error budget and their windows (SRE workbook, chapter 5): 2 % of the budget in an hour, 5 % in six,
# then 10 % in one day and in three.
BURNING: Final = ((14.4, _HOUR_S), (6.0, 6 * _HOUR_S), (3.0, 24 * _HOUR_S), (1.0, 72 * _HOUR_S))
# The short window is a twelfth of the long one, as in the workbook.
_SHORT_PART: Final = 12
# Rates need a few scrapes, which come once a minute at worst.
_LEAST_SHORT_S: Final = 300.0
_LEAST_LONG_S: Final = 900.0
_LATE_S: Final = 300.0
"""How long a replica may exceed its drain timeout before an alert fires."""
_NEARLY_ALL: Final = 0.9
"""Largest ratio of failed requests in an alert: with a budget of 20 %, a burn rate of 14.4 is impossible."""


def prometheus_rule(context: BuildContext) -> Manifest | None:
    """The alerts of the service; None if the cluster lacks their API."""
    if "PrometheusRule" not in context.apis:
        return None
    found = _head_of_alerts(context, "PrometheusRule")
    found["spec"] = {"groups": alert_groups(context)}
    return found


def rules_config_map(context: BuildContext) -> Manifest | None:
    """The same alerts as a rule file, for a Prometheus without its operator; None unless the operator's settings ask for it.

    The entry has the namespace in its name, since sidecars collect the rules of all services in one folder.
    """
    if not context.defaults.monitoring.plain_rules:
        return None
    found = _head_of_alerts(context, "ConfigMap")
    found["metadata"]["labels"][RULES_LABEL] = "true"
    text = rule_file(alert_groups(context))
    found["data"] = {f"{context.namespace}.{context.name}.yaml": text}
    return found


def rule_file(groups: list[Manifest]) -> str:
    """The text of a rule file. JSON is YAML, except for characters that YAML allows only as escapes, or reads as line breaks."""
    text = msgspec.json.format(msgspec.json.encode({"groups": groups}), indent=1).decode()
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# Beyond U+FFFF, JSON would need pairs of escapes, which YAML refuses.
_UNSAFE: Final = re.compile("[\x7f-\uffff]")


def _head_of_alerts(context: BuildContext, kind: str) -> Manifest:
    selected = context.defaults.monitoring.labels
    name = alerts_name(context.name)
    return manifest(context, kind, ROUTER_COMPONENT, name=name, given_labels=selected)


def alert_groups(context: BuildContext) -> list[Manifest]:
    """Groups of rules, as Prometheus reads them."""
    slo = context.spec.slo
    values = dict(_values(context))
    given = {key: literal(value, Language.GO_TEMPLATE) for key, value in slo.alert_labels.items()}
    labels = {
        **given,
        "namespace": context.namespace,
        "service": context.name,
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
    """A copy with every `@{place}` taken from `values`; raises `KeyError` for an unknown one."""
    if isinstance(plain, str):
        return _PLACE.sub(lambda place: values[place[1]], plain)
    return {key: _filled(value, values) for key, value in plain.items()}


def _values(context: BuildContext) -> Iterator[tuple[str, str]]:
    namespace, name = context.namespace, context.name
    yield "of", series_of(namespace, name)
    yield "operator", f'service_namespace="{namespace}",service_name="{name}"'
    # The job name that the Prometheus operator gives to a PodMonitor.
    behind = context.gateway is not None and not context.has_routers
    routers = gateway_base(context.gateway) if behind and context.gateway else name
    yield "routers", f"{namespace}/{router_name(routers)}"
    yield "engines", f"{namespace}/{engine_name(name)}"
    yield "drained_by", _span(drain_s(context.spec) + _LATE_S)
    yield "runbooks", context.defaults.monitoring.runbooks.rstrip("/")
    yield from _thresholds(context.spec.slo)


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
    """A duration in the form of PromQL, rounded to minutes."""
    minutes = round(duration_s / 60)
    return f"{minutes // 60}h" if minutes % 60 == 0 else f"{minutes}m"
