"""What each field of both resources changes: cases for every one, and how two outcomes are compared.

One table, read by the golden test, in a cluster in memory, and by e2e, on a real one; what is to change where is in
`tests/golden/effects.yaml`.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evenkeel_contract.crd import definitions
from evenkeel_contract.names import USE_LABEL

from tests.support.crd_documents import (
    BUCKET,
    EXTERNAL,
    GONE,
    POOLED,
    SCALED,
    SERVICE,
    TENANT,
    Changes,
    Document,
    changed,
)

TABLE: Final = Path(__file__).parents[1] / "golden" / "effects.yaml"
SCHEMAS: Final = {
    one["spec"]["names"]["kind"]: one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for one in definitions().values()
}

OTHER: Final[Mapping[str, Any]] = {
    "model.source": "pvc://weights/llama",
    "model.servedName": "another",
    "model.tokenSecretRef.name": "other",
    "model.tokenSecretRef.key": "other",
    "model.objectStore.secretRef.name": "other",
    "model.objectStore.endpoint": "http://other:9000",
    "model.objectStore.region": "eu-west-1",
    "model.objectStore.anonymous": True,
    "model.cache.size": "200Gi",
    "model.cache.claimName": "other",
    "model.cache.storageClassName": "slow",
    "model.cache.accessModes": ["ReadOnlyMany"],
    "model.cache.fill": "Job",
    "model.adapters[].name": "sales",
    "model.adapters[].source": "pvc://adapters/support",
    "model.adaptersPerBatch": 4,
    "engine.runtime": "Simulator",
    "engine.external.selector.matchLabels": {"c": "d"},
    "engine.external.port": 9000,
    "engine.external.inferencePool": "other",
    "engine.external.apiKeySecretRef.name": "far",
    "engine.external.apiKeySecretRef.key": "other",
    "engine.external.scaleTargetRef.apiVersion": "apps/v1beta1",
    "engine.external.scaleTargetRef.kind": "StatefulSet",
    "engine.external.scaleTargetRef.name": "other",
    "engine.image": "mine:1",
    "engine.replicas": 7,
    "engine.gpu.resourceName": "amd.com/gpu",
    "engine.gpu.count": 2,
    "engine.gpu.claims[].name": "other",
    "engine.gpu.claims[].resourceClaimTemplateName": "half",
    "engine.gpu.claims[].request": "one",
    "engine.args": ["--mem-fraction-static=0.5"],
    "engine.onMismatch": "Refuse",
    "engine.rollout.maxSurge": "50%",
    "engine.rollout.maxUnavailable": 1,
    "engine.template.metadata": {"annotations": {"c": "d"}},
    "engine.template.spec": {"nodeSelector": {"gpu": "h100"}},
    "scheduling.replicaPolicy": "VTC",
    "scheduling.queue": "Router",
    "scheduling.fleetPolicy": "LeastLoaded",
    "scheduling.inputTokenWeight": 3,
    "scheduling.outputTokenWeight": 4,
    "scheduling.cost.kvTime": 7,
    "scheduling.clientQuantum": 5,
    "scheduling.workerQuantum": 6,
    "scheduling.isolation": "Off",
    "scheduling.rejoin": "Paper",
    "scheduling.order": "LongestMatch",
    "router.replicas": 5,
    "router.template.metadata": {"labels": {"a": "b"}},
    "router.template.spec": {"env": [{"name": "A", "value": "b"}]},
    "router.prefix.mode": "Tokens",
    "router.prefix.textBlockBytes": 64,
    "router.prefix.volatileLines": "Keep",
    "router.state.store": "Peers",
    "router.state.file.size": "2Gi",
    "router.state.redis.urlSecretRef.name": "far",
    "router.state.redis.urlSecretRef.key": "far",
    "router.limits.maxBodySize": "1Mi",
    "router.limits.queueTimeout": "1s",
    "router.limits.firstTokenTimeout": "1s",
    "router.limits.answerTimeout": "3h",
    "router.limits.heartbeat": "5s",
    "router.limits.keepAliveTimeout": "60s",
    "router.limits.activationTimeout": "900s",
    "router.limits.maxConcurrentPerClient": 3,
    "router.allowFields": ["rid"],
    "router.tracing.endpoint": "http://other:4318",
    "router.tracing.samplingRatePerMillion": 5,
    "router.tracing.clientNames": "Plain",
    "router.recording.start": "Always",
    "router.recording.maxSize": "1Mi",
    "router.qoe.expectedTtft": "2s",
    "router.qoe.expectedItl": "50ms",
    "router.qoe.delivery": "Paced",
    "autoscaling.minReplicas": 2,
    "autoscaling.maxReplicas": 17,
    "autoscaling.maxReplicasPerClient": "25%",
    "autoscaling.prometheus.url": "http://other:9090",
    "autoscaling.prometheus.tokenSecretRef.name": "other",
    "autoscaling.prometheus.tokenSecretRef.key": "other",
    "autoscaling.targets.utilizationPercent": 50,
    "autoscaling.targets.queueTime": "3s",
    "autoscaling.targets.ttftP95": "3s",
    "autoscaling.targets.servicePerReplica": "30k",
    **{
        f"autoscaling.behavior.{way}.{field}": value
        for way in ("scaleUp", "scaleDown")
        for field, value in {
            "stabilizationWindowSeconds": 60,
            "selectPolicy": "Disabled",
            "policies[].type": "Pods",
            "policies[].value": 7,
            "policies[].periodSeconds": 60,
        }.items()
    },
    "autoscaling.drainTimeout": "9s",
    "slo.ttft.threshold": "3s",
    "slo.ttft.objectivePercent": 90,
    "slo.ttft.window": "24h",
    "slo.fairness.maxLead": "9s",
    "slo.fairness.maxShareErrorPercent": 5,
    "slo.alertLabels": {"c": "d"},
    "exposure.ingress.host": "other.example.com",
    "exposure.ingress.additionalHosts": ["api.example.com"],
    "exposure.ingress.paths": ["/v1/chat"],
    "exposure.ingress.annotations": {"c": "d"},
    "exposure.ingress.labels": {"c": "d"},
    "exposure.ingress.className": "traefik",
    "exposure.ingress.tls.secretName": "other",
    "exposure.httpRoute.parentRefs[].name": "other",
    "exposure.httpRoute.parentRefs[].namespace": "other",
    "exposure.httpRoute.parentRefs[].group": "example.com",
    "exposure.httpRoute.parentRefs[].kind": "Service",
    "exposure.httpRoute.parentRefs[].sectionName": "http",
    "exposure.httpRoute.parentRefs[].port": 80,
    "exposure.httpRoute.hostnames": ["other.example.com"],
    "exposure.httpRoute.paths": ["/v1/chat"],
    "exposure.httpRoute.annotations": {"c": "d"},
    "exposure.httpRoute.labels": {"c": "d"},
    "exposure.cors.allowOrigins": ["https://other.example.com"],
    "tenancy.namespace": "other",
    "tenancy.selector.matchLabels": {"a": "none"},
    "tenancy.selector.matchExpressions[].key": "none",
    "tenancy.selector.matchExpressions[].operator": "NotIn",
    "tenancy.selector.matchExpressions[].values": ["none"],
    "tenancy.anonymous": "Share",
    "tenancy.trustedProxies": ["192.168.0.0/16"],
    "tenancy.cacheSharing": "Client",
    "tenancy.identityHeaders[].preset": "Envoy",
    "tenancy.identityHeaders[].tenant": "x-group",
    "tenancy.identityHeaders[].client": "x-person",
    "tenancy.identityHeaders[].defaultTenant": "search",
    "tenancy.undeclaredTenants": "Share",
    "tenancy.undeclaredTenantWeight": 9,
    "tenancy.signedKeys.secretRef.name": "other-signing",
    "tenancy.signedKeys.maxLifetime": "1440h",
    "tenancy.signedKeys.selfService.keysPerClient": 3,
    "tenancy.signedKeys.selfService.lifetime": "24h",
    "tenancy.jwt[].issuer": "https://other.example.com",
    "tenancy.jwt[].audience": "other",
    "tenancy.jwt[].jwksURL": "https://other.example.com/keys",
    "tenancy.jwt[].secretRef.name": "other",
    "tenancy.jwt[].secretRef.key": "more",
    "tenancy.jwt[].tenantClaim": "org.name",
    "tenancy.jwt[].clientClaim": "name",
    "tenancy.jwt[].groupsClaim": "teams",
    "tenancy.jwt[].tenantOf[].group": "web",
    "tenancy.jwt[].tenantOf[].tenant": "search",
    "tenancy.jwt[].allowedTenants": ["search"],
    "tenancy.jwt[].leeway": "5s",
    "federation.cell": "rome",
    "federation.tokenSecretRef.name": "other",
    "federation.tokenSecretRef.key": "other",
    "federation.caSecretRef.name": "other",
    "federation.caSecretRef.key": "more-ca",
    "federation.cells[].name": "bergen",
    "federation.cells[].url": "https://llm.bergen.example.com",
    "federation.interval": "10s",
}  # fmt: skip
"""Field of a FairInferenceService → another value than `SERVICE`, `SCALED`, `EXTERNAL` or `POOLED` has, which together have every field."""
TENANTS: Final[Mapping[str, Any]] = {
    "weight": 9,
    "defaultClientWeight": 9,
    "clients[].name": "talk",
    "clients[].weight": 9,
    "apiKeys[].name": "other",
    "apiKeys[].client": "batch",
    "apiKeys[].secretRef.name": "far",
    "apiKeys[].secretRef.key": "far",
    "limits.requestsPerMinute": 9,
    "limits.tokensPerMinute": 9,
    "limits.maxConcurrent": 9,
    "limits.burst": "50%",
    "limits.defaultClient.requestsPerMinute": 7,
    "limits.defaultClient.tokensPerMinute": 7,
    "limits.defaultClient.maxConcurrent": 7,
}
"""The same of an InferenceTenant."""
ALONGSIDE: Final[Mapping[str, Changes]] = {
    "model.objectStore.anonymous": {"spec.model.objectStore.secretRef": GONE},
    "router.replicas": {"spec.router.state": {"store": "Peers"}},
    "router.state.store": {"spec.router.state.file": GONE},
    "clients[].name": {"spec.apiKeys": []},
    **{
        f"engine.gpu.claims[].{field}": {
            "spec.engine.gpu.claims": SCALED["spec"]["engine"]["gpu"]["claims"]
        }
        for field in ("name", "resourceClaimTemplateName", "request")
    },
    # A tenth at a time: who may take all of them at once needs neither periods nor another unit.
    **{
        f"autoscaling.behavior.scaleDown.policies[].{field}": {
            "spec.autoscaling.behavior.scaleDown.policies.0.value": 10
        }
        for field in ("type", "periodSeconds")
    },
}
"""What has to be otherwise, before and after, for the other value to be without faults."""


def fields(node: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Every field that holds a value, as `clients[].name`; a list of values is one field."""
    if "properties" in node:
        for name, part in node["properties"].items():
            yield from fields(part, f"{path}.{name}" if path else name)
    elif "properties" in node.get("items", {}):
        yield from fields(node["items"], f"{path}[]")
    else:
        yield path


