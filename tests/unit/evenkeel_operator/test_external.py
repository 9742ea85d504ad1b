"""Services in front of engines that another owner made: what is made around them, and that they are left alone."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_operator.autoscaler import INTERVAL_S
from evenkeel_operator.cluster.store import SERVICE, Key
from evenkeel_operator.core.objects import OPTIONAL_KINDS, Object, conditions_of

from tests.support.build_contexts import document
from tests.support.crd_documents import changed
from tests.support.effects import pool
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_prometheus import answers
from tests.support.fake_routers import FakeRouters, answer, replica
from tests.support.operator_lives import KEY, Operator, become_ready, condition, told

SAMPLE = changed(document("external.yaml"), {"metadata.name": "simulated"})
"""In front of pods with the label app=vllm."""
ENGINE: dict[str, Any] = SAMPLE["spec"]["engine"]
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm"}
DATABASE = ("apps/v1", "Deployment", "vllm")
AUTOSCALING = {
    "minReplicas": 1,
    "maxReplicas": 8,
    "prometheus": {"url": "http://prometheus:9090"},
    "targets": {"utilizationPercent": 100, "servicePerReplica": "10"},
}
SCALED = {
    "spec.autoscaling": AUTOSCALING,
    "spec.engine.external": {**ENGINE["external"], "scaleTargetRef": TARGET},
}


def theirs(name: str) -> Object:
    """A pod of the other owner."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team-ml", "labels": {"app": "vllm"}},
        "status": {"phase": "Running"},
    }


def slice_of(*pods: tuple[str, bool], name: str = "simulated-engine-x") -> Object:
    """As the EndpointSlice controller writes it: with the labels of the Service."""
    endpoints = [
        {
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": ready},
            "targetRef": {"kind": "Pod", "name": pod},
        }
        for pod, ready in pods
    ]
    labels = {
        "evenkeel.dev/service": "simulated",
        "evenkeel.dev/component": "engine",
        "evenkeel.dev/external": "true",
        "kubernetes.io/service-name": "simulated-engine",
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "team-ml", "labels": labels},
        "endpoints": endpoints,
    }


@pytest.fixture
def cluster() -> FakeCluster:
    found = FakeCluster()
    found.optional = OPTIONAL_KINDS
    found.put(SAMPLE)
    return found


def objects_of_engines(cluster: FakeCluster) -> set[str]:
    return {kind for kind, _, name in cluster.objects if name == "simulated-engine"}


async def test_engines_get_a_service_and_nothing_that_acts_on_their_pods(
    cluster: FakeCluster,
) -> None:
    cluster.put(theirs("vllm-0"))
    await Operator(cluster).make_pass(KEY)
    assert objects_of_engines(cluster) == {"Service"}
    found = cluster.objects["Service", "team-ml", "simulated-engine"]
    assert found["spec"]["selector"] == {"app": "vllm"}
    assert found["spec"]["clusterIP"] == "None"
    assert [(one["name"], one["port"], one["targetPort"]) for one in found["spec"]["ports"]] == [
        ("http", 8000, 8000)
    ]
    routers = {kind for kind, _, name in cluster.objects if name == "simulated-router"}
    assert {"Deployment", "Role", "NetworkPolicy", "PodMonitor", "Secret", "Service"} <= routers
    assert not any("Pod vllm" in write for write in cluster.writes)
    assert "image" not in cluster.objects[SERVICE, "team-ml", "simulated"]["status"]


