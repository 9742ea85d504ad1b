"""What all builders share: the build context, the head of an object, and pods with the spec's template merged in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_contract.names import (
    API_VERSION,
    COMPONENT_LABEL,
    ENGINE_COMPONENT,
    GATEWAY_LABEL,
    MODEL_COMPONENT,
    ROUTER_COMPONENT,
    SERVICE_LABEL,
    engine_name,
    model_name,
    router_name,
)
from evenkeel_contract.spec.parts import PodTemplate
from evenkeel_contract.spec.resources import FairInferenceService, ServiceSpec
from evenkeel_contract.values import Quantity

from evenkeel_operator.core.fill import Fill
from evenkeel_operator.core.objects import KINDS, Manifest, list_key
from evenkeel_operator.core.records import Defaults
from evenkeel_operator.core.sharding import Layout

# How long a terminating replica or router may finish its work, if `spec.autoscaling` is not set. Nearly every chat
# answer takes less than five minutes.
DEFAULT_DRAIN_S: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """One service, ready to be built."""

    service: FairInferenceService
    uid: str
    engine_image: str
    engine_key_id: str
    """Id of the key that engines ask for, never the key. A label of the engines' pods: a new key is a rollout."""
    layout: Layout
    """The RouterConfig and the Secrets with tenants."""
    defaults: Defaults
    fill: Fill | None = None
    """How far the volume with the model's files is; None: no Job fills it."""
    apis: frozenset[str] = frozenset()
    """Optional kinds that the cluster has, such as `PodMonitor`."""
    gateway: str | None = None
    """The gateway that the service is behind, or the gateway that is built."""
    has_routers: bool = True
    """Whether the service has routers of its own."""
    kind: str = "FairInferenceService"
    """The kind of the owner."""

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
    def own_labels(self) -> dict[str, str]:
        """Labels of the objects of a gateway, besides those of a service's."""
        if self.gateway is None or self.kind == "FairInferenceService":
            return {}
        return {GATEWAY_LABEL: self.gateway}

    @property
    def owner_reference(self) -> Manifest:
        """Refers to the owner, which all generated objects go with."""
        is_gateway = self.kind != "FairInferenceService"
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": self.gateway if is_gateway else self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def drain_s(spec: ServiceSpec) -> int:
    """How long a terminating pod may finish its work; routers and the kubelet use the same value."""
    scaling = spec.autoscaling
    return DEFAULT_DRAIN_S if scaling is None else max(1, round(scaling.drain_timeout.seconds))


MANAGER: Final = "evenkeel-operator"
"""The field manager of server-side apply, and the value of `app.kubernetes.io/managed-by`."""


def selector(service: str, component: str) -> dict[str, str]:
    """The labels by which pods of a component are found. Immutable in a Deployment: never add to them."""
    return {SERVICE_LABEL: service, COMPONENT_LABEL: component}


def labels(service: str, component: str) -> dict[str, str]:
    """The labels of every generated object."""
    return {
        "app.kubernetes.io/name": f"evenkeel-{component}",
        "app.kubernetes.io/instance": service,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "evenkeel",
        "app.kubernetes.io/managed-by": MANAGER,
        **selector(service, component),
    }


