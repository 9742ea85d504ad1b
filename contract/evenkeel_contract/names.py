"""Names and ports that several components use (design §5, §8)."""

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
REMOVED_HEADER: Final = "x-evenkeel-removed-fields"
"""Header of answers: the fields that the router took out of the request's body."""

MODEL_HEADER: Final = "x-evenkeel-model"
"""Header of answers of a router of several models: the model that served the request."""
FALLBACK_HEADER: Final = "x-evenkeel-fallback"
"""Header of requests: with the value `none`, no other model may serve it."""

# The client key's way into SGLang: a header on OpenAI endpoints, a body field on `/generate`.
CLIENT_KEY_HEADER: Final = "x-smg-routing-key"
CLIENT_KEY_FIELD: Final = "routing_key"
# And into vLLM. A field `session_id` of the body would win over the header.
SESSION_HEADER: Final = "x-session-id"

ADAPTER_HEADER: Final = "x-evenkeel-adapter"
"""The LoRA adapter of a request to `/v1/responses`, where SGLang reads none of the body: the plug-in reads it."""
CACHE_SALT_FIELD: Final = "cache_salt"
"""Field of bodies of SGLang and vLLM: requests with different salts share no cached prefix."""
CACHE_SALT_HEADER: Final = "x-evenkeel-cache-salt"
"""Header with the salt for requests whose body has no such field: the plug-in reads it."""
ROUTER_FIELDS: Final = (CLIENT_KEY_FIELD, "session_id", CACHE_SALT_FIELD)
"""Fields of bodies that say who a client is and whose cache it uses: routers set them, and no configuration opens them."""
# Headers that clients may not send to an engine.
GUARDED_HEADERS: Final = (
    CLIENT_KEY_HEADER,
    SESSION_HEADER,
    "x-vllm-priority",
    ADAPTER_HEADER,
    CACHE_SALT_HEADER,
    "x-custom-labels",
)

# Names of the objects that the operator creates for a service and that routers read.
SERVICE_LABEL: Final = f"{GROUP}/service"
"""Label of every object of a service: the FairInferenceService's name."""
SERVICE_SERIES_LABEL: Final = "evenkeel_dev_service"
"""The label of a service, as Prometheus spells it."""
COMPONENT_LABEL: Final = f"{GROUP}/component"
"""`engine`, `router` or `model`."""
GATEWAY_LABEL: Final = f"{GROUP}/gateway"
"""Label of every object of a gateway: the FairInferenceGateway's name. Its `evenkeel.dev/service` is `gateway_base`."""
ENGINE_COMPONENT: Final = "engine"
ROUTER_COMPONENT: Final = "router"
MODEL_COMPONENT: Final = "model"
"""Jobs that download the model's files, and their pods."""
MODEL_LABEL: Final = f"{GROUP}/model"
"""Label of such a Job, and of the engine pods that read its files: a digest of the source."""
EXTERNAL_LABEL: Final = f"{GROUP}/external"
"""Label of the Service of engines that another owner made, and so of its EndpointSlices."""
ENGINE_KEY_LABEL: Final = f"{GROUP}/engine-key"
"""Label of an engine pod: the id of the API key that it requires. During a key rotation, engines have different keys."""
USE_LABEL: Final = f"{GROUP}/use"
"""Label of a Secret, with the value `true`: a `secretRef` of a service or tenant may name it."""
SHARE_HOST: Final = f"{GROUP}/share-host"
"""Annotation of a service: namespaces, with commas between them, whose services may have paths of its hosts. `*`: all."""
SHARE_TENANT: Final = f"{GROUP}/share-tenant"
"""Annotation of a tenant: namespaces, with commas between them, whose services may use it. `*`: all."""
DRAIN_ANNOTATION: Final = f"{GROUP}/drain"
"""Annotation of an engine pod, with any value: routers send no new requests there (design §6)."""
RULES_LABEL: Final = f"{GROUP}/rules"
"""Label of a ConfigMap with rules for Prometheus, with the value `true`."""
IN_ROTATION_GATE: Final = f"{GROUP}/InRotation"
"""Readiness gate of engine pods: true if a router sends requests to the pod."""
ROUTER_CONFIG_KEY: Final = "router.json"
"""The entry of the routers' Secret that holds their RouterConfig. Configuration and key hashes are one object,
so that a router never reads a tenant without its keys, or a key without its client."""

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
    """Name of the engines' Deployment and headless Service. The endpoints of the Service are the replicas."""
    return f"{service}-engine"


def gateway_base(gateway: str) -> str:
    """What stands in names and labels of a gateway's objects where a service's have the name of the service."""
    return f"{gateway}-gateway"


def router_name(service: str) -> str:
    """Name of the routers' Deployment, their Service and their Secret (`--config-secret`)."""
    return f"{service}-router"


def model_name(service: str) -> str:
    """Name of the network policy of the pods that download the model, and beginning of the names of their Jobs."""
    return f"{service}-model"


def router_peers_name(service: str) -> str:
    """Name of the routers' headless Service, by which routers find each other. It includes routers that are not ready."""
    return f"{service}-router-peers"


def credentials_name(service: str) -> str:
    """Name of the Secret with the engines' keys and the routers' admin token, which the operator generates."""
    return f"{service}-credentials"


def revocations_name(service: str) -> str:
    """Name of the ConfigMap with the revocations of signed keys. Routers write it."""
    return f"{service}-revocations"


def alerts_name(service: str) -> str:
    """Name of the PrometheusRule."""
    return f"{service}-alerts"


def accepted_name(service: str) -> str:
    """Name of the ConfigMap with the spec in use, which is the last valid one (design §3)."""
    return f"{service}-accepted"
