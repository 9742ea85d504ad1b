"""Resources with every field and without a fault, and changes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from evenkeel_contract.gateway import parse_gateway
from evenkeel_contract.validate import parse_service, parse_tenant
from evenkeel_contract.values import Fault

GONE: Final = object()
"""As a change: the field is removed."""

Document = dict[str, Any]
Changes = Mapping[str, object]

SERVICE: Final[Document] = {
    "apiVersion": "evenkeel.dev/v1alpha1",
    "kind": "FairInferenceService",
    "metadata": {"name": "llama"},
    "spec": {
        "model": {
            "source": "hf://meta-llama/Llama-3.1-8B-Instruct",
            "servedName": "llama-3.1-8b",
            "tokenSecretRef": {"name": "hf", "key": "token"},
            "cache": {
                "storageClassName": "fast",
                "size": "100Gi",
                "accessModes": ["ReadWriteMany"],
                "fill": "Replicas",
            },
            "adapters": [{"name": "support", "source": "hf://acme/support-lora"}],
            "adaptersPerBatch": 8,
        },
        "engine": {
            "runtime": "SGLang",
            "image": "lmsysorg/sglang:latest",
            "replicas": 2,
            "gpu": {"resourceName": "nvidia.com/gpu", "count": 1},
            "args": ["--mem-fraction-static=0.88"],
            "onMismatch": "Gate",
            "rollout": {"maxSurge": 1, "maxUnavailable": "25%"},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"g": "h"}}},
        },
        "scheduling": {
            "replicaPolicy": "DLPM",
            "fleetPolicy": "D2LPM",
            "queue": "Auto",
            "inputTokenWeight": 1,
            "outputTokenWeight": 2,
            "cost": {"kvTime": 0},
            "clientQuantum": 8000,
            "workerQuantum": 20000,
            "isolation": "50%",
            "rejoin": "KeepDebt",
            "order": "MatchOctaves",
        },
        "router": {
            "replicas": 1,
            "template": {"metadata": {}, "spec": {}},
            "prefix": {"mode": "Text", "textBlockBytes": 256, "volatileLines": "Remove"},
            "state": {"store": "File", "file": {"size": "1Gi"}},
            "limits": {
                "maxBodySize": "16Mi",
                "queueTimeout": "120s",
                "firstTokenTimeout": "1h30m",
                "activationTimeout": "1500ms",
                "answerTimeout": "420s",
                "heartbeat": "15s",
                "keepAliveTimeout": "620s",
                "maxConcurrentPerClient": 0,
            },
            "allowFields": ["priority"],
            "tracing": {
                "endpoint": "http://otel-collector:4318",
                "samplingRatePerMillion": 10000,
                "clientNames": "Hashed",
            },
            "recording": {"start": "OnRequest", "maxSize": "64Mi"},
            "qoe": {"expectedTtft": "1s", "expectedItl": "200ms", "delivery": "AsGenerated"},
        },
        "slo": {
            "ttft": {"threshold": "2s", "objectivePercent": 99, "window": "720h"},
            "fairness": {"maxLead": "60s", "maxShareErrorPercent": 15},
            "alertLabels": {"a": "b"},
        },
        "exposure": {
            "ingress": {
                "host": "llm.example.com",
                "additionalHosts": ["*.llm.example.com"],
                "paths": ["/v1"],
                "annotations": {"a": "b"},
                "labels": {"a": "b"},
                "className": "nginx",
                "tls": {"secretName": "tls"},
            }
        },
        "tenancy": {
            "selector": {
                "matchLabels": {"a": "b"},
                "matchExpressions": [{"key": "c", "operator": "In", "values": ["d"]}],
            },
            "anonymous": "Reject",
            "trustedProxies": ["10.0.0.0/8"],
            "cacheSharing": "Tenant",
            "identityHeaders": [
                {
                    "preset": "LiteLLM",
                    "tenant": "x-team",
                    "client": "x-user",
                    "defaultTenant": "ads",
                }
            ],
            "undeclaredTenants": "Accept",
            "undeclaredTenantWeight": 2,
            "signedKeys": {
                "secretRef": {"name": "signing"},
                "maxLifetime": "2160h",
                "selfService": {"keysPerClient": 2, "lifetime": "720h"},
            },
            "jwt": [
                {
                    "issuer": "https://login.example.com",
                    "audience": "llm",
                    "jwksURL": "https://login.example.com/keys",
                    "tenantClaim": "team",
                    "clientClaim": "email",
                    "groupsClaim": "roles",
                    "tenantOf": [{"group": "ml", "tenant": "ads"}],
                    "allowedTenants": ["ads"],
                    "leeway": "30s",
                }
            ],
        },
        "federation": {
            "cell": "paris",
            "tokenSecretRef": {"name": "cells", "key": "token"},
            "caSecretRef": {"name": "cells", "key": "ca"},
            "cells": [{"name": "oslo", "url": "https://llm.oslo.example.com"}],
            "interval": "5s",
        },
    },
}
"""Every field, with SCALED together; no fault."""

_SCALE_RULES: Final = {
    "stabilizationWindowSeconds": 300,
    "selectPolicy": "Max",
    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
}
AUTOSCALING: Final = {
    "minReplicas": 1,
    "maxReplicas": 16,
    "maxReplicasPerClient": "50%",
    "prometheus": {
        "url": "http://prometheus.monitoring:9090",
        "tokenSecretRef": {"name": "prometheus", "key": "token"},
    },
    "targets": {
        "utilizationPercent": 75,
        "queueTime": "2s",
        "ttftP95": "1500ms",
        "servicePerReplica": "20k",
    },
    "behavior": {"scaleUp": _SCALE_RULES, "scaleDown": _SCALE_RULES},
    "drainTimeout": "300s",
}
_GATEWAY: Final = {
    "name": "gw",
    "namespace": "infra",
    "group": "gateway.networking.k8s.io",
    "kind": "Gateway",
    "sectionName": "https",
    "port": 443,
}
_SCALED: Final[Changes] = {
    "spec.engine.gpu.claims": [
        {"name": "gpu", "resourceClaimTemplateName": "whole", "request": "all"}
    ],
    "spec.engine.replicas": GONE,
    "spec.autoscaling": AUTOSCALING,
    "spec.exposure": {
        "httpRoute": {
            "parentRefs": [_GATEWAY],
            "hostnames": ["*.example.com"],
            "paths": ["/v1"],
            "annotations": {"a": "b"},
            "labels": {"a": "b"},
        },
        "cors": {"allowOrigins": ["https://app.example.com"]},
    },
    "spec.router.state": {
        "store": "Redis",
        "redis": {"urlSecretRef": {"name": "redis", "key": "url"}},
    },
}
TENANT: Final[Document] = {
    "apiVersion": "evenkeel.dev/v1alpha1",
    "kind": "InferenceTenant",
    "metadata": {"name": "ads"},
    "spec": {
        "weight": 4,
        "defaultClientWeight": 1,
        "clients": [{"name": "chat", "weight": 3}, {"name": "batch", "weight": 1}],
        "apiKeys": [
            {"name": "chat-1", "client": "chat", "secretRef": {"name": "keys", "key": "chat"}}
        ],
        "limits": {
            "requestsPerMinute": 60,
            "tokensPerMinute": 100,
            "maxConcurrent": 5,
            "burst": "10%",
            "defaultClient": {
                "requestsPerMinute": 30,
                "tokensPerMinute": 50,
                "maxConcurrent": 2,
            },
        },
    },
}


EXTERNAL_ENGINES: Final = {
    "selector": {"matchLabels": {"a": "b"}},
    "port": 8000,
    "apiKeySecretRef": {"name": "keys", "key": "token"},
    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "theirs"},
}


def changed(document: Document, changes: Changes) -> Document:
    """A copy with the values at dotted paths (`spec.clients.0.name`) replaced, added or removed."""
    copy = deepcopy(document)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place: Any = copy
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        if value is GONE:
            del place[last]
        else:
            place[int(last) if isinstance(place, list) else last] = deepcopy(value)
    return copy


SCALED: Final = changed(SERVICE, _SCALED)
EXTERNAL: Final = changed(
    SCALED,
    {
        "spec.engine": {"runtime": "External", "external": EXTERNAL_ENGINES},
        "spec.model.cache": GONE,
        "spec.tenancy.jwt.0.jwksURL": GONE,
        "spec.tenancy.jwt.0.secretRef": {"name": "issuer", "key": "jwks"},
    },
)
"""In front of engines that another owner made, and with an issuer whose keys are in a Secret."""
BUCKET: Final = changed(
    SERVICE,
    {
        "spec.model.source": "s3://models/llama",
        "spec.model.objectStore": {
            "secretRef": {"name": "keys"},
            "endpoint": "http://minio:9000",
            "region": "eu-central-1",
            "anonymous": False,
        },
        "spec.model.cache": {"claimName": "models", "accessModes": ["ReadWriteMany"]},
    },
)
"""With a model in a bucket, and an existing volume."""
POOLED: Final = changed(
    EXTERNAL,
    {
        "spec.engine.external": {"inferencePool": "pool"},
        "spec.autoscaling": GONE,
        "spec.tenancy.namespace": "tenants",
    },
)
"""The same, by the name of an InferencePool, and for tenants of another namespace."""


GATEWAY: Final[Document] = {
    "apiVersion": "evenkeel.dev/v1alpha1",
    "kind": "FairInferenceGateway",
    "metadata": {"name": "models"},
    "spec": {
        "shareAcross": "Gateway",
        "models": [
            {
                "name": "smart",
                "aliases": ["gpt-4o"],
                "fallback": ["mini"],
                "serviceRef": {"name": "llama"},
            }
        ],
        "router": {
            "replicas": 2,
            "template": {"metadata": {}, "spec": {}},
            "limits": {
                "maxBodySize": "16Mi",
                "keepAliveTimeout": "620s",
                "maxConcurrentPerClient": 0,
            },
            "tracing": SERVICE["spec"]["router"]["tracing"],
        },
        "exposure": SERVICE["spec"]["exposure"],
        "tenancy": SERVICE["spec"]["tenancy"],
    },
}
"""Every field, with SELECTED together; no fault."""
SELECTED: Final = changed(
    GATEWAY,
    {
        "spec.models": [{"serviceSelector": SERVICE["spec"]["tenancy"]["selector"]}],
        "spec.exposure": SCALED["spec"]["exposure"],
    },
)
DOCUMENTS: Final = (SERVICE, SCALED, EXTERNAL, POOLED, BUCKET, TENANT, GATEWAY, SELECTED)
"""Together they have every field of every resource."""
_PARSERS: Final = {
    "FairInferenceService": parse_service,
    "InferenceTenant": parse_tenant,
    "FairInferenceGateway": parse_gateway,
}


def faults_of(document: Document) -> Sequence[Fault]:
    """The contract's own verdict."""
    return _PARSERS[document["kind"]](document)[1]


SHARED_SECRET: Final = changed(
    TENANT,
    {
        "spec.apiKeys": [
            {"name": name, "client": "chat", "secretRef": {"name": "keys", "key": "chat"}}
            for name in ("one", "two")
        ]
    },
)
"""What CEL cannot afford to find (`LEFT_TO_SPEC_VALID`)."""
