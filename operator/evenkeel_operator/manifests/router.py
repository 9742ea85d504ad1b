"""The routers: Deployment, the Service that clients reach, the headless one of peers, their configuration."""

from __future__ import annotations

from base64 import b64encode
from typing import Final

from evenkeel_contract.names import (
    ADMIN_PORT,
    ADMIN_PORT_NAME,
    HTTP_PORT_NAME,
    PROBE_PORT,
    PROBE_PORT_NAME,
    ROUTER_COMPONENT,
    ROUTER_CONFIG_KEY,
    TRAFFIC_PORT,
    router_name,
    router_peers_name,
)
from evenkeel_contract.spec import StateStore

from evenkeel_operator.core.gates import LAST_WORDS
from evenkeel_operator.manifests.metadata import manifest, selector
from evenkeel_operator.manifests.pods import (
    CONTAINER_SECURITY,
    EXIT_MARGIN_S,
    LEAVE_ROTATION_S,
    POD_SECURITY,
    PRE_STOP,
    pod_template,
    probe,
    spread,
)
from evenkeel_operator.manifests.storage import STATE_PATH
from evenkeel_operator.manifests.subject import Manifest, Subject

PORTS: Final = {
    HTTP_PORT_NAME: TRAFFIC_PORT,
    PROBE_PORT_NAME: PROBE_PORT,
    ADMIN_PORT_NAME: ADMIN_PORT,
}
SERVICE_PORT: Final = 80
"""What clients in the cluster use: `http://<service>-router.<namespace>`."""


def router_deployment(subject: Subject) -> Manifest:
    """The routers. What they are told is in a Secret that they watch: a change restarts none of them."""
    match = selector(subject.owner, ROUTER_COMPONENT)
    router = subject.spec.router
    pod = pod_template(
        subject,
        ROUTER_COMPONENT,
        pod=_pod(subject, match),
        overlay=router.template,
        extra_labels={},
    )
    found = _head(subject, "apps/v1", "Deployment", router_name(subject.name))
    on_a_volume = router.state.store is StateStore.FILE
    found["spec"] = {
        "replicas": router.count,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": match},
        # A second router could not mount the first one's volume, let alone write its file.
        "strategy": {"type": "Recreate"}
        if on_a_volume
        else {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": pod,
    }
    return found


def router_service(subject: Subject) -> Manifest:
    """Where clients in the cluster send requests, and the backend of Ingress and HTTPRoute."""
    found = _head(subject, "v1", "Service", router_name(subject.name))
    found["spec"] = {
        "type": "ClusterIP",
        "selector": selector(subject.owner, ROUTER_COMPONENT),
        "ports": [
            {
                "name": HTTP_PORT_NAME,
                "port": SERVICE_PORT,
                "targetPort": HTTP_PORT_NAME,
                "protocol": "TCP",
                "appProtocol": "http",
            }
        ],
    }
    return found


def router_peers_service(subject: Subject) -> Manifest:
    """By which routers find each other. Not ready ones included: one that starts wants to be told."""
    found = _head(subject, "v1", "Service", router_peers_name(subject.name))
    found["spec"] = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(subject.owner, ROUTER_COMPONENT),
        "ports": [
            {
                "name": ADMIN_PORT_NAME,
                "port": ADMIN_PORT,
                "targetPort": ADMIN_PORT_NAME,
                "protocol": "TCP",
            }
        ],
    }
    return found


def router_secret(subject: Subject) -> Manifest:
    """The RouterConfig: policies, tenants, key hashes, the engines' key."""
    found = _head(subject, "v1", "Secret", router_name(subject.name))
    found["type"] = "Opaque"
    found["data"] = {ROUTER_CONFIG_KEY: b64encode(subject.router_config).decode()}
    return found


def _pod(subject: Subject, match: dict[str, str]) -> Manifest:
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    if subject.spec.router.state.store is StateStore.FILE:
        claim = {"claimName": router_name(subject.name)}
        volumes.append({"name": "state", "persistentVolumeClaim": claim})
    return {
        "serviceAccountName": router_name(subject.name),
        "automountServiceAccountToken": True,  # to watch its Secret, engines and peers
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": subject.drain_s + LEAVE_ROTATION_S + EXIT_MARGIN_S,
        "securityContext": POD_SECURITY,
        "topologySpreadConstraints": spread(match),
        "containers": [_container(subject)],
        "volumes": volumes,
    }


def _container(subject: Subject) -> Manifest:
    mounts: list[Manifest] = [{"name": "tmp", "mountPath": "/tmp"}]
    if subject.spec.router.state.store is StateStore.FILE:
        mounts.append({"name": "state", "mountPath": STATE_PATH})
    container: Manifest = {
        "name": ROUTER_COMPONENT,
        "image": subject.images.router,
        "args": [f"--config-secret={router_name(subject.name)}"],
        "env": [
            _from_pod("POD_NAMESPACE", "metadata.namespace"),
            _from_pod("POD_NAME", "metadata.name"),
            _from_pod("POD_IP", "status.podIP"),
        ],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in PORTS.items()
        ],
        "startupProbe": probe(
            "/livez", PROBE_PORT_NAME, periodSeconds=1, timeoutSeconds=2, failureThreshold=120
        ),
        "readinessProbe": probe(
            "/readyz", PROBE_PORT_NAME, periodSeconds=2, timeoutSeconds=2, failureThreshold=2
        ),
        "livenessProbe": probe(
            "/livez", PROBE_PORT_NAME, periodSeconds=10, timeoutSeconds=5, failureThreshold=6
        ),
        "lifecycle": PRE_STOP,
        "terminationMessagePolicy": LAST_WORDS,
        "securityContext": CONTAINER_SECURITY,
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": mounts,
    }
    if subject.images.pull_policy:
        container["imagePullPolicy"] = subject.images.pull_policy
    return container


def _from_pod(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _head(subject: Subject, api: str, kind: str, name: str) -> Manifest:
    return manifest(subject.owner, api=api, kind=kind, name=name, component=ROUTER_COMPONENT)
