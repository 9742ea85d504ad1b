"""The pass over a service, on a cluster in memory: what is made, put back, left alone, and survives being cut off."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from evenkeel_kube.client import ClusterError
from evenkeel_operator.cluster.store import SERVICE, TENANT, Key
from evenkeel_operator.core.objects import OPTIONAL_KINDS, Object
from evenkeel_operator.core.records import Defaults
from evenkeel_operator.reconcile import RESYNC_S

from tests.support.build_contexts import document
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import (
    DEFAULTS,
    KEY,
    Operator,
    become_ready,
    cluster_with_the_sample,
    condition,
    told,
)


@pytest.fixture
def cluster() -> FakeCluster:
    """A cluster with the simulator's sample."""
    return cluster_with_the_sample()


async def test_a_new_service_gets_all_its_objects_and_a_status(cluster: FakeCluster) -> None:
    await Operator(cluster).make_pass(KEY)
    kinds = {kind for kind, _, _ in cluster.objects}
    assert {"Deployment", "Service", "Role", "NetworkPolicy", "PodDisruptionBudget"} <= kinds
    assert condition(cluster, "SpecValid")["status"] == "True"
    assert condition(cluster, "Progressing")["status"] == "True"
    status = cluster.objects[SERVICE, "team-ml", "simulated"]["status"]
    assert status["image"] == "sim:1"
    assert status["url"] == "http://llm.example.com"


async def test_a_second_pass_and_a_second_life_write_nothing(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    for item in become_ready(cluster):
        await operator.sees(item)
    assert condition(cluster, "Ready")["status"] == "True"
    cluster.writes.clear()
    await operator.make_pass(KEY)
    await Operator(cluster).make_pass(KEY)
    assert cluster.writes == []


async def test_a_pass_cut_off_at_any_write_is_made_good_by_the_next_life(
    cluster: FakeCluster,
) -> None:
    whole = FakeCluster()
    whole.put(cluster.objects[SERVICE, "team-ml", "simulated"])
    await Operator(whole).make_pass(KEY)
    steps = len(whole.writes)
    assert steps > 15
    for step in range(1, steps + 1):
        broken = FakeCluster()
        broken.put(cluster.objects[SERVICE, "team-ml", "simulated"])
        broken.fails_after = step
        with pytest.raises(ClusterError):
            await Operator(broken).make_pass(KEY)
        credentials = broken.objects.get(("Secret", "team-ml", "simulated-credentials"))
        broken.fails_after = None
        await Operator(broken).make_pass(KEY)
        assert broken.objects.keys() == whole.objects.keys()
        if credentials is not None:  # no pod that runs is cut off
            after = broken.objects["Secret", "team-ml", "simulated-credentials"]
            assert after["data"] == credentials["data"]
        broken.writes.clear()
        await Operator(broken).make_pass(KEY)
        assert broken.writes == []


async def test_foreign_changes_are_reverted_and_reported(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    await operator.edit("Deployment", "simulated-engine", replicas=7)
    assert cluster.objects["Deployment", "team-ml", "simulated-engine"]["spec"]["replicas"] == 2
    assert [event["reason"] for event in cluster.events] == ["Reverted"]
    assert "spec.replicas: 7 is not 2" in cluster.events[0]["message"]


async def test_a_foreign_object_is_not_taken_over(cluster: FakeCluster) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "simulated-router", "namespace": "team-ml"},
        "spec": {"ports": [{"port": 5432}]},
    }
    cluster.put(theirs)
    await Operator(cluster).make_pass(KEY)
    spec = cluster.objects["Service", "team-ml", "simulated-router"]["spec"]
    assert spec == {"ports": [{"port": 5432}]}
    assert condition(cluster, "Degraded")["reason"] == "NameTaken"
    assert ("Deployment", "team-ml", "simulated-router") in cluster.objects


