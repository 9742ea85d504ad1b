"""Records of the operator: the ConfigMap with the spec in use, and the Secret with generated keys."""

from __future__ import annotations

from base64 import b64encode

from evenkeel_contract.names import (
    ENGINE_COMPONENT,
    ROUTER_COMPONENT,
    accepted_name,
    credentials_name,
)

from evenkeel_operator.core.credentials import (
    CURRENT_ANNOTATION,
    KEY_PREFIX,
    ROTATE_ANNOTATION,
    TOKEN_ENTRY,
    Credentials,
)
from evenkeel_operator.core.spec_in_use import Accepted, accepted_data
from evenkeel_operator.manifests.context import EngineKeyRef, Manifest, Owner, manifest


def spec_config_map(owner: Owner, accepted: Accepted) -> Manifest:
    """Applied first: the next operator reads from it which spec the other objects are made from."""
    found = manifest(
        owner,
        api="v1",
        kind="ConfigMap",
        name=accepted_name(owner.name),
        component=ENGINE_COMPONENT,
    )
    found["data"] = accepted_data(accepted)
    return found


def credentials_secret(owner: Owner, credentials: Credentials) -> Manifest:
    """Engines read their key from it; routers get theirs in their configuration."""
    found = manifest(
        owner,
        api="v1",
        kind="Secret",
        name=credentials_name(owner.name),
        component=ROUTER_COMPONENT,
        annotations={
            CURRENT_ANNOTATION: credentials.current.id,
            ROTATE_ANNOTATION: credentials.rotation,
        },
    )
    found["type"] = "Opaque"
    entries = {f"{KEY_PREFIX}{key.id}": key.key for key in credentials.engine_keys}
    entries[TOKEN_ENTRY] = credentials.admin_token
    found["data"] = {name: b64encode(value.encode()).decode() for name, value in entries.items()}
    return found


def engine_key_ref(owner: Owner, credentials: Credentials) -> EngineKeyRef:
    """The reference to the key in engine pods."""
    current = credentials.current.id
    return EngineKeyRef(
        secret=credentials_name(owner.name), entry=f"{KEY_PREFIX}{current}", id=current
    )
