"""The scaler in the pass: what it decides reaches the Deployment and the status, and no pass waits for Prometheus."""

from __future__ import annotations

import logging
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from evenkeel_contract.names import USE_LABEL
from evenkeel_operator.autoscaler import INTERVAL_S
from evenkeel_operator.cluster.prometheus import PrometheusError
from evenkeel_operator.cluster.store import SERVICE
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.recommendation import (
    LABELS,
    Answers,
    Measurements,
    Sample,
    measurements,
    queries,
)

from tests.support.build_contexts import document, sample_context
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_prometheus import answers
from tests.support.operator_lives import DEFAULTS, KEY, NOW, Operator, become_ready, condition

SCALED = {
    "maxReplicas": 8,
    "prometheus": {"url": "http://prometheus:9090"},
    "targets": {"utilizationPercent": 100, "servicePerReplica": 1000},
}
BUSY = answers({("ads", "chat"): 2500.0, ("search", "chat"): 2500.0})


def cluster_with(**scaling: Any) -> FakeCluster:
    """The simulator's sample, scaled."""
    found = FakeCluster()
    plain = document("simulator.yaml")
    plain["metadata"]["generation"] = 1
    del plain["spec"]["engine"]["replicas"]
    plain["spec"]["autoscaling"] = {**SCALED, **scaling}
    found.put(plain)
    return found


def replicas(cluster: FakeCluster) -> int:
    count: int = cluster.objects["Deployment", "team-ml", "simulated-engine"]["spec"]["replicas"]
    return count


def status(cluster: FakeCluster) -> Any:
    return cluster.objects[SERVICE, "team-ml", "simulated"]["status"]


async def looks(operator: Operator, *, after_s: float = INTERVAL_S) -> None:
    """A look, and the pass that it asks for."""
    operator.now_s += after_s
    operator.woken.clear()
    assert await operator.autoscaler.look(KEY) == INTERVAL_S
    for key in list(operator.woken):
        await operator.make_pass(key)


async def test_the_first_pass_holds_and_asks_for_a_look() -> None:
    cluster = cluster_with()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    assert operator.to_look_at == [KEY]
    assert operator.prometheus.sources == []
    assert replicas(cluster) == 1
    assert condition(cluster, "ScalingActive")["reason"] == "NoDataYet"
    assert status(cluster)["scaling"] == {"desired": 1, "reason": "NoDataYet"}


