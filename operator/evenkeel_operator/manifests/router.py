"""The routers: Deployment, configuration, Services, rights, network policy, and access from outside.

EndpointSlices and pods have generated names, so RBAC cannot limit them by name: routers may read all of their
namespace. Of Secrets they may read only their own.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from evenkeel_contract.decode import to_plain
from evenkeel_contract.names import (
    ADMIN_PORT,
    ADMIN_PORT_NAME,
    GROUP,
    HTTP_PORT_NAME,
    PROBE_PORT,
    PROBE_PORT_NAME,
    ROUTER_COMPONENT,
    ROUTER_CONFIG_KEY,
    TRAFFIC_PORT,
    revocations_name,
    router_name,
    router_peers_name,
)
from evenkeel_contract.routerconfig import StateStore
from evenkeel_contract.spec.parts import FileState
from evenkeel_contract.spec.resources import FairInferenceService
from evenkeel_contract.tenantshards import (
    INDEX_ENTRY,
    SHARD_ENTRY,
    index_name,
    shard_names,
)

from evenkeel_operator.core.objects import KINDS, Manifest
from evenkeel_operator.core.rotation import LAST_WORDS
from evenkeel_operator.manifests.context import (
    CONTAINER_SECURITY,
    EXIT_MARGIN_S,
    LEAVE_ROTATION_S,
    PRE_STOP,
    BuildContext,
    disruption_budget,
    drain_s,
    manifest,
    network_policy,
    operators,
    pod_security,
    pod_template,
    pods_of,
    probe,
    scrapers,
    selector,
    service_port,
    spread,
    tcp,
    volume_claim,
)

STATE_PATH: Final = "/var/lib/evenkeel"
LEDGER_FILE: Final = f"{STATE_PATH}/ledger"

PORTS: Final = {
    HTTP_PORT_NAME: TRAFFIC_PORT,
    PROBE_PORT_NAME: PROBE_PORT,
    ADMIN_PORT_NAME: ADMIN_PORT,
}
ENGINES_ANNOTATION: Final = f"{GROUP}/engines"
"""Annotation of router pods: labels of engines that another owner made. A change restarts the routers one by one."""
SERVICE_PORT: Final = 80
"""Address for clients in the cluster: `http://<service>-router.<namespace>`."""


def router_deployment(context: BuildContext) -> Manifest:
    """The routers. They watch the Secret with their configuration, so a change restarts none of them."""
    match = selector(context.name, ROUTER_COMPONENT)
    router = context.spec.router
    pod = pod_template(
        context,
        ROUTER_COMPONENT,
        pod=_pod(context, match),
        overlay=router.template,
        extra_labels={},
    )
    external = context.spec.engine.pods_of_others
    if external is not None:
        # Routers read the labels of the engines' pods when they start.
        labels = ",".join(f"{k}={v}" for k, v in sorted(external.labels.items()))
        annotations = pod["metadata"].get("annotations") or {}
        pod["metadata"]["annotations"] = {**annotations, ENGINES_ANNOTATION: labels}
    found = manifest(context, "Deployment", ROUTER_COMPONENT)
    found["spec"] = {
        "replicas": router.count,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": match},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
        },
        "template": pod,
    }
    return found


def router_service(context: BuildContext) -> Manifest:
    """Where clients in the cluster send requests, and the backend of Ingress and HTTPRoute."""
    found = manifest(context, "Service", ROUTER_COMPONENT)
    found["spec"] = {
        "type": "ClusterIP",
        "selector": selector(context.name, ROUTER_COMPONENT),
        "ports": [{**service_port(HTTP_PORT_NAME, SERVICE_PORT), "appProtocol": "http"}],
    }
    return found


def router_peers_service(context: BuildContext) -> Manifest:
    """Routers find each other by this Service. It includes routers that are not ready, since a starting router reads
    the ledger of its peers."""
    found = manifest(context, "Service", ROUTER_COMPONENT, name=router_peers_name(context.name))
    found["spec"] = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(context.name, ROUTER_COMPONENT),
        "ports": [service_port(ADMIN_PORT_NAME, ADMIN_PORT)],
    }
    return found


def router_secret(context: BuildContext) -> Manifest:
    """The RouterConfig: policies, tenants, key hashes, the engines' key. Its content is in the layout, by its digest."""
    return _opaque(context, router_name(context.name), ROUTER_CONFIG_KEY, context.layout.config)


