"""The pass over a gateway: routers that know several services, and services that need none of their own."""

from __future__ import annotations

from base64 import b64decode
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from evenkeel_contract.routerconfig import RouterConfig, ShareAcross
from evenkeel_contract.routerdocument import parse_router_config
from evenkeel_operator.cluster.store import GATEWAY, SERVICE, Key
from evenkeel_operator.core.objects import Object
from evenkeel_operator.core.records import Defaults, Monitoring

from tests.support.build_contexts import document
from tests.support.fake_routers import FakeRouters
from tests.support.operator_lives import (
    DEFAULTS,
    Operator,
    become_ready,
    cluster_with_the_sample,
    secret,
    told,
)

NAMESPACE = "team-ml"
MODELS = Key(GATEWAY, NAMESPACE, "models")
BIG, SMALL = Key(SERVICE, NAMESPACE, "simulated"), Key(SERVICE, NAMESPACE, "small")


def gateway(name: str = "models", **spec: Any) -> dict[str, Any]:
    models = [
        {"name": "smart", "serviceRef": {"name": BIG.name}},
        {"serviceRef": {"name": SMALL.name}},
    ]
    return {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": GATEWAY,
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "generation": 1,
            "creationTimestamp": f"2026-01-0{len(name) % 9 + 1}T00:00:00Z",
        },
        "spec": {"models": models} | spec,
    }


def small_service() -> dict[str, Any]:
    plain = deepcopy(document("simulator.yaml"))
    plain["metadata"] = {**plain["metadata"], "name": SMALL.name, "generation": 1}
    plain["spec"]["model"] = {"source": "hf://org/small", "servedName": "small-8b"}
    plain["spec"].pop("exposure", None)
    return plain


class World:
    """A cluster, an operator, and passes over everything until nothing is written."""

    def __init__(
        self, defaults: Defaults = DEFAULTS, *, apis: frozenset[str] = frozenset()
    ) -> None:
        self.cluster = cluster_with_the_sample()
        self.cluster.optional = apis
        self.cluster.put(small_service())
        self.routers = FakeRouters()
        self.operator = Operator(self.cluster, defaults, routers=self.routers)

    def see_all(self) -> set[Key]:
        """Events of all objects; the resources that need a pass."""
        found: set[Key] = set()
        for (kind, _, _), item in list(self.cluster.objects.items()):
            if kind not in ("Event", "Pod"):
                found |= self.operator.store.see("MODIFIED", kind, item)
        return found

    async def passes(self) -> None:
        """All resources, until nothing is written; and nothing afterwards."""
        for _ in range(8):
            self.cluster.writes.clear()
            self.see_all()
            for kind, namespace, name in [*self.cluster.objects]:
                key = Key(kind, namespace, name)
                if kind == SERVICE:
                    await self.operator.make_pass(key)
                elif kind == GATEWAY:
                    await self.operator.make_gateway_pass(key)
            if not self.cluster.writes:
                return
        raise AssertionError(f"still writing: {self.cluster.writes}")

    async def settle(self) -> None:
        """As a cluster and an operator that run for a while."""
        await self.passes()
        become_ready(self.cluster)
        await self.passes()
        become_ready(self.cluster)
        await self.passes()

    def get(self, kind: str, name: str) -> Object | None:
        return self.cluster.objects.get((kind, NAMESPACE, name))

    def status(self, name: str = "models", kind: str = GATEWAY) -> dict[str, Any]:
        item = self.get(kind, name)
        assert item is not None
        status: dict[str, Any] = item["status"]
        return status

    def condition(self, type_: str, name: str = "models", kind: str = GATEWAY) -> dict[str, Any]:
        found = self.status(name, kind)["conditions"]
        return next(one for one in found if one["type"] == type_)

    def config(self, name: str = "models") -> RouterConfig:
        secret = self.get("Secret", f"{name}-gateway-router")
        assert secret is not None
        config, faults = parse_router_config(b64decode(secret["data"]["router.json"]))
        assert config is not None, faults
        return config


def kstatus(world: World, name: str = "models") -> tuple[str, str]:
    """Reconciling and Stalled of a gateway."""
    reconciling, stalled = (world.condition(one, name) for one in ("Reconciling", "Stalled"))
    return reconciling["status"], stalled["status"]


