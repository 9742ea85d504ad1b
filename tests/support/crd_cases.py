"""Objects that the API server and the contract must judge alike: one table, read by unit tests and by e2e.

`RULES` is written by hand: a good and a bad object for every CEL rule. `boundaries` is derived from the schema:
for every constraint of every field, a value just inside and one just outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

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
        },
        "router": {
            "replicas": 1,
            "template": {"metadata": {}, "spec": {}},
            "prefix": {"mode": "Text", "textBlockBytes": 256},
            "state": {"store": "File", "file": {"size": "1Gi"}},
            "limits": {
                "maxBodySize": "16Mi",
                "queueTimeout": "120s",
                "firstTokenTimeout": "1h30m",
                "activationTimeout": "1500ms",
                "maxConcurrentPerClient": 0,
            },
            "recording": {"start": "OnRequest", "maxSize": "64Mi"},
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
        },
    },
}
"""Every field, with SCALED together; no fault."""

_SCALE_RULES: Final = {
    "stabilizationWindowSeconds": 300,
    "selectPolicy": "Max",
    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
}
_AUTOSCALING: Final = {
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
    "spec.engine.replicas": GONE,
    "spec.autoscaling": _AUTOSCALING,
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
        },
    },
}


_EXTERNAL: Final = {
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
        "spec.engine": {"runtime": "External", "external": _EXTERNAL},
        "spec.model.cache": GONE,
    },
)
"""In front of engines that another owner made."""
POOLED: Final = changed(
    EXTERNAL, {"spec.engine.external": {"inferencePool": "pool"}, "spec.autoscaling": GONE}
)
"""The same, by the name of an InferencePool."""


def faults_of(document: Document) -> Sequence[Fault]:
    """The contract's own verdict."""
    parse = parse_service if document["kind"] == "FairInferenceService" else parse_tenant
    return parse(document)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A good and a bad object for one rule."""

    path: str
    """Where the API server finds the bad one bad (its end)."""
    message: str
    """What the API server says of it (its beginning)."""
    base: Document
    good: Changes
    bad: Changes


def _keys(count: int, *, of: str) -> list[Document]:
    keys = (
        {"name": f"k{i}", "client": f"c{i}", "secretRef": {"name": "keys", "key": f"k{i}"}}
        for i in range(count - 1)
    )
    return [*keys, {"name": "last", "client": of, "secretRef": {"name": "keys", "key": "last"}}]


_REDIS: Final = {"urlSecretRef": {"name": "redis", "key": "url"}}

RULES: Final[Mapping[str, Pair]] = {
    "replicas beside autoscaling": Pair(
        path="spec.engine.replicas",
        message="engine.replicas is set together with autoscaling",
        base=SERVICE,
        good={"spec.engine.replicas": 0},
        bad={"spec.autoscaling": _AUTOSCALING},
    ),
    "a volume for one node and several replicas": Pair(
        path="spec.model.cache.accessModes",
        message="model.cache.accessModes must include Read",
        base=SERVICE,
        good={"spec.model.cache.accessModes": ["ReadWriteOnce"], "spec.engine.replicas": 1},
        bad={"spec.model.cache.accessModes": ["ReadWriteOnce"]},
    ),
    "a volume for one node and autoscaling": Pair(
        path="spec.model.cache.accessModes",
        message="model.cache.accessModes must include Read",
        base=SCALED,
        good={
            "spec.model.cache.accessModes": ["ReadWriteOnce"],
            "spec.autoscaling.maxReplicas": 1,
        },
        bad={"spec.model.cache.accessModes": ["ReadWriteOnce"]},
    ),
    "external engines without their place": Pair(
        path="spec.engine.external",
        message="external is required with runtime External",
        base=changed(EXTERNAL, {"spec.autoscaling": GONE}),
        good={},
        bad={"spec.engine.external": GONE},
    ),
    "a place of external engines with another runtime": Pair(
        path="spec.engine.external",
        message="external needs runtime: External",
        base=SERVICE,
        good={"spec.engine": {"runtime": "Simulator"}},
        bad={"spec.engine": {"runtime": "Simulator", "external": _EXTERNAL}},
    ),
    "external engines by no label": Pair(
        path="spec.engine.external.selector.matchLabels",
        message="matchLabels must have at least one label",
        base=EXTERNAL,
        good={"spec.engine.external.selector.matchLabels": {"c": ""}},
        bad={"spec.engine.external.selector.matchLabels": {}},
    ),
    **{
        f"external engines without {name} and without a pool": Pair(
            path=f"spec.engine.external.{name}",
            message=f"{name} is required without inferencePool",
            base=EXTERNAL,
            good={},
            bad={f"spec.engine.external.{name}": GONE},
        )
        for name in ("selector", "port")
    },
    "external engines by a port and by a pool": Pair(
        path="spec.engine.external.inferencePool",
        message="inferencePool is set together with",
        base=POOLED,
        good={},
        bad={"spec.engine.external.port": 8000},
    ),
    **{
        f"{name} of external engines": Pair(
            path=f"spec.engine.{name}",
            message=f"{name} has no effect with runtime External",
            base=changed(EXTERNAL, {"spec.autoscaling": GONE}),
            good={},
            bad={f"spec.engine.{name}": value},
        )
        for name, value in (("image", "mine:1"), ("replicas", 2), ("args", ["--x"]))
    },
    "a cache of external engines": Pair(
        path="spec.model.cache",
        message="model.cache has no effect with runtime External",
        base=EXTERNAL,
        good={},
        bad={"spec.model.cache": {"size": "1Gi"}},
    ),
    "autoscaling of external engines without a target": Pair(
        path="spec.autoscaling",
        message="autoscaling needs engine.external.scaleTargetRef",
        base=EXTERNAL,
        good={"spec.autoscaling": GONE, "spec.engine.external.scaleTargetRef": GONE},
        bad={"spec.engine.external.scaleTargetRef": GONE},
    ),
    "an adapter with the name of the model": Pair(
        path="spec.model.adapters",
        message="adapters: the name of an adapter must differ from servedName",
        base=SERVICE,
        good={"spec.model.adapters.0.name": "llama-3.1-8b-support"},
        bad={"spec.model.adapters.0.name": "llama-3.1-8b"},
    ),
    "a flag that is owned": Pair(
        path="spec.engine.args[1]",
        message="--tp is set by Evenkeel from the rest",
        base=SERVICE,
        good={"spec.engine.args": ["--mem-fraction-static=0.5", "--chunked-prefill-size=4096"]},
        bad={"spec.engine.args": ["--mem-fraction-static=0.5", "--tp=2"]},
    ),
    "a flag that is owned, abbreviated": Pair(
        path="spec.engine.args[0]",
        message="--schedule-p is set by Evenkeel from the rest",
        base=SERVICE,
        good={"spec.engine.args": ["--schedule-conservativeness=1"]},
        bad={"spec.engine.args": ["--schedule-p=fcfs"]},
    ),
    "a flag that bypasses the policy": Pair(
        path="spec.engine.args[0]",
        message="--dp-size lets requests bypass the replica policy; remove it",
        base=SERVICE,
        good={"spec.engine.args": ["--stream-interval=1"]},
        bad={"spec.engine.args": ["--dp-size=2"]},
    ),
    "an argument that is no flag": Pair(
        path="spec.engine.args[0]",
        message="must be a flag; write --flag=value as one entry",
        base=SERVICE,
        good={"spec.engine.args": ["--x"]},
        bad={"spec.engine.args": ["x"]},
    ),
    "a rollout that cannot move": Pair(
        path="spec.engine.rollout.maxSurge",
        message="maxSurge must be above 0 if",
        base=SERVICE,
        good={"spec.engine.rollout": {"maxSurge": "0%", "maxUnavailable": 1}},
        bad={"spec.engine.rollout": {"maxSurge": "0%", "maxUnavailable": 0}},
    ),
    "a rollout that cannot move, half of it by default": Pair(
        path="spec.engine.rollout.maxSurge",
        message="maxSurge must be above 0 if",
        base=SERVICE,
        good={"spec.engine.rollout": {"maxUnavailable": 0}},
        bad={"spec.engine.rollout": {"maxSurge": 0}},
    ),
    "a File store with two routers": Pair(
        path="spec.router.replicas",
        message="replicas must be 1 with state.store File",
        base=SERVICE,
        good={"spec.router.replicas": GONE},
        bad={"spec.router.replicas": 2},
    ),
    "a file without the File store": Pair(
        path="spec.router.state.file",
        message="file needs store: File",
        base=SERVICE,
        good={"spec.router.state": {"store": "Peers"}},
        bad={"spec.router.state": {"file": {}}},
    ),
    "a redis without the Redis store": Pair(
        path="spec.router.state.redis",
        message="redis needs store: Redis",
        base=SERVICE,
        good={"spec.router.state": {"store": "Redis", "redis": _REDIS}},
        bad={"spec.router.state": {"store": "Peers", "redis": _REDIS}},
    ),
    "a Redis store without an address": Pair(
        path="spec.router.state.redis",
        message="redis is required with store Redis",
        base=SERVICE,
        good={"spec.router.state": {"store": "Redis", "redis": _REDIS}},
        bad={"spec.router.state": {"store": "Redis"}},
    ),
    "a body beyond memory": Pair(
        path="spec.router.limits.maxBodySize",
        message="maxBodySize must be at most 1Gi",
        base=SERVICE,
        good={"spec.router.limits.maxBodySize": "1Gi"},
        bad={"spec.router.limits.maxBodySize": 1073741825},
    ),
    **{
        f"a {name} of more than a week": Pair(
            path=f"spec.router.limits.{name}",
            message=f"{name} must be at most 168h",
            base=SERVICE,
            good={f"spec.router.limits.{name}": "168h"},
            bad={f"spec.router.limits.{name}": "168h1ms"},
        )
        for name in ("queueTimeout", "firstTokenTimeout", "activationTimeout")
    },
    "crossed bounds": Pair(
        path="spec.autoscaling.minReplicas",
        message="minReplicas is above maxReplicas",
        base=SCALED,
        good={"spec.autoscaling.minReplicas": 16},
        bad={"spec.autoscaling.minReplicas": 17},
    ),
    "a cap of nothing": Pair(
        path="spec.autoscaling.maxReplicasPerClient",
        message="maxReplicasPerClient must be",
        base=SCALED,
        good={"spec.autoscaling.maxReplicasPerClient": "1%"},
        bad={"spec.autoscaling.maxReplicasPerClient": "0%"},
    ),
    "a cap above the maximum": Pair(
        path="spec.autoscaling.maxReplicasPerClient",
        message="maxReplicasPerClient is above",
        base=SCALED,
        good={"spec.autoscaling.maxReplicasPerClient": 16},
        bad={"spec.autoscaling.maxReplicasPerClient": 17},
    ),
    "two exposures": Pair(
        path="spec.exposure.httpRoute",
        message="httpRoute is set together with ingress",
        base=SERVICE,
        good={"spec.exposure": {"httpRoute": {"parentRefs": [{"name": "gw"}]}}},
        bad={"spec.exposure.httpRoute": {"parentRefs": [{"name": "gw"}]}},
    ),
    "a selector without values": Pair(
        path="matchExpressions[0].values",
        message="values is required with operators In",
        base=SERVICE,
        good={"spec.tenancy.selector.matchExpressions.0": {"key": "a", "operator": "Exists"}},
        bad={"spec.tenancy.selector.matchExpressions.0": {"key": "a", "operator": "In"}},
    ),
    "a selector with values of no use": Pair(
        path="matchExpressions[0].values",
        message="values must be empty with operators",
        base=SERVICE,
        good={"spec.tenancy.selector.matchExpressions.0.operator": "NotIn"},
        bad={"spec.tenancy.selector.matchExpressions.0.operator": "Exists"},
    ),
    "a duration of nothing": Pair(
        path="spec.slo.ttft.threshold",
        message="must be above 0 and at most 876000h",
        base=SERVICE,
        good={"spec.slo.ttft.threshold": "876000h"},
        bad={"spec.slo.ttft.threshold": "0h0s"},
    ),
    "a duration that is too long": Pair(
        path="spec.slo.ttft.threshold",
        message="must be above 0 and at most 876000h",
        base=SERVICE,
        good={"spec.slo.ttft.threshold": "0.5s"},
        bad={"spec.slo.ttft.threshold": "876000h1s"},
    ),
    "a size of nothing": Pair(
        path="spec.model.cache.size",
        message="must be above 0 and below 2^63",
        base=SERVICE,
        good={"spec.model.cache.size": "1e3"},
        bad={"spec.model.cache.size": "0Gi"},
    ),
    "a size as a negative number": Pair(
        path="spec.model.cache.size",
        message="must be above 0 and below 2^63",
        base=SERVICE,
        good={"spec.model.cache.size": 107374182400},
        bad={"spec.model.cache.size": -1},
    ),
    "a size beyond 63 bits": Pair(
        path="spec.model.cache.size",
        message="must be above 0 and below 2^63",
        base=SERVICE,
        good={"spec.model.cache.size": "7Ei"},
        bad={"spec.model.cache.size": "8Ei"},
    ),
    "a network with host bits": Pair(
        path="spec.tenancy.trustedProxies[1]",
        message="must be a network like 10.0.0.0/8",
        base=SERVICE,
        good={"spec.tenancy.trustedProxies": ["::/0", "fd00::1", "192.168.0.1"]},
        bad={"spec.tenancy.trustedProxies": ["10.0.0.1", "10.0.0.1/8"]},
    ),
    "a network with a netmask": Pair(
        path="spec.tenancy.trustedProxies[0]",
        message="must be a network like 10.0.0.0/8",
        base=SERVICE,
        good={"spec.tenancy.trustedProxies": ["10.0.0.0/32"]},
        bad={"spec.tenancy.trustedProxies": ["10.0.0.0/255.0.0.0"]},
    ),
    "an address of another scheme": Pair(
        path="spec.autoscaling.prometheus.url",
        message="must be an address like http://",
        base=SCALED,
        good={"spec.autoscaling.prometheus.url": "https://prometheus/prefix"},
        bad={"spec.autoscaling.prometheus.url": "ftp://prometheus"},
    ),
    "an address with an impossible port": Pair(
        path="spec.autoscaling.prometheus.url",
        message="must be an address like http://",
        base=SCALED,
        good={"spec.autoscaling.prometheus.url": "http://[::1]:65535"},
        bad={"spec.autoscaling.prometheus.url": "http://prometheus:65536"},
    ),
    "a key of an unknown client": Pair(
        path="spec.apiKeys",
        message="apiKeys: each client must be in clients",
        base=TENANT,
        good={"spec.apiKeys": []},
        bad={"spec.apiKeys.0.client": "chta"},
    ),
    "keys without any client": Pair(
        path="spec.apiKeys",
        message="apiKeys: each client must be in clients",
        base=TENANT,
        good={"spec.clients": GONE, "spec.apiKeys": GONE},
        bad={"spec.clients": GONE},
    ),
    "one of 500 keys of an unknown client": Pair(
        path="spec.apiKeys",
        message="apiKeys: each client must be in clients",
        base=changed(TENANT, {"spec.clients": [{"name": f"c{i}"} for i in range(500)]}),
        good={"spec.apiKeys": _keys(500, of="c499")},
        bad={"spec.apiKeys": _keys(500, of="c500")},
    ),
    "a name that begins with a digit": Pair(
        path="metadata.name",
        message="metadata.name in body should match '^[a-z]",
        base=SERVICE,
        good={"metadata.name": "a1"},
        bad={"metadata.name": "1a"},
    ),
    "a name that is too long for what is generated": Pair(
        path="metadata.name",
        message="may not be more than 40 bytes",
        base=SERVICE,
        good={"metadata.name": "a" * 40},
        bad={"metadata.name": "a" * 41},
    ),
}
"""Named by what is wrong with the bad one."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Objects on both sides of one constraint of the schema."""

    path: str
    """As Kubernetes writes it."""
    constraint: str
    outside: Document
    inside: Document | None
    """None where any good object is inside."""