async def test_a_bad_spec_leaves_what_runs_and_keeps_it_running(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    before = cluster.objects["Deployment", "team-ml", "simulated-engine"]["spec"]
    bad = {"runtime": "Simulator", "replicas": -1, "args": ["speed"], "image": ""}
    await operator.edit(SERVICE, "simulated", engine=bad)
    assert cluster.objects["Deployment", "team-ml", "simulated-engine"]["spec"] == before
    verdict = condition(cluster, "SpecValid")
    assert verdict["status"] == "False"
    for path in ("spec.engine.replicas", "spec.engine.args[0]", "spec.engine.image"):
        assert path in verdict["message"]
    assert condition(cluster, "Degraded")["reason"] == "OldSpecRuns"
    # Also in another life, and although somebody tears it down meanwhile.
    del cluster.objects["Deployment", "team-ml", "simulated-engine"]
    await Operator(cluster).make_pass(KEY)
    assert cluster.objects["Deployment", "team-ml", "simulated-engine"]["spec"] == before


async def test_what_the_cluster_refuses_is_a_fault_of_the_spec_and_changes_nothing(
    cluster: FakeCluster,
) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    before = {where: item.get("spec") for where, item in cluster.objects.items()}
    cluster.refuses = lambda item: (
        "quantity is odd" if item["kind"] == "Deployment" and "engine" in str(item) else None
    )
    template = {"spec": {"resources": {"requests": {"cpu": "1.1.1"}}}}
    await operator.edit(SERVICE, "simulated", engine={"runtime": "Simulator", "template": template})
    verdict = condition(cluster, "SpecValid")
    assert "spec.engine: is refused by the cluster: quantity is odd" in verdict["message"]
    after = {where: item.get("spec") for where, item in cluster.objects.items()}
    assert {k: v for k, v in after.items() if k[0] != SERVICE} == {
        k: v for k, v in before.items() if k[0] != SERVICE
    }
    cluster.refuses = lambda _: None  # a policy was lifted: nobody tells
    await operator.make_pass(KEY)
    assert condition(cluster, "SpecValid")["status"] == "False"
    operator.now_s += RESYNC_S
    await operator.make_pass(KEY)
    assert condition(cluster, "SpecValid")["status"] == "True"


def _refuses_engines(item: Object) -> str | None:
    return "no" if item["kind"] == "Deployment" and "engine" in item["metadata"]["name"] else None


async def test_a_refused_spec_that_was_withdrawn_is_tried_out_anew(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    good = cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]["engine"]
    cluster.refuses = _refuses_engines
    await operator.edit(SERVICE, "simulated", engine=good | {"replicas": 5})
    assert condition(cluster, "SpecValid")["status"] == "False"
    await operator.edit(SERVICE, "simulated", engine=good)
    cluster.refuses = lambda _: None
    await operator.edit(SERVICE, "simulated", engine=good | {"replicas": 5})
    assert condition(cluster, "SpecValid")["status"] == "True"


async def test_a_new_service_of_the_same_name_is_tried_out_anew(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    good = cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]["engine"]
    cluster.refuses = _refuses_engines
    await operator.edit(SERVICE, "simulated", engine=good | {"replicas": 5})
    assert condition(cluster, "SpecValid")["status"] == "False"
    gone = cluster.objects.pop((SERVICE, "team-ml", "simulated"))
    await operator.sees(gone, "DELETED")
    cluster.refuses = lambda _: None
    del gone["status"]
    await operator.sees(cluster.put(gone), "ADDED")
    assert condition(cluster, "SpecValid")["status"] == "True"


async def test_a_service_whose_first_spec_is_bad_makes_nothing(cluster: FakeCluster) -> None:
    plain = document("simulator.yaml")
    plain["spec"]["engine"]["args"] = ["--tp=2"]
    cluster.put(plain)
    await Operator(cluster).make_pass(KEY)
    assert {kind for kind, _, _ in cluster.objects} == {SERVICE}
    assert condition(cluster, "Ready")["reason"] == "Invalid"


async def test_a_service_that_is_being_deleted_is_left_to_the_garbage_collector(
    cluster: FakeCluster,
) -> None:
    item = cluster.objects[SERVICE, "team-ml", "simulated"]
    item["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z"
    await Operator(cluster).make_pass(KEY)
    assert cluster.writes == []


async def test_nothing_is_applied_in_a_namespace_that_is_being_deleted(
    cluster: FakeCluster,
) -> None:
    def namespace(**metadata: str) -> Object:
        return {"kind": "Namespace", "metadata": {"name": "team-ml", **metadata}}

    cluster.put(_tenant())
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    operator.store.see("MODIFIED", "Namespace", namespace(deletionTimestamp="2026-01-31T12:00:00Z"))
    cluster.writes.clear()
    cluster.refuses = lambda _: "namespace team-ml is being terminated"
    gone = cluster.objects.pop(("Deployment", "team-ml", "simulated-router"))
    await operator.sees(gone, "DELETED")
    await operator.make_tenant_pass(Key(TENANT, "team-ml", "ads"))
    assert (cluster.writes, cluster.events) == ([], [])
    # The next namespace of that name is another one.
    cluster.refuses = lambda _: None
    operator.store.see("DELETED", "Namespace", namespace())
    await operator.make_pass(KEY)
    assert ("Deployment", "team-ml", "simulated-router") not in cluster.objects
    operator.store.see("ADDED", "Namespace", namespace(uid="new"))
    await operator.make_pass(KEY)
    assert ("Deployment", "team-ml", "simulated-router") in cluster.objects


async def test_a_host_belongs_to_one_namespace(cluster: FakeCluster) -> None:
    def service(namespace: str, created: str) -> dict[str, Any]:
        plain = document("simulator.yaml")
        plain["metadata"] |= {"namespace": namespace, "uid": namespace, "generation": 1,
                              "creationTimestamp": created}  # fmt: skip
        return plain

    ingress = ("Ingress", "team-ml", "simulated-router")
    theirs = cluster.put(service("team-a", "2026-01-01T00:00:00Z"))
    operator = Operator(cluster)
    operator.store.see("ADDED", SERVICE, theirs)
    ours = cluster.put(service("team-ml", "2026-01-02T00:00:00Z"))
    await operator.sees(ours)
    assert ingress not in cluster.objects
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "HostTaken")
    assert "host llm.example.com belongs to namespace team-a" in degraded["message"]
    url = cluster.objects[SERVICE, "team-ml", "simulated"]["status"]["url"]
    assert url == "http://simulated-router.team-ml.svc"
    # Another path is no way around it.
    exposure = {"ingress": {"host": "llm.example.com", "paths": ["/v2"]}}
    await operator.edit(SERVICE, "simulated", exposure=exposure)
    assert ingress not in cluster.objects
    assert KEY in operator.store.see("DELETED", SERVICE, theirs)
    await operator.make_pass(KEY)
    assert ingress in cluster.objects
    assert condition(cluster, "Degraded")["status"] == "False"
    # The namespace that has the host keeps it, also if an older service asks for it.
    assert KEY in operator.store.see("ADDED", SERVICE, theirs)
    await operator.make_pass(KEY)
    assert ingress in cluster.objects


async def test_what_is_wanted_no_more_is_deleted(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    assert ("Ingress", "team-ml", "simulated-router") in cluster.objects
    await operator.edit(SERVICE, "simulated", exposure={})
    assert ("Ingress", "team-ml", "simulated-router") not in cluster.objects


async def test_the_engine_image_is_pinned_until_an_upgrade_is_requested(
    cluster: FakeCluster,
) -> None:
    await Operator(cluster).make_pass(KEY)
    later = Defaults(
        version="2.0.0",
        router_image="router:2",
        sglang_image="sglang:2",
        vllm_image="vllm:2",
        simulator_image="sim:2",
        download_image="operator:2",
    )
    await Operator(cluster, later).make_pass(KEY)
    assert _image(cluster, "engine") == "sim:1"
    assert _image(cluster, "router") == "router:2"
    service = cluster.objects[SERVICE, "team-ml", "simulated"]
    assert service["status"]["image"] == "sim:1"
    assert service["status"]["availableImage"] == "sim:2"
    service["metadata"]["annotations"] = {"evenkeel.dev/upgrade": "2.0.0"}
    await Operator(cluster, later).make_pass(KEY)
    assert _image(cluster, "engine") == "sim:2"
    service = cluster.objects[SERVICE, "team-ml", "simulated"]
    assert "availableImage" not in service["status"]
    del service["metadata"]["annotations"]
    await Operator(cluster, DEFAULTS).make_pass(KEY)
    assert _image(cluster, "engine") == "sim:2"


def _image(cluster: FakeCluster, component: str) -> str:
    deployment = cluster.objects["Deployment", "team-ml", f"simulated-{component}"]
    image: str = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


async def test_engines_and_routers_agree_on_a_key_at_every_moment_of_its_exchange(
    cluster: FakeCluster,
) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    for item in become_ready(cluster):
        await operator.sees(item)
    secret = ("Secret", "team-ml", "simulated-credentials")
    old = set(cluster.objects[secret]["data"])
    service = cluster.objects[SERVICE, "team-ml", "simulated"]
    metadata = {**service["metadata"], "annotations": {"evenkeel.dev/rotate": "1"}}
    await operator.sees(cluster.put({**service, "metadata": metadata}))
    both = set(cluster.objects[secret]["data"])
    assert old < both  # the old key stays while engines start anew
    for item in become_ready(cluster):
        await operator.sees(item)
    new = set(cluster.objects[secret]["data"])
    assert len(new) == len(old)
    assert new != old
    cluster.writes.clear()
    await Operator(cluster).make_pass(KEY)
    assert cluster.writes == []


def _tenant(**spec: Any) -> dict[str, Any]:
    plain = document("tenant.yaml")
    plain["metadata"] |= {"generation": 1, "uid": "uid-of-ads"}
    plain["spec"] |= spec
    return plain


def _keys(**keys: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "ads-keys",
            "namespace": "team-ml",
            "labels": {"evenkeel.dev/use": "true"},
        },
        "data": {name: b64encode(key.encode()).decode() for name, key in keys.items()},
    }


async def test_keys_of_tenants_reach_routers_as_hashes_when_their_secret_changes(
    cluster: FakeCluster,
) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    tenant = cluster.put(_tenant())
    await operator.sees(tenant, "ADDED")
    assert told(cluster).tenancy.tenants[0].api_keys == ()
    await operator.sees(cluster.put(_keys(chat="k1\n", batch="k2")), "ADDED")
    first = {key.name: key.sha256 for key in told(cluster).tenancy.tenants[0].api_keys}
    assert set(first) == {"chat-1", "batch-1"}
    await operator.sees(cluster.put(_keys(chat="k1", batch="k3")))
    second = {key.name: key.sha256 for key in told(cluster).tenancy.tenants[0].api_keys}
    assert second["chat-1"] == first["chat-1"]  # a line break at the end is no part of a key
    assert second["batch-1"] != first["batch-1"]
    written = str([item for where, item in cluster.objects.items() if where[2] != "ads-keys"])
    assert "k3" not in written
    await operator.sees(cluster.objects["Secret", "team-ml", "ads-keys"], "DELETED")
    assert told(cluster).tenancy.tenants[0].api_keys == ()


async def test_a_tenant_says_what_routers_know_of_it(cluster: FakeCluster) -> None:
    cluster.put(_tenant())
    operator = Operator(cluster)
    key = Key(TENANT, "team-ml", "ads")

    async def said() -> tuple[str, str, str]:
        """Ready with its reason, and Stalled."""
        await operator.make_tenant_pass(key)
        conditions = cluster.objects[TENANT, "team-ml", "ads"]["status"]["conditions"]
        found = {one["type"]: one for one in conditions}
        return found["Ready"]["status"], found["Ready"]["reason"], found["Stalled"]["status"]

    assert await said() == ("False", "KeysMissing", "False")
    operator.store.see("ADDED", "Secret", cluster.put(_keys(chat="same", batch="same")))
    assert await said() == ("False", "KeysClash", "True")
    operator.store.see("MODIFIED", "Secret", cluster.put(_keys(chat="a", batch="b")))
    assert await said() == ("True", "KeysKnown", "False")
    services = cluster.objects[TENANT, "team-ml", "ads"]["status"]["services"]
    assert services == [{"name": "simulated"}]
    cluster.writes.clear()
    await operator.make_tenant_pass(key)
    assert cluster.writes == []


def _rival(name: str, created: str) -> dict[str, Any]:
    """Another tenant with the same keys, from the same Secret."""
    plain = _tenant()
    plain["metadata"] |= {"name": name, "uid": f"uid-of-{name}", "creationTimestamp": created}
    return plain


async def _tenant_condition(cluster: FakeCluster, operator: Operator, name: str) -> dict[str, Any]:
    await operator.make_tenant_pass(Key(TENANT, "team-ml", name))
    found: dict[str, Any] = cluster.objects[TENANT, "team-ml", name]["status"]["conditions"][0]
    return found


async def test_the_older_of_two_tenants_with_the_same_keys_keeps_them(cluster: FakeCluster) -> None:
    def owners() -> set[str]:
        return {item.name for item in told(cluster).tenancy.tenants if item.api_keys}

    cluster.put(_keys(chat="a", batch="b"))
    cluster.put(_rival("zoo", "2026-01-01T00:00:00Z"))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    assert owners() == {"zoo"}
    await operator.sees(cluster.put(_rival("ads", "2026-01-02T00:00:00Z")), "ADDED")
    assert owners() == {"zoo"}
    assert (await _tenant_condition(cluster, operator, "zoo"))["reason"] == "KeysKnown"
    second = await _tenant_condition(cluster, operator, "ads")
    assert (second["status"], second["reason"]) == ("False", "KeysClash")
    assert "batch-1 (tenant zoo), chat-1 (tenant zoo)" in second["message"]
    # Nor does an invalid change of the older one hand them over.
    bad = _rival("zoo", "2026-01-01T00:00:00Z")
    bad["spec"]["weight"] = 0
    bad["metadata"]["generation"] = 2
    await operator.sees(cluster.put(bad))
    assert owners() == {"zoo"}
    await operator.sees(cluster.objects[TENANT, "team-ml", "zoo"], "DELETED")
    assert owners() == {"ads"}


async def test_two_equally_old_tenants_are_ordered_by_name(cluster: FakeCluster) -> None:
    cluster.put(_keys(chat="a", batch="b"))
    for name in ("zoo", "ads"):
        cluster.put(_rival(name, "2026-01-01T00:00:00Z"))
    await Operator(cluster).make_pass(KEY)
    keys = {item.name: len(item.api_keys) for item in told(cluster).tenancy.tenants}
    assert keys == {"ads": 2, "zoo": 0}


def _unlabelled(secret: dict[str, Any]) -> dict[str, Any]:
    return {**secret, "metadata": {**secret["metadata"], "labels": {}}}


async def test_keys_of_a_secret_without_the_label_are_not_accepted(cluster: FakeCluster) -> None:
    cluster.put(_tenant())
    cluster.put(_unlabelled(_keys(chat="a", batch="b")))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    assert told(cluster).tenancy.tenants[0].api_keys == ()
    ready = await _tenant_condition(cluster, operator, "ads")
    assert (ready["status"], ready["reason"]) == ("False", "SecretNotLabelled")
    assert "kubectl label secret ads-keys evenkeel.dev/use=true" in ready["message"]
    await operator.sees(cluster.put(_keys(chat="a", batch="b")))
    assert len(told(cluster).tenancy.tenants[0].api_keys) == 2
    assert (await _tenant_condition(cluster, operator, "ads"))["reason"] == "KeysKnown"


async def test_keys_that_an_older_operator_accepted_stay_and_new_ones_need_a_label(
    cluster: FakeCluster,
) -> None:
    cluster.put(_tenant())
    cluster.put(_unlabelled(_keys(chat="a", batch="b")))
    await Operator(cluster, replace(DEFAULTS, any_secret=True)).make_pass(KEY)
    before = told(cluster).tenancy.tenants[0].api_keys
    assert len(before) == 2
    operator = Operator(cluster)  # as after the upgrade
    await operator.make_pass(KEY)
    assert told(cluster).tenancy.tenants[0].api_keys == before
    assert (await _tenant_condition(cluster, operator, "ads"))["reason"] == "SecretNotLabelled"
    await operator.sees(cluster.put(_unlabelled(_keys(chat="other", batch="b"))))
    assert [key.name for key in told(cluster).tenancy.tenants[0].api_keys] == ["batch-1"]


async def test_a_new_spec_may_not_name_a_secret_without_the_label(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    foreign = cluster.put(_unlabelled(_keys(token="theirs")))
    model = cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]["model"]
    named = {**model, "tokenSecretRef": {"name": "ads-keys", "key": "token"}}
    await operator.edit(SERVICE, "simulated", model=named)
    assert condition(cluster, "SpecValid")["status"] == "False"
    assert "spec.model.tokenSecretRef" in condition(cluster, "SpecValid")["message"]
    assert condition(cluster, "Degraded")["reason"] == "OldSpecRuns"
    labels = {"labels": {"evenkeel.dev/use": "true"}}
    await operator.sees(cluster.put({**foreign, "metadata": {**foreign["metadata"], **labels}}))
    assert condition(cluster, "SpecValid")["status"] == "True"
    # What runs is not stopped by a label that goes.
    await operator.sees(cluster.put(_unlabelled(foreign)))
    assert condition(cluster, "SpecValid")["status"] == "True"


async def test_the_address_of_a_redis_needs_the_label_until_routers_have_it(
    cluster: FakeCluster,
) -> None:
    state = {"store": "Redis", "redis": {"urlSecretRef": {"name": "ads-keys", "key": "url"}}}
    cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]["router"] = {"state": state}
    cluster.put(_unlabelled(_keys(url="redis://r")))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    assert told(cluster).state.redis_url is None
    assert condition(cluster, "Degraded")["reason"] == "SecretNotLabelled"
    assert "Routers use store Peers." in condition(cluster, "Degraded")["message"]
    await operator.sees(cluster.put(_keys(url="redis://r")))
    assert told(cluster).state.redis_url == "redis://r"
    assert condition(cluster, "Degraded")["status"] == "False"
    await operator.sees(cluster.put(_unlabelled(_keys(url="redis://r"))))
    assert told(cluster).state.redis_url == "redis://r"
    assert "keep the address" in condition(cluster, "Degraded")["message"]


