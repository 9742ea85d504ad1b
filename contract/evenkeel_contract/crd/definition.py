"""The CustomResourceDefinition around a schema: names, printer columns, subresources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from evenkeel_contract.crd.schema import Schema, object_schema
from evenkeel_contract.names import GROUP, VERSION
from evenkeel_contract.spec.gateway import FairInferenceGateway, GatewayStatus
from evenkeel_contract.spec.parts import MAX_RESOURCE_NAME
from evenkeel_contract.spec.resources import (
    FairInferenceService,
    InferenceTenant,
    ServiceStatus,
    TenantStatus,
)
from evenkeel_contract.values import DNS_LABEL, SERVICE_NAME, Pattern


def _column(
    name: str, path: str, description: str, *, type_: str = "string", wide: bool = False
) -> dict[str, Any]:
    """A column of `kubectl get`; a `wide` one is shown only with `-o wide`."""
    plain = {"name": name, "type": type_, "description": description, "jsonPath": path}
    return plain | ({"priority": 1} if wide else {})


_READY: Final = '.status.conditions[?(@.type=="Ready")]'
_AGE: Final = _column(
    "Age", ".metadata.creationTimestamp", "Time since the resource was created.", type_="date"
)
_IS_READY: Final = _column("Ready", f"{_READY}.status", "Status of condition Ready.")
_REASON: Final = _column("Reason", f"{_READY}.reason", "Reason of condition Ready.", wide=True)

_SERVICE_COLUMNS: Final = (
    _IS_READY,
    _column("Replicas", ".status.replicas", "Number of replicas that exist.", type_="integer"),
    _column(
        "Ready Replicas",
        ".status.readyReplicas",
        "Number of replicas that take requests.",
        type_="integer",
    ),
    _column("URL", ".status.url", "Address that clients send requests to."),
    _column(
        "ShareError",
        ".status.fairness.shareErrorPercent",
        "How much less than its share a backlogged client got, in percent. Not set in this version.",
        type_="integer",
    ),
    _AGE,
    _column("Model", ".spec.model.source", "Source of the model.", wide=True),
    _column(
        "Policy",
        ".spec.scheduling.replicaPolicy",
        "Policy that orders requests within a replica.",
        wide=True,
    ),
    _REASON,
)
_TENANT_COLUMNS: Final = (
    _IS_READY,
    _column(
        "Weight", ".spec.weight", "Weight of the tenant relative to other tenants.", type_="integer"
    ),
    _AGE,
    _REASON,
)

_GATEWAY_COLUMNS: Final = (
    _IS_READY,
    _column("URL", ".status.url", "Address that clients send requests to."),
    _column("Models", ".status.models[*].name", "Models that the routers serve."),
    _AGE,
    _REASON,
)

_SCALE: Final = {
    "specReplicasPath": ".spec.engine.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


UNSEEN: Final = {"observedGeneration": 0}
"""The status of an object that no operator has seen: kstatus takes one without a status for done."""


def definitions() -> dict[str, dict[str, Any]]:
    """All CustomResourceDefinitions by their name."""
    service = _root(FairInferenceService, status=ServiceStatus, name=SERVICE_NAME)
    tenant = _root(InferenceTenant, status=TenantStatus, name=DNS_LABEL)
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
        _definition(
            _root(FairInferenceGateway, status=GatewayStatus, name=SERVICE_NAME),
            names=_names("FairInferenceGateway", short="fig"),
            columns=_GATEWAY_COLUMNS,
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
    columns: Sequence[dict[str, Any]],
    subresources: dict[str, Any],
) -> dict[str, Any]:
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": subresources,
        "additionalPrinterColumns": list(columns),
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


def _root(cls: type, *, status: type, name: Pattern) -> Schema:
    """The schema of the whole object. For metadata, Kubernetes allows a constraint on the name only."""
    whole = object_schema(cls)
    parts = whole["properties"]
    name_schema = {
        "type": "string",
        "maxLength": MAX_RESOURCE_NAME,
        "pattern": f"^{name.regex}$",
    }
    return {
        "description": whole["description"],
        "type": "object",
        "required": [part for part in whole["required"] if part == "spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": parts["apiVersion"]["description"]},
            "kind": {"type": "string", "description": parts["kind"]["description"]},
            "metadata": {"type": "object", "properties": {"name": name_schema}},
            "spec": parts["spec"],
            "status": {**object_schema(status, defaults=False), "default": UNSEEN},
        },
    }
