"""A pod that crashes in a rollout: told by the pass that its event leads to, once, and taken back when it is well."""

from __future__ import annotations

from typing import Any

from evenkeel_operator.cluster.store import SERVICE

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import (
    KEY,
    Operator,
    become_ready,
    cluster_with_the_sample,
    condition,
)

ENDED = {"terminated": {"reason": "Error", "exitCode": 1, "message": "line\nno such file"}}
DEPLOYMENT = ("Deployment", "team-ml", "simulated-engine")


LABELS = {"evenkeel.dev/service": "simulated", "evenkeel.dev/component": "engine"}


def pod(name: str = "new", *, template: str = "new", **container: Any) -> dict[str, Any]:
    labels = {**LABELS, "pod-template-hash": template}
    metadata = {"name": name, "namespace": "team-ml", "labels": labels}
    status = {"phase": "Running", "containerStatuses": [{"name": "engine", **container}]}
    return {"kind": "Pod", "metadata": metadata, "spec": {}, "status": status}


def replica_set(cluster: FakeCluster, template: str, revision: int) -> dict[str, Any]:
    """As the Deployment controller makes it."""
    owner = {"uid": cluster.objects[DEPLOYMENT]["metadata"]["uid"], "controller": True}
    metadata = {
        "name": f"simulated-engine-{template}",
        "namespace": "team-ml",
        "labels": {**LABELS, "pod-template-hash": template},
        "annotations": {"deployment.kubernetes.io/revision": str(revision)},
        "ownerReferences": [owner],
    }
    return {"kind": "ReplicaSet", "metadata": metadata}


async def surging(cluster: FakeCluster) -> Operator:
    """Two old engines serve, a new one starts; the operator has seen it."""
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    for item in become_ready(cluster):
        await operator.sees(item)
    engines = cluster.objects[DEPLOYMENT]
    status = {**engines["status"], "replicas": 3, "updatedReplicas": 1}
    for number, template in enumerate(("old", "new"), start=1):
        cluster.put(replica_set(cluster, template, number))
    cluster.put(pod(state={"running": {}}))
    await operator.sees(cluster.put({**engines, "status": status}))
    return operator


async def test_the_pass_of_the_first_crash_reports_it_and_later_ones_write_nothing() -> None:
    cluster = cluster_with_the_sample()
    operator = await surging(cluster)
    assert condition(cluster, "Progressing")["reason"] == "RollingOut"
    crashed = cluster.put(pod(state=ENDED))
    assert operator.store.see("MODIFIED", "Pod", crashed) == {KEY}
    await operator.make_pass(KEY)
    words = "container engine of pod new exited and restarts (Error, exit code 1: no such file)."
    assert condition(cluster, "Progressing")["reason"] == "RolloutStuck"
    assert condition(cluster, "Degraded")["reason"] == "RolloutStuck"
    assert condition(cluster, "EnginesReady")["status"] == "True"
    for name in ("Progressing", "Degraded", "EnginesReady"):
        assert words in condition(cluster, name)["message"]
    cluster.writes.clear()
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}}
    for state in ({"running": {}}, ENDED, waits):  # each attempt, and the time in between
        again = cluster.put(pod(state=state, lastState=ENDED, ready=False))
        assert operator.store.see("MODIFIED", "Pod", again) == frozenset()
        await operator.make_pass(KEY)
    assert cluster.writes == []


async def test_it_is_taken_back_when_the_pod_is_well_again() -> None:
    cluster = cluster_with_the_sample()
    operator = await surging(cluster)
    await operator.sees(cluster.put(pod(state=ENDED)))
    assert condition(cluster, "Progressing")["reason"] == "RolloutStuck"
    well = cluster.put(pod(state={"running": {}}, lastState=ENDED, ready=True))
    assert operator.store.see("MODIFIED", "Pod", well) == {KEY}
    await operator.make_pass(KEY)
    assert condition(cluster, "Progressing")["reason"] == "RollingOut"
    assert condition(cluster, "Degraded")["reason"] == "Healthy"


async def test_it_stays_while_a_scale_up_adds_pods_of_the_old_revision() -> None:
    cluster = cluster_with_the_sample()
    operator = await surging(cluster)
    await operator.sees(cluster.put(pod(state=ENDED)))
    assert condition(cluster, "Progressing")["reason"] == "RolloutStuck"
    await operator.edit(SERVICE, "simulated", engine={"runtime": "Simulator", "replicas": 4})
    made_later = {"creationTimestamp": "2026-01-31T12:00:00Z"}
    for name in ("old-3", "old-4"):
        added = pod(name, template="old", state={"running": {}})
        cluster.put({**added, "metadata": {**added["metadata"], **made_later}})
    engines = cluster.objects[DEPLOYMENT]
    generation = engines["metadata"]["generation"]
    status = {**engines["status"], "replicas": 5, "observedGeneration": generation}
    await operator.sees(cluster.put({**engines, "status": status}))
    assert condition(cluster, "Progressing")["reason"] == "RolloutStuck"
    assert condition(cluster, "Degraded")["reason"] == "RolloutStuck"