def boundaries(document: Document, schema: Mapping[str, Any]) -> Iterator[Boundary]:
    """Of every constraint of every field that `document` has."""
    yield from _boundaries(document, schema["properties"]["spec"], "spec")


def _boundaries(document: Document, node: Mapping[str, Any], path: str) -> Iterator[Boundary]:
    value = _at(document, path)
    for constraint, outside, inside in _sides(node, value):
        yield Boundary(
            path=_kubernetes(path),
            constraint=constraint,
            outside=changed(document, {path: outside}),
            inside=None if inside is GONE else changed(document, {path: inside}),
        )
    for name in node.get("required", ()):
        child = f"{path}.{name}"
        gone = changed(document, {child: GONE})
        yield Boundary(path=_kubernetes(child), constraint="required", outside=gone, inside=None)
    if "properties" in node:
        child = f"{path}.nonsense"
        odd = changed(document, {child: 1})
        yield Boundary(path=_kubernetes(child), constraint="unknown", outside=odd, inside=None)
    for name, part in node.get("properties", {}).items():
        if name in value:
            yield from _boundaries(document, part, f"{path}.{name}")
    if node.get("type") == "array":
        yield from _boundaries(document, node["items"], f"{path}.0")


def _sides(node: Mapping[str, Any], value: Any) -> Iterator[tuple[str, object, object]]:
    """(constraint, a value outside, a value inside or GONE)."""
    wrong = {"string": 5, "integer": "x", "object": "x", "array": "x", "boolean": "x"}
    yield "type", wrong.get(node.get("type", ""), True), GONE
    if "minimum" in node:
        yield "minimum", node["minimum"] - 1, node["minimum"]
        yield "maximum", node["maximum"] + 1, node["maximum"]
    if node.get("type") == "integer":
        yield "integer", 1.5, GONE
    if "enum" in node:
        # Another runtime needs other fields.
        yield "enum", "Nonsense", value if "External" in node["enum"] else node["enum"][-1]
    if "pattern" in node:
        yield "pattern", "\u0007", GONE
    if "minLength" in node:
        yield "minLength", "", "a"
    if "maxLength" in node:
        yield "maxLength", "a" * (node["maxLength"] + 1), "a" * node["maxLength"]
    if "minItems" in node:
        yield "minItems", [], GONE
    keys = node.get("x-kubernetes-list-map-keys", ())
    if keys:
        yield "unique", [value[0], value[0]], GONE
    if "maxItems" in node:
        entries = [_renamed(value[0], keys, i) for i in range(node["maxItems"] + 1)]
        yield "maxItems", entries, entries[:-1]


