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
from evenkeel_operator.manifests.context import BuildContext, Manifest, manifest, selector
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

PORTS: Final = {
    HTTP_PORT_NAME: TRAFFIC_PORT,
    PROBE_PORT_NAME: PROBE_PORT,
    ADMIN_PORT_NAME: ADMIN_PORT,
}
SERVICE_PORT: Final = 80
"""Address for clients in the cluster: `http://<service>-router.<namespace>`."""


def router_deployment(context: BuildContext) -> Manifest:
    """The routers. They watch the Secret with their configuration, so a change restarts none of them."""
    match = selector(context.owner, ROUTER_COMPONENT)
    router = context.spec.router
    pod = pod_template(
        context,
        ROUTER_COMPONENT,
        pod=_pod(context, match),
        overlay=router.template,
        extra_labels={},
    )
    found = _head(context, "apps/v1", "Deployment", router_name(context.name))
    on_a_volume = router.state.store is StateStore.FILE
    found["spec"] = {
        "replicas": router.count,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": match},
        # A second router cannot mount the volume of the first one.
        "strategy": {"type": "Recreate"}
        if on_a_volume
        else {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": pod,
    }
    return found


def router_service(context: BuildContext) -> Manifest:
    """Where clients in the cluster send requests, and the backend of Ingress and HTTPRoute."""
    found = _head(context, "v1", "Service", router_name(context.name))
    found["spec"] = {
        "type": "ClusterIP",
        "selector": selector(context.owner, ROUTER_COMPONENT),
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


def router_peers_service(context: BuildContext) -> Manifest:
    """Routers find each other by this Service. It includes routers that are not ready, since a starting router reads
    the ledger of its peers."""
    found = _head(context, "v1", "Service", router_peers_name(context.name))
    found["spec"] = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(context.owner, ROUTER_COMPONENT),
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


def router_secret(context: BuildContext) -> Manifest:
    """The RouterConfig: policies, tenants, key hashes, the engines' key."""
    found = _head(context, "v1", "Secret", router_name(context.name))
    found["type"] = "Opaque"
    found["data"] = {ROUTER_CONFIG_KEY: b64encode(context.router_config).decode()}
    return found


def _pod(context: BuildContext, match: dict[str, str]) -> Manifest:
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    if context.spec.router.state.store is StateStore.FILE:
        claim = {"claimName": router_name(context.name)}
        volumes.append({"name": "state", "persistentVolumeClaim": claim})
    return {
        "serviceAccountName": router_name(context.name),
        "automountServiceAccountToken": True,  # to watch its Secret, engines and peers
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": context.drain_s + LEAVE_ROTATION_S + EXIT_MARGIN_S,
        "securityContext": POD_SECURITY,
        "topologySpreadConstraints": spread(match),
        "containers": [_container(context)],
        "volumes": volumes,
    }


def _container(context: BuildContext) -> Manifest:
    mounts: list[Manifest] = [{"name": "tmp", "mountPath": "/tmp"}]
    if context.spec.router.state.store is StateStore.FILE:
        mounts.append({"name": "state", "mountPath": STATE_PATH})
    container: Manifest = {
        "name": ROUTER_COMPONENT,
        "image": context.images.router,
        "args": [f"--config-secret={router_name(context.name)}"],
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
    if context.images.pull_policy:
        container["imagePullPolicy"] = context.images.pull_policy
    return container


def _from_pod(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _head(context: BuildContext, api: str, kind: str, name: str) -> Manifest:
    return manifest(context.owner, api=api, kind=kind, name=name, component=ROUTER_COMPONENT)
