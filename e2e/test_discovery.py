"""A router follows a real API server with the rights of its service account, and with no others."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from evenkeel_contract.names import DRAIN_ANNOTATION
from evenkeel_contract.routerconfig import ClusterConfig, RouterConfig
from evenkeel_contract.routerdocument import dump_router_config
from evenkeel_kube import watch as kubewatch
from evenkeel_kube.client import KubeClient, connected, in_pod
from evenkeel_router.app import Router, running
from evenkeel_router.cluster.endpoints import Pod
from evenkeel_router.cluster.secret_watch import SecretSource
from evenkeel_router.transport.background import background
from kubernetes.aio.client import Configuration

from e2e.kubectl import Kubectl
from tests.support.fakes import FakeProber, FakeReply, FakeUpstream
from tests.support.routers import QUICK, applying, config_for, routable, until

pytestmark = pytest.mark.core
NAMESPACE = "discovery-e2e"
CLUSTER = ClusterConfig(engines="llama-engine", peers="llama-router-peers")
CONFIG = config_for(namespace=NAMESPACE, service="llama", cluster=CLUSTER)
SECRET = "llama-router"


@pytest.fixture(scope="module")
def access(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    """What kubelet would give a router's pod: a token of its service account, as files."""
    kubectl("create", "namespace", NAMESPACE)
    try:
        kubectl("apply", "-f", "-", stdin=json.dumps(_rights()))
        folder = tmp_path_factory.mktemp("serviceaccount")
        (folder / "token").write_text(kubectl("-n", NAMESPACE, "create", "token", "router"))
        roots = kubectl.get("-n", NAMESPACE, "configmap", "kube-root-ca.crt")["data"]["ca.crt"]
        (folder / "ca.crt").write_text(roots)
        server = urlsplit(kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"))
        environment = {
            "KUBERNETES_SERVICE_HOST": server.hostname or "",
            "KUBERNETES_SERVICE_PORT": str(server.port or 443),
        }
        yield in_pod(environment, folder)
    finally:
        kubectl("delete", "namespace", NAMESPACE)


def _rights() -> dict[str, Any]:
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        },
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": [SECRET],
            "verbs": ["list", "watch"],
        },
    ]
    metadata = {"name": "router", "namespace": NAMESPACE}
    rbac = "rbac.authorization.k8s.io"
    return _list(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "router"},
            "subjects": [{"kind": "ServiceAccount", "name": "router", "namespace": NAMESPACE}],
        },
    )


