"""Two operators that serve one service with other settings: they write seldom, and both say why."""

from __future__ import annotations

from dataclasses import replace

from evenkeel_operator.cluster.contests import LAST_WAIT_S

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import (
    DEFAULTS,
    KEY,
    Operator,
    cluster_with_the_sample,
    condition,
)

ROUTERS = ("Deployment", "team-ml", "simulated-router")
OTHERS = replace(DEFAULTS, router_resources={"requests": {"cpu": "60m"}})


async def contend(operators: tuple[Operator, ...], cluster: FakeCluster, *, for_s: float) -> int:
    """Each operator sees what the other writes, every tenth of a second. Returns the writes of the routers' Deployment."""
    cluster.writes.clear()
    for _ in range(round(for_s / 0.1)):
        for operator in operators:
            operator.now_s += 0.1
            before = len(cluster.writes)
            operator.store.see("MODIFIED", "Deployment", cluster.objects[ROUTERS])
            await operator.make_pass(KEY)
            if len(cluster.writes) > before:
                break
    return sum(write == "apply Deployment simulated-router" for write in cluster.writes)


async def test_two_operators_write_seldom_and_name_each_other() -> None:
    cluster = cluster_with_the_sample()
    operators = (Operator(cluster), Operator(cluster, OTHERS))
    for operator in operators:
        await operator.make_pass(KEY)
    assert await contend(operators, cluster, for_s=20) <= 10
    assert condition(cluster, "Degraded")["reason"] == "SecondOperator"
    # The status is not written in turn either.
    assert len(cluster.writes) <= 20


async def test_once_the_other_operator_is_gone_the_service_is_as_this_one_wants() -> None:
    cluster = cluster_with_the_sample()
    operators = (Operator(cluster), Operator(cluster, OTHERS))
    for operator in operators:
        await operator.make_pass(KEY)
    await contend(operators, cluster, for_s=20)
    operators[0].now_s += LAST_WAIT_S
    await contend(operators[:1], cluster, for_s=1)
    container = cluster.objects[ROUTERS]["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["requests"]["cpu"] == "100m"
    operators[0].now_s += 2 * LAST_WAIT_S + 1
    await contend(operators[:1], cluster, for_s=1)
    assert condition(cluster, "Degraded")["status"] == "False"


async def test_an_old_file_that_a_person_applies_is_reverted_at_once() -> None:
    cluster = cluster_with_the_sample()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    item = cluster.objects[ROUTERS]
    annotations = {**item["metadata"]["annotations"], "evenkeel.dev/digest": "0123456789abcdef"}
    spec = {**item["spec"], "replicas": 7}
    changed = {**item, "metadata": {**item["metadata"], "annotations": annotations}, "spec": spec}
    await operator.sees(cluster.put(changed))
    assert cluster.objects[ROUTERS]["spec"]["replicas"] == item["spec"]["replicas"]
    assert condition(cluster, "Degraded")["status"] == "False"
