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
