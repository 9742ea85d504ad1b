"""The CustomResourceDefinition around a schema: names, printer columns, subresources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_contract.crd.schema import Schema, object_schema
from evenkeel_contract.names import GROUP, VERSION
from evenkeel_contract.spec.parts import MAX_RESOURCE_NAME
from evenkeel_contract.spec.resources import (
    FairInferenceService,
    InferenceTenant,
    ServiceStatus,
    TenantStatus,
)
from evenkeel_contract.values import DNS_LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    description: str
    type: str = "string"
    wide: bool = False
    """Shown only with `-o wide`."""

    def to_plain(self) -> dict[str, Any]:
        """As the API server reads it."""
        plain = {
            "name": self.name,
            "type": self.type,
            "description": self.description,
            "jsonPath": self.path,
        }
        return plain | ({"priority": 1} if self.wide else {})


_READY: Final = '.status.conditions[?(@.type=="Ready")]'
_AGE: Final = Column(
    name="Age",
    type="date",
    path=".metadata.creationTimestamp",
    description="Time since the resource was created.",
)
_IS_READY: Final = Column(
    name="Ready", path=f"{_READY}.status", description="Status of condition Ready."
)
_REASON: Final = Column(
    name="Reason", path=f"{_READY}.reason", description="Reason of condition Ready.", wide=True
)

_SERVICE_COLUMNS: Final = (
    _IS_READY,
    Column(
        name="Replicas",
        type="integer",
        path=".status.replicas",
        description="Number of replicas that exist.",
    ),
    Column(
        name="Ready Replicas",
        type="integer",
        path=".status.readyReplicas",
        description="Number of replicas that take requests.",
    ),
    Column(name="URL", path=".status.url", description="Address that clients send requests to."),
    Column(
        name="ShareError",
        type="integer",
        path=".status.fairness.shareErrorPercent",
        description="How much less than its share a backlogged client got, in percent.",
    ),
    _AGE,
    Column(name="Model", path=".spec.model.source", description="Source of the model.", wide=True),
    Column(
        name="Policy",
        path=".spec.scheduling.replicaPolicy",
        description="Policy that orders requests within a replica.",
        wide=True,
    ),
    _REASON,
)
_TENANT_COLUMNS: Final = (
    _IS_READY,
    Column(
        name="Weight",
        type="integer",
        path=".spec.weight",
        description="Weight of the tenant relative to other tenants.",
    ),
    _AGE,
    _REASON,
)

_SCALE: Final = {
    "specReplicasPath": ".spec.engine.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


def definitions() -> dict[str, dict[str, Any]]:
    """Both CustomResourceDefinitions by their name."""
    service = _root(FairInferenceService, status=ServiceStatus)
    tenant = _root(InferenceTenant, status=TenantStatus)
    made = (
        _definition(
            service,
            names=_names("FairInferenceService", short="fis"),
            columns=_SERVICE_COLUMNS,
            subresources={"status": {}, "scale": _SCALE},
        ),
        _definition(
            tenant,
            names=_names("InferenceTenant", short="itn"),
            columns=_TENANT_COLUMNS,
            subresources={"status": {}},
        ),
    )
    return {definition["metadata"]["name"]: definition for definition in made}


def _names(kind: str, *, short: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": f"{kind.lower()}s",
        "singular": kind.lower(),
        "shortNames": [short],
        "categories": ["evenkeel"],
    }


def _definition(
    root: Schema,
    *,
    names: dict[str, Any],
    columns: Sequence[Column],
    subresources: dict[str, Any],
) -> dict[str, Any]:
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": subresources,
        "additionalPrinterColumns": [column.to_plain() for column in columns],
        "schema": {"openAPIV3Schema": root},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names['plural']}.{GROUP}",
            "labels": {"app.kubernetes.io/part-of": "evenkeel"},
        },
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _root(cls: type, *, status: type) -> Schema:
    """The schema of the whole object. For metadata, Kubernetes allows a constraint on the name only."""
    whole = object_schema(cls)
    parts = whole["properties"]
    name = {
        "type": "string",
        "maxLength": MAX_RESOURCE_NAME,
        "pattern": f"^{DNS_LABEL.regex}$",
    }
    return {
        "description": whole["description"],
        "type": "object",
        "required": [part for part in whole["required"] if part == "spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": parts["apiVersion"]["description"]},
            "kind": {"type": "string", "description": parts["kind"]["description"]},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": parts["spec"],
            "status": object_schema(status, defaults=False),
        },
    }