PEM = "-----BEGIN CERTIFICATE-----\nTUlJQg==\n-----END CERTIFICATE-----"
FEDERATION = {
    "cell": "paris",
    "tokenSecretRef": {"name": "ads-keys", "key": "token"},
    "caSecretRef": {"name": "ads-keys", "key": "ca"},
    "cells": [{"name": "oslo", "url": "https://oslo"}],
}


async def test_a_service_is_joined_with_the_token_of_a_labelled_secret(
    cluster: FakeCluster,
) -> None:
    cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]["federation"] = FEDERATION
    secret = _keys(token="a token of all cells\n", ca=PEM)
    cluster.put(_unlabelled(secret))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    assert told(cluster).federation is None
    degraded = condition(cluster, "Degraded")
    assert degraded["reason"] == "SecretNotLabelled"
    assert "spec.federation.tokenSecretRef: " in degraded["message"]
    assert "The service is not joined with other cells." in degraded["message"]
    await operator.sees(cluster.put(secret))
    joined = told(cluster).federation
    assert joined is not None
    assert (joined.cell, joined.token, joined.ca) == ("paris", "a token of all cells", PEM)
    assert condition(cluster, "Degraded")["status"] == "False"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"token": "too short", "ca": PEM}, "tokenSecretRef: Entry token of Secret ads-keys is no token"),
        ({"token": "a token of all cells"}, "caSecretRef: Secret ads-keys has no entry ca"),
        ({"token": "a token of all cells", "ca": "PEM"}, "caSecretRef: Entry ca of Secret ads-keys has no certificate"),
    ],
)  # fmt: skip
async def test_a_known_token_goes_to_no_new_cell_while_a_secret_is_unusable(
    cluster: FakeCluster, entries: dict[str, str], message: str
) -> None:
    cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]["federation"] = FEDERATION
    cluster.put(_keys(token="a token of all cells", ca=PEM))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    before = told(cluster).federation
    assert before is not None
    await operator.sees(cluster.put(_keys(**entries)))
    theirs = {**FEDERATION, "cells": [{"name": "oslo", "url": "https://elsewhere"}]}
    await operator.edit(SERVICE, "simulated", federation=theirs)
    assert told(cluster).federation == before
    degraded = condition(cluster, "Degraded")
    assert f"spec.federation.{message}" in degraded["message"]
    assert "Routers keep the cells that they know." in degraded["message"]
    await operator.edit(SERVICE, "simulated", federation=None)
    assert told(cluster).federation is None