def crash_routers(world: World) -> None:
    """A rollout whose first new router ends with an error."""
    routers = world.get("Deployment", "models-gateway-router")
    assert routers is not None
    owner = {"uid": routers["metadata"]["uid"], "controller": True}
    common = {
        "namespace": NAMESPACE,
        "labels": {
            "evenkeel.dev/service": "models-gateway",
            "evenkeel.dev/component": "router",
            "pod-template-hash": "new",
        },
    }
    world.cluster.put({"kind": "ReplicaSet", "metadata": {**common, "name": "new", "ownerReferences": [owner]}})  # fmt: skip
    ended = {"name": "router", "state": {"terminated": {"reason": "Error", "exitCode": 1}}}
    status = {"phase": "Running", "containerStatuses": [ended]}
    world.cluster.put({"kind": "Pod", "metadata": {**common, "name": "new"}, "spec": {}, "status": status})  # fmt: skip
    world.cluster.put({**routers, "status": {**routers["status"], "updatedReplicas": 1}})


@pytest.fixture
def world() -> World:
    return World()


async def test_routers_of_a_gateway_know_its_services(world: World) -> None:
    world.cluster.put(gateway())
    await world.settle()
    config = world.config()
    assert [(pool.service, pool.names) for pool in config.pools] == [
        (BIG.name, ("smart",)),
        (SMALL.name, ()),
    ]
    for pool in config.pools:
        assert pool.cluster is not None
        assert pool.cluster.engines == f"{pool.service}-engine"
        assert pool.cluster.peers == "models-gateway-router-peers"
        assert pool.cluster.api_keys
    deployment = world.get("Deployment", "models-gateway-router")
    assert deployment is not None
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["evenkeel.dev/service"] == "models-gateway"
    assert labels["evenkeel.dev/gateway"] == "models"
    assert deployment["metadata"]["ownerReferences"][0]["name"] == "models"
    status = world.status()
    assert status["models"] == [
        {"service": BIG.name, "name": "smart"},
        {"service": SMALL.name, "name": "small-8b"},
    ]
    assert status["url"] == "http://models-gateway-router.team-ml.svc"
    assert {one["type"]: one["status"] for one in status["conditions"]} == {
        "Ready": "True",
        "ModelsReady": "True",
        "RouterReady": "True",
        "Degraded": "False",
        "SpecValid": "True",
        "Reconciling": "False",
        "Stalled": "False",
    }


async def test_a_service_keeps_its_routers_until_a_router_of_the_gateway_is_ready(
    world: World,
) -> None:
    await world.settle()
    assert world.get("Deployment", "simulated-router") is not None
    world.cluster.put(gateway())
    await world.passes()
    assert world.get("Deployment", "simulated-router") is not None
    assert world.get("Ingress", "simulated-router") is not None
    become_ready(world.cluster)
    await world.passes()
    for kind in ("Deployment", "Service", "Ingress", "Role", "PodDisruptionBudget"):
        assert world.get(kind, "simulated-router") is None, kind
    assert world.get("Secret", "simulated-router") is not None
    assert world.get("Deployment", "simulated-engine") is not None
    assert world.condition("Ready", BIG.name, SERVICE)["status"] == "True"
    assert world.condition("RouterReady", BIG.name, SERVICE)["reason"] == "AllReady"
    assert world.status(BIG.name, SERVICE)["url"] == world.status()["url"]
    assert world.status(BIG.name, SERVICE)["hosts"] == []
    degraded = world.condition("Degraded", BIG.name, SERVICE)
    assert degraded["reason"] == "BehindGateway"
    assert "spec.exposure has no effect, since gateway models serves" in degraded["message"]


async def test_a_service_behind_a_gateway_has_no_other_cells(world: World) -> None:
    spec = world.cluster.objects[SERVICE, NAMESPACE, BIG.name]["spec"]
    spec["federation"] = {
        "cell": "paris",
        "tokenSecretRef": {"name": "cells", "key": "token"},
        "cells": [{"name": "oslo", "url": "https://oslo"}],
    }
    world.cluster.put(gateway())
    await world.settle()
    assert world.config().federation is None
    message = world.condition("Degraded", BIG.name, SERVICE)["message"]
    assert "spec.federation has no effect, since gateway models serves the service" in message


