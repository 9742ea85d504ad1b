"""What pods of engines and routers have in common: security, and the template of the spec laid over."""

from __future__ import annotations

from typing import Any, Final

from evenkeel_contract.spec import PodTemplate

from evenkeel_operator.core.overlay import merge
from evenkeel_operator.manifests.metadata import labels
from evenkeel_operator.manifests.subject import Manifest, Subject

USER_ID: Final = 65532
"""`nonroot` of the images; any other id would do as well."""

# Endpoints, routers and ingress controllers learn within about a second that a pod is going; until then they
# may still send to it. Kept in the pod, before SIGTERM.
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

# Fields of a container that a template may give beside the pod's own: they are meant for the main container.
CONTAINER_FIELDS: Final = ("env", "envFrom", "resources", "volumeMounts")


def probe(path: str, port: str, **timing: int) -> Manifest:
    """An HTTP probe of a named port."""
    return {"httpGet": {"path": path, "port": port, "scheme": "HTTP"}, **timing}


def spread(match: dict[str, str]) -> list[Manifest]:
    """Rather on different nodes, so that one node's end is not the end of all."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": match},
        }
    ]


def pod_template(
    subject: Subject, component: str, *, pod: Manifest, overlay: PodTemplate, extra_labels: Manifest
) -> Manifest:
    """The pod template of a component; labels of ours win over the overlay's, since selectors need them."""
    if subject.images.pull_secrets:
        pod = {**pod, "imagePullSecrets": [{"name": name} for name in subject.images.pull_secrets]}
    template = merge({"metadata": {}, "spec": pod}, _overlay(overlay, main=component))
    ours = {**labels(subject.owner, component), **extra_labels}
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
