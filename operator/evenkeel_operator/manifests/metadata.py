"""Names, labels and owners of everything generated: one place, so that selectors and labels cannot differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evenkeel_contract.names import COMPONENT_LABEL, SERVICE_LABEL

from evenkeel_operator.manifests.subject import Manifest, Owner

MANAGER: Final = "evenkeel-operator"
"""The field manager of server-side apply, and the value of `app.kubernetes.io/managed-by`."""


def selector(owner: Owner, component: str) -> dict[str, str]:
    """The labels by which pods of a component are found. Immutable in a Deployment: never add to them."""
    return {SERVICE_LABEL: owner.name, COMPONENT_LABEL: component}


def labels(owner: Owner, component: str) -> dict[str, str]:
    """The labels of every generated object."""
    return {
        "app.kubernetes.io/name": f"evenkeel-{component}",
        "app.kubernetes.io/instance": owner.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "evenkeel",
        "app.kubernetes.io/managed-by": MANAGER,
        **selector(owner, component),
    }


def manifest(
    owner: Owner,
    *,
    api: str,
    kind: str,
    name: str,
    component: str,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """The head of an object; the caller adds its body."""
    metadata: Manifest = {
        "name": name,
        "namespace": owner.namespace,
        "labels": labels(owner, component),
        "ownerReferences": [owner.reference],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": api, "kind": kind, "metadata": metadata}
