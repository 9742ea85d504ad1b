"""Access from outside the cluster: an Ingress or an HTTPRoute, with timeouts for long streams."""

from __future__ import annotations

from math import ceil
from typing import Final

from evenkeel_contract.decode import to_plain
from evenkeel_contract.names import HTTP_PORT_NAME, ROUTER_COMPONENT, router_name

from evenkeel_operator.manifests.context import BuildContext, Manifest, manifest
from evenkeel_operator.manifests.router import SERVICE_PORT

GATEWAY_GROUP: Final = "gateway.networking.k8s.io"
IDLE_S: Final = 300
"""RouterConfig's `idleTimeoutS`: the longest silence that a router allows in a stream."""


def ingress(context: BuildContext) -> Manifest | None:
    """The Ingress, where the spec asks for one."""
    wanted = context.spec.exposure.ingress
    if wanted is None:
        return None
    found = _head(context, "networking.k8s.io/v1", "Ingress", annotations=_annotations(context))
    backend = {
        "service": {"name": router_name(context.name), "port": {"name": HTTP_PORT_NAME}},
    }
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    found["spec"] = {"rules": [{"host": wanted.host, "http": {"paths": paths}}]}
    if wanted.class_name is not None:
        found["spec"]["ingressClassName"] = wanted.class_name
    if wanted.tls is not None:
        found["spec"]["tls"] = [{"hosts": [wanted.host], "secretName": wanted.tls.secret_name}]
    return found


def http_route(context: BuildContext) -> Manifest | None:
    """The HTTPRoute, where the spec asks for one and the cluster has the Gateway API."""
    wanted = context.spec.exposure.http_route
    if wanted is None or "HTTPRoute" not in context.apis:
        return None
    found = _head(context, f"{GATEWAY_GROUP}/v1", "HTTPRoute")
    found["spec"] = {
        "parentRefs": [to_plain(ref) for ref in wanted.parent_refs],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
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
    silence_s = ceil(
        max(limits.queue_timeout.seconds, limits.activation_timeout.seconds)
        + limits.first_token_timeout.seconds
        + IDLE_S
    )
    nginx = "nginx.ingress.kubernetes.io"
    return {
        f"{nginx}/proxy-read-timeout": str(silence_s),
        f"{nginx}/proxy-send-timeout": str(silence_s),
        f"{nginx}/proxy-body-size": str(limits.max_body_size.whole),
        f"{nginx}/proxy-buffering": "off",
        f"{nginx}/proxy-next-upstream": "off",  # the router decides about retries
        "haproxy-ingress.github.io/timeout-server": f"{silence_s}s",
        "haproxy.org/timeout-server": f"{silence_s}s",
    }


def _head(
    context: BuildContext, api: str, kind: str, *, annotations: dict[str, str] | None = None
) -> Manifest:
    return manifest(
        context.owner,
        api=api,
        kind=kind,
        name=router_name(context.name),
        component=ROUTER_COMPONENT,
        annotations=annotations,
    )
