"""A rollout whose new engines have no room: old engines that cannot serve leave, and none that serves."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_operator.core.room import cannot_serve, with_room
from evenkeel_operator.rotation import ROOM_S

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import KEY, Operator, become_ready, cluster_with_the_sample
from tests.unit.evenkeel_operator.test_crashing_rollout import DEPLOYMENT, pod, replica_set

NO_IMAGE = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
NO_ROOM = {"type": "PodScheduled", "status": "False", "message": "Insufficient nvidia.com/gpu"}
NOT_READY = [
    {"type": "ContainersReady", "status": "False"},
    {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"},
]
READY = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "True"}]


def on_a_node(name: str, *, template: str, conditions: Any, **container: Any) -> dict[str, Any]:
    found = pod(name, template=template, **container)
    found["spec"] = {"nodeName": "node-1"}
    found["status"]["conditions"] = conditions
    return found


def without_room(name: str = "new") -> dict[str, Any]:
    found = pod(name, template="new")
    found["status"] = {"phase": "Pending", "conditions": [NO_ROOM]}
    return found


async def blocked(cluster: FakeCluster, *old: dict[str, Any], **status: Any) -> Operator:
    """A rollout with these old engines, whose new one has no room; the operator has seen it."""
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    for item in become_ready(cluster):
        await operator.sees(item)
    for number, template in enumerate(("old", "new"), start=1):
        cluster.put(replica_set(cluster, template, number))
    for item in old:
        cluster.put(item)
    engines = cluster.objects[DEPLOYMENT]
    given = {**engines["status"], "replicas": 3, "updatedReplicas": 1, "readyReplicas": 0, **status}
    await operator.sees(cluster.put({**engines, "status": given}))
    return operator


def may_be_missing(cluster: FakeCluster) -> object:
    return cluster.objects[DEPLOYMENT]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"]


async def test_old_engines_that_cannot_start_make_room_for_corrected_ones() -> None:
    cluster = cluster_with_the_sample()
    cluster.put(without_room())
    old = [
        on_a_node(name, template="old", conditions=NOT_READY, state=NO_IMAGE)
        for name in ("old-1", "old-2")
    ]
    operator = await blocked(cluster, *old)
    assert may_be_missing(cluster) == 2
    for item in old:  # the Deployment has removed them
        del cluster.objects["Pod", "team-ml", item["metadata"]["name"]]
    await operator.make_pass(KEY)
    assert may_be_missing(cluster) == 0


async def test_a_quota_makes_room_in_the_same_way() -> None:
    cluster = cluster_with_the_sample()
    refused = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}
    old = on_a_node("old-1", template="old", conditions=NOT_READY, state=NO_IMAGE)
    await blocked(cluster, old, conditions=[refused])
    assert may_be_missing(cluster) == 1


async def test_engines_that_serve_stay_until_there_is_room() -> None:
    cluster = cluster_with_the_sample()
    cluster.put(without_room())
    old = on_a_node("old-1", template="old", conditions=READY, state={"running": {}}, ready=True)
    await blocked(cluster, old, readyReplicas=2)
    assert may_be_missing(cluster) == 0


async def test_an_old_engine_that_restarts_is_looked_at_again_soon() -> None:
    cluster = cluster_with_the_sample()
    cluster.put(without_room())
    restarts = {"state": {"running": {}}, "restartCount": 1}
    old = on_a_node("old-1", template="old", conditions=NOT_READY, **restarts)
    operator = await blocked(cluster, old)
    assert may_be_missing(cluster) == 0
    # No event says that it waits after its next crash.
    after_s = await operator.make_pass(KEY)
    assert after_s is not None
    assert after_s <= ROOM_S


async def test_while_new_engines_have_room_the_deployment_alone_decides() -> None:
    cluster = cluster_with_the_sample()
    cluster.put(on_a_node("new", template="new", conditions=NOT_READY, state={"running": {}}))
    old = on_a_node("old-1", template="old", conditions=NOT_READY, state=NO_IMAGE)
    await blocked(cluster, old)
    assert may_be_missing(cluster) == 0


@pytest.mark.parametrize(
    ("container", "conditions", "expected"),
    [
        ({"state": {"running": {}}, "restartCount": 0}, NOT_READY, True),
        ({"state": {"running": {}}, "restartCount": 0}, READY, False),
        ({"state": {"running": {}}, "restartCount": 1}, NOT_READY, False),
        ({"state": NO_IMAGE, "restartCount": 1}, NOT_READY, True),
        ({"state": NO_IMAGE}, [], False),
        (
            {"state": {"running": {"startedAt": "2025-12-31T00:00:00Z"}}, "restartCount": 0},
            NOT_READY,
            False,
        ),
    ],
    ids=["loads", "serves", "restarts once", "cannot start", "new to its node", "was ready"],
)
def test_an_old_engine_counts_only_if_it_cannot_serve(
    container: dict[str, Any], conditions: Any, expected: bool
) -> None:
    found = on_a_node("old", template="old", conditions=conditions, **container)
    assert cannot_serve(found) is expected
    assert not cannot_serve({**found, "spec": {}})


@pytest.mark.parametrize(
    ("allowed", "missing", "expected"), [(0, 2, 2), (3, 2, 3), ("50%", 2, "50%"), ("49%", 2, 2)]
)
def test_a_larger_number_of_the_spec_stays(allowed: object, missing: int, expected: object) -> None:
    update = {"maxSurge": 1, "maxUnavailable": allowed}
    manifest = {"spec": {"replicas": 4, "strategy": {"rollingUpdate": update}}}
    found = with_room(manifest, missing)["spec"]["strategy"]["rollingUpdate"]
    assert found == {"maxSurge": 1, "maxUnavailable": expected}
