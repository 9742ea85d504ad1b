"""NetworkPolicies and PodDisruptionBudgets."""

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

from evenkeel_operator.manifests.context import BuildContext, Manifest, manifest, selector


def engine_policy(context: BuildContext) -> Manifest:
    """Into engines: the service's routers; scrapers to the HTTP port, whose metrics need no key.

    No egress rule: the source of the model is the owner's decision.
    """
    found = _head(context, "NetworkPolicy", ENGINE_COMPONENT)
    routers = {"podSelector": {"matchLabels": selector(context.owner, ROUTER_COMPONENT)}}
    found["spec"] = {
        "podSelector": {"matchLabels": selector(context.owner, ENGINE_COMPONENT)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [routers],
                "ports": _ports(ENGINE_PORT, KV_EVENTS_PORT, KV_REPLAY_PORT, REPORTS_PORT),
            },
            {"from": [_scrapers(context)], "ports": _ports(ENGINE_PORT)},
        ],
    }
    return found


def router_policy(context: BuildContext) -> Manifest:
    """Into routers: all pods to the traffic port; scrapers to the probes; peers and the operator to the admin port."""
    found = _head(context, "NetworkPolicy", ROUTER_COMPONENT)
    peers: list[Manifest] = [
        {"podSelector": {"matchLabels": selector(context.owner, ROUTER_COMPONENT)}}
    ]
    if context.operator_namespace is not None:
        peers.append(
            {
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": context.operator_namespace}
                },
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": "evenkeel-operator"}},
            }
        )
    found["spec"] = {
        "podSelector": {"matchLabels": selector(context.owner, ROUTER_COMPONENT)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": _ports(TRAFFIC_PORT)},
            {"from": [_scrapers(context)], "ports": _ports(PROBE_PORT)},
            {"from": peers, "ports": _ports(ADMIN_PORT)},
        ],
    }
    return found


def engine_budget(context: BuildContext, *, replicas: int) -> Manifest:
    """At most one replica at a time; never the only one (design §6: the operator surges first)."""
    found = _budget(context, ENGINE_COMPONENT)
    found["spec"]["maxUnavailable"] = 1 if replicas > 1 else 0
    return found


def router_budget(context: BuildContext) -> Manifest:
    """One router at a time. Also the only one: it finishes its streams, and the next one is there in seconds."""
    found = _budget(context, ROUTER_COMPONENT)
    found["spec"]["maxUnavailable"] = 1
    return found


def _budget(context: BuildContext, component: str) -> Manifest:
    found = _head(context, "PodDisruptionBudget", component)
    found["spec"] = {
        "selector": {"matchLabels": selector(context.owner, component)},
        # A replica that is not ready must not block the drain of its node.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return found


def _head(context: BuildContext, kind: str, component: str) -> Manifest:
    api = {"NetworkPolicy": "networking.k8s.io/v1", "PodDisruptionBudget": "policy/v1"}[kind]
    names = {ENGINE_COMPONENT: engine_name, ROUTER_COMPONENT: router_name}
    name = names[component](context.name)
    return manifest(context.owner, api=api, kind=kind, name=name, component=component)


def _scrapers(context: BuildContext) -> Manifest:
    labels = dict(context.scrapers)
    return {"namespaceSelector": {"matchLabels": labels} if labels else {}}


def _ports(*ports: int) -> list[Manifest]:
    return [{"protocol": "TCP", "port": port} for port in ports]