async def test_routers_find_pods_by_labels_and_send_only_a_key_that_the_spec_names(
    cluster: FakeCluster,
) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    found = told(cluster).cluster
    assert found is not None
    assert (found.engines, found.pod_labels, found.api_key) == (
        "simulated-engine",
        {"app": "vllm"},
        None,
    )
    ref = {"name": "vllm-key", "key": "token"}
    external = {**ENGINE["external"], "apiKeySecretRef": ref}
    await operator.edit(SERVICE, "simulated", engine={**ENGINE, "external": external})
    assert condition(cluster, "Degraded")["reason"] == "SecretMissing"
    assert "vllm-key" in condition(cluster, "Degraded")["message"]
    secret = cluster.put(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": "vllm-key",
                "namespace": "team-ml",
                "labels": {"evenkeel.dev/use": "true"},
            },
            "data": {"token": "c2stdmxsbQ=="},
        }
    )
    await operator.sees(secret)
    found = told(cluster).cluster
    assert found is not None
    assert found.api_key == "sk-vllm"
    assert condition(cluster, "Degraded")["status"] == "False"


async def test_the_status_follows_the_slices_of_the_engines(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    for item in become_ready(cluster):
        await operator.sees(item)
    engines = condition(cluster, "EnginesReady")
    assert (engines["status"], engines["reason"]) == ("False", "NoReplicas")
    assert engines["message"] == (
        "0 engines: no pod of the namespace has the labels of spec.engine.external."
    )
    assert condition(cluster, "Ready")["status"] == "False"
    two = cluster.put(slice_of(("vllm-0", True), ("vllm-1", False)))
    await operator.sees(two)
    assert condition(cluster, "EnginesReady")["message"] == "1 of 2 engines are ready."
    assert condition(cluster, "Ready")["status"] == "True"
    assert condition(cluster, "Degraded")["reason"] == "Healthy"  # it may merely start
    dual = cluster.put(slice_of(("vllm-0", True), ("vllm-1", True), name="simulated-engine-6"))
    both = cluster.put(slice_of(("vllm-0", True), ("vllm-1", True)))
    for item in (dual, both):
        await operator.sees(item)
    status = cluster.objects[SERVICE, "team-ml", "simulated"]["status"]
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert status["selector"] == "app=vllm"
    assert condition(cluster, "Degraded")["status"] == "False"
    assert condition(cluster, "Progressing")["status"] == "False"


async def test_a_new_operator_lists_the_slices_and_a_pass_at_rest_writes_nothing(
    cluster: FakeCluster,
) -> None:
    cluster.put(slice_of(("vllm-0", True)))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    for item in become_ready(cluster):
        await operator.sees(item)
    assert condition(cluster, "EnginesReady")["status"] == "True"
    cluster.writes.clear()
    await operator.make_pass(KEY)
    await Operator(cluster).make_pass(KEY)
    assert cluster.writes == []


async def test_the_key_of_engines_needs_the_label(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    metadata = {"name": "vllm-key", "namespace": "team-ml"}
    data = {"token": "c2stdmxsbQ=="}
    cluster.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    external = {**ENGINE["external"], "apiKeySecretRef": {"name": "vllm-key", "key": "token"}}
    await operator.edit(SERVICE, "simulated", engine={**ENGINE, "external": external})
    found = told(cluster).cluster
    assert found is not None
    assert found.api_key is None
    assert condition(cluster, "Degraded")["reason"] == "SecretNotLabelled"


async def test_another_selector_restarts_the_routers(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    where = ("Deployment", "team-ml", "simulated-router")
    before = cluster.objects[where]["spec"]["template"]
    external = {**ENGINE["external"], "selector": {"matchLabels": {"app": "other"}}}
    await operator.edit(SERVICE, "simulated", engine={**ENGINE, "external": external})
    after = cluster.objects[where]["spec"]["template"]
    assert before != after
    assert after["metadata"]["annotations"]["evenkeel.dev/engines"] == "app=other"


async def test_a_service_may_change_from_own_engines_to_external_ones_and_back(
    cluster: FakeCluster,
) -> None:
    operator = Operator(cluster)
    await operator.edit(SERVICE, "simulated", engine={"runtime": "Simulator", "replicas": 2})
    assert "Deployment" in objects_of_engines(cluster)
    await operator.edit(SERVICE, "simulated", engine=ENGINE)
    assert objects_of_engines(cluster) == {"Service"}
    await operator.edit(SERVICE, "simulated", engine={"runtime": "Simulator", "replicas": 2})
    assert {"Deployment", "NetworkPolicy"} <= objects_of_engines(cluster)
    labels = cluster.objects["Service", "team-ml", "simulated-engine"]["metadata"]["labels"]
    assert "evenkeel.dev/external" not in labels


POOLED = changed(SAMPLE, {"spec.engine.external": {"inferencePool": "pool"}})


def found_by_routers(cluster: FakeCluster) -> tuple[dict[str, str], int]:
    """(labels, port) of the Service by which routers find the engines."""
    found = cluster.objects["Service", "team-ml", "simulated-engine"]["spec"]
    return found["selector"], found["ports"][0]["port"]


def a_pool(**labels: str) -> Object:
    plain = pool("pool")
    plain["metadata"]["namespace"] = "team-ml"
    return changed(plain, {"spec.selector.matchLabels": labels})


async def test_an_inference_pool_has_the_selector_and_the_port() -> None:
    cluster = FakeCluster()
    cluster.put(POOLED)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    valid = condition(cluster, "SpecValid")
    assert (valid["status"], valid["message"]) == (
        "False",
        "spec.engine.external.inferencePool: The namespace has no InferencePool pool with a selector and a port.",
    )
    assert objects_of_engines(cluster) == set()
    await operator.sees(cluster.put(a_pool(app="one")))
    assert condition(cluster, "SpecValid")["status"] == "True"
    assert found_by_routers(cluster) == ({"app": "one"}, 4)
    assert cluster.objects[SERVICE, "team-ml", "simulated"]["status"]["selector"] == "app=one"
    await operator.sees(cluster.put(a_pool(app="two")))
    assert found_by_routers(cluster) == ({"app": "two"}, 4)
    cluster.writes.clear()
    await Operator(cluster).make_pass(KEY)
    assert cluster.writes == []


async def test_without_its_inference_pool_a_service_keeps_its_engines_and_says_so() -> None:
    cluster = FakeCluster()
    cluster.put(POOLED)
    item = cluster.put(a_pool(app="one"))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    await cluster.delete(item)
    await operator.sees(item, "DELETED")
    assert found_by_routers(cluster) == ({"app": "one"}, 4)
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "PoolMissing")
    assert condition(cluster, "SpecValid")["status"] == "True"


async def test_the_pool_of_the_spec_in_use_is_known_beside_an_invalid_newer_spec() -> None:
    cluster = FakeCluster()
    cluster.put(POOLED)
    cluster.put(a_pool(app="one"))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    await operator.edit(SERVICE, "simulated", engine={"runtime": "Nonsense"})
    await operator.sees(cluster.put(a_pool(app="two")))
    assert found_by_routers(cluster) == ({"app": "two"}, 4)
    assert condition(cluster, "Degraded")["reason"] == "OldSpecRuns"
    assert "InferencePool" not in condition(cluster, "Degraded")["message"]


async def test_a_pool_that_is_missing_leaves_the_engines_of_the_spec_before(
    cluster: FakeCluster,
) -> None:
    operator = Operator(cluster)
    await operator.edit(SERVICE, "simulated", engine={"runtime": "Simulator", "replicas": 2})
    await operator.edit(SERVICE, "simulated", engine=POOLED["spec"]["engine"])
    assert "Deployment" in objects_of_engines(cluster)
    assert condition(cluster, "SpecValid")["status"] == "False"
    await operator.sees(cluster.put(a_pool(app="one")))
    assert objects_of_engines(cluster) == {"Service"}
    assert condition(cluster, "SpecValid")["status"] == "True"


async def test_only_the_spec_of_a_pool_needs_a_pass() -> None:
    operator = Operator(FakeCluster())
    metadata = {**SAMPLE["metadata"], "resourceVersion": "1"}
    operator.store.see(None, SERVICE, {**SAMPLE, "metadata": metadata})

    def seen(version: str, **labels: str) -> frozenset[Key]:
        item = a_pool(**labels)
        metadata = {**item["metadata"], "resourceVersion": version}
        return operator.store.see("MODIFIED", "InferencePool", {**item, "metadata": metadata})

    assert seen("2", app="one") == {KEY}
    assert seen("3", app="one") == frozenset()  # its status, for example
    assert seen("4", app="two") == {KEY}


async def scaled(cluster: FakeCluster) -> Operator:
    """With demand for four replicas."""
    cluster.put(changed(SAMPLE, SCALED))
    cluster.put(slice_of(("vllm-0", True)))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    operator.prometheus.answers = answers({("ads", "chat"): 40.0})
    operator.now_s += INTERVAL_S
    await operator.autoscaler.look(KEY)
    await operator.make_pass(KEY)
    return operator


async def test_the_scaler_sets_the_number_through_the_owner_of_the_pods(
    cluster: FakeCluster,
) -> None:
    operator = await scaled(cluster)
    assert cluster.scales == {("apps/v1", "Deployment", "vllm"): 4}
    status = cluster.objects[SERVICE, "team-ml", "simulated"]["status"]
    assert status["scaling"]["desired"] == 4
    cluster.writes.clear()
    await operator.make_pass(KEY)
    assert cluster.writes == []


async def test_a_waiting_request_starts_the_first_engine(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = {**AUTOSCALING, "minReplicas": 0}
    cluster.put(changed(SAMPLE, {**SCALED, "spec.autoscaling": scaling}))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    assert cluster.scales == {}
    monkeypatch.setattr(operator.activations, "wanted", lambda key: True)
    await operator.make_pass(KEY)
    assert cluster.scales == {("apps/v1", "Deployment", "vllm"): 1}


async def test_a_target_that_cannot_be_scaled_is_reported(cluster: FakeCluster) -> None:
    cluster.refuses = lambda item: "no such thing" if item["kind"] == "Deployment" and item["metadata"]["name"] == "vllm" else None  # fmt: skip
    await scaled(cluster)
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "Refused")
    assert degraded["message"] == (
        "spec.engine.external.scaleTargetRef: Deployment vllm cannot be scaled: no such thing."
    )


async def test_a_target_whose_webhook_is_down_is_reported_and_costs_no_status(
    cluster: FakeCluster,
) -> None:
    down = 'failed calling webhook "scale.policy.example"'
    cluster.fails = lambda item: down if item["metadata"]["name"] == "vllm" else None
    await scaled(cluster)
    degraded = condition(cluster, "Degraded")
    assert (degraded["reason"], down in degraded["message"]) == ("WebhookFails", True)
    assert condition(cluster, "ScalingActive")["status"] == "True"


async def test_a_target_without_the_label_of_its_owner_is_never_scaled(
    cluster: FakeCluster,
) -> None:
    cluster.scales[DATABASE] = 3
    cluster.scale_labels = {"app": "database"}
    operator = await scaled(cluster)
    assert cluster.scales == {DATABASE: 3}
    for type_, status in (("ScalingActive", "False"), ("Degraded", "True")):
        found = condition(cluster, type_)
        assert (found["status"], found["reason"]) == (status, "TargetNotLabelled")
        assert "`kubectl label deployment vllm evenkeel.dev/use=true`" in found["message"]
    assert await operator.make_pass(KEY) == INTERVAL_S  # no watch reports the label
    cluster.scale_labels = {"evenkeel.dev/use": "true"}
    await operator.make_pass(KEY)
    await operator.autoscaler.look(KEY)
    await operator.make_pass(KEY)
    assert cluster.scales == {DATABASE: 4}
    assert condition(cluster, "Degraded")["status"] == "False"


@pytest.mark.parametrize(
    "scaling", [{"minReplicas": 0, "maxReplicas": 1}, {"minReplicas": 1, "maxReplicas": 2}]
)
async def test_without_data_a_target_never_shrinks(
    cluster: FakeCluster, scaling: dict[str, Any]
) -> None:
    cluster.scales[DATABASE] = 3
    cluster.put(changed(SAMPLE, {**SCALED, "spec.autoscaling": {**AUTOSCALING, **scaling}}))
    cluster.put(slice_of())  # pods of another owner, of which the selector finds none
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    operator.now_s += INTERVAL_S
    await operator.autoscaler.look(KEY)
    await operator.make_pass(KEY)
    assert condition(cluster, "ScalingActive")["status"] == "False"
    assert cluster.scales == {DATABASE: 3}


async def test_a_second_scaler_of_the_target_is_reported(cluster: FakeCluster) -> None:
    cluster.put(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "hpa", "namespace": "team-ml"},
            "spec": {"scaleTargetRef": TARGET},
        }
    )
    await scaled(cluster)
    assert condition(cluster, "Degraded")["reason"] == "ForeignScaler"
    without = FakeCluster()
    without.put(SAMPLE)
    for item in list(cluster.objects.values()):
        if item["kind"] == "HorizontalPodAutoscaler":
            without.put(item)  # without spec.autoscaling the owner may scale as it likes
    await Operator(without).make_pass(KEY)
    assert condition(without, "Degraded")["status"] == "False"


