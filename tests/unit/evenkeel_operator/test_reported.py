"""Conditions that come and go with what routers report: PluginInactive, and Degraded for lost client keys and a store that fails."""

from __future__ import annotations

from typing import Any

from evenkeel_contract.adminstate import ReplicasState
from msgspec import structs

from tests.support.fake_cluster import FakeCluster
from tests.support.fake_routers import FakeRouters, answer, replica
from tests.support.operator_lives import (
    KEY,
    Operator,
    become_ready,
    cluster_with_the_sample,
    condition,
)

FITS = answer(replica("e1"), replica("e2"))
DOES_NOT = answer(replica("e1", inactive_reason="calc_priority moved"), replica("e2"))


async def passed(cluster: FakeCluster, *answers: ReplicasState | None) -> dict[str, Any]:
    """The condition after one pass of a new operator."""
    await Operator(cluster, routers=FakeRouters(*answers)).make_pass(KEY)
    return condition(cluster, "PluginInactive")


async def ready_cluster() -> FakeCluster:
    cluster = cluster_with_the_sample()
    await Operator(cluster).make_pass(KEY)
    become_ready(cluster)
    return cluster


async def test_an_engine_that_does_not_fit_shows_in_the_condition_and_in_an_event() -> None:
    cluster = await ready_cluster()
    found = await passed(cluster, FITS, DOES_NOT)
    assert (found["status"], found["reason"]) == ("True", "Mismatch")
    assert "calc_priority moved" in found["message"]
    found = await passed(cluster, FITS)
    assert (found["status"], found["reason"]) == ("False", "PolicyActive")
    assert {"Mismatch", "PolicyActive"} <= {event["reason"] for event in cluster.events}


async def test_routers_are_asked_again_while_a_condition_holds_so_that_it_clears() -> None:
    cluster = await ready_cluster()
    routers = FakeRouters(DOES_NOT)
    operator = Operator(cluster, routers=routers)
    again_s = await operator.make_pass(KEY)
    assert again_s is not None
    assert again_s <= 15
    routers.answers = [FITS]
    await operator.make_pass(KEY)
    assert condition(cluster, "PluginInactive")["status"] == "False"
    asked = routers.asked
    await operator.make_pass(KEY)
    assert routers.asked == asked


async def test_without_an_answer_the_condition_stays_as_it_was() -> None:
    cluster = await ready_cluster()
    await passed(cluster, DOES_NOT)
    found = await passed(cluster, None)
    assert found["status"] == "True"
    assert "calc_priority moved" in found["message"]


async def test_requests_without_client_keys_show_within_five_minutes() -> None:
    cluster = await ready_cluster()
    routers = FakeRouters(FITS)
    operator = Operator(cluster, routers=routers)
    assert await operator.make_pass(KEY) == 300
    routers.answers = [FITS, answer(replica("e1", unnamed_share=0.042), replica("e2"))]
    operator.now_s += 299
    assert await operator.make_pass(KEY) == 1
    assert condition(cluster, "Degraded")["status"] == "False"
    operator.now_s += 1
    assert await operator.make_pass(KEY) == 15
    found = condition(cluster, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "ClientKeysMissing")
    assert "gets 4% of its requests without a client key" in found["message"]
    routers.answers = [FITS]
    assert await operator.make_pass(KEY) == 300
    assert condition(cluster, "Degraded")["status"] == "False"
    assert {"ClientKeysMissing", "Healthy"} <= {event["reason"] for event in cluster.events}


async def test_a_failing_store_shows_and_routers_are_asked_each_minute() -> None:
    cluster = cluster_with_the_sample(router={"state": {"store": "File"}})
    await Operator(cluster).make_pass(KEY)
    become_ready(cluster)
    routers = FakeRouters(FITS)
    operator = Operator(cluster, routers=routers)
    assert await operator.make_pass(KEY) == 60
    assert condition(cluster, "Degraded")["status"] == "False"
    routers.answers = [structs.replace(FITS, store_error="/ledger cannot be written: disk full")]
    operator.now_s += 60
    assert await operator.make_pass(KEY) == 15
    found = condition(cluster, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "StoreFails")
    assert "disk full" in found["message"]
    routers.answers = [None]
    await operator.make_pass(KEY)
    assert condition(cluster, "Degraded")["reason"] == "StoreFails", "no answer says nothing new"
    routers.answers = [FITS]
    await operator.make_pass(KEY)
    assert condition(cluster, "Degraded")["status"] == "False"
    assert {"StoreFails", "Healthy"} <= {event["reason"] for event in cluster.events}


async def test_what_was_reported_of_engines_ends_with_their_deployment() -> None:
    cluster = await ready_cluster()
    routers = FakeRouters(DOES_NOT)
    operator = Operator(cluster, routers=routers)
    await operator.make_pass(KEY)
    assert condition(cluster, "PluginInactive")["status"] == "True"
    await operator.sees(
        cluster.objects.pop(("Deployment", "team-ml", "simulated-engine")), "DELETED"
    )
    routers.answers = [None]
    await operator.make_pass(KEY)
    assert condition(cluster, "PluginInactive")["status"] == "False"
