"""Engines that do not start, or not again, for a reason that the state of their containers does not say."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from evenkeel_operator.core.unstarted import WAIT
from evenkeel_operator.core.workload import TIME_FORMAT

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import (
    KEY,
    NOW,
    Operator,
    become_ready,
    cluster_with_the_sample,
    condition,
)
from tests.unit.evenkeel_operator.test_crashing_rollout import DEPLOYMENT, pod, replica_set

CREATING = {"waiting": {"reason": "ContainerCreating"}}
CAUSE = 'MountVolume.SetUp failed for volume "certs" : secret "certs" not found'
SUMMARY = "Unable to attach or mount volumes: unmounted volumes=[certs]: timed out"


def event(number: int, message: str, *, uid: str, reason: str = "FailedMount") -> dict[str, Any]:
    return {
        "kind": "Event",
        "metadata": {"name": f"new.{number}", "namespace": "team-ml"},
        "involvedObject": {"uid": uid},
        "reason": reason,
        "message": message,
    }


async def creating(cluster: FakeCluster, *, waits: timedelta) -> Operator:
    """An operator that sees an engine which has been on its node for that long."""
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    placed = (NOW - waits).strftime(TIME_FORMAT)
    found = pod(state=CREATING)
    found["metadata"]["uid"] = "uid-new"
    found["spec"] = {"nodeName": "node-1"}
    found["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": placed},
        {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": placed},
    ]
    cluster.put(found)
    cluster.put(replica_set(cluster, "new", 1))
    for number, message in enumerate((SUMMARY, CAUSE), start=1):
        cluster.put(event(number, message, uid="uid-new"))
    cluster.put(event(3, "another pod", uid="uid-other"))
    cluster.put(event(4, "a message", uid="uid-new", reason="Pulling"))
    await operator.make_pass(KEY)
    return operator


async def test_a_volume_that_is_missing_for_a_minute_is_named() -> None:
    cluster = cluster_with_the_sample()
    await creating(cluster, waits=WAIT)
    words = f"pod new does not start: {CAUSE}"
    assert condition(cluster, "EnginesReady")["reason"] == "CannotStart"
    for name in ("EnginesReady", "Progressing", "Degraded"):
        assert words in condition(cluster, name)["message"]
    assert condition(cluster, "Progressing")["reason"] == "RolloutStuck"


async def test_a_volume_that_comes_within_a_minute_is_no_fault() -> None:
    cluster = cluster_with_the_sample()
    await creating(cluster, waits=WAIT - timedelta(seconds=1))
    assert condition(cluster, "EnginesReady")["reason"] == "Starting"
    assert condition(cluster, "Degraded")["status"] == "False"
    assert not [read for read in cluster.reads if read.startswith("Event")]


@pytest.mark.parametrize(
    ("waits", "made", "named"),
    [(WAIT, False, True), (WAIT - timedelta(seconds=1), False, False), (WAIT, True, False)],
    ids=["for a minute", "for less", "the claim is there"],
)
async def test_a_claim_of_devices_that_cannot_be_made_is_named(
    waits: timedelta, made: bool, named: bool
) -> None:
    cluster = cluster_with_the_sample()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    found = pod(state=CREATING)
    found["metadata"] |= {"uid": "uid-new", "creationTimestamp": (NOW - waits).strftime(TIME_FORMAT)}  # fmt: skip
    found["spec"] = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "two"}]}
    found["status"] = {"phase": "Pending", "resourceClaimStatuses": [{"name": "gpu"}] if made else []}  # fmt: skip
    cluster.put(found)
    cluster.put(replica_set(cluster, "new", 1))
    why = 'PodResourceClaim gpu: resourceclaimtemplate.resource.k8s.io "two" not found'
    cluster.put(event(1, why, uid="uid-new", reason="FailedResourceClaimCreation"))
    await operator.make_pass(KEY)
    assert (f"pod new does not start: {why}" in condition(cluster, "Degraded")["message"]) == named


async def test_without_the_right_to_read_events_a_pass_goes_on() -> None:
    cluster = cluster_with_the_sample()
    cluster.forbids = lambda kind, namespace: kind == "Event"
    await creating(cluster, waits=WAIT)
    assert condition(cluster, "EnginesReady")["reason"] == "Starting"


async def test_a_container_whose_end_the_kubelet_forgot_is_still_crashing() -> None:
    """Once the kubelet removes what is left of a container, it does not say how it ended."""
    cluster = cluster_with_the_sample()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    found = pod(state={"waiting": {"reason": "PodInitializing"}}, restartCount=0)
    ended = {"terminated": {"reason": "Error", "exitCode": 1}}
    states: tuple[dict[str, Any], ...] = (
        {"state": ended},
        {"state": {"running": {}}, "lastState": {}},
    )
    for state in states:
        init = {"name": "download", "restartCount": 1, "ready": False, **state}
        status = {**found["status"], "phase": "Pending", "initContainerStatuses": [init]}
        cluster.put({**found, "status": status})
        await operator.make_pass(KEY)
        assert condition(cluster, "EnginesReady")["reason"] == "Crashing"
        assert "container download of pod new" in condition(cluster, "Degraded")["message"]


async def test_a_paused_deployment_is_named_and_left_paused() -> None:
    cluster = cluster_with_the_sample()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    for item in become_ready(cluster):
        await operator.sees(item)
    await operator.make_pass(KEY)
    assert condition(cluster, "Progressing")["reason"] == "Stable"
    engines = cluster.objects[DEPLOYMENT]
    spec, status = {**engines["spec"], "paused": True}, {**engines["status"], "updatedReplicas": 0}
    await operator.sees(cluster.put({**engines, "spec": spec, "status": status}))
    found = condition(cluster, "Progressing")
    assert found["reason"] == condition(cluster, "Degraded")["reason"] == "RolloutStuck"
    assert "kubectl -n team-ml rollout resume deployment/simulated-engine" in found["message"]
    assert cluster.objects[DEPLOYMENT]["spec"]["paused"] is True
