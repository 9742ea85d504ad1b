"""From a held request to a Deployment of one: a real router, asked by a real operator on a cluster in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest
from evenkeel_contract.routerconfig import AtZero, RouterConfig
from evenkeel_operator.cluster.routers import reached
from evenkeel_operator.cluster.store import SERVICE
from evenkeel_router.app import running
from evenkeel_simulator.server.app import running_server

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import KEY, Operator, become_ready, cluster_with_the_sample, told
from tests.support.routers import PATIENCE_S, QUICK, replica_of, simulated, tenancy, until

BODY = {"model": "llama-3.1-8b", "prompt": "Ahoy", "max_tokens": 4, "ignore_eos": True}


def cluster_at_zero() -> FakeCluster:
    """With one ready router, at this machine's address."""
    cluster = cluster_with_the_sample()
    spec = cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]
    del spec["engine"]["replicas"]
    prometheus = {"url": "http://127.0.0.1:1"}  # nobody answers there, and nobody has to
    spec["autoscaling"] = {"minReplicas": 0, "maxReplicas": 2, "prometheus": prometheus}
    labels = {"evenkeel.dev/service": "simulated", "evenkeel.dev/component": "router"}
    cluster.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "router", "namespace": "team-ml", "labels": labels},
            "status": {
                "podIP": "127.0.0.1",
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )
    return cluster


def as_told(cluster: FakeCluster) -> RouterConfig:
    """What the operator tells routers, but for where replicas and ports are."""
    config = told(cluster)
    listen = replace(config.listen, host="127.0.0.1", traffic_port=0, probe_port=0, admin_port=0)
    return replace(config, cluster=None, listen=listen, tenancy=tenancy())


@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_request_of_a_service_at_zero_starts_its_replica(
    stream: bool,
) -> None:
    cluster = cluster_at_zero()
    await Operator(cluster).make_pass(KEY)  # an earlier life, which made the routers' configuration
    assert told(cluster).at_zero is AtZero.ACTIVATE
    async with (
        running(as_told(cluster), timing=QUICK) as router,
        reached(port=router.admin_port) as routers,
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client,
    ):
        operator = Operator(cluster, routers=routers)
        for item in become_ready(cluster):
            await operator.sees(item)
        await until(lambda: router.rooms.replicas.activation.asked == 1, "the operator to ask")
        held = asyncio.create_task(client.post("/v1/completions", json=BODY | {"stream": stream}))
        await until(lambda: operator.woken == [KEY], "the news")
        await operator.make_pass(KEY)
        engines = cluster.objects["Deployment", "team-ml", "simulated-engine"]
        assert engines["spec"]["replicas"] == 1
        async with running_server(simulated(model="llama-3.1-8b")) as server:
            config = replace(router.rooms.settings.config, replicas=(replica_of(server),))
            router.services.only.discovery.update(config)
            answer = await held
            assert answer.status_code == 200, answer.text
            await until(lambda: operator.woken == [KEY, KEY], "it to be wanted no more")
            for item in become_ready(cluster):
                await operator.sees(item)
            assert not operator.activations.wanted(KEY)
        await operator.activations.pause()


async def test_a_wrong_token_learns_nothing() -> None:
    cluster = cluster_at_zero()
    await Operator(cluster).make_pass(KEY)
    async with (
        running(as_told(cluster), timing=QUICK) as router,
        reached(port=router.admin_port) as routers,
    ):
        assert await routers.activation("127.0.0.1", token="wrong", known=True) is None
