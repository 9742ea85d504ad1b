"""The rights that the operator needs: the rules of its roles. A test compares those of the chart with them.

A pass needs every verb here. The rights of routers are among them, since the API server refuses to grant rights that
the grantor does not have.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from evenkeel_contract.names import GROUP
from evenkeel_operator.core.objects import KINDS, Manifest

READ: Final = ["get", "list", "watch"]
_OWN: Final = [*READ, "create", "patch", "delete"]  # server-side apply is a patch, and a create


def cluster_rules() -> list[Manifest]:
    """For an operator that serves all namespaces."""
    return [*namespaced_rules(), *overview_rules()]


def overview_rules() -> list[Manifest]:
    """Beyond namespaces. An operator with a list of namespaces works without these."""
    return [
        _rule("", ["nodes"], READ),
        # To know the default class: an Ingress without a class has it.
        _rule("networking.k8s.io", ["ingressclasses"], ["list"]),
        # kopf lists the resources that it can watch.
        _rule("", ["namespaces"], READ),
        _rule("apiextensions.k8s.io", ["customresourcedefinitions"], READ),
    ]


def namespaced_rules() -> list[Manifest]:
    """In each namespace that is served."""
    by_group: dict[str, list[str]] = defaultdict(list)
    for where in KINDS.values():
        by_group[where.group].append(where.plural)
    resources = ["fairinferenceservices", "inferencetenants", "fairinferencegateways"]
    return [
        _rule(GROUP, resources, READ),
        _rule(GROUP, [f"{name}/status" for name in resources], ["patch"]),
        # For `blockOwnerDeletion` of generated objects.
        _rule(
            GROUP,
            ["fairinferenceservices/finalizers", "fairinferencegateways/finalizers"],
            ["update"],
        ),
        *(_rule(group, sorted(names), _OWN) for group, names in sorted(by_group.items())),
        # To mark scale-down candidates, and to open readiness gates.
        _rule("", ["pods"], [*READ, "patch"]),
        _rule("", ["pods/status"], ["patch"]),
        # To find the newest revision of a Deployment.
        _rule("apps", ["replicasets"], ["get", "list"]),
        _rule("discovery.k8s.io", ["endpointslices"], READ),
        # To scale engines that another owner made, if their labels allow it.
        _rule("apps", ["statefulsets"], ["get"]),
        _rule("apps", ["deployments/scale", "statefulsets/scale"], ["get", "patch"]),
        _rule("inference.networking.k8s.io", ["inferencepools"], READ),
        _rule("autoscaling", ["horizontalpodautoscalers"], READ),
        # To report changes, and to read why a pod does not start on its node.
        _rule("", ["events"], ["create", "list"]),
    ]


def lease_rules() -> list[Manifest]:
    """In the operator's own namespace."""
    return [_rule("coordination.k8s.io", ["leases"], ["get", "create", "update"])]


def _rule(group: str, resources: list[str], verbs: list[str]) -> Manifest:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
