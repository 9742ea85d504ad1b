"""Common parts of engine and router pods: security settings, and the merge of the spec's template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from evenkeel_contract.spec import PodTemplate

from evenkeel_operator.manifests.context import BuildContext, Manifest, labels

# List → the field that identifies its entries; of several candidates, the first that all entries have.
MERGE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "resourceClaims": ("name",),
    "readinessGates": ("conditionType",),
}
APPENDED: Final = frozenset({"tolerations", "envFrom"})
# Their entries are unions (a value or a source). The API server refuses an entry with both.
WHOLE: Final = frozenset({"env", "volumes", "volumeMounts", "volumeDevices"})


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`; neither is modified."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        elif isinstance(value, list) and isinstance(merged.get(key), list):
            merged[key] = _merge_list(key, merged[key], value)
        elif isinstance(value, list):
            merged[key] = _merge_list(key, [], value)
        elif isinstance(value, Mapping):
            merged[key] = merge({}, value)
        else:
            merged[key] = value
    return merged


def _merge_list(name: str, base: Sequence[Any], over: Sequence[Any]) -> list[Any]:
    if name in APPENDED:
        return [*base, *over]
    key = _key_of(name, [*base, *over])
    if key is None:
        return list(over)
    merged = {entry[key]: entry for entry in base}
    for entry in over:
        below = {} if name in WHOLE else merged.get(entry[key], {})
        merged[entry[key]] = merge(below, entry)
    return list(merged.values())


def _key_of(name: str, entries: Sequence[Any]) -> str | None:
    for key in MERGE_KEYS.get(name, ()):
        if all(isinstance(e, Mapping) and isinstance(e.get(key), str | int) for e in entries):
            return key
    return None


USER_ID: Final = 65532
"""`nonroot` of the images; any other id works too."""

# Endpoints, routers and ingress controllers need about a second to see that a pod terminates. The preStop hook delays
# SIGTERM for as long.
LEAVE_ROTATION_S: Final = 5
# Between the last answer and the end of the process.
EXIT_MARGIN_S: Final = 25

POD_SECURITY: Final[Manifest] = {
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
PRE_STOP: Final[Manifest] = {"preStop": {"sleep": {"seconds": LEAVE_ROTATION_S}}}

# Container fields that a template may set at pod level; they apply to the main container.
CONTAINER_FIELDS: Final = ("env", "envFrom", "resources", "volumeMounts")


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
    if context.images.pull_secrets:
        pod = {**pod, "imagePullSecrets": [{"name": name} for name in context.images.pull_secrets]}
    template = merge({"metadata": {}, "spec": pod}, _overlay(overlay, main=component))
    ours = {**labels(context.owner, component), **extra_labels}
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
