"""An operator that lives in a test, on a cluster in memory: one life after another."""

from __future__ import annotations

import itertools
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from random import Random
from typing import Any

from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_contract.routerdocument import parse_router_config
from evenkeel_operator.autoscaler import Activations, Autoscaler
from evenkeel_operator.cluster.apply import Applier, Refusals
from evenkeel_operator.cluster.observe import Observer
from evenkeel_operator.cluster.prometheus import PrometheusClient
from evenkeel_operator.cluster.routers import Routers
from evenkeel_operator.cluster.store import SERVICE, Key, Store
from evenkeel_operator.core.objects import Object
from evenkeel_operator.core.records import ANY_URL, Defaults
from evenkeel_operator.gateway_pass import GatewayPass
from evenkeel_operator.reconcile import Dependencies, ServicePass
from evenkeel_operator.tenant_pass import TenantPass

from tests.support.build_contexts import document
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_downloads import FakeDownloads
from tests.support.fake_prometheus import FakePrometheus
from tests.support.fake_routers import FakeRouters

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
KEY = Key(SERVICE, "team-ml", "simulated")
DEFAULTS = Defaults(
    version="1.0.0",
    router_image="router:1",
    sglang_image="sglang:1",
    vllm_image="vllm:1",
    simulator_image="sim:1",
    download_image="operator:1",
    prometheus_urls=(ANY_URL,),
)


class Operator:
    """One life of an operator: its memory is empty at the start."""

    def __init__(
        self,
        cluster: FakeCluster,
        defaults: Defaults = DEFAULTS,
        *,
        routers: Routers | None = None,
        prometheus: PrometheusClient | None = None,
    ) -> None:
        self.store = Store()
        observer = self.observer = Observer(cluster, self.store, any_secret=defaults.any_secret)
        observer.apis = cluster.optional
        numbers = itertools.count(len(cluster.objects))
        self.now_s = 0.0
        refusals = Refusals(rng=Random(1), monotonic_s=lambda: self.now_s)
        routers = routers or FakeRouters()
        self.prometheus = FakePrometheus()
        self.downloads = FakeDownloads()
        self.woken: list[Key] = []
        """Services that somebody besides events wants a pass over."""
        self.to_look_at: list[Key] = []
        self.activations = Activations(observer, routers, on_news=self.woken.append)
        self.autoscaler = Autoscaler(
            prometheus or self.prometheus,
            observer,
            defaults,
            monotonic_s=lambda: self.now_s,
            wake=self.woken.append,
            look_at=self.to_look_at.append,
        )
        dependencies = Dependencies(
            client=cluster,
            store=self.store,
            observer=observer,
            applier=Applier(cluster, self.store, refusals),
            routers=routers,
            downloads=self.downloads,
            activations=self.activations,
            autoscaler=self.autoscaler,
            defaults=defaults,
            clock=lambda: NOW,
            monotonic_s=lambda: self.now_s,
            fresh=lambda: f"secret-{next(numbers)}",
        )
        self.make_pass = ServicePass(dependencies)
        self.make_tenant_pass = TenantPass(dependencies)
        self.make_gateway_pass = GatewayPass(dependencies)
        self._cluster = cluster

    async def sees(self, item: Object, event: str = "MODIFIED") -> None:
        """An event and the pass that it leads to."""
        self.store.see(event, str(item["kind"]), item)
        await self.make_pass(KEY)

    async def edit(self, kind: str, name: str, **spec: Any) -> None:
        """Somebody changes the spec of an object; the operator sees it."""
        item = self._cluster.objects[kind, "team-ml", name]
        generation = item["metadata"].get("generation", 1) + 1
        metadata = {**item["metadata"], "generation": generation}
        changed = {**item, "metadata": metadata, "spec": {**item["spec"], **spec}}
        await self.sees(self._cluster.put(changed))


def secret(name: str, *, labelled: bool = True, **entries: str) -> dict[str, Any]:
    labels = {"evenkeel.dev/use": "true"} if labelled else {}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "team-ml", "labels": labels},
        "data": {key: b64encode(text.encode()).decode() for key, text in entries.items()},
    }


def condition(cluster: FakeCluster, type_: str) -> dict[str, Any]:
    status = cluster.objects[SERVICE, "team-ml", "simulated"]["status"]
    return next(item for item in status["conditions"] if item["type"] == type_)


def told(cluster: FakeCluster) -> RouterConfig:
    data = cluster.objects["Secret", "team-ml", "simulated-router"]["data"]["router.json"]
    config, faults = parse_router_config(b64decode(data))
    assert config is not None, faults
    return config


def become_ready(cluster: FakeCluster) -> list[Object]:
    """What the Deployment controller and kubelets would do."""
    changed = []
    for (kind, _, _), item in list(cluster.objects.items()):
        if kind == "Deployment":
            count = item["spec"]["replicas"]
            fields = ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas")
            status = dict.fromkeys(fields, count)
            status["observedGeneration"] = item["metadata"]["generation"]
            changed.append(cluster.put({**item, "status": status}))
    return changed


def cluster_with_the_sample(**spec: Any) -> FakeCluster:
    """A cluster with the simulator's sample, parts of its spec exchanged, and no operator yet."""
    found = FakeCluster()
    plain = document("simulator.yaml")
    plain["spec"] |= spec
    plain["metadata"]["generation"] = 1
    found.put(plain)
    return found
