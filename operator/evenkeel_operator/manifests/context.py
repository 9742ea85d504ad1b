"""The build context: one service's spec in use, and what the operator adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from evenkeel_contract.names import API_VERSION, COMPONENT_LABEL, SERVICE_LABEL
from evenkeel_contract.spec import FairInferenceService, ServiceSpec

from evenkeel_operator.core.defaults import Monitoring

Manifest = dict[str, Any]
"""One object of Kubernetes, as it is sent to the API server."""

# How long a terminating replica or router may finish its work, if `spec.autoscaling` is not set. Nearly every chat
# answer takes less than five minutes.
DEFAULT_DRAIN_S: Final = 300


@dataclass(frozen=True, slots=True)
class Owner:
    """The FairInferenceService that owns the generated objects."""

    name: str
    namespace: str
    uid: str

    @property
    def reference(self) -> Manifest:
        """The owner reference."""
        return {
            "apiVersion": API_VERSION,
            "kind": "FairInferenceService",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """The images of the pods."""

    engine: str
    router: str
    pull_policy: str | None = None
    """None: the cluster's default (IfNotPresent, or Always for `latest`)."""
    pull_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKeyRef:
    """Reference to the key that engines require; never its value."""

    secret: str
    entry: str
    id: str
    """Changes with the key; a label of the engines' pods, so that a new key is a rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """One service, ready to be built."""

    service: FairInferenceService
    uid: str
    images: Images
    engine_key: EngineKeyRef
    router_config: bytes
    """The RouterConfig in JSON."""
    apis: frozenset[str] = frozenset()
    """Optional kinds that the cluster has, such as `PodMonitor`."""
    monitoring: Monitoring = field(default_factory=Monitoring)
    scrapers: Mapping[str, str] = field(default_factory=dict)
    """Labels of the namespaces whose pods may read metrics; empty: those of every namespace."""
    operator_namespace: str | None = None
    """Namespace whose pods may reach the routers' admin port; None: only the routers themselves."""

    @property
    def name(self) -> str:
        return self.service.metadata.name

    @property
    def namespace(self) -> str:
        return self.service.metadata.namespace

    @property
    def spec(self) -> ServiceSpec:
        return self.service.spec

    @property
    def drain_s(self) -> int:
        """How long a terminating replica or router may finish its work."""
        return drain_s(self.spec)

    @property
    def owner(self) -> Owner:
        return Owner(self.name, self.namespace, self.uid)


def drain_s(spec: ServiceSpec) -> int:
    """How long a terminating pod may finish its work; routers and the kubelet use the same value."""
    scaling = spec.autoscaling
    return DEFAULT_DRAIN_S if scaling is None else max(1, round(scaling.drain_timeout.seconds))


MANAGER: Final = "evenkeel-operator"
"""The field manager of server-side apply, and the value of `app.kubernetes.io/managed-by`."""


def selector(owner: Owner, component: str) -> dict[str, str]:
    """The labels by which pods of a component are found. Immutable in a Deployment: never add to them."""
    return {SERVICE_LABEL: owner.name, COMPONENT_LABEL: component}


def labels(owner: Owner, component: str) -> dict[str, str]:
    """The labels of every generated object."""
    return {
        "app.kubernetes.io/name": f"evenkeel-{component}",
        "app.kubernetes.io/instance": owner.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "evenkeel",
        "app.kubernetes.io/managed-by": MANAGER,
        **selector(owner, component),
    }


def manifest(
    owner: Owner,
    *,
    api: str,
    kind: str,
    name: str,
    component: str,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """The head of an object; the caller adds its body."""
    metadata: Manifest = {
        "name": name,
        "namespace": owner.namespace,
        "labels": labels(owner, component),
        "ownerReferences": [owner.reference],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": api, "kind": kind, "metadata": metadata}