async def test_a_gateway_takes_over_the_host_of_its_service(world: World) -> None:
    await world.settle()
    world.cluster.put(gateway(exposure={"ingress": {"host": "llm.example.com"}}))
    await world.settle()
    assert world.get("Ingress", "simulated-router") is None
    ingress = world.get("Ingress", "models-gateway-router")
    assert ingress is not None
    (rule,) = ingress["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]["name"]
    assert (rule["host"], backend) == ("llm.example.com", "models-gateway-router")
    assert world.status()["url"] == "http://llm.example.com"


async def test_the_ingress_of_a_gateway_is_as_its_spec_says(world: World) -> None:
    ingress = {
        "host": "a.test",
        "additionalHosts": ["*.b.test"],
        "className": "nginx",
        "annotations": {"c": "d"},
        "tls": {"secretName": "certificate"},
    }
    world.cluster.put(gateway(exposure={"ingress": ingress}))
    await world.settle()
    found = world.get("Ingress", "models-gateway-router")
    assert found is not None
    assert [rule["host"] for rule in found["spec"]["rules"]] == ["a.test", "*.b.test"]
    assert found["spec"]["ingressClassName"] == "nginx"
    assert found["spec"]["tls"] == [{"hosts": ["a.test", "*.b.test"], "secretName": "certificate"}]
    assert found["metadata"]["annotations"]["c"] == "d"


async def test_the_route_of_a_gateway_is_as_its_spec_says() -> None:
    world = World(apis=frozenset({"HTTPRoute"}))
    route = {
        "parentRefs": [{"name": "public", "namespace": "gateways"}],
        "hostnames": ["a.test"],
        "annotations": {"c": "d"},
    }
    world.cluster.put(gateway(exposure={"httpRoute": route}))
    await world.settle()
    found = world.get("HTTPRoute", "models-gateway-router")
    assert found is not None
    (parent,) = found["spec"]["parentRefs"]
    assert (parent["name"], parent["namespace"]) == ("public", "gateways")
    assert found["spec"]["hostnames"] == ["a.test"]
    assert found["metadata"]["annotations"]["c"] == "d"


@pytest.mark.parametrize(
    "exposure",
    [
        {"ingress": {"host": "a.test"}},
        {"ingress": {"host": "b.test", "additionalHosts": ["a.test"]}},
        {"httpRoute": {"parentRefs": [{"name": "public"}], "hostnames": ["a.test"]}},
    ],
    ids=["host", "additional host", "host of a route"],
)
async def test_a_gateway_does_not_get_the_host_of_another_namespace(
    exposure: dict[str, Any],
) -> None:
    world = World(apis=frozenset({"HTTPRoute"}))
    other = small_service()
    other["metadata"] |= {"namespace": "team-other", "creationTimestamp": "2025-01-01T00:00:00Z"}
    other["spec"]["exposure"] = {"ingress": {"host": "a.test"}}
    world.cluster.put(other)
    world.cluster.put(gateway(exposure=exposure))
    await world.settle()
    assert world.condition("Degraded")["reason"] == "HostTaken"
    for kind in ("Ingress", "HTTPRoute"):
        assert world.get(kind, "models-gateway-router") is None


async def test_a_gateway_uses_tenants_that_their_owner_shares(world: World) -> None:
    tenant = deepcopy(document("tenant.yaml"))
    tenant["metadata"] = {"name": "ads", "namespace": "tenants"}
    tenant["spec"] = {"clients": [{"name": "c"}]}
    world.cluster.put(tenant)
    world.cluster.put(gateway(tenancy={"namespace": "tenants"}))
    await world.settle()
    assert world.config().tenancy.tenants == ()
    assert world.condition("Degraded")["reason"] == "TenantsNotShared"
    tenant["metadata"]["annotations"] = {"evenkeel.dev/share-tenant": NAMESPACE}
    world.cluster.put(tenant)
    await world.settle()
    assert [(one.namespace, one.name) for one in world.config().tenancy.tenants] == [
        ("tenants", "ads")
    ]


async def test_a_gateway_uses_only_labelled_secrets(world: World) -> None:
    contents = {"signing": {"a": "a" * 32}, "issuer": {"jwks": '{"keys": [{"kty": "RSA"}]}'}}
    for name, entries in contents.items():
        world.cluster.put(secret(name, labelled=False, **entries))
    issuer = {"issuer": "https://login.example.com", "audience": "llm", "tenantClaim": "team"}
    jwt = {**issuer, "secretRef": {"name": "issuer", "key": "jwks"}}
    world.cluster.put(
        gateway(tenancy={"signedKeys": {"secretRef": {"name": "signing"}}, "jwt": [jwt]})
    )
    await world.settle()
    assert (world.config().tenancy.signed_keys, world.config().tenancy.jwt) == (None, None)
    message = world.condition("Degraded")["message"]
    for path in ("spec.tenancy.signedKeys.secretRef", "spec.tenancy.jwt[0].secretRef"):
        assert path in message
    for name, entries in contents.items():
        world.cluster.put(secret(name, **entries))
    await world.settle()
    assert None not in (world.config().tenancy.signed_keys, world.config().tenancy.jwt)
    assert world.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_routers_of_a_gateway_listen_on_the_families_of_the_cluster(host: str) -> None:
    world = World(defaults=replace(DEFAULTS, router_host=host))
    world.cluster.put(gateway())
    await world.settle()
    assert world.config().listen.host == host


async def test_a_new_service_behind_a_gateway_never_has_routers(world: World) -> None:
    world.cluster.put(gateway(models=[{"serviceSelector": {}}]))
    await world.settle()
    late = small_service()
    late["metadata"]["name"] = "late"
    late["spec"]["model"]["servedName"] = "late-1b"
    world.cluster.put(late)
    await world.settle()
    assert [pool.service for pool in world.config().pools] == ["late", "simulated", "small"]
    assert world.get("Deployment", "late-router") is None


async def test_engines_let_in_the_routers_of_their_gateway(world: World) -> None:
    world.cluster.put(gateway())
    await world.settle()
    policy = world.get("NetworkPolicy", "simulated-engine")
    assert policy is not None
    peers = policy["spec"]["ingress"][0]["from"]
    selected = [peer["podSelector"]["matchLabels"]["evenkeel.dev/service"] for peer in peers]
    assert selected == ["simulated", "models-gateway"]


async def test_without_the_gateway_services_get_their_routers_back(world: World) -> None:
    world.cluster.put(gateway())
    await world.settle()
    item = world.get(GATEWAY, "models")
    assert item is not None
    await world.cluster.delete(item)
    world.operator.store.see("DELETED", GATEWAY, item)
    await world.settle()
    assert world.get("Deployment", "simulated-router") is not None
    assert world.get("Deployment", "small-router") is not None


async def test_questions_to_the_gateways_routers_name_the_service(world: World) -> None:
    world.cluster.put(gateway())
    await world.settle()
    world.routers.services.clear()
    world.routers.tokens.clear()
    item = world.get("Deployment", "simulated-engine")
    assert item is not None
    spec = {**item["spec"], "replicas": 5}
    world.cluster.put({**item, "spec": spec})
    await world.passes()
    secret = world.get("Secret", "models-gateway-credentials")
    assert secret is not None
    assert world.routers.services == {BIG.name, SMALL.name}
    assert world.routers.tokens == {b64decode(secret["data"]["admin-token"]).decode()}


async def test_a_service_that_does_not_exist_is_named_and_others_are_served(world: World) -> None:
    models = [{"serviceRef": {"name": SMALL.name}}, {"serviceRef": {"name": "nobody"}}]
    world.cluster.put(gateway(models=models))
    await world.settle()
    found = world.condition("ModelsReady")
    assert (found["status"], found["reason"]) == ("False", "ServiceMissing")
    assert "spec.models[1].serviceRef" in found["message"]
    assert [pool.service for pool in world.config().pools] == [SMALL.name]
    assert world.condition("Ready")["status"] == "True"
    assert kstatus(world) == ("True", "False")  # it may come


async def test_a_gateway_without_any_service_has_no_routers(world: World) -> None:
    world.cluster.put(gateway(models=[{"serviceRef": {"name": "nobody"}}]))
    await world.settle()
    assert world.condition("Ready")["reason"] == "NoModels"
    assert world.get("Deployment", "models-gateway-router") is None


async def test_of_two_gateways_the_older_has_the_service(world: World) -> None:
    world.cluster.put(gateway())
    await world.settle()
    other = gateway("another", models=[{"serviceRef": {"name": SMALL.name}}])
    other["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    world.cluster.put(other)
    await world.settle()
    found = world.condition("ModelsReady", "another")
    assert (found["reason"], found["message"]) == (
        "ServiceTaken",
        "Gateway models serves service small already.",
    )
    assert [pool.service for pool in world.config().pools] == [BIG.name, SMALL.name]
    assert kstatus(world, "another") == ("False", "True")


async def test_a_rollout_of_routers_is_reconciling_and_stalled_where_they_crash(
    world: World,
) -> None:
    world.cluster.put(gateway())
    await world.passes()
    assert kstatus(world) == ("True", "False")
    await world.settle()
    assert kstatus(world) == ("False", "False")
    crash_routers(world)
    await world.passes()
    assert kstatus(world) == ("False", "True")
    assert "rollout of routers is stuck" in world.condition("Stalled")["message"]


async def test_routers_of_a_gateway_drain_as_long_as_the_slowest_service(world: World) -> None:
    slow = small_service()
    slow["spec"]["engine"].pop("replicas", None)
    slow["spec"]["autoscaling"] = {
        "maxReplicas": 2,
        "drainTimeout": "900s",
        "prometheus": {"url": "http://prometheus:9090"},
    }
    world.cluster.put(slow)
    world.cluster.put(gateway())
    await world.settle()
    assert world.config().drain_timeout_s == 900


async def test_an_invalid_spec_leaves_the_routers_as_they_are(world: World) -> None:
    world.cluster.put(gateway())
    await world.settle()
    before = world.config()
    item = world.get(GATEWAY, "models")
    assert item is not None
    world.cluster.put({**item, "spec": {"models": [{"name": "x"}]}})
    await world.settle()
    assert world.condition("SpecValid")["status"] == "False"
    assert "spec.models[0].serviceRef" in world.condition("SpecValid")["message"]
    assert kstatus(world) == ("False", "True")
    assert world.config() == before
    assert len(world.status()["models"]) == 2
    assert world.get("Deployment", "simulated-router") is None


async def test_a_tenant_that_a_service_does_not_select_may_not_use_its_model(
    world: World,
) -> None:
    service = world.get(SERVICE, BIG.name)
    assert service is not None
    tenancy = {"selector": {"matchLabels": {"tier": "gold"}}}
    world.cluster.put({**service, "spec": {**service["spec"], "tenancy": tenancy}})
    for name, labels in (("ads", {"tier": "gold"}), ("research", {})):
        tenant = deepcopy(document("tenant.yaml"))
        tenant["metadata"] = {"name": name, "namespace": NAMESPACE, "labels": labels}
        tenant["spec"] = {"clients": [{"name": "c"}]}
        world.cluster.put(tenant)
    world.cluster.put(gateway())
    await world.settle()
    config = world.config()
    assert [tenant.name for tenant in config.tenancy.tenants] == ["ads", "research"]
    assert [pool.tenants for pool in config.pools] == [("ads",), None]


async def test_routers_whose_models_share_know_the_gpus_of_replicas(world: World) -> None:
    service = world.get(SERVICE, BIG.name)
    assert service is not None
    engine = {**service["spec"]["engine"], "gpu": {"count": 4}}
    world.cluster.put({**service, "spec": {**service["spec"], "engine": engine}})
    world.cluster.put(gateway())
    await world.settle()
    config = world.config()
    assert (config.share_across, [pool.gpus for pool in config.pools]) == (None, [None, None])
    world.cluster.put(gateway(shareAcross="Gateway"))
    await world.settle()
    config = world.config()
    assert config.share_across is ShareAcross.GATEWAY
    assert [pool.gpus for pool in config.pools] == [4, 1]
    world.cluster.put(gateway(shareAcross="Service"))
    await world.settle()
    message = world.condition("SpecValid")["message"]
    assert "spec.shareAcross: must be one of None, Gateway, not 'Service'" in message


async def test_events_lead_to_the_passes_that_they_concern(world: World) -> None:
    world.cluster.put(gateway())
    await world.settle()
    store = world.operator.store

    def seen(kind: str, name: str, **changes: Any) -> frozenset[Key]:
        item = world.get(kind, name)
        assert item is not None
        newer = world.cluster.put({**item, **changes})
        return store.see("MODIFIED", kind, newer)

    assert seen("Deployment", "models-gateway-router", status={}) == {MODELS, BIG, SMALL}
    assert seen("Secret", "simulated-router", data={}) == {BIG, MODELS}
    status = {**world.status(), "models": []}
    assert seen(GATEWAY, "models", status=status) == {MODELS, BIG, SMALL}


@pytest.mark.parametrize(
    ("runbooks", "want"),
    [
        ("https://wiki.example/evenkeel", "https://wiki.example/evenkeel"),
        (Monitoring().runbooks, None),
        ("wiki.example/evenkeel", None),
    ],
)
async def test_routers_know_runbooks_that_a_browser_can_open(
    runbooks: str, want: str | None
) -> None:
    world = World(replace(DEFAULTS, monitoring=Monitoring(runbooks=runbooks)))
    await world.settle()
    alone = told(world.cluster)
    world.cluster.put(gateway())
    await world.settle()
    assert (alone.runbooks, world.config().runbooks) == (want, want)