def fields_of(kind: str) -> list[str]:
    return list(fields(SCHEMAS[kind]["properties"]["spec"]))


def base_for(field: str) -> Document:
    """The service that has the field."""
    # The namespace is by default where the tenant is. A scaled service holds whatever number it had, so claims are tried on another.
    if field == "tenancy.namespace" or field.startswith("engine.gpu.claims"):
        return SERVICE
    return next(
        one for one in (SERVICE, SCALED, EXTERNAL, POOLED, BUCKET) if _has(one["spec"], field)
    )


def _has(spec: Any, field: str) -> bool:
    place = spec
    for part in field.replace("[]", ".0").split("."):
        try:
            place = place[int(part)] if isinstance(place, list) else place[part]
        except KeyError:
            return False
    return True


def secret(name: str) -> Document:
    """One of `SECRETS`, with every entry that any case refers to."""
    entries = ("url", "chat", "far", "token", "other")
    texts = {key: f"redis://{name}/{key}".encode() for key in entries}
    for key in ("jwks", "more"):
        texts[key] = json.dumps({"keys": [{"kty": "oct", "k": f"{name}-{key}"}]}).encode()
    for key in ("ca", "more-ca"):
        body = b64encode(f"{name}-{key}".encode()).decode()
        texts[key] = f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n".encode()
    if name.endswith("signing"):
        texts = {"2026-11": (name * 8).encode()}
    data = {key: b64encode(text).decode() for key, text in texts.items()}
    metadata = {"name": name, "labels": {USE_LABEL: "true"}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


def pool(name: str) -> Document:
    """An InferencePool."""
    spec = {"selector": {"matchLabels": {"pool": name}}, "targetPorts": [{"number": len(name)}]}
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": spec,
    }


