"""Discovery and configuration through the Kubernetes API, over real sockets, and the API at its worst."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from evenkeel_contract.names import DRAIN_ANNOTATION
from evenkeel_contract.routerconfig import ClusterConfig, RouterConfig
from evenkeel_contract.routerdocument import dump_router_config
from evenkeel_kube import watch as kubewatch
from evenkeel_kube.client import CredentialsError, in_pod, namespace_of_pod
from evenkeel_kube.watch import Selection, Watcher
from evenkeel_router.app import Router, running
from evenkeel_router.cluster.endpoints import Pod
from evenkeel_router.cluster.secret_watch import SecretSource
from evenkeel_router.fleet.probe import ProbeVerdict
from evenkeel_router.services import background
from evenkeel_router.telemetry.metrics import metrics

from tests.support.fakes import FakeProber, FakeReply, FakeUpstream
from tests.support.kube_api import KubeApi, kube_api, pod, slice_of
from tests.support.routers import QUICK, applying, config_for, routable, until

PODS = Selection(Pod, "/api/v1/namespaces/ns/pods", {"labelSelector": "a=b"})
CLUSTER = ClusterConfig(engines="engines", peers="peers", api_key="sk")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubewatch, "LONGEST_WAIT_S", 0.1)


@pytest.fixture
async def server() -> AsyncIterator[KubeApi]:
    async with kube_api() as one:
        yield one


@asynccontextmanager
async def watching(server: KubeApi) -> AsyncIterator[Watcher[Pod]]:
    watcher = Watcher(server.api, PODS, lambda: None, rng=Random(1))
    async with background(watcher.run()):
        await until(lambda: bool(server.pods.watches), "the watch")
        yield watcher


@asynccontextmanager
async def found(server: KubeApi, prober: FakeProber | None = None) -> AsyncIterator[Router]:
    """A router whose fleet is found through the server."""
    async with running(
        config_for(cluster=CLUSTER),
        api=server.api,
        upstream=FakeUpstream(lambda *_: FakeReply([])),
        prober=prober or FakeProber(),
        timing=QUICK,
    ) as router:
        yield router


async def test_external_engines_are_found_by_the_labels_of_their_owner(server: KubeApi) -> None:
    ports = [{"name": "http", "port": 8000}]
    server.slices.put(slice_of("engines", "a", ports=ports))
    server.pods.put(pod("a"))
    cluster = ClusterConfig(engines="engines", pod_labels={"app": "vllm", "tier": "gpu"})
    async with running(
        config_for(cluster=cluster),
        api=server.api,
        upstream=FakeUpstream(lambda *_: FakeReply([])),
        prober=FakeProber(),
        timing=QUICK,
    ) as router:
        await routable(router, 1)
        replica = router.rooms.replicas.configured["a"]
        assert (replica.url, replica.reports, replica.api_key) == (
            "http://10.0.0.1:8000",
            None,
            None,
        )
    assert server.pods.selectors == {"app=vllm,tier=gpu"}


async def test_events_reach_the_cache_and_a_watch_goes_on_where_it_stood(server: KubeApi) -> None:
    async with watching(server) as watcher:
        server.pods.put(pod("a"))
        await until(lambda: "a" in watcher.cache.objects, "the pod")
        server.pods.bookmark()
        await until(lambda: watcher.cache.resource_version == "3", "the bookmark")
        server.pods.hang_up()
        await until(lambda: len(server.pods.asked) == 2, "the next watch")
        assert server.pods.asked == ["1", "3"]
        assert server.pods.lists == 1


@pytest.mark.parametrize("code", [410, 500, 504])
async def test_after_an_error_everything_is_listed_again(server: KubeApi, code: int) -> None:
    server.pods.put(pod("gone"))
    async with watching(server) as watcher:
        assert "gone" in watcher.cache.objects
        del server.pods.objects["gone"]  # nobody tells: only a list can
        server.pods.objects["new"] = pod("new")
        server.pods.fail(code)
        await until(lambda: list(watcher.cache.objects) == ["new"], "the second list")
        assert server.pods.lists == 2


async def test_a_refusal_is_said_once_and_what_was_known_stays(
    server: KubeApi, caplog: pytest.LogCaptureFixture
) -> None:
    server.pods.put(pod("a"))
    async with watching(server) as watcher:
        server.pods.refuse = 403
        server.pods.hang_up()
        await until(lambda: "403: not you" in caplog.text, "the complaint")
        assert list(watcher.cache.objects) == ["a"]
        server.pods.refuse = 0
        server.pods.objects["b"] = pod("b")
        await until(lambda: "b" in watcher.cache.objects, "the next list")
    assert caplog.text.count("403: not you") == 1


async def test_a_router_is_ready_once_it_knows_all_replicas(server: KubeApi) -> None:
    server.slices.put(slice_of("engines", "a"))
    server.pods.refuse = 500
    async with found(server) as router, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{router.probe_port}/readyz"
        await until(lambda: server.slices.lists == 1, "the list of slices")
        answer = await client.get(url)
        assert (answer.status_code, "not discovered its replicas" in answer.text) == (503, True)
        server.pods.refuse = 0
        server.pods.objects["a"] = pod("a")
        await routable(router, 1)
        assert (await client.get(url)).status_code == 200


Change = Callable[[KubeApi], None]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: s.pods.put(pod("a", annotations={DRAIN_ANNOTATION: "1"})), "draining"),
        (lambda s: s.pods.put(pod("a", deletionTimestamp="2026-01-01T00:00:00Z")), "terminating"),
        (lambda s: s.pods.put(pod("a", ready=False)), "starting"),
    ],
)
async def test_an_unschedulable_replica_leaves_rotation_despite_its_good_probe(
    server: KubeApi, change: Change, why: str
) -> None:
    server.pods.put(pod("a"))
    server.slices.put(slice_of("engines", "a"))
    async with found(server) as router:
        await routable(router, 1)
        change(server)
        await routable(router, 0)
        member = router.rooms.replicas.fleet.member("a")
        assert member is not None
        assert (member.unschedulable, member.joined) == (why, True)  # its cache still counts
        assert _draining(router) == (why in ("draining", "terminating"))
        server.pods.put(pod("a"))
        await routable(router, 1)
        assert (member.unschedulable, member.lives) == ("", 1)
        assert not _draining(router)


def _draining(router: Router) -> bool:
    """What the metric says of replica `a`."""
    text = "".join(metrics(router.rooms))
    line = 'evenkeel_router_replica_draining{model_name="llama",replica="a"} '
    return text.partition(line)[2].splitlines()[0] == "1.0"


async def test_a_replica_that_is_deleted_is_forgotten_and_a_namesake_is_another(
    server: KubeApi,
) -> None:
    server.pods.put(pod("a"))
    server.slices.put(slice_of("engines", "a"))
    async with found(server) as router:
        await routable(router, 1)
        server.slices.put(slice_of("engines"))
        await until(lambda: router.rooms.replicas.fleet.member("a") is None, "it to be forgotten")
        server.slices.put(slice_of("engines", "a", host="10.0.0.2"))
        await routable(router, 1)
        assert router.rooms.replicas.configured["a"].url == "http://10.0.0.2:30000"


async def test_what_was_known_serves_on_while_the_api_is_away(server: KubeApi) -> None:
    prober = FakeProber()
    server.pods.put(pod("a"))
    server.slices.put(slice_of("engines", "a"))
    async with found(server, prober) as router:
        await routable(router, 1)
        server.pods.refuse = server.slices.refuse = 503
        server.pods.hang_up()
        server.slices.hang_up()
        await until(lambda: not server.pods.watches, "the watch to end")
        assert router.rooms.replicas.fleet.routable
        assert router.rooms.replicas.in_sync
        prober.verdicts["a"] = ProbeVerdict.GONE  # probes still tell
        await routable(router, 0)


async def test_peers_are_found_and_followed(server: KubeApi) -> None:
    server.slices.put(slice_of("peers", "r1"))
    async with found(server) as router:
        await until(
            lambda: [one.name for one in router.rooms.service_ledger.peers or ()] == ["r1"],
            "the peer",
        )
        server.slices.put(slice_of("peers", "r1", "r2"))
        await until(lambda: len(router.rooms.service_ledger.peers or ()) == 2, "the second peer")


async def test_a_changed_key_of_the_replicas_keeps_them(server: KubeApi) -> None:
    server.pods.put(pod("a"))
    server.slices.put(slice_of("engines", "a"))
    async with found(server) as router:
        await routable(router, 1)
        changed = config_for(cluster=replace(CLUSTER, api_key="another"))
        router.services.only.discovery.update(changed)
        await until(lambda: router.rooms.replicas.configured["a"].api_key == "another", "the key")
        member = router.rooms.replicas.fleet.member("a")
        assert member is not None
        assert member.lives == 1


async def test_another_cluster_is_refused_and_said(
    server: KubeApi, caplog: pytest.LogCaptureFixture
) -> None:
    async with found(server) as router:
        router.services.only.discovery.update(
            config_for(cluster=replace(CLUSTER, engines="others"))
        )
        assert "takes effect when the router restarts" in caplog.text


def secret(data: bytes | None) -> dict[str, Any]:
    entries = {} if data is None else {"router.json": base64.b64encode(data).decode()}
    return {"metadata": {"name": "conf"}, "data": entries}


async def test_a_configuration_in_a_secret_is_followed_and_the_last_good_one_kept(
    server: KubeApi, caplog: pytest.LogCaptureFixture
) -> None:
    good, other = config_for(), config_for(model="other")
    applied: list[RouterConfig] = []
    faults: list[tuple[str, ...]] = []
    source = SecretSource(server.api, "ns", "conf", rng=Random(1))
    async with AsyncExitStack() as stack:
        caplog.set_level(logging.INFO)
        await stack.enter_async_context(background(source.run()))
        first = asyncio.create_task(source.first())
        await until(lambda: "there is no Secret conf" in caplog.text, "the complaint")
        server.secrets.put(secret(None))
        await until(lambda: "has no entry router.json" in caplog.text, "the next complaint")
        server.secrets.put(secret(dump_router_config(good)))
        assert await first == good
        watching: Coroutine[Any, Any, None] = source.watch(applying(applied), faults.append)
        await stack.enter_async_context(background(watching))
        server.secrets.put(secret(b"{"))
        await until(lambda: len(faults) == 1 and "is not JSON" in faults[0][0], "the fault")
        server.secrets.delete("conf")
        await until(lambda: len(faults) == 2, "the missing Secret")
        server.secrets.put({"metadata": {"name": "conf"}, "data": {"router.json": "?"}})
        await until(lambda: len(faults) == 3 and "is not Base64" in faults[2][0], "the fault")
        server.secrets.put(secret(dump_router_config(other)))
        await until(lambda: applied == [other], "the new configuration")
        assert faults[3:] == [()]


async def test_a_secret_that_changes_in_its_labels_only_is_no_change(server: KubeApi) -> None:
    one = secret(dump_router_config(config_for()))
    server.secrets.put(one)
    source = SecretSource(server.api, "ns", "conf", rng=Random(1))
    applied: list[RouterConfig] = []
    async with background(source.run()):
        await source.first()
        async with background(source.watch(applying(applied), lambda _: None)):
            await until(lambda: bool(server.secrets.watches), "the watch")
            server.secrets.put({**one, "metadata": {"name": "conf", "labels": {"a": "b"}}})
            server.secrets.put(secret(dump_router_config(config_for(model="m2"))))
            await until(lambda: bool(applied), "the change")
            assert [config.model for config in applied] == ["m2"]


def test_without_a_pods_credentials_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="Service host/port is not set"):
        in_pod({}, tmp_path)
    address = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(CredentialsError, match="a pod that mounts its token"):
        in_pod(address, tmp_path)
    with pytest.raises(CredentialsError, match="namespace of this pod is unknown"):
        namespace_of_pod(tmp_path)
