"""Who may talk to whom, and how many may be evicted at once."""

from __future__ import annotations

from evenkeel_contract.names import (
    ADMIN_PORT,
    ENGINE_COMPONENT,
    ENGINE_PORT,
    KV_EVENTS_PORT,
    KV_REPLAY_PORT,
    PROBE_PORT,
    REPORTS_PORT,
    ROUTER_COMPONENT,
    TRAFFIC_PORT,
    engine_name,
    router_name,
)

from evenkeel_operator.manifests.metadata import manifest, selector
from evenkeel_operator.manifests.subject import Manifest, Subject


def engine_policy(subject: Subject) -> Manifest:
    """Into engines: the service's routers; scrapers to the HTTP port, whose metrics need no key.

    Ingress only: where an engine fetches its model from is its owner's to say.
    """
    found = _head(subject, "NetworkPolicy", ENGINE_COMPONENT)
    routers = {"podSelector": {"matchLabels": selector(subject.owner, ROUTER_COMPONENT)}}
    found["spec"] = {
        "podSelector": {"matchLabels": selector(subject.owner, ENGINE_COMPONENT)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [routers],
                "ports": _ports(ENGINE_PORT, KV_EVENTS_PORT, KV_REPLAY_PORT, REPORTS_PORT),
            },
            {"from": [_scrapers(subject)], "ports": _ports(ENGINE_PORT)},
        ],
    }
    return found


def router_policy(subject: Subject) -> Manifest:
    """Into routers: anybody to the traffic port; scrapers to the probes; peers, and the operator, to admin."""
    found = _head(subject, "NetworkPolicy", ROUTER_COMPONENT)
    peers: list[Manifest] = [
        {"podSelector": {"matchLabels": selector(subject.owner, ROUTER_COMPONENT)}}
    ]
    if subject.operator_namespace is not None:
        peers.append(
            {
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": subject.operator_namespace}
                },
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": "evenkeel-operator"}},
            }
        )
    found["spec"] = {
        "podSelector": {"matchLabels": selector(subject.owner, ROUTER_COMPONENT)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": _ports(TRAFFIC_PORT)},
            {"from": [_scrapers(subject)], "ports": _ports(PROBE_PORT)},
            {"from": peers, "ports": _ports(ADMIN_PORT)},
        ],
    }
    return found


def engine_budget(subject: Subject, *, replicas: int) -> Manifest:
    """One replica at a time; the only one not at all (design §6: the operator surges first)."""
    found = _budget(subject, ENGINE_COMPONENT)
    found["spec"]["maxUnavailable"] = 1 if replicas > 1 else 0
    return found


def router_budget(subject: Subject) -> Manifest:
    """One router at a time. Also the only one: it finishes its streams, and the next one is there in seconds."""
    found = _budget(subject, ROUTER_COMPONENT)
    found["spec"]["maxUnavailable"] = 1
    return found


def _budget(subject: Subject, component: str) -> Manifest:
    found = _head(subject, "PodDisruptionBudget", component)
    found["spec"] = {
        "selector": {"matchLabels": selector(subject.owner, component)},
        # A replica that is broken anyway must not keep its node from being drained.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return found


def _head(subject: Subject, kind: str, component: str) -> Manifest:
    api = {"NetworkPolicy": "networking.k8s.io/v1", "PodDisruptionBudget": "policy/v1"}[kind]
    names = {ENGINE_COMPONENT: engine_name, ROUTER_COMPONENT: router_name}
    name = names[component](subject.name)
    return manifest(subject.owner, api=api, kind=kind, name=name, component=component)


def _scrapers(subject: Subject) -> Manifest:
    labels = dict(subject.scrapers)
    return {"namespaceSelector": {"matchLabels": labels} if labels else {}}


def _ports(*ports: int) -> list[Manifest]:
    return [{"protocol": "TCP", "port": port} for port in ports]
