"""What every field of both resources changes: a table in `effects.yaml`, complete by the schema.

For each field a service is brought up twice, in a cluster in memory: as it is, and with another value. What differs
afterwards among all objects, what routers are told included, is the field's effect; where it is scaled, so is how its
replicas follow a day of load, and whom the scaler asks. A field that changes nothing would be a promise that nobody keeps.

`EVENKEEL_WRITE_GOLDEN=1 python -m pytest tests/golden/test_golden_effects.py` writes the table anew.
"""

from __future__ import annotations

import ast
import json
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from evenkeel_contract import routerconfig
from evenkeel_contract.crd import definitions
from evenkeel_operator.cluster.store import SERVICE as KIND
from evenkeel_operator.cluster.store import Key
from evenkeel_operator.core.objects import OPTIONAL_KINDS

from tests.support.crd_cases import GONE, SCALED, SERVICE, TENANT, Changes, Document, changed
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import Operator
from tests.support.scaling_scenes import live_through

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = Path(__file__).parent / "effects.yaml"
SCHEMAS: Final = {
    one["spec"]["names"]["kind"]: one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for one in definitions().values()
}

OTHER: Final[Mapping[str, Any]] = {
    "model.source": "pvc://weights/llama",
    "model.servedName": "another",
    "model.tokenSecretRef.name": "other",
    "model.tokenSecretRef.key": "other",
    "model.cache.size": "200Gi",
    "model.cache.storageClassName": "slow",
    "model.cache.accessModes": ["ReadOnlyMany"],
    "engine.runtime": "Simulator",
    "engine.image": "mine:1",
    "engine.replicas": 7,
    "engine.gpu.resourceName": "amd.com/gpu",
    "engine.gpu.count": 2,
    "engine.args": ["--mem-fraction-static=0.5"],
    "engine.rollout.maxSurge": "50%",
    "engine.rollout.maxUnavailable": 1,
    "engine.template.metadata": {"annotations": {"c": "d"}},
    "engine.template.spec": {"nodeSelector": {"gpu": "h100"}},
    "scheduling.replicaPolicy": "VTC",
    "scheduling.fleetPolicy": "LeastLoaded",
    "scheduling.inputTokenWeight": 3,
    "scheduling.outputTokenWeight": 4,
    "scheduling.clientQuantum": 5,
    "scheduling.workerQuantum": 6,
    "scheduling.rejoin": "Paper",
    "router.replicas": 5,
    "router.template.metadata": {"labels": {"a": "b"}},
    "router.template.spec": {"env": [{"name": "A", "value": "b"}]},
    "router.prefix.mode": "Tokens",
    "router.prefix.textBlockBytes": 64,
    "router.state.store": "Peers",
    "router.state.file.size": "2Gi",
    "router.state.redis.urlSecretRef.name": "far",
    "router.state.redis.urlSecretRef.key": "far",
    "router.limits.maxBodySize": "1Mi",
    "router.limits.queueTimeout": "1s",
    "router.limits.firstTokenTimeout": "1s",
    "router.limits.activationTimeout": "900s",
    "router.limits.maxConcurrentPerClient": 3,
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
    "exposure.ingress.className": "traefik",
    "exposure.ingress.tls.secretName": "other",
    "exposure.httpRoute.parentRefs[].name": "other",
    "exposure.httpRoute.parentRefs[].namespace": "other",
    "exposure.httpRoute.parentRefs[].group": "example.com",
    "exposure.httpRoute.parentRefs[].kind": "Service",
    "exposure.httpRoute.parentRefs[].sectionName": "http",
    "exposure.httpRoute.parentRefs[].port": 80,
    "exposure.httpRoute.hostnames": ["other.example.com"],
    "tenancy.selector.matchLabels": {"a": "none"},
    "tenancy.selector.matchExpressions[].key": "none",
    "tenancy.selector.matchExpressions[].operator": "NotIn",
    "tenancy.selector.matchExpressions[].values": ["none"],
    "tenancy.anonymous": "Share",
    "tenancy.trustedProxies": ["192.168.0.0/16"],
}  # fmt: skip
"""Field of a FairInferenceService → another value than `SERVICE` or `SCALED` has, which together have every field."""
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
}
"""The same of an InferenceTenant."""
ALONGSIDE: Final[Mapping[str, Changes]] = {
    "router.replicas": {"spec.router.state": {"store": "Peers"}},
    "router.state.store": {"spec.router.state.file": GONE},
    "clients[].name": {"spec.apiKeys": []},
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
    place: Any = SERVICE["spec"]
    for part in field.replace("[]", ".0").split("."):
        try:
            place = place[int(part)] if isinstance(place, list) else place[part]
        except KeyError:
            return SCALED
    return SERVICE


def secret(name: str) -> Document:
    entries = ("url", "chat", "far", "token", "other")
    texts = {key: f"redis://{name}/{key}".encode() for key in entries}
    data = {key: b64encode(text).decode() for key, text in texts.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


SECRETS: Final = ("redis", "keys", "far", "prometheus", "other")
Place = tuple[str, ...]
"""Kind/name, and the steps down to a value."""


async def outcome(service: Document, tenant: Document) -> dict[Place, Any]:
    """Every value of every object that comes of a service and a tenant, by its place."""
    cluster = FakeCluster()
    cluster.optional = OPTIONAL_KINDS
    for one in (service, tenant, *map(secret, SECRETS)):
        labels = {"a": "b", "c": "d"} if one["kind"] == "InferenceTenant" else {}
        metadata = {**one["metadata"], "namespace": "team-ml", "labels": labels, "generation": 1}
        cluster.put({**deepcopy(one), "metadata": metadata})
    given = set(cluster.objects)
    key = Key(KIND, "team-ml", service["metadata"]["name"])
    operator = Operator(cluster)
    await operator.make_pass(key)
    status = cluster.objects[KIND, "team-ml", key.name]["status"]
    assert {item["type"]: item["status"] for item in status["conditions"]}["SpecValid"] == "True"
    found = {
        (f"{where[0]}/{where[2]}", *place): value
        for where, item in cluster.objects.items()
        # The spec itself is remembered there: of course it changes.
        if where not in given and not where[2].endswith("-accepted")
        for place, value in values(item)
    }
    found |= {("status", name): status.get(name) for name in ("url", "image")}
    if "autoscaling" in service["spec"]:
        await operator.make_pass(key)  # routers are told of tenants, so weights are known
        seen = await live_through(cluster, operator, key)
        found |= {("Scaler", name): value for name, value in seen.items()}
    return found


def values(item: Document) -> Iterator[tuple[Place, Any]]:
    """What an object says, and where; what is encoded is read."""
    plain = {name: part for name, part in item.items() if name not in ("status", "metadata")}
    metadata = item["metadata"]
    plain["metadata"] = {name: metadata.get(name, {}) for name in ("labels", "annotations")}
    plain["metadata"]["annotations"] = {
        name: text
        for name, text in plain["metadata"]["annotations"].items()
        if name != "evenkeel.dev/digest"
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


async def effects(kind: str, cases: Mapping[str, Any]) -> dict[str, list[str]]:
    """Field → the places that another value of it changes."""
    found, known = {}, {}
    for field, value in cases.items():
        path = f"spec.{field}".replace("[]", ".0")
        base = changed(base_for(field) if kind == KIND else TENANT, ALONGSIDE.get(field, {}))
        before, after = (
            (one, TENANT) if kind == KIND else (SCALED, one)
            for one in (base, changed(base, {path: value}))
        )
        key = json.dumps(before)
        if key not in known:
            known[key] = await outcome(*before)
        found[field] = summary(known[key], await outcome(*after))
    return found


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


@pytest.mark.parametrize(("kind", "cases"), [(KIND, OTHER), ("InferenceTenant", TENANTS)])
def test_every_field_of_the_schema_has_a_case(kind: str, cases: Mapping[str, Any]) -> None:
    assert list(cases) == fields_of(kind)


async def test_every_field_changes_what_the_table_says() -> None:
    found = {KIND: await effects(KIND, OTHER)}
    found["InferenceTenant"] = await effects("InferenceTenant", TENANTS)
    text = yaml.safe_dump(found, sort_keys=False, width=140)
    if "EVENKEEL_WRITE_GOLDEN" in os.environ:
        TABLE.write_text(text)
    assert yaml.safe_load(TABLE.read_text()) == found


def test_there_is_no_field_that_changes_nothing() -> None:
    table = yaml.safe_load(TABLE.read_text())
    assert [
        field for fields in table.values() for field, places in fields.items() if not places
    ] == []


def test_routers_read_every_field_that_they_are_told() -> None:
    told = {
        field.name
        for one in vars(routerconfig).values()
        if is_dataclass(one) and one.__module__ == routerconfig.__name__
        for field in dataclass_fields(one)
    }
    read = {
        node.attr
        for path in (ROOT / "router").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert len(told) > 40
    assert told - read == set()