def _list(*items: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


class Fleet:
    """Pods that run nowhere, with a status and endpoints as kubelet and controllers would write them."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl

    def add(self, name: str) -> None:
        labels = {"evenkeel.dev/service": "llama", "evenkeel.dev/component": "engine"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "schedulingGates": [{"name": "evenkeel.dev/never"}],
                "containers": [{"name": "engine", "image": "none"}],
            },
        }
        self("apply", "-f", "-", stdin=json.dumps(pod))

    def containers_ready(self, name: str, status: str) -> None:
        conditions = [{"type": "ContainersReady", "status": status}]
        patch = json.dumps({"status": {"conditions": conditions}})
        self("patch", "pod", name, "--subresource=status", "--type=strategic", "-p", patch)

    def endpoints(self, service: str, *names: str) -> None:
        """What the endpoints controller would make of these pods."""
        uids = {
            name: self._kubectl.get("-n", NAMESPACE, "pod", name)["metadata"]["uid"]
            for name in names
        }
        slice_ = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{service}-x",
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 30000}, {"name": "admin", "port": 8082}],
            "endpoints": [
                {
                    "addresses": [f"10.1.2.{number}"],
                    "conditions": {"ready": False},
                    "targetRef": {"kind": "Pod", "name": name, "uid": uids[name]},
                }
                for number, name in enumerate(names, 1)
            ],
        }
        self("apply", "-f", "-", stdin=json.dumps(slice_))

    def __call__(self, *arguments: str, stdin: str | None = None) -> None:
        self._kubectl("-n", NAMESPACE, *arguments, stdin=stdin)


@pytest.fixture
def fleet(kubectl: Kubectl, access: Configuration) -> Iterator[Fleet]:
    made = Fleet(kubectl)
    yield made
    made("delete", "pods,endpointslices", "--all", "--grace-period=0", "--force")


@asynccontextmanager
async def following(api: KubeClient) -> AsyncIterator[Router]:
    upstream = FakeUpstream(lambda *_: FakeReply([]))
    async with running(
        CONFIG, api=api, upstream=upstream, prober=FakeProber(), timing=QUICK
    ) as router:
        yield router


async def test_replicas_join_become_unschedulable_and_leave_as_in_the_cluster(
    access: Configuration, fleet: Fleet
) -> None:
    async with connected(access) as api, following(api) as router:
        await until(lambda: router.rooms.replicas.in_sync, "the first lists")
        fleet.add("engine-a")
        fleet.add("engine-b")
        fleet.endpoints("llama-engine", "engine-a", "engine-b")
        known = router.rooms.replicas.fleet.member
        await until(lambda: known("engine-b") is not None, "both replicas")
        assert not router.rooms.replicas.fleet.routable
        fleet.containers_ready("engine-a", "True")
        fleet.containers_ready("engine-b", "True")
        await routable(router, 2)
        fleet.containers_ready("engine-a", "False")
        await routable(router, 1)
        fleet("annotate", "pod", "engine-b", f"{DRAIN_ANNOTATION}=1")
        await routable(router, 0)
        drained = known("engine-b")
        assert drained is not None
        assert drained.unschedulable == "draining"
        fleet("annotate", "pod", "engine-b", f"{DRAIN_ANNOTATION}-")
        await routable(router, 1)
        fleet("delete", "pod", "engine-b", "--grace-period=0", "--force")
        await routable(router, 0)
        fleet.endpoints("llama-engine", "engine-a")
        await until(lambda: known("engine-b") is None, "it to be forgotten")


def widget(name: str) -> str:
    return json.dumps(
        {"apiVersion": "e2e.evenkeel.dev/v1", "kind": "Widget", "metadata": {"name": name}}
    )


@pytest.fixture
def widgets(kubectl: Kubectl, access: Configuration) -> Iterator[str]:
    """A kind that is younger than version 1 of the cluster's history; the path of its objects."""
    group = "e2e.evenkeel.dev"
    schema = {"openAPIV3Schema": {"type": "object"}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": "Widget", "plural": "widgets"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(definition))
    kubectl("wait", "--for=condition=Established", f"crd/widgets.{group}", "--timeout=60s")
    yield f"/apis/{group}/v1/namespaces/{NAMESPACE}/widgets"
    kubectl("delete", "crd", f"widgets.{group}")


async def test_a_version_that_the_server_no_longer_has_is_listed_anew(
    access: Configuration, proxy: str, fleet: Fleet, widgets: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger=kubewatch.__name__)
    as_admin = Configuration(
        host=proxy, ssl_ca_cert=access.ssl_ca_cert
    )  # routers may not see widgets
    async with connected(as_admin) as client:
        selection = kubewatch.Selection(Pod, widgets, {})
        watcher = kubewatch.Watcher(client, selection, lambda: None, rng=Random(1))
        watcher.cache.resource_version = "1"
        fleet("apply", "-f", "-", stdin=widget("one"))
        async with background(watcher.run()):
            await until(lambda: watcher.synced, "the list")
            assert "listing" in caplog.text
            assert "410: " in caplog.text
            assert list(watcher.cache.objects) == ["one"]
            fleet("apply", "-f", "-", stdin=widget("two"))
            await until(lambda: "two" in watcher.cache.objects, "the watch after it")


async def test_other_routers_are_found_through_their_headless_service(
    access: Configuration, fleet: Fleet
) -> None:
    async with connected(access) as api, following(api) as router:
        fleet.add("router-a")
        fleet.endpoints("llama-router-peers", "router-a")
        await until(
            lambda: [one.name for one in router.rooms.service_ledger.peers or ()] == ["router-a"],
            "the peer",
        )


async def test_a_configuration_changes_at_once_and_a_bad_one_changes_nothing(
    access: Configuration, fleet: Fleet
) -> None:
    def write(data: bytes) -> None:
        content = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET},
            "data": {"router.json": base64.b64encode(data).decode()},
        }
        fleet("apply", "-f", "-", stdin=json.dumps(content))

    applied: list[RouterConfig] = []
    faults: list[tuple[str, ...]] = []
    other = config_for(namespace=NAMESPACE, service="llama", cluster=CLUSTER, model="other")
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(connected(access))
        source = SecretSource(api, NAMESPACE, SECRET, rng=Random(1))
        await stack.enter_async_context(background(source.run()))
        write(dump_router_config(CONFIG))
        assert await source.first() == CONFIG
        await stack.enter_async_context(background(source.watch(applying(applied), faults.append)))
        write(b"{")
        await until(lambda: len(faults) == 1, "the fault")
        assert applied == []
        write(dump_router_config(other))
        await until(lambda: applied == [other], "the change")


async def test_a_router_may_do_nothing_else(access: Configuration, fleet: Fleet) -> None:
    """Every other thing that would harm, tried: other Secrets, writing, other namespaces."""
    tls = ssl.create_default_context(cafile=access.ssl_ca_cert)
    headers = {"Authorization": access.api_key["BearerToken"]}
    own, other = f"namespaces/{NAMESPACE}", "namespaces/default"
    forbidden = [
        ("GET", f"/api/v1/{own}/secrets"),
        ("GET", f"/api/v1/{own}/secrets/another"),
        ("GET", f"/api/v1/{own}/configmaps"),
        ("GET", f"/api/v1/{other}/pods"),
        ("GET", "/api/v1/pods"),
        ("GET", "/apis/evenkeel.dev/v1alpha1/fairinferenceservices"),
        ("DELETE", f"/api/v1/{own}/pods/engine-a"),
        ("DELETE", f"/api/v1/{own}/secrets/{SECRET}"),
        ("POST", f"/api/v1/{own}/pods"),
        ("POST", f"/api/v1/{own}/pods/engine-a/exec"),
    ]
    async with httpx.AsyncClient(base_url=access.host, verify=tls, headers=headers) as client:
        for method, path in forbidden:
            answer = await client.request(method, path, content="{}")
            assert answer.status_code == 403, (method, path, answer.text)