async def test_what_is_decided_reaches_deployment_and_status_and_never_the_spec(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="evenkeel_operator.autoscaler")
    cluster = cluster_with()
    spec = cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    operator.prometheus.answers = BUSY
    await looks(operator)
    asked = operator.prometheus.queries.values()
    assert all('namespace="team-ml",evenkeel_dev_service="simulated"' in one for one in asked)
    said = "FairInferenceService team-ml/simulated: 5 replicas (Demand), ScalingActive: Scaling"
    assert said in caplog.messages
    assert replicas(cluster) == 5
    assert status(cluster)["scaling"] == {
        "desired": 5,
        "reason": "Demand",
        "lastScaleTime": NOW.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    verdict = condition(cluster, "ScalingActive")
    assert (verdict["status"], verdict["reason"]) == ("True", "Scaling")
    (event,) = [one for one in cluster.events if one["reason"] == "Scaled"]
    assert (event["type"], event["message"]) == ("Normal", "Replicas changed from 1 to 5: Demand.")
    assert cluster.objects[SERVICE, "team-ml", "simulated"]["spec"] == spec


async def test_queries_that_change_nothing_trigger_no_pass() -> None:
    cluster = cluster_with()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    operator.prometheus.answers = answers()
    await looks(operator)
    for item in become_ready(cluster):
        await operator.sees(item)
    cluster.writes.clear()
    for _ in range(5):
        await looks(operator)
        assert operator.woken == []
    await operator.make_pass(KEY)
    assert cluster.writes == []


async def test_prometheus_goes_and_the_number_is_held_and_said() -> None:
    cluster = cluster_with()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    operator.prometheus.answers = BUSY
    await looks(operator)
    operator.prometheus.answers = None
    await looks(operator, after_s=900.0)
    assert replicas(cluster) == 5
    verdict = condition(cluster, "ScalingActive")
    assert (verdict["status"], verdict["reason"]) == ("False", "PrometheusUnreachable")
    assert status(cluster)["scaling"]["reason"] == "PrometheusUnreachable"


async def test_another_life_begins_with_the_replicas_that_live_and_keeps_the_time() -> None:
    cluster = cluster_with()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    operator.prometheus.answers = BUSY
    await looks(operator)
    said = status(cluster)["scaling"]["lastScaleTime"]
    second = Operator(cluster)
    await second.make_pass(KEY)
    second.prometheus.answers = answers()
    await looks(second)
    assert replicas(cluster) == 5
    assert status(cluster)["scaling"]["lastScaleTime"] == said
    for _ in range(21):
        await looks(second)
    assert replicas(cluster) == 1


async def test_new_bounds_hold_with_the_pass_that_sees_them() -> None:
    cluster = cluster_with()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    operator.prometheus.answers = BUSY
    await looks(operator)
    await operator.edit(SERVICE, "simulated", autoscaling={**SCALED, "maxReplicas": 3})
    assert replicas(cluster) == 3
    assert condition(cluster, "ScalingActive")["reason"] == "AtMaximum"


async def test_an_answer_of_a_former_prometheus_decides_nothing() -> None:
    cluster = cluster_with()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    operator.prometheus.answers = BUSY
    another = {**SCALED, "prometheus": {"url": "http://another:9090"}}
    operator.prometheus.meanwhile = lambda: operator.edit(SERVICE, "simulated", autoscaling=another)
    await looks(operator)
    assert operator.woken == []
    assert replicas(cluster) == 1
    assert status(cluster)["scaling"]["reason"] == "NoDataYet"
    operator.prometheus.meanwhile = None
    await looks(operator)
    assert [source.url for source in operator.prometheus.sources][-1] == "http://another:9090"
    assert replicas(cluster) == 5


async def test_an_answer_for_a_service_that_is_gone_decides_nothing() -> None:
    operator = Operator(cluster_with())
    await operator.make_pass(KEY)
    operator.prometheus.answers = BUSY

    async def forget() -> None:
        operator.autoscaler.forget(KEY)

    operator.prometheus.meanwhile = forget
    assert await operator.autoscaler.look(KEY) is None
    assert operator.woken == []


async def test_who_wants_no_scaler_any_more_gets_its_own_number_and_no_status() -> None:
    cluster = cluster_with()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    item = cluster.objects[SERVICE, "team-ml", "simulated"]
    spec = {name: part for name, part in item["spec"].items() if name != "autoscaling"}
    spec["engine"] = {**spec["engine"], "replicas": 2}
    metadata = {**item["metadata"], "generation": 2}
    await operator.sees(cluster.put({**item, "metadata": metadata, "spec": spec}))
    assert replicas(cluster) == 2
    assert condition(cluster, "ScalingActive")["reason"] == "NotConfigured"
    assert "scaling" not in status(cluster)
    assert await operator.autoscaler.look(KEY) is None


async def test_the_token_comes_from_the_secret_and_its_absence_is_said() -> None:
    ref = {"name": "prometheus", "key": "token"}
    url = "http://prometheus:9090"
    cluster = cluster_with(prometheus={"url": url, "tokenSecretRef": ref})
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    await looks(operator)
    assert operator.prometheus.sources == []
    assert condition(cluster, "ScalingActive")["reason"] == "SecretMissing"
    data = {"token": b64encode(b"hunter2\n").decode()}
    metadata = {"name": "prometheus", "namespace": "team-ml"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    await operator.sees(cluster.put(secret))
    await looks(operator)
    assert operator.prometheus.sources == []  # it may be another application's
    assert condition(cluster, "ScalingActive")["reason"] == "SecretNotLabelled"
    metadata = {**metadata, "labels": {USE_LABEL: "true"}}
    await operator.sees(cluster.put({**secret, "metadata": metadata}))
    await looks(operator)
    (source,) = operator.prometheus.sources
    assert (source.url, source.token) == (url, "hunter2")
    assert "hunter2" not in repr(source)


async def test_an_address_that_is_allowed_no_more_is_not_asked() -> None:
    cluster = cluster_with()
    await Operator(cluster).make_pass(KEY)
    strict = Operator(cluster, replace(DEFAULTS, prometheus_urls=("http://theirs:9090",)))
    await strict.make_pass(KEY)
    await looks(strict)
    assert strict.prometheus.sources == []
    assert condition(cluster, "ScalingActive")["reason"] == "PrometheusNotAllowed"
    assert condition(cluster, "SpecValid")["status"] == "False"


async def test_weights_are_those_of_the_router_configuration() -> None:
    cluster = cluster_with(maxReplicasPerClient=4)
    for name, weight in (("heavy", 4), ("light", 1)):
        metadata = {"name": name, "namespace": "team-ml", "generation": 1, "uid": f"uid-{name}"}
        plain = {**document("tenant.yaml"), "metadata": metadata, "spec": {"weight": weight}}
        cluster.put(plain)
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    await operator.make_pass(KEY)
    operator.prometheus.answers = answers({("light", "one"): 1e9})
    await looks(operator)
    assert replicas(cluster) == 1
    operator.prometheus.answers = answers({("heavy", "one"): 1e9})
    await looks(operator)
    assert replicas(cluster) == 4


def test_only_what_is_needed_is_asked() -> None:
    given = sample_context("gpu.yaml").spec.autoscaling
    assert given is not None
    everything = queries("team-ml", "llama", given)
    assert set(everything) == {
        "age",
        "asked",
        "waiting",
        "inFlight",
        "seen",
        "saturated",
        "queue",
        "ttft",
    }
    assert all('namespace="team-ml",evenkeel_dev_service="llama"' in q for q in everything.values())
    bare = replace(given, targets=replace(given.targets, queue_time=None, ttft_p95=None))
    assert set(queries("n", "s", bare)) == {
        "age",
        "asked",
        "waiting",
        "inFlight",
        "seen",
        "saturated",
    }


@pytest.mark.parametrize(
    ("given", "reason"), [({}, "NoData"), (answers(age=181.0), "DataStale")], ids=["none", "old"]
)
def test_without_anything_recent_nothing_is_known(given: Any, reason: str) -> None:
    found = measurements(given)
    assert isinstance(found, Note)
    assert found.reason == reason


OWN = {"namespace": "team-ml", "evenkeel_dev_service": "simulated"}
LABELLED: dict[str, tuple[list[dict[str, str]], str]] = {
    "no router is scraped": ([], "no series of any router"),
    "no namespace": ([{"evenkeel_dev_service": "simulated"}], "without the label namespace."),
    "no service": ([{"namespace": "team-ml"}], "without the label evenkeel_dev_service."),
    "neither": ([{}], "without the label namespace and evenkeel_dev_service."),
    "another service is scraped": (
        [OWN | {"evenkeel_dev_service": "other"}, OWN | {"namespace": "other"}],
        'none with namespace="team-ml", evenkeel_dev_service="simulated"',
    ),
}


@pytest.mark.parametrize(("labels", "want"), LABELLED.values(), ids=LABELLED)
async def test_without_series_the_condition_names_the_label_that_is_missing(
    labels: list[dict[str, str]], want: str
) -> None:
    cluster = cluster_with()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    found_labels = tuple(Sample(one, 1.0) for one in labels)
    operator.prometheus.answers = {LABELS: found_labels} if labels else {}
    await looks(operator)
    assert [source.url for source in operator.prometheus.sources] == ["http://prometheus:9090"] * 2
    found = condition(cluster, "ScalingActive")
    assert (found["status"], found["reason"]) == ("False", "NoData")
    assert want in found["message"]


def test_what_is_no_number_is_no_figure() -> None:
    odd = answers({("a", "c"): 1.0}, queue=float("nan"), seen=float("inf"))
    found = measurements(odd)
    assert isinstance(found, Measurements)
    assert (found.queue_s, found.seen_per_s) == (None, None)


@pytest.mark.parametrize(
    "odd",
    [
        answers({("a", "b"): float("nan"), ("a", "c"): 1.0}),
        answers({("a", "b"): float("inf")}),
        answers({("a", "c"): 1.0}, inFlight=float("nan")),
        answers({("a", "c"): 1.0}, waiting=float("nan")),
    ],
)
def test_demand_that_is_no_number_is_no_reason_to_shrink(odd: Answers) -> None:
    found = measurements(odd)
    assert isinstance(found, Note)
    assert found.reason == "NotANumber"


def test_an_error_is_a_note_for_a_condition() -> None:
    assert PrometheusError("X", "y").note == Note("X", "y")