async def test_a_tenant_with_an_invalid_spec_keeps_its_last_valid_configuration(
    cluster: FakeCluster,
) -> None:
    cluster.put(_tenant())
    cluster.put(_keys(chat="a", batch="b"))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    before = told(cluster).tenancy.tenants
    assert len(before[0].api_keys) == 2
    bad = _tenant(weight=0)
    bad["metadata"]["generation"] = 2
    await operator.sees(cluster.put(bad))
    assert told(cluster).tenancy.tenants == before
    await operator.sees(cluster.objects[TENANT, "team-ml", "ads"], "DELETED")
    assert told(cluster).tenancy.tenants == ()


async def test_keys_end_with_the_request_to_delete_their_tenant(cluster: FakeCluster) -> None:
    """A finalizer of others may keep the tenant for days."""
    tenant = cluster.put(_tenant())
    cluster.put(_keys(chat="a", batch="b"))
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    assert len(told(cluster).tenancy.tenants) == 1
    leaves = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/audit"]}
    leaving = cluster.put({**tenant, "metadata": {**tenant["metadata"], **leaves}})
    await operator.sees(leaving)
    assert told(cluster).tenancy.tenants == ()
    before = list(cluster.writes)
    await operator.make_tenant_pass(Key(TENANT, "team-ml", "ads"))
    assert cluster.writes == before