def tenant_secrets(context: BuildContext) -> list[Manifest]:
    """The shards with tenants, and then the index that names them; none while all tenants are in the RouterConfig."""
    layout = context.layout
    if layout.index is None:
        return []
    return [
        *(
            _opaque(context, name, SHARD_ENTRY, one.digest)
            for name, one in sorted(layout.shards.items())
        ),
        _opaque(context, index_name(context.name), INDEX_ENTRY, layout.index),
    ]


def _opaque(context: BuildContext, name: str, entry: str, digest: str) -> Manifest:
    found = manifest(context, "Secret", ROUTER_COMPONENT, name=name)
    found["type"] = "Opaque"
    found["data"] = {entry: digest}
    return found


def state_claim(context: BuildContext) -> Manifest | None:
    """The volume of store File."""
    state = context.spec.router.state
    if state.store is not StateStore.FILE:
        return None
    size = (state.file or FileState()).size
    return volume_claim(context, ROUTER_COMPONENT, size, ["ReadWriteOnce"])


def router_policy(context: BuildContext) -> Manifest:
    """Network policy of routers: all pods to the traffic port; scrapers to the probes; peers and the operator to admin."""
    peers = [pods_of(context, ROUTER_COMPONENT), *operators(context)]
    ingress: list[Manifest] = [
        {"ports": tcp(TRAFFIC_PORT)},
        {"from": [scrapers(context)], "ports": tcp(PROBE_PORT)},
        {"from": peers, "ports": tcp(ADMIN_PORT)},
    ]
    return network_policy(context, ROUTER_COMPONENT, ingress)


def router_budget(context: BuildContext) -> Manifest:
    """One router at a time. Also the only one: it finishes its streams, and the next one is there in seconds."""
    return disruption_budget(context, ROUTER_COMPONENT, max_unavailable=1)


def has_signed_keys(service: FairInferenceService) -> bool:
    """Whether clients may have signed keys, which may be revoked."""
    return service.spec.tenancy.signed_keys is not None


def revocations_config_map(context: BuildContext) -> Manifest:
    """Revocations of signed keys. Routers own its entries."""
    return manifest(context, "ConfigMap", ROUTER_COMPONENT, name=revocations_name(context.name))


def router_role(context: BuildContext) -> Manifest:
    """What routers need to watch their configuration, the engines, and their peers."""
    found = manifest(context, "Role", ROUTER_COMPONENT)
    found["rules"] = [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": [router_name(context.name), *shard_names(context.name)],
            "verbs": ["get", "list", "watch"],
        },
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    ]
    if has_signed_keys(context.service):
        found["rules"].append(
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                "resourceNames": [revocations_name(context.name)],
                "verbs": ["get", "patch"],
            }
        )
    return found


def router_role_binding(context: BuildContext) -> Manifest:
    """The role, for the routers of this service only."""
    found = manifest(context, "RoleBinding", ROUTER_COMPONENT)
    name = router_name(context.name)
    found["roleRef"] = {"apiGroup": KINDS["Role"].group, "kind": "Role", "name": name}
    found["subjects"] = [
        {"kind": "ServiceAccount", "name": name, "namespace": context.namespace},
    ]
    return found


def _pod(context: BuildContext, match: dict[str, str]) -> Manifest:
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    placement: Manifest = {"topologySpreadConstraints": spread(match)}
    if context.spec.router.state.store is StateStore.FILE:
        claim = {"claimName": router_name(context.name)}
        volumes.append({"name": "state", "persistentVolumeClaim": claim})
        placement = {"affinity": _near(match)}
    return {
        "serviceAccountName": router_name(context.name),
        "automountServiceAccountToken": True,  # to watch its Secret, engines and peers
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": drain_s(context.spec) + LEAVE_ROTATION_S + EXIT_MARGIN_S,
        "securityContext": pod_security(context),
        **placement,
        "containers": [_container(context)],
        "volumes": volumes,
    }


