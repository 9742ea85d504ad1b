"""PodMonitors for the Prometheus operator, where the cluster has its API."""

from __future__ import annotations

from typing import Final

from evenkeel_contract.names import (
    ENGINE_COMPONENT,
    HTTP_PORT_NAME,
    PROBE_PORT_NAME,
    ROUTER_COMPONENT,
    SERVICE_LABEL,
    engine_name,
    router_name,
)

from evenkeel_operator.manifests.metadata import manifest, selector
from evenkeel_operator.manifests.subject import Manifest, Subject

PROMETHEUS_GROUP: Final = "monitoring.coreos.com"


def pod_monitors(subject: Subject) -> list[Manifest]:
    """One for engines, one for routers; none without the API."""
    if "PodMonitor" not in subject.apis:
        return []
    return [
        _monitor(subject, ENGINE_COMPONENT, engine_name(subject.name), HTTP_PORT_NAME),
        _monitor(subject, ROUTER_COMPONENT, router_name(subject.name), PROBE_PORT_NAME),
    ]


def with_selection_labels(found: Manifest, subject: Subject) -> Manifest:
    """With the labels by which the platform's Prometheus selects what it reads; ours stay what they are."""
    found["metadata"]["labels"] = {**subject.monitoring.labels, **found["metadata"]["labels"]}
    return found


def _monitor(subject: Subject, component: str, name: str, port: str) -> Manifest:
    found = manifest(
        subject.owner,
        api=f"{PROMETHEUS_GROUP}/v1",
        kind="PodMonitor",
        name=name,
        component=component,
    )
    found["spec"] = {
        "selector": {"matchLabels": selector(subject.owner, component)},
        "podTargetLabels": [SERVICE_LABEL],
        "podMetricsEndpoints": [{"port": port, "path": "/metrics"}],
    }
    return with_selection_labels(found, subject)
