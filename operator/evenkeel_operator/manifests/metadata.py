"""Names, labels and owners of everything generated: one place, so that selectors and labels cannot differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evenkeel_contract.names import COMPONENT_LABEL, SERVICE_LABEL

from evenkeel_operator.manifests.subject import Manifest, Subject

MANAGER: Final = "evenkeel-operator"
"""The field manager of server-side apply, and the value of `app.kubernetes.io/managed-by`."""


def selector(subject: Subject, component: str) -> dict[str, str]:
    """The labels by which pods of a component are found. Immutable in a Deployment: never add to them."""
    return {SERVICE_LABEL: subject.name, COMPONENT_LABEL: component}


def labels(subject: Subject, component: str) -> dict[str, str]:
    """The labels of every generated object."""
    return {
        "app.kubernetes.io/name": f"evenkeel-{component}",
        "app.kubernetes.io/instance": subject.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "evenkeel",
        "app.kubernetes.io/managed-by": MANAGER,
        **selector(subject, component),
    }


def manifest(
    subject: Subject,
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
        "namespace": subject.namespace,
        "labels": labels(subject, component),
        "ownerReferences": [subject.owner],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": api, "kind": kind, "metadata": metadata}
