"""Every field of a spec changes something: what runs, what routers are told, or what is refused.

A field that changes nothing would be a promise that nobody keeps. Those of parts that are yet to come are named here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from evenkeel_contract.decode import Shape, fields_of, shape_of
from evenkeel_contract.spec import ServiceSpec
from evenkeel_contract.validate import parse_service
from evenkeel_operator.core.accepted import Accepted
from evenkeel_operator.core.credentials import Credentials, EngineKey
from evenkeel_operator.core.defaults import Defaults
from evenkeel_operator.core.objects import OPTIONAL_KINDS
from evenkeel_operator.core.scaling import decide
from evenkeel_operator.core.tenants import make_roster, read_tenants
from evenkeel_operator.desired import Inputs, desired

from tests.support.subjects import document

# Path → another value than the base has. The base is the sample for GPUs with everything that it leaves out.
BASE: dict[str, Any] = {
    "model.source": "hf://meta-llama/Llama-3.1-8B-Instruct",
    "router.state": {"store": "Redis", "redis": {"urlSecretRef": {"name": "redis", "key": "url"}}},
    "exposure.ingress.tls": {"secretName": "tls"},
    "tenancy.selector": {
        "matchLabels": {"team": "ml"},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a"]}],
    },
}
OTHER: dict[str, Any] = {
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
    "engine.template.metadata": {"annotations": {"a": "b"}},
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
    "router.limits.maxBodySize": "1Mi",
    "router.limits.queueTimeout": "1s",
    "router.limits.firstTokenTimeout": "1s",
    "router.limits.activationTimeout": "9s",
    "router.limits.maxConcurrentPerClient": 3,
    "autoscaling.minReplicas": 2,
    "autoscaling.drainTimeout": "9s",
    "slo.ttft.threshold": "3s",
    "slo.ttft.objectivePercent": 95,
    "slo.ttft.window": "168h",
    "slo.fairness.maxLead": "9s",
    "slo.fairness.maxShareErrorPercent": 9,
    "slo.alertLabels": {"team": "other"},
    "exposure.ingress.host": "other.example.com",
    "exposure.ingress.className": "traefik",
    "exposure.ingress.tls.secretName": "other",
    "exposure.httpRoute": {"parentRefs": [{"name": "gw"}]},
    "tenancy.selector.matchLabels": {"team": "other"},
    "tenancy.selector.matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}],
    "tenancy.anonymous": "Share",
    "tenancy.trustedProxies": ["192.168.0.0/16"],
}
# Where one value shows another field's effect only together with a change elsewhere.
ALONGSIDE: dict[str, dict[str, Any]] = {
    "engine.replicas": {"autoscaling": None},
    "router.state.store": {"router.state.redis": None},
    "exposure.httpRoute": {"exposure.ingress": None},
}
ELSEWHERE = {
    "router.state.file.size": "test_manifests",
    "router.state.redis.urlSecretRef.name": "read by the observer, see test_service_pass",
    "router.state.redis.urlSecretRef.key": "read by the observer, see test_service_pass",
    "autoscaling.prometheus.url": "test_accepted",
}
YET_TO_COME = ("autoscaling.",)
"""The scaler."""


def leaves(cls: type, path: str = "") -> Iterator[str]:
    """The paths of all fields that hold values."""
    for wire, field in fields_of(cls).items():
        hint, below = field.hint, f"{path}{wire}"
        while True:
            shape, inner = shape_of(hint)
            if shape not in (Shape.CONSTRAINED, Shape.OPTIONAL):
                break
            hint = inner[0] if shape is Shape.CONSTRAINED else inner
        if shape is Shape.OBJECT and below not in OTHER:
            yield from leaves(inner, f"{below}.")
        else:
            yield below


def put(spec: dict[str, Any], path: str, value: Any) -> None:
    *folders, last = path.split(".")
    for folder in folders:
        spec = spec.setdefault(folder, {})
    spec[last] = value


def base() -> dict[str, Any]:
    plain = document("gpu.yaml")
    for path, value in BASE.items():
        put(plain["spec"], path, copy.deepcopy(value))
    return plain


TENANTS = tuple(
    {
        **document("tenant.yaml"),
        "metadata": {"name": name, "namespace": "team-ml", "labels": labels},
    }
    for name, labels in (
        ("a", {"team": "ml", "tier": "a"}),
        ("b", {"team": "other", "tier": "a"}),
        ("c", {"team": "ml"}),
    )
)


def outcome(plain: dict[str, Any]) -> str:
    """All that comes of a spec."""
    service, faults = parse_service(plain)
    assert service is not None, [str(fault) for fault in faults]
    tenants = read_tenants(TENANTS)
    accepted = Accepted({})  # the spec itself is remembered there: of course it changes
    found = desired(
        Inputs(
            service=service,
            uid="u",
            accepted=accepted,
            credentials=Credentials("token", (EngineKey("key"),)),
            tenants=tenants,
            roster=make_roster(tenants, {}),
            config_before=None,
            redis_url="redis://r:6379/0",
            apis=OPTIONAL_KINDS,
            defaults=Defaults(version="1", router_image="r", sglang_image="s", simulator_image="m"),
            replicas=decide(service.spec).replicas,
        )
    )
    return str(found)


def test_every_field_has_a_case_or_a_reason() -> None:
    known = OTHER.keys() | ELSEWHERE.keys()
    missing = [path for path in leaves(ServiceSpec) if path not in known]
    assert [path for path in missing if not path.startswith(YET_TO_COME)] == []


@pytest.mark.parametrize("path", OTHER)
def test_a_field_has_an_effect(path: str) -> None:
    before, after = base(), base()
    for other, value in ALONGSIDE.get(path, {}).items():
        put(before["spec"], other, value)
        put(after["spec"], other, value)
    if path == "router.state.store":
        put(before["spec"], "router.state", {"store": "File"})
        put(before["spec"], "router.replicas", 1)
        put(after["spec"], "router.replicas", 1)
    put(after["spec"], path, OTHER[path])
    assert outcome(before) != outcome(after)
