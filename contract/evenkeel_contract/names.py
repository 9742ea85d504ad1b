"""Wire names and ports (design §5, §8). One place, so that no two parts can disagree."""

from __future__ import annotations

from typing import Final

GROUP: Final = "evenkeel.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

# Router ports.
TRAFFIC_PORT: Final = 8080
PROBE_PORT: Final = 8081
ADMIN_PORT: Final = 8082

# Engine ports.
ENGINE_PORT: Final = 30000
KV_EVENTS_PORT: Final = 5557
KV_REPLAY_PORT: Final = 5558
REPORTS_PORT: Final = 5559

# Identity headers, in order of preference; aliases as other gateways name them.
CLIENT_HEADERS: Final = (
    "x-evenkeel-client",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
)
REQUEST_ID_HEADER: Final = "x-request-id"

# The client key's way into SGLang: a header on OpenAI endpoints, a body field on `/generate`.
CLIENT_KEY_HEADER: Final = "x-smg-routing-key"
CLIENT_KEY_FIELD: Final = "routing_key"

# What clients may not send to an engine unless allowed: they would steer its scheduler or split its cache.
GUARDED_FIELDS: Final = (
    "routing_key",
    "rid",
    "priority",
    "extra_key",
    "custom_params",
    "cache_salt",
)
GUARDED_HEADERS: Final = (CLIENT_KEY_HEADER, "x-custom-labels")

# On a cluster: what the operator makes for a service, and what routers find again.
SERVICE_LABEL: Final = f"{GROUP}/service"
"""On every object of a service: the FairInferenceService's name."""
COMPONENT_LABEL: Final = f"{GROUP}/component"
"""`engine` or `router`."""
ENGINE_COMPONENT: Final = "engine"
ROUTER_COMPONENT: Final = "router"
ENGINE_KEY_LABEL: Final = f"{GROUP}/engine-key"
"""On an engine pod: the id of the key that it asks for. During a rotation, engines have different ones."""
DRAIN_ANNOTATION: Final = f"{GROUP}/drain"
"""On an engine pod, with any value: no router sends anything new there (design §6)."""
IN_ROTATION_GATE: Final = f"{GROUP}/InRotation"
"""Readiness gate of engine pods: a router has it in rotation."""
ROUTER_CONFIG_KEY: Final = "router.json"
"""The entry of the routers' Secret that holds their RouterConfig. One object for configuration and key hashes:
a router never sees a tenant without its keys, nor a key whose client is not there yet."""

OTHER_CLIENTS: Final = ""
"""The label `client` of the clients of a tenant that have no series of their own. No client has an empty name.
Prometheus treats an empty label as a missing one, so these series have no label `client`."""

# Names of container and Service ports: routers take the numbers from EndpointSlices.
HTTP_PORT_NAME: Final = "http"
REPORTS_PORT_NAME: Final = "reports"
KV_EVENTS_PORT_NAME: Final = "kv-events"
KV_REPLAY_PORT_NAME: Final = "kv-replay"
PROBE_PORT_NAME: Final = "probes"
ADMIN_PORT_NAME: Final = "admin"


def engine_name(service: str) -> str:
    """The engines' Deployment and headless Service, whose endpoints are the replicas."""
    return f"{service}-engine"


def router_name(service: str) -> str:
    """The routers' Deployment and Service, and the Secret that `--config-secret` of a router names."""
    return f"{service}-router"


def router_peers_name(service: str) -> str:
    """The routers' headless Service, by which they find each other; not ready ones included."""
    return f"{service}-router-peers"


def credentials_name(service: str) -> str:
    """The Secret with what the operator generates: the engines' keys and the routers' admin token."""
    return f"{service}-credentials"


def alerts_name(service: str) -> str:
    """The PrometheusRule."""
    return f"{service}-alerts"


def accepted_name(service: str) -> str:
    """The ConfigMap with the spec that runs: the last good one (design §3)."""
    return f"{service}-accepted"