def _renamed(entry: Any, keys: Sequence[str], number: int) -> Any:
    if not keys:
        return entry
    names: Document = {key: f"n{number}" for key in keys}
    if "secretRef" in entry:  # no two keys may share one
        names["secretRef"] = {"name": "keys", "key": f"n{number}"}
    return {**entry, **names}


NASTY: Final = (
    # Blanks, ends of lines, letters and digits of other scripts.
    *("", " ", "a\n", "\n", "ü", "a\u00a0b", "a\u2028", "\ufeffa", "٣s", "１s", "1٣Gi", "\u007f"),
    # Numbers as some read them.
    *("1", "+1", "-1", "1.5", "1.", ".5", "0x10", "1_0", "007", "1e3", "1E", "1E3", "1e+3", "1e-3"),
    *("1e99", "1E99", "0.0000000001", "999999999999999999", "9223372036854775807", "9Ei", "1e"),
    # Durations, quantities, percentages.
    *("1.5h", "1.s", ".5s", "1h1h", "1us", "1ns", "1d", "1H", "0.0001ms", "2540400h10m10.1s", "0s"),
    *("0.000000001ms", "1 s", "1s ", "1Ki", "1ki", "1gi", "1GiB", "1 Gi", "1u", "1n", "0.1m", "0m"),
    *("5%", "05%", "0%", "100%", "101%", "-1%", "1.5%", "%", "5 %"),
    # Addresses.
    *("http://", "http://a:b", "http://a b", "HTTP://a", "http://a:", "http://a:0", "http://a:080"),
    *("http://[::1", "http://[::1]:1", "http://u:p@a", "http://ü", "http://a/\u0007", "http:/a"),
    *("//a", "http:a", "http://a?b#c", "http://a%zz", "http://a/%zz", "http://:80", "http://a:-1"),
    *(
        "https://a.b/c#d",
        "https://a.b/c",
        "http://a:99999999999999999999",
        "http://[a]",
        "http://a\\b",
        "http://a,b",
        "http://a#c",
    ),
    # Networks.
    *("10.0.0.0/33", "10.0.0.0/8", "10.0.0.0/08", "010.0.0.1", "1.2.3", "::ffff:10.0.0.0/104"),
    *("::ffff:10.0.0.1", "fe80::1%eth0", "::/0", "::1/0", "1::/129", "10.0.0.0/", "/8", "1:2"),
    *("0::0/0", "FD00::/8", "1.2.3.4/32", "::1.2.3.4", "::1.2.3.4/128", "1::2::3"),
    # Names and sources.
    *("A", "a..b", "-a", "a-", "a.b", "a.", "*.a", "*", "*.*.a", "x" * 63, "x" * 64, "a_b", "a/b"),
    *("hf://a/b", "hf://a/b@", "hf://a/b@c", "hf://ü/b", "hf://a/b/c", "hf:/a/b", "hf://a"),
    *("pvc://a", "pvc://a/ b", "pvc://a/ü", "pvc://A", "file:///", "file://a", "file:///a\nb"),
    # What YAML may have meant otherwise.
    *(
        "true",
        "null",
        "~",
        "In",
        "SGLang",
        "--x",
        "--x=1\n2",
        "--",
        "-",
        "--=",
        "--t",
        "--tp",
        "--tp ",
    ),
)
"""Texts that two readers may take differently; in every field that takes a text."""


def texts(document: Document, schema: Mapping[str, Any]) -> Iterator[str]:
    """The paths of every field of `document` that takes a text."""
    yield from _texts(document["spec"], schema["properties"]["spec"], "spec")


def _texts(value: Any, node: Mapping[str, Any], path: str) -> Iterator[str]:
    if node.get("type") == "string" or node.get("x-kubernetes-int-or-string"):
        yield path
    for name, part in node.get("properties", {}).items():
        if name in value:
            yield from _texts(value[name], part, f"{path}.{name}")
    if node.get("type") == "array":
        yield from _texts(value[0], node["items"], f"{path}.0")
    if isinstance(node.get("additionalProperties"), Mapping):
        yield from _texts(value["a"], node["additionalProperties"], f"{path}.a")


def _at(document: Document, path: str) -> Any:
    place: Any = document
    for part in path.split("."):
        place = place[int(part)] if isinstance(place, list) else place[part]
    return place


def _kubernetes(path: str) -> str:
    """`spec.clients.0.name` → `spec.clients[0].name`."""
    return "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in path.split(".")).removeprefix(".")
