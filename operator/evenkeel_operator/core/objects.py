"""Objects of the cluster as plain data, and functions that apply to all kinds."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_contract.names import API_VERSION

Object = Mapping[str, Any]
"""An object as the API server returned it. Never modified."""


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One object within a namespace."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Kind:
    """Where objects of a kind are found."""

    api: str
    """As in `apiVersion`."""
    plural: str

    @property
    def group(self) -> str:
        """Empty for the core group."""
        return self.api.rpartition("/")[0]


# Every kind of object that the operator creates. RBAC, watches and clean-up use it.
KINDS: Final[Mapping[str, Kind]] = {
    "ConfigMap": Kind("v1", "configmaps"),
    "Secret": Kind("v1", "secrets"),
    "Service": Kind("v1", "services"),
    "ServiceAccount": Kind("v1", "serviceaccounts"),
    "PersistentVolumeClaim": Kind("v1", "persistentvolumeclaims"),
    "Deployment": Kind("apps/v1", "deployments"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "Role": Kind("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings"),
    "NetworkPolicy": Kind("networking.k8s.io/v1", "networkpolicies"),
    "Ingress": Kind("networking.k8s.io/v1", "ingresses"),
    "HTTPRoute": Kind("gateway.networking.k8s.io/v1", "httproutes"),
    "PodMonitor": Kind("monitoring.coreos.com/v1", "podmonitors"),
    "PrometheusRule": Kind("monitoring.coreos.com/v1", "prometheusrules"),
}
ALL_KINDS: Final[Mapping[str, Kind]] = {
    **KINDS,
    "FairInferenceService": Kind(API_VERSION, "fairinferenceservices"),
    "InferenceTenant": Kind(API_VERSION, "inferencetenants"),
    "Pod": Kind("v1", "pods"),
    "Event": Kind("v1", "events"),
    "HorizontalPodAutoscaler": Kind("autoscaling/v2", "horizontalpodautoscalers"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
}
"""Every kind that the operator reads or writes one by one."""
_OPTIONAL_GROUPS: Final = ("gateway.networking.k8s.io", "monitoring.coreos.com")
OPTIONAL_KINDS: Final = frozenset(
    kind for kind, where in KINDS.items() if where.group in _OPTIONAL_GROUPS
)
"""Kinds that a cluster may lack. Listed one by one, since a cluster may have only part of a group or an old version."""


def ref_of(item: Object) -> Ref:
    """Kind and name."""
    return Ref(str(item["kind"]), str(item["metadata"]["name"]))


def is_controlled_by(item: Object, uid: str) -> bool:
    """Whether the owner with this uid made the object."""
    owners = item["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


def labels_of(item: Object) -> Mapping[str, str]:
    """The object's labels, perhaps none."""
    return item["metadata"].get("labels") or {}


def annotations_of(item: Object) -> Mapping[str, str]:
    """The object's annotations, perhaps none."""
    return item["metadata"].get("annotations") or {}


def entry_of(secret: Object | None, key: str) -> bytes | None:
    """One entry; None if it is missing or not base64."""
    encoded = ((secret or {}).get("data") or {}).get(key)
    if not isinstance(encoded, str):
        return None
    try:
        return b64decode(encoded, validate=True)
    except ValueError:
        return None
