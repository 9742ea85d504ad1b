"""A service at zero, on a cluster in memory: routers say that it is wanted, and it gets its first engine."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenkeel_contract.routerconfig import AtZero
from evenkeel_kube.client import Unreachable
from evenkeel_operator import autoscaler
from evenkeel_operator.cluster.store import SERVICE
from evenkeel_operator.core.objects import Object

from tests.support.fake_cluster import FakeCluster
from tests.support.fake_routers import FakeRouters
from tests.support.operator_lives import (
    KEY,
    Operator,
    become_ready,
    cluster_with_the_sample,
    condition,
    told,
)
from tests.support.routers import until
from tests.support.virtual_time import run_virtually

ONE, TWO = "10.0.0.1", "10.0.0.2"
ENGINES = ("Deployment", "team-ml", "simulated-engine")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAUSE_S", "FIRST_RETRY_S", "LAST_RETRY_S"):
        monkeypatch.setattr(autoscaler, name, 0.001)


def at_zero() -> FakeCluster:
    """A cluster with a service that may be without engines."""
    cluster = cluster_with_the_sample()
    plain = cluster.objects[SERVICE, "team-ml", "simulated"]
    del plain["spec"]["engine"]["replicas"]
    prometheus = {"url": "http://prometheus:9090"}
    plain["spec"]["autoscaling"] = {"minReplicas": 0, "maxReplicas": 4, "prometheus": prometheus}
    return cluster


def put_router(cluster: FakeCluster, address: str) -> Object:
    labels = {"evenkeel.dev/service": "simulated", "evenkeel.dev/component": "router"}
    status = {"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": f"router-{address}", "namespace": "team-ml", "labels": labels}
    return cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status})


async def passes(cluster: FakeCluster, operator: Operator) -> None:
    """What happens once somebody looks: a pass, what the cluster makes of it, and a pass."""
    await operator.make_pass(KEY)
    for item in become_ready(cluster):
        await operator.sees(item)


@asynccontextmanager
async def resting(
    routers: FakeRouters, *addresses: str
) -> AsyncIterator[tuple[FakeCluster, Operator]]:
    """A service at zero whose routers are ready and asked."""
    cluster = at_zero()
    for address in addresses:
        put_router(cluster, address)
    operator = Operator(cluster, routers=routers)
    await passes(cluster, operator)
    await until(lambda: all(routers.open[a] for a in addresses), "all routers to be asked")
    try:
        yield cluster, operator
    finally:
        await operator.activations.pause()


def wanted(cluster: FakeCluster) -> Any:
    return cluster.objects[ENGINES]["spec"]["replicas"]


async def test_without_engines_it_is_as_it_should_be_and_writes_nothing() -> None:
    async with resting(FakeRouters(), ONE) as (cluster, operator):
        assert wanted(cluster) == 0
        assert (condition(cluster, "Ready")["status"], condition(cluster, "Ready")["reason"]) == (
            "True",
            "Idle",
        )
        assert condition(cluster, "Degraded")["status"] == "False"
        assert condition(cluster, "Progressing")["reason"] == "Stable"
        assert told(cluster).at_zero is AtZero.ACTIVATE
        cluster.writes.clear()
        await operator.make_pass(KEY)
        assert cluster.writes == []
        assert operator.woken == []


async def test_a_router_that_wants_one_gets_one_and_is_asked_until_it_is_ready() -> None:
    routers = FakeRouters()
    async with resting(routers, ONE, TWO) as (cluster, operator):
        routers.say(TWO, True)
        await until(lambda: operator.woken == [KEY], "the news")
        await operator.make_pass(KEY)
        assert wanted(cluster) == 1
        assert condition(cluster, "Ready")["reason"] == "Activating"
        assert not [one for one in cluster.events if one["type"] == "Warning"]
        assert operator.activations.wanted(KEY)
        assert routers.open[ONE]
        await passes(cluster, operator)
        assert condition(cluster, "Ready")["reason"] == "Serving"
        assert wanted(cluster) == 1
        assert not operator.activations.wanted(KEY)
        await until(lambda: not routers.open.total(), "no router to be asked")
    token = cluster.objects["Secret", "team-ml", "simulated-credentials"]["data"]["admin-token"]
    assert token
    assert len(routers.tokens) == 1


async def test_who_gives_up_is_wanted_no_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="evenkeel_operator.autoscaler")
    routers = FakeRouters()
    async with resting(routers, ONE, TWO) as (_, operator):
        routers.say(ONE, True)
        routers.say(TWO, True)
        await until(lambda: operator.woken == [KEY], "the news")
        routers.say(ONE, False)
        await until(lambda: operator.woken == [KEY], "no news: the other one wants it still")
        routers.say(TWO, False)
        await until(lambda: operator.woken == [KEY, KEY], "the end of it")
        assert not operator.activations.wanted(KEY)
    service = "FairInferenceService team-ml/simulated"
    said = [f"{service}: a request waits for the first replica", f"{service}: no request waits"]
    assert caplog.messages == said


async def test_the_next_life_hears_of_it_again() -> None:
    routers = FakeRouters()
    routers.wanted[ONE] = True
    cluster = at_zero()
    put_router(cluster, ONE)
    for _ in range(2):
        operator = Operator(cluster, routers=routers)
        await passes(cluster, operator)
        await until(lambda: operator.woken == [KEY], "the news")  # noqa: B023
        await operator.activations.pause()
    await operator.make_pass(KEY)
    assert wanted(cluster) == 1


async def test_routers_that_come_are_asked_and_those_that_go_want_nothing_any_more() -> None:
    routers = FakeRouters()
    async with resting(routers, ONE) as (cluster, operator):
        routers.say(ONE, True)
        await until(lambda: operator.activations.wanted(KEY), "the news")
        del cluster.objects["Pod", "team-ml", f"router-{ONE}"]
        put_router(cluster, TWO)
        await operator.make_pass(KEY)  # as with any change of the routers' Deployment
        await until(lambda: bool(routers.open[TWO]), "the new one to be asked")
        assert not operator.activations.wanted(KEY)
        assert not routers.open[ONE]
        assert operator.woken == [KEY, KEY]


async def test_a_router_that_does_not_answer_is_asked_again() -> None:
    routers = FakeRouters()
    routers.wanted[ONE] = None
    async with resting(routers) as (cluster, operator):
        put_router(cluster, ONE)
        await operator.make_pass(KEY)
        asked = routers.asked_activation
        await until(lambda: routers.asked_activation > asked + 3, "it to be asked again")
        routers.say(ONE, True)
        await until(lambda: operator.woken == [KEY], "the news")
        routers.say(ONE, None)
        await until(lambda: operator.woken == [KEY, KEY], "nobody to say so any more")


async def test_routers_are_found_once_the_cluster_answers_again() -> None:
    routers = FakeRouters()
    async with resting(routers, ONE) as (cluster, operator):
        listed = cluster.list_all
        failures = 0

        async def fails(kind: str, namespace: str, *, selector: str = "") -> list[Object]:
            nonlocal failures
            if kind == "Pod" and failures < 3:
                failures += 1
                raise Unreachable("away")
            return await listed(kind, namespace, selector=selector)

        cluster.list_all = fails  # type: ignore[method-assign]
        put_router(cluster, TWO)
        operator.activations.follow(KEY, token=next(iter(routers.tokens)))
        await until(lambda: bool(routers.open[TWO]), "the new one to be asked")
        assert failures == 3


async def test_a_service_whose_polls_failed_is_polled_again_on_resume(
    caplog: pytest.LogCaptureFixture,
) -> None:
    routers = FakeRouters()
    async with resting(routers, ONE) as (cluster, operator):
        listed = cluster.list_all

        async def fails(kind: str, namespace: str, *, selector: str = "") -> list[Object]:
            raise RuntimeError("a fault of ours")

        cluster.list_all = fails  # type: ignore[method-assign]
        operator.activations.follow(KEY, token=next(iter(routers.tokens)))
        await until(lambda: "at zero failed" in caplog.text, "the fault in the log")
        assert not routers.open.total()
        cluster.list_all = listed  # type: ignore[method-assign]
        operator.activations.resume()
        await until(lambda: routers.open[ONE] == 1, "it to be asked again")
        operator.activations.resume()
        await asyncio.sleep(0.01)
        assert routers.open[ONE] == 1


async def test_no_router_is_polled_while_paused_or_for_running_or_deleted_services() -> None:
    routers = FakeRouters()
    async with resting(routers, ONE) as (cluster, operator):
        await operator.activations.pause()
        assert not routers.open.total()
        operator.activations.resume()
        await until(lambda: bool(routers.open[ONE]), "it to be asked again")
        del cluster.objects[SERVICE, "team-ml", "simulated"]
        operator.store.forget(KEY)
        await operator.make_pass(KEY)
        await until(lambda: not routers.open.total(), "nobody to be asked")
    cluster = cluster_with_the_sample()
    put_router(cluster, ONE)
    await passes(cluster, Operator(cluster, routers=routers))
    assert not routers.open.total()
    assert told(cluster).at_zero is AtZero.WAIT


async def test_another_admin_token_is_used_at_once() -> None:
    routers = FakeRouters()
    async with resting(routers, ONE) as (cluster, operator):
        item = cluster.objects[SERVICE, "team-ml", "simulated"]
        annotations = {"evenkeel.dev/rotate": "now"}
        changed = cluster.put(
            {**item, "metadata": {**item["metadata"], "annotations": annotations}}
        )
        await operator.sees(changed)
        await operator.make_pass(KEY)
        await until(lambda: len(routers.tokens) == 2, "the new token")
        await asyncio.sleep(0.01)
        assert routers.open[ONE] == 1


def test_the_pauses_of_a_silent_router_grow_and_begin_anew_after_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"FIRST_RETRY_S": 1.0, "LAST_RETRY_S": 5.0, "PAUSE_S": 0.5}.items():
        monkeypatch.setattr(autoscaler, name, value)
    answers = iter([None, None, None, None, True, None, None, False, False, False])
    times_s: list[float] = []

    async def scene() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        class Routers(FakeRouters):
            async def activation(
                self, address: str, *, token: str, known: bool, service: str = ""
            ) -> bool | None:
                times_s.append(loop.time())
                if (found := next(answers, done)) is not done:
                    return found
                done.set()
                await asyncio.sleep(3600.0)
                return None

        cluster = at_zero()
        put_router(cluster, ONE)
        operator = Operator(cluster, routers=Routers())
        await operator.make_pass(KEY)
        operator.activations.follow(KEY, token="t")
        await done.wait()
        await operator.activations.pause()

    run_virtually(scene())
    assert [b - a for a, b in itertools.pairwise(times_s)] == [1, 2, 4, 5, 0, 1, 2, 0.5, 0.5, 0.5]