async def test_a_field_that_somebody_added_is_reported_once(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    item = cluster.objects["Deployment", "team-ml", "simulated-engine"]
    entry = {"k:{\"name\":\"engine\"}": {".": {}, "f:env": {"k:{\"name\":\"DEBUG\"}": {".": {}, "f:name": {}, "f:value": {}}}}}  # fmt: skip
    fields = {"f:spec": {"f:template": {"f:spec": {"f:containers": entry}}}}
    record = [{"manager": "kubectl-edit", "operation": "Update", "fieldsV1": fields}]
    cluster.events.clear()
    changed = cluster.put({**item, "metadata": {**item["metadata"], "managedFields": record}})
    await operator.sees(changed)
    await operator.make_pass(KEY)
    said = [event for event in cluster.events if event["reason"] == "ForeignField"]
    assert len(said) == 1
    path = "spec.template.spec.containers[engine].env[DEBUG].value"
    assert f"Deployment simulated-engine: kubectl-edit: {path}" in said[0]["message"]


def _elsewhere(item: dict[str, Any], shared: str = "") -> dict[str, Any]:
    """The same object in the tenants' own namespace."""
    annotations = {"evenkeel.dev/share-tenant": shared} if shared else {}
    return {
        **item,
        "metadata": {**item["metadata"], "namespace": "tenants", "annotations": annotations},
    }


@pytest.mark.parametrize("shared", ["team-ml", "team-x, team-ml", "*"])
async def test_a_tenant_of_another_namespace_serves_if_its_owner_shares_it(
    cluster: FakeCluster, shared: str
) -> None:
    keys = cluster.put(_elsewhere(_keys(chat="k1", batch="k2")))
    cluster.put(_elsewhere(_tenant()))
    cluster.put(_tenant(weight=7))  # of the same name, where the service is
    cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]["tenancy"] = {"namespace": "tenants"}
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    assert told(cluster).tenancy.tenants == ()
    assert condition(cluster, "Degraded")["reason"] == "TenantsNotShared"
    advice = "`kubectl -n tenants annotate itn NAME evenkeel.dev/share-tenant=team-ml`"
    assert advice in condition(cluster, "Degraded")["message"]

    tenant = cluster.put(_elsewhere(_tenant(), shared))
    assert KEY in operator.store.see("MODIFIED", TENANT, tenant)
    await operator.make_pass(KEY)
    (config,) = told(cluster).tenancy.tenants
    assert (config.namespace, config.name, config.weight) == ("tenants", "ads", 4)
    assert len(config.api_keys) == 2
    assert condition(cluster, "Degraded")["status"] == "False"
    await operator.make_tenant_pass(Key(TENANT, "tenants", "ads"))
    status = cluster.objects[TENANT, "tenants", "ads"]["status"]
    assert status["services"] == [{"name": "simulated.team-ml"}]

    rotated = cluster.put(_elsewhere(_keys(chat="k3", batch="k2")))
    assert KEY in operator.store.see("MODIFIED", "Secret", rotated)
    await operator.make_pass(KEY)
    assert told(cluster).tenancy.tenants[0].api_keys != config.api_keys
    assert keys["data"] != rotated["data"]
    revoked = cluster.put(_elsewhere(_tenant(), "team-x"))
    assert KEY in operator.store.see("MODIFIED", TENANT, revoked)
    await operator.make_pass(KEY)
    assert told(cluster).tenancy.tenants == ()


