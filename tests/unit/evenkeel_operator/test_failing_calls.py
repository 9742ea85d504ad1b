"""A call of the API server that fails is in a condition with its answer, and costs only what needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from evenkeel_kube.client import ClusterError, Overloaded
from evenkeel_operator.cluster.store import SERVICE, TENANT, Key
from evenkeel_operator.core.objects import OPTIONAL_KINDS, Object
from evenkeel_operator.reconcile import UNCHECKED_S

from tests.support.build_contexts import document
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import KEY, Operator, cluster_with_the_sample, condition

DOWN = (
    'Internal error occurred: failed calling webhook "images.policy.example": failed to call webhook: '
    'Post "https://policy.example.svc:443/": dial tcp 10.0.0.1:443: connect: connection refused'
)
NAME = "images.policy.example"


def of(*kinds: str) -> Callable[[Object], str | None]:
    return lambda item: DOWN if item["kind"] in kinds else None


async def fails(operator: Operator, key: Key = KEY) -> None:
    with pytest.raises(ClusterError):
        await (operator.make_pass if key.kind == SERVICE else operator.make_tenant_pass)(key)


async def test_a_webhook_that_fails_the_dry_run_is_named_at_once() -> None:
    cluster = cluster_with_the_sample()
    cluster.fails = of("Deployment")
    operator = Operator(cluster)
    assert await operator.make_pass(KEY) == UNCHECKED_S
    found = condition(cluster, "SpecValid")
    assert (found["status"], NAME in found["message"]) == ("False", True)
    cluster.fails = of()
    await operator.make_pass(KEY)
    assert condition(cluster, "SpecValid")["status"] == "True"
    assert ("Deployment", "team-ml", "simulated-engine") in cluster.objects


async def test_while_a_webhook_is_down_the_spec_in_use_is_maintained() -> None:
    cluster = cluster_with_the_sample()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    cluster.fails = of("Deployment")
    await operator.edit(SERVICE, "simulated", exposure={"ingress": {"host": "new.example.com"}})
    await cluster.delete(cluster.objects["Service", "team-ml", "simulated-router"])
    await Operator(cluster).make_pass(KEY)
    assert ("Service", "team-ml", "simulated-router") in cluster.objects
    ingress = cluster.objects["Ingress", "team-ml", "simulated-router"]
    assert ingress["spec"]["rules"][0]["host"] == "llm.example.com"
    assert condition(cluster, "Degraded")["reason"] == "OldSpecRuns"


async def test_a_webhook_that_fails_one_object_costs_no_other_object() -> None:
    cluster = cluster_with_the_sample()
    cluster.fails = of("NetworkPolicy")
    await Operator(cluster).make_pass(KEY)
    assert ("Deployment", "team-ml", "simulated-engine") in cluster.objects
    found = condition(cluster, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "WebhookFails")
    assert NAME in found["message"]


READ = ["ConfigMap", "Secret", "Deployment", "Role", "InferenceTenant", "FairInferenceService"]


@pytest.mark.parametrize("kind", READ)
async def test_a_missing_right_to_read_is_reported_with_its_kind(kind: str) -> None:
    cluster = cluster_with_the_sample()
    await Operator(cluster).make_pass(KEY)
    before = cluster.objects[SERVICE, "team-ml", "simulated"]["status"]
    cluster.forbids = lambda one, _: one == kind
    operator = Operator(cluster)
    operator.store.see("ADDED", SERVICE, cluster.objects[SERVICE, "team-ml", "simulated"])
    await fails(operator)
    found = condition(cluster, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "RightMissing")
    assert (
        f'cannot {"get" if kind in (SERVICE, "Secret") else "list"} resource "{kind}"'
        in found["message"]
    )
    after = cluster.objects[SERVICE, "team-ml", "simulated"]["status"]
    assert unlike(after) == unlike(before)  # what was known stays
    cluster.forbids = lambda *_: False
    await operator.make_pass(KEY)
    assert cluster.objects[SERVICE, "team-ml", "simulated"]["status"] == before


def unlike(status: Any) -> Any:
    kept = [one for one in status["conditions"] if one["type"] != "Degraded"]
    return {**status, "conditions": kept}


async def test_an_error_that_passes_is_not_reported_and_one_that_stays_is() -> None:
    cluster = cluster_with_the_sample()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    asked = 0

    async def overloaded(*_: object, **__: object) -> Any:
        nonlocal asked
        asked += 1
        raise Overloaded(503, "etcd has no leader")

    cluster.list_all = overloaded  # type: ignore[method-assign]
    again = Operator(cluster)
    again.store.see("ADDED", SERVICE, cluster.objects[SERVICE, "team-ml", "simulated"])
    await fails(again)
    assert condition(cluster, "Degraded")["status"] == "False"
    await fails(again)
    found = condition(cluster, "Degraded")
    assert (found["reason"], asked) == ("ApiServerError", 2)
    assert "etcd has no leader" in found["message"]


async def test_a_service_without_any_status_says_why_its_first_pass_failed() -> None:
    cluster = cluster_with_the_sample()
    cluster.forbids = lambda kind, _: kind == "Secret"
    operator = Operator(cluster)
    operator.store.see("ADDED", SERVICE, cluster.objects[SERVICE, "team-ml", "simulated"])
    await fails(operator)
    assert condition(cluster, "Degraded")["reason"] == "RightMissing"


async def test_a_status_that_cannot_be_written_hides_no_failure() -> None:
    cluster = cluster_with_the_sample()
    cluster.forbids = lambda kind, _: kind == "Secret"
    cluster.fails = of(f"{SERVICE}/status")
    operator = Operator(cluster)
    operator.store.see("ADDED", SERVICE, cluster.objects[SERVICE, "team-ml", "simulated"])
    with pytest.raises(ClusterError, match="cannot get resource"):
        await operator.make_pass(KEY)


async def test_a_tenant_says_why_its_pass_failed() -> None:
    cluster = FakeCluster()
    tenant = cluster.put(document("tenant.yaml"))
    name = str(tenant["metadata"]["name"])
    cluster.forbids = lambda kind, _: kind == "Secret"
    operator = Operator(cluster)
    operator.store.see("ADDED", TENANT, tenant)
    await fails(operator, Key(TENANT, "team-ml", name))
    (found,) = cluster.objects[TENANT, "team-ml", name]["status"]["conditions"]
    assert (found["type"], found["status"], found["reason"]) == ("Ready", "Unknown", "RightMissing")


@pytest.mark.parametrize("kind", ["PodMonitor", "PrometheusRule", "HorizontalPodAutoscaler"])
async def test_a_right_that_a_service_can_do_without_costs_only_its_part(kind: str) -> None:
    cluster = cluster_with_the_sample()
    cluster.optional = OPTIONAL_KINDS
    cluster.forbids = lambda one, _: one == kind
    await Operator(cluster).make_pass(KEY)
    assert ("Deployment", "team-ml", "simulated-engine") in cluster.objects
    assert not any(one == kind for one, _, _ in cluster.objects)
    found = condition(cluster, "Degraded")
    if kind in OPTIONAL_KINDS:
        assert found["reason"] == "RightMissing"
        assert f"so the service has no {kind}" in found["message"]
    else:  # only reports about it are missing
        assert found["reason"] != "RightMissing"


async def test_a_namespace_that_may_not_be_listed_stops_no_other_listing() -> None:
    cluster = cluster_with_the_sample()
    other = replace(KEY, namespace="a-before-the-other")
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    operator.store.named(SERVICE, other.namespace)
    cluster.forbids = lambda _, namespace: namespace == other.namespace
    del cluster.objects[SERVICE, "team-ml", "simulated"]
    await operator.observer.list_again()
    assert operator.store.keys(SERVICE, "team-ml") == frozenset()