def manifest(
    context: BuildContext,
    kind: str,
    component: str,
    *,
    name: str | None = None,
    annotations: Mapping[str, str] | None = None,
    given_labels: Mapping[str, str] | None = None,
) -> Manifest:
    """The head of an object; the caller adds its body. `name` is that of the component unless given. Generated labels win
    over those that are given: the operator selects by them."""
    of_component = {
        ENGINE_COMPONENT: engine_name,
        ROUTER_COMPONENT: router_name,
        MODEL_COMPONENT: model_name,
    }[component]
    metadata: Manifest = {
        "name": name or of_component(context.name),
        "namespace": context.namespace,
        "labels": {
            **(given_labels or {}),
            **labels(context.name, component),
            **context.own_labels,
        },
        "ownerReferences": [context.owner_reference],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": KINDS[kind].api, "kind": kind, "metadata": metadata}


def service_account(context: BuildContext, component: str) -> Manifest:
    """The identity of a component's pods. Pods that need its token mount it explicitly."""
    return {
        **manifest(context, "ServiceAccount", component),
        "automountServiceAccountToken": False,
    }


def network_policy(context: BuildContext, component: str, ingress: Sequence[Manifest]) -> Manifest:
    """What may reach a component. Egress is free: only the owner of an engine knows where it fetches its model from."""
    found = manifest(context, "NetworkPolicy", component)
    found["spec"] = {**pods_of(context, component), "policyTypes": ["Ingress"], "ingress": ingress}
    return found


def pods_of(context: BuildContext, component: str) -> Manifest:
    """The pods of a component, as a part of a network policy."""
    return {"podSelector": {"matchLabels": selector(context.name, component)}}


def scrapers(context: BuildContext) -> Manifest:
    """The pods that may read metrics, as a part of a network policy."""
    match = dict(context.defaults.scrapers)
    return {"namespaceSelector": {"matchLabels": match} if match else {}}


def operators(context: BuildContext) -> list[Manifest]:
    """The pods of the operator, as a part of a network policy."""
    if context.defaults.operator_namespace is None:
        return []
    namespace = {"kubernetes.io/metadata.name": context.defaults.operator_namespace}
    pods = {"app.kubernetes.io/name": "evenkeel-operator"}
    return [{"namespaceSelector": {"matchLabels": namespace}, "podSelector": {"matchLabels": pods}}]


def tcp(*ports: int) -> list[Manifest]:
    """Ports, as a part of a network policy."""
    return [{"protocol": "TCP", "port": port} for port in ports]


def disruption_budget(context: BuildContext, component: str, *, max_unavailable: int) -> Manifest:
    """How many pods of a component may be evicted at once."""
    found = manifest(context, "PodDisruptionBudget", component)
    found["spec"] = {
        "selector": {"matchLabels": selector(context.name, component)},
        # A replica that is not ready must not block the drain of its node.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "maxUnavailable": max_unavailable,
    }
    return found


def volume_claim(
    context: BuildContext, component: str, size: Quantity, modes: Sequence[str]
) -> Manifest:
    """A volume of a component."""
    found = manifest(context, "PersistentVolumeClaim", component)
    requests = {"storage": str(size.to_plain())}
    found["spec"] = {"accessModes": list(modes), "resources": {"requests": requests}}
    return found


APPENDED: Final = frozenset({"tolerations", "envFrom"})
# Their entries are unions (a value or a source). The API server refuses an entry with both.
WHOLE: Final = frozenset({"env", "volumes", "volumeMounts", "volumeDevices"})


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`; neither is modified."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = merge(below if isinstance(below, Mapping) else {}, value)
        elif isinstance(value, list):
            merged[key] = _merge_list(key, below if isinstance(below, list) else [], value)
        else:
            merged[key] = value
    return merged


def _merge_list(name: str, base: Sequence[Any], over: Sequence[Any]) -> list[Any]:
    if name in APPENDED:
        return [*base, *over]
    key = list_key(name, [*base, *over])
    if key is None:
        return list(over)
    merged = {entry[key]: entry for entry in base}
    for entry in over:
        below = {} if name in WHOLE else merged.get(entry[key], {})
        merged[entry[key]] = merge(below, entry)
    return list(merged.values())


USER_ID: Final = 65532
"""`nonroot` of the images; any other id works too."""
_FIXED: Final = ("runAsUser", "runAsGroup", "fsGroup")

# Endpoints, routers and ingress controllers need about a second to see that a pod terminates. The preStop hook delays
# SIGTERM for as long.
LEAVE_ROTATION_S: Final = 5
# Between the last answer and the end of the process.
EXIT_MARGIN_S: Final = 25

_POD_SECURITY: Final[Manifest] = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    # Without it, the owner of every file of a large model volume would be changed at each start.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Manifest] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pod_security(context: BuildContext) -> Manifest:
    """The security context of a pod. Without a fixed user, the image or the namespace has one."""
    left_out = () if context.defaults.fixed_user else _FIXED
    return {name: value for name, value in _POD_SECURITY.items() if name not in left_out}


PRE_STOP: Final[Manifest] = {"preStop": {"sleep": {"seconds": LEAVE_ROTATION_S}}}

# Container fields that a template may set at pod level; they apply to the main container.
CONTAINER_FIELDS: Final = ("env", "envFrom", "resources", "volumeMounts")


def service_port(name: str, port: int, target: str | int | None = None) -> Manifest:
    """A port of a Service; `target`: the port of its pods, by default the one with the same name."""
    return {"name": name, "port": port, "targetPort": target or name, "protocol": "TCP"}


def probe(path: str, port: str, **timing: int) -> Manifest:
    """An HTTP probe of a named port."""
    return {"httpGet": {"path": path, "port": port, "scheme": "HTTP"}, **timing}


def spread(match: dict[str, str]) -> list[Manifest]:
    """Preferred spread over nodes, so that the loss of one node does not remove all pods."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": match},
        }
    ]


def pod_template(
    context: BuildContext,
    component: str,
    *,
    pod: Manifest,
    overlay: PodTemplate,
    extra_labels: Manifest,
) -> Manifest:
    """The pod template of a component. Generated labels win over the template's, since selectors need them."""
    if context.defaults.pull_secrets:
        pod = {
            **pod,
            "imagePullSecrets": [{"name": name} for name in context.defaults.pull_secrets],
        }
    template = merge({"metadata": {}, "spec": pod}, _overlay(overlay, main=component))
    ours = {**labels(context.name, component), **context.own_labels, **extra_labels}
    given = template["metadata"].get("labels") or {}
    template["metadata"]["labels"] = {**given, **ours}
    return template


def _overlay(overlay: PodTemplate, *, main: str) -> dict[str, Any]:
    """The template of the spec as a pod template: fields of a container go to the main one."""
    spec = dict(overlay.spec)
    inner = {name: spec.pop(name) for name in CONTAINER_FIELDS if name in spec}
    metadata = {
        name: overlay.metadata[name]
        for name in ("labels", "annotations")
        if name in overlay.metadata
    }
    if inner:
        containers = spec.get("containers")
        listed = list(containers) if isinstance(containers, list) else []
        spec["containers"] = [*listed, {"name": main, **inner}]
    return {"metadata": metadata, "spec": spec}