async def test_tenants_of_a_namespace_without_rights_stay_as_routers_know_them(
    cluster: FakeCluster,
) -> None:
    cluster.put(_elsewhere(_keys(chat="k1", batch="k2")))
    cluster.put(_elsewhere(_tenant(), "team-ml"))
    cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]["tenancy"] = {"namespace": "tenants"}
    await Operator(cluster).make_pass(KEY)
    before = told(cluster).tenancy.tenants
    assert len(before[0].api_keys) == 2
    cluster.forbids = lambda kind, namespace: namespace == "tenants"
    operator = Operator(cluster)
    await operator.edit(SERVICE, "simulated", engine={"runtime": "Simulator", "replicas": 3})
    assert told(cluster).tenancy.tenants == before
    assert cluster.objects["Deployment", "team-ml", "simulated-engine"]["spec"]["replicas"] == 3
    assert condition(cluster, "Degraded")["reason"] == "RightMissing"
    assert "spec.tenancy.namespace: " in condition(cluster, "Degraded")["message"]


async def test_an_api_that_comes_brings_its_objects(cluster: FakeCluster) -> None:
    service = cluster.objects[SERVICE, "team-ml", "simulated"]
    service["spec"]["exposure"] = {"httpRoute": {"parentRefs": [{"name": "gw"}]}}
    await Operator(cluster).make_pass(KEY)
    assert condition(cluster, "Degraded")["reason"] == "ApiMissing"
    cluster.optional = OPTIONAL_KINDS
    await Operator(cluster).make_pass(KEY)
    assert condition(cluster, "Degraded")["status"] == "False"
    assert ("HTTPRoute", "team-ml", "simulated-router") in cluster.objects
    assert ("PodMonitor", "team-ml", "simulated-engine") in cluster.objects