LABELS: Final = {"a": "b", "c": "d"}
"""Of the tenant: what the service selects."""
SECRETS: Final = (
    "redis", "keys", "far", "prometheus", "other", "signing", "other-signing", "issuer", "cells"
)  # fmt: skip
Place = tuple[str, ...]
"""Kind/name, and the steps down to a value."""


def values(item: Document) -> Iterator[tuple[Place, Any]]:
    """What an object says, and where; what is encoded is read."""
    plain = {name: part for name, part in item.items() if name not in ("status", "metadata")}
    metadata = item["metadata"]
    plain["metadata"] = {name: metadata.get(name, {}) for name in ("labels", "annotations")}
    plain["metadata"]["annotations"] = {
        name: text
        for name, text in plain["metadata"]["annotations"].items()
        if name != "evenkeel.dev/digest" and not name.startswith("deployment.kubernetes.io/")
    }
    if item["kind"] == "Secret":
        plain["data"] = {name: decoded(text) for name, text in item["data"].items()}
    return leaves(plain)


def decoded(text: str) -> Any:
    raw = b64decode(text).decode()
    return json.loads(raw) if raw.startswith("{") else raw


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, (*place, name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from leaves(part, (*place, f"[{called(part, index)}]"))
    else:
        yield place, value


def called(part: Any, index: int) -> str:
    """An entry of a list by its name or its flag, so that its neighbours may come and go."""
    if isinstance(part, dict) and "name" in part:
        return str(part["name"])
    return part.split("=")[0] if isinstance(part, str) else str(index)


def summary(before: Mapping[Place, Any], after: Mapping[Place, Any]) -> list[str]:
    """What differs; a whole object or entry that comes or goes is one line, and so is what differs in many entries."""
    both = before.keys() & after.keys()
    found = {written(place) for place in both if before[place] != after[place]}
    for here, there, what in ((before, after, "goes"), (after, before, "comes")):
        known = {place[:depth] for place in there for depth in range(len(place) + 1)}
        for place in here.keys() - there.keys():
            highest = next(depth for depth in range(len(place) + 1) if place[:depth] not in known)
            found.add(f"{written(place[:highest])} {what}")
    return sorted(found)


def written(place: Place) -> str:
    kind, *steps = place
    return re.sub(r"\[\d+\]", "[]", f"{kind} {'.'.join(steps)}".replace(".[", "[")).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A field, and a service with its tenant before and after the field gets another value."""

    kind: str
    field: str
    before: tuple[Document, Document]
    after: tuple[Document, Document]


def _cases() -> Iterator[Case]:
    for field, value in OTHER.items():
        before, after = _turned(base_for(field), field, value)
        yield Case(
            kind=SERVICE["kind"], field=field, before=(before, TENANT), after=(after, TENANT)
        )
    for field, value in TENANTS.items():
        before, after = _turned(TENANT, field, value)
        yield Case(kind=TENANT["kind"], field=field, before=(SCALED, before), after=(SCALED, after))


def _turned(document: Document, field: str, value: Any) -> tuple[Document, Document]:
    """Before and after."""
    base = changed(document, ALONGSIDE.get(field, {}))
    return base, changed(base, {f"spec.{field}".replace("[]", ".0"): value})


CASES: Final = tuple(_cases())
