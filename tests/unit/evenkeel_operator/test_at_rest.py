"""What passes ask of the API server when nothing changes: nothing, or one list while pods do not start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from evenkeel_operator.core.objects import Object
from evenkeel_operator.reconcile import RESYNC_S, UNSETTLED_S

from tests.support.fake_cluster import FakeCluster
from tests.support.fake_routers import FakeRouters, answer, replica
from tests.support.operator_lives import (
    KEY,
    Operator,
    become_ready,
    cluster_with_the_sample,
    condition,
)

PODS = "Pod evenkeel.dev/service=simulated"
REPLICA_SETS = "ReplicaSet evenkeel.dev/service=simulated,evenkeel.dev/component="
FITS_NOWHERE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "none"}]}
NO_IMAGE = {
    "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ErrImagePull"}}}]
}


def pod(component: str, status: dict[str, Any]) -> dict[str, Any]:
    labels = {"evenkeel.dev/service": "simulated", "evenkeel.dev/component": component}
    metadata = {"name": f"simulated-{component}-1", "namespace": "team-ml", "labels": labels}
    return {"kind": "Pod", "metadata": metadata, "spec": {}, "status": status}


async def test_a_pass_over_a_service_at_rest_asks_for_nothing() -> None:
    cluster = cluster_with_the_sample()
    operator = Operator(cluster, routers=FakeRouters(answer(replica("e1"), replica("e2"))))
    await operator.make_pass(KEY)
    for item in become_ready(cluster):
        await operator.sees(item)
    assert condition(cluster, "Ready")["status"] == "True"
    assert await asked(operator, cluster) == []


@pytest.mark.parametrize(
    ("status", "lists", "reason"),
    [
        (FITS_NOWHERE, [PODS], "Unschedulable"),
        (
            NO_IMAGE,
            [PODS, f"{REPLICA_SETS}engine", f"{REPLICA_SETS}router"],
            "ImageCannotBePulled",
        ),
    ],
    ids=["fit nowhere", "lack their image"],
)
async def test_a_pass_lists_pods_that_do_not_start_once(
    status: dict[str, Any], lists: list[str], reason: str
) -> None:
    cluster = cluster_with_the_sample()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    for component in ("engine", "router"):
        cluster.put(pod(component, status))
    await operator.make_pass(KEY)
    assert condition(cluster, "EnginesReady")["reason"] == reason
    assert await asked(operator, cluster) == lists


async def test_the_next_rollout_is_looked_at_as_soon_as_the_first_one() -> None:
    cluster = cluster_with_the_sample()
    operator = Operator(cluster)
    assert await operator.make_pass(KEY) == UNSETTLED_S
    operator.now_s += 600  # a long rollout
    assert await operator.make_pass(KEY) == 600
    for item in become_ready(cluster):
        await operator.sees(item)
    assert await operator.make_pass(KEY) == RESYNC_S
    deployment = cluster.objects["Deployment", "team-ml", "simulated-engine"]
    status = {**deployment["status"], "updatedReplicas": 0}
    await operator.sees(cluster.put({**deployment, "status": status}))
    assert await operator.make_pass(KEY) == UNSETTLED_S


async def asked(operator: Operator, cluster: FakeCluster) -> list[str]:
    """By one more pass, which writes nothing."""
    cluster.reads.clear()
    cluster.writes.clear()
    await operator.make_pass(KEY)
    assert cluster.writes == []
    return cluster.reads


class Slow(FakeCluster):
    """Others run between the pages of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.pages_of: dict[str, list[int]] = {}
        """Kind → the lengths of the pages of its lists."""

    async def pages(
        self, kind: str, namespace: str, *, selector: str = "", fields: str = "", limit: int = 500
    ) -> AsyncIterator[list[Object]]:
        lists = super().pages(kind, namespace, selector=selector, fields=fields, limit=limit)
        async for page in lists:
            self.pages_of.setdefault(kind, []).append(len(page))
            await asyncio.sleep(0)
            yield page


async def test_passes_that_begin_together_list_a_kind_once_in_pages() -> None:
    cluster = Slow()
    for number in range(250):
        metadata = {"name": f"t{number}", "namespace": "team-ml"}
        head = {"apiVersion": "evenkeel.dev/v1alpha1", "kind": "InferenceTenant"}
        cluster.put({**head, "metadata": metadata, "spec": {}})
    observer = Operator(cluster).observer
    found = await asyncio.gather(*(observer.roster("team-ml") for _ in range(5)))
    assert [len(roster.tenants) for roster in found] == [250] * 5
    assert cluster.pages_of["InferenceTenant"] == [100, 100, 50]