async def test_fields_in_the_server_s_own_spelling_are_not_written_again(
    cluster: FakeCluster,
) -> None:
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    item = cluster.objects["Deployment", "team-ml", "simulated-router"]
    webhook = cluster.put

    def mutating(found: Any) -> dict[str, Any]:
        if found["kind"] == "Deployment" and found["metadata"]["name"] == "simulated-router":
            found = {**found, "spec": {**found["spec"], "replicas": 9}}
        return webhook(found)

    cluster.put = mutating  # type: ignore[method-assign]
    changed = {**item, "spec": {**item["spec"], "replicas": 9}}
    await operator.sees(cluster.put(changed))
    cluster.writes.clear()
    for _ in range(3):
        await operator.make_pass(KEY)
    assert [what for what in cluster.writes if "Deployment" in what] == []
    cluster.events.clear()
    await Operator(cluster).make_pass(KEY)  # another life has to find out, once
    assert [what for what in cluster.writes if "Deployment" in what] == [
        "apply Deployment simulated-router"
    ]
    assert cluster.events == []  # and accuses nobody


async def test_an_autoscaler_on_a_generated_deployment_is_named(cluster: FakeCluster) -> None:
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "mine", "namespace": "team-ml"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "simulated-engine"}},
    }
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    found = cluster.put(scaler)
    assert operator.store.see("ADDED", found["kind"], found) == {KEY}
    await operator.make_pass(KEY)
    verdict = condition(cluster, "Degraded")
    assert verdict["reason"] == "ForeignScaler"
    assert "HorizontalPodAutoscaler mine scales Deployment simulated-engine" in verdict["message"]
    operator.store.see("DELETED", found["kind"], found)
    await operator.make_pass(KEY)
    assert condition(cluster, "Degraded")["status"] == "False"