def _near(match: dict[str, str]) -> Manifest:
    """Affinity to the node of the router that is replaced: pods of one node can share a ReadWriteOnce volume, and the ledger's
    lock says who writes. It is only preferred, since that node may be lost."""
    term = {"labelSelector": {"matchLabels": match}, "topologyKey": "kubernetes.io/hostname"}
    preferred = {"weight": 100, "podAffinityTerm": term}
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def _container(context: BuildContext) -> Manifest:
    mounts: list[Manifest] = [{"name": "tmp", "mountPath": "/tmp"}]
    if context.spec.router.state.store is StateStore.FILE:
        mounts.append({"name": "state", "mountPath": STATE_PATH})
    container: Manifest = {
        "name": ROUTER_COMPONENT,
        "image": context.defaults.router_image,
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
        "resources": context.defaults.router_resources,
        "volumeMounts": mounts,
    }
    if context.defaults.pull_policy:
        container["imagePullPolicy"] = context.defaults.pull_policy
    return container


def _from_pod(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


IDLE_S: Final = 300
"""RouterConfig's `idleTimeoutS`: the longest silence that a router allows in a stream."""


def ingress(context: BuildContext) -> Manifest | None:
    """The Ingress, where the spec asks for one."""
    wanted = context.spec.exposure.ingress
    if wanted is None:
        return None
    annotations = {**_annotations(context), **wanted.annotations}
    found = manifest(
        context, "Ingress", ROUTER_COMPONENT, annotations=annotations, given_labels=wanted.labels
    )
    backend = {
        "service": {"name": router_name(context.name), "port": {"name": HTTP_PORT_NAME}},
    }
    paths = [{"path": path, "pathType": "Prefix", "backend": backend} for path in wanted.paths]
    found["spec"] = {"rules": [{"host": host, "http": {"paths": paths}} for host in wanted.hosts]}
    if wanted.class_name is not None:
        found["spec"]["ingressClassName"] = wanted.class_name
    if wanted.tls is not None:
        secret = wanted.tls.secret_name
        found["spec"]["tls"] = [{"hosts": list(wanted.hosts), "secretName": secret}]
    return found


def http_route(context: BuildContext) -> Manifest | None:
    """The HTTPRoute, where the spec asks for one and the cluster has the Gateway API."""
    wanted = context.spec.exposure.http_route
    if wanted is None or "HTTPRoute" not in context.apis:
        return None
    found = manifest(
        context,
        "HTTPRoute",
        ROUTER_COMPONENT,
        annotations=wanted.annotations,
        given_labels=wanted.labels,
    )
    found["spec"] = {
        "parentRefs": [to_plain(ref) for ref in wanted.parent_refs],
        "rules": [
            {
                "matches": [
                    {"path": {"type": "PathPrefix", "value": path}} for path in wanted.paths
                ],
                "backendRefs": [
                    {
                        "group": "",
                        "kind": "Service",
                        "name": router_name(context.name),
                        "port": SERVICE_PORT,
                        "weight": 1,
                    }
                ],
                # 0s: no timeout. The router limits queueing, time to first token and silence.
                "timeouts": {"request": "0s", "backendRequest": "0s"},
            }
        ],
    }
    if wanted.hostnames:
        found["spec"]["hostnames"] = list(wanted.hostnames)
    return found


def _annotations(context: BuildContext) -> dict[str, str]:
    """Timeouts and sizes of the usual controllers; each reads its own, and ignores the others'.

    Traefik has none for an Ingress: its entry point's `respondingTimeouts` must fit.
    """
    limits = context.spec.router.limits
    waits_s = max(limits.queue_timeout.seconds, limits.activation_timeout.seconds)
    answers_s = max(limits.first_token_timeout.seconds, limits.answer_timeout.seconds, IDLE_S)
    silence_s = ceil(waits_s + answers_s)
    nginx = "nginx.ingress.kubernetes.io"
    return {
        f"{nginx}/proxy-read-timeout": str(silence_s),
        f"{nginx}/proxy-send-timeout": str(silence_s),
        f"{nginx}/proxy-body-size": str(limits.max_body_size.whole),
        f"{nginx}/proxy-buffering": "off",
        # Another router gets what the first one did not: without `non_idempotent`, nginx repeats no POST that it has sent.
        f"{nginx}/proxy-next-upstream": "error timeout",
        "haproxy-ingress.github.io/timeout-server": f"{silence_s}s",
        "haproxy.org/timeout-server": f"{silence_s}s",
    }
