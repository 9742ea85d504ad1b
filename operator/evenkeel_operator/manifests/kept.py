"""The objects in which the operator keeps what must outlive it: the spec in use, and generated keys."""

from __future__ import annotations

from base64 import b64encode

from evenkeel_contract.names import (
    ENGINE_COMPONENT,
    ROUTER_COMPONENT,
    accepted_name,
    credentials_name,
)

from evenkeel_operator.core.objects import Manifest
from evenkeel_operator.core.records import (
    CURRENT_ANNOTATION,
    KEY_PREFIX,
    ROTATE_ANNOTATION,
    TOKEN_ENTRY,
    Accepted,
    Credentials,
    accepted_data,
)
from evenkeel_operator.manifests.context import BuildContext, manifest


def spec_config_map(context: BuildContext, accepted: Accepted) -> Manifest:
    """Applied first: the next operator reads from it which spec the other objects are made from."""
    found = manifest(context, "ConfigMap", ENGINE_COMPONENT, name=accepted_name(context.name))
    found["data"] = accepted_data(accepted)
    return found


def credentials_secret(context: BuildContext, credentials: Credentials) -> Manifest:
    """Engines read their key from it; routers get theirs in their configuration."""
    current, rotation = credentials.current.id, credentials.rotation
    found = manifest(
        context,
        "Secret",
        ROUTER_COMPONENT,
        name=credentials_name(context.name),
        annotations={CURRENT_ANNOTATION: current, ROTATE_ANNOTATION: rotation},
    )
    found["type"] = "Opaque"
    entries = {f"{KEY_PREFIX}{key.id}": key.key for key in credentials.engine_keys}
    entries[TOKEN_ENTRY] = credentials.admin_token
    found["data"] = {name: b64encode(value.encode()).decode() for name, value in entries.items()}
    return found