async def test_the_only_replica_gets_company_before_it_has_to_leave_its_node(
    cluster: FakeCluster,
) -> None:
    def node(name: str, *, cordoned: bool) -> Object:
        metadata = {"name": name, "resourceVersion": "1"}
        return {"kind": "Node", "metadata": metadata, "spec": {"unschedulable": cordoned}}

    def engines() -> tuple[int, int]:
        spec = cluster.objects["Deployment", "team-ml", "simulated-engine"]["spec"]
        budget = cluster.objects["PodDisruptionBudget", "team-ml", "simulated-engine"]["spec"]
        return spec["replicas"], budget["maxUnavailable"]

    operator = Operator(cluster)
    cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]["engine"]["replicas"] = 1
    await operator.make_pass(KEY)
    labels = {"evenkeel.dev/service": "simulated", "evenkeel.dev/component": "engine"}
    metadata = {"name": "p", "namespace": "team-ml", "labels": labels}
    pod = cluster.put({"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "node-1"}})
    assert operator.store.see(None, "Node", node("node-1", cordoned=False)) == frozenset()
    assert operator.store.see(None, "Node", node("node-2", cordoned=True)) == {KEY}
    await operator.make_pass(KEY)
    assert engines() == (1, 0)  # nobody of ours is there
    assert operator.store.see("MODIFIED", "Node", node("node-1", cordoned=True)) == {KEY}
    await operator.make_pass(KEY)
    assert engines() == (2, 1)  # with a second one ready, the first may be evicted
    pod["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z"
    await operator.make_pass(KEY)
    assert engines() == (1, 0)


async def test_removing_the_generated_keys_cuts_off_no_engine(cluster: FakeCluster) -> None:
    await Operator(cluster).make_pass(KEY)
    secret = ("Secret", "team-ml", "simulated-credentials")
    before = cluster.objects[secret]["data"]
    del cluster.objects[secret]
    await Operator(cluster).make_pass(KEY)
    assert cluster.objects[secret]["data"] == before
    cluster.objects[secret]["data"] = {"admin-token": "%"}
    await Operator(cluster).make_pass(KEY)
    assert cluster.objects[secret]["data"] == before