async def test_events_of_other_slices_need_no_pass() -> None:
    operator = Operator(FakeCluster())
    item = slice_of(("vllm-0", True))
    item = {**item, "metadata": {**item["metadata"], "resourceVersion": "5"}}
    assert operator.store.see("MODIFIED", "EndpointSlice", item) == {
        Key(SERVICE, "team-ml", "simulated")
    }
    assert operator.store.see("MODIFIED", "EndpointSlice", item) == frozenset()  # known


async def test_requests_without_client_keys_show_for_these_engines_too(
    cluster: FakeCluster,
) -> None:
    routers = FakeRouters(answer(replica("vllm-1", unnamed_share=0.5)))
    operator = Operator(cluster, routers=routers)
    await operator.make_pass(KEY)
    for item in become_ready(cluster):
        await operator.sees(item)
    assert await operator.make_pass(KEY) == 15
    found = condition(cluster, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "ClientKeysMissing")
    routers.answers = [answer(replica("vllm-1"))]
    assert await operator.make_pass(KEY) == 300
    assert condition(cluster, "Degraded")["reason"] != "ClientKeysMissing"


async def test_of_two_services_the_older_one_scales_the_target(cluster: FakeCluster) -> None:
    younger = {"metadata.name": "younger", "metadata.creationTimestamp": "2026-02-01T00:00:00Z"}
    bounds = {**AUTOSCALING, "minReplicas": 5}
    cluster.put(changed(SAMPLE, {**SCALED, "metadata.creationTimestamp": "2026-01-01T00:00:00Z"}))
    cluster.put(changed(SAMPLE, {**SCALED, **younger, "spec.autoscaling": bounds}))
    cluster.scales[DATABASE] = 2
    operator = Operator(cluster)
    other = Key(SERVICE, "team-ml", "younger")
    for _ in range(2):
        for key in (KEY, other):
            operator.prometheus.answers = answers({("a", "x"): 10.0})
            await operator.make_pass(key)
            await operator.autoscaler.look(key)
            operator.now_s += INTERVAL_S
    assert cluster.scales[DATABASE] <= 2
    found = conditions_of(cluster.objects["FairInferenceService", "team-ml", "younger"])
    assert found["ScalingActive"]["reason"] == found["Degraded"]["reason"] == "ForeignScaler"
    assert "service simulated scales Deployment vllm too" in found["Degraded"]["message"]
    assert condition(cluster, "Degraded")["status"] == "False"
    # Once the older one scales it no more, the younger one does.
    plain = changed(SAMPLE, {"metadata.creationTimestamp": "2026-01-01T00:00:00Z"})
    await operator.sees(cluster.put(plain))
    await operator.make_pass(other)
    assert cluster.scales[DATABASE] == 5
