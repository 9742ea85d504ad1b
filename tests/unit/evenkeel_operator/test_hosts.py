"""Which of several services has a host: one namespace only; within it one service, by class, host and path."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_contract.names import SHARE_HOST
from evenkeel_operator.cluster.store import SERVICE, Key, Store
from evenkeel_operator.core.neighbours import claims_of, default_class, host_taken
from evenkeel_operator.core.objects import OPTIONAL_KINDS

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import KEY, Operator, cluster_with_the_sample, condition

OLD, NEW = "2025-01-01T00:00:00Z", "2027-01-01T00:00:00Z"


def service(name: str, created: str = "2026-01-01T00:00:00Z", **ingress: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"exposure": {"ingress": {"host": "a.test"} | ingress}}}


def elsewhere(created: str = OLD, *, has: tuple[str, ...] = (), **ingress: Any) -> dict[str, Any]:
    """A service of another namespace, which `has` hosts already."""
    found = service("other", created, **ingress)
    found["metadata"]["namespace"] = "elsewhere"
    return {**found, "status": {"hosts": list(has)}}


def is_taken(mine: dict[str, Any], other: dict[str, Any], default: str = "") -> bool:
    return host_taken(mine, [mine, other], default_class=default) is not None


def test_a_service_asks_for_every_host_with_every_path() -> None:
    found = service("s", additionalHosts=["b.test"], paths=["/v1", "/v2"], className="nginx")
    assert claims_of(found) == {
        ("nginx", host, path) for host in ("a.test", "b.test") for path in ("/v1", "/v2")
    }


@pytest.mark.parametrize(
    "spec",
    [None, [], {"exposure": None}, {"exposure": {"ingress": "x"}}, {"exposure": {"ingress": {"host": 1}}}],
)  # fmt: skip
def test_what_cannot_be_read_asks_for_nothing(spec: Any) -> None:
    odd = {"metadata": {"name": "odd", "namespace": "n"}, "spec": spec}
    assert claims_of(odd) == frozenset()
    assert host_taken(odd, [service("s"), odd]) is None
    assert host_taken(service("s"), [odd]) is None


@pytest.mark.parametrize(
    ("other", "taken"),
    [
        (service("a"), True),  # as old, and first by name
        (service("z"), False),
        (service("z", "2025-01-01T00:00:00Z"), True),
        (service("a", "2027-01-01T00:00:00Z"), False),
        (service("a", className="internal"), False),
        (service("a", paths=["/other"]), False),
        (service("a", host="b.test"), False),
        (service("a", host="b.test", additionalHosts=["a.test"]), True),
    ],
)
def test_the_older_service_has_the_host(other: dict[str, Any], taken: bool) -> None:
    mine = service("m")
    assert (host_taken(mine, [mine, other]) is not None) is taken


def test_a_longer_path_in_another_namespace_does_not_get_the_requests() -> None:
    assert is_taken(service("m", NEW, paths=["/v1/chat"]), elsewhere())
    assert not is_taken(elsewhere(), service("m", NEW, paths=["/v1/chat"]))


def test_another_class_in_another_namespace_does_not_get_the_requests() -> None:
    assert is_taken(service("m", NEW), elsewhere(className="nginx"))
    assert is_taken(service("m", NEW, className="nginx"), elsewhere())


def test_an_older_service_cannot_take_a_host_that_another_one_has() -> None:
    mine = {**service("m", NEW), "status": {"hosts": ["a.test"]}}
    assert not is_taken(mine, elsewhere(OLD))
    assert is_taken(elsewhere(OLD), mine)


def test_a_service_keeps_its_host_while_its_newest_spec_is_invalid() -> None:
    invalid = {**elsewhere(has=("a.test",)), "spec": {"exposure": "?"}}
    assert is_taken(service("m"), invalid)


@pytest.mark.parametrize(
    ("host", "other", "taken"),
    [
        ("x.a.test", "*.a.test", True),
        ("*.a.test", "x.a.test", True),
        ("x.y.a.test", "*.a.test", False),
        ("a.test", "*.a.test", False),
        ("b.test", "a.test", False),
    ],
)
def test_a_wildcard_covers_the_hosts_one_label_below(host: str, other: str, taken: bool) -> None:
    theirs = elsewhere(host="z.test", additionalHosts=[other])
    mine = service("m", NEW, host="y.test", additionalHosts=[host])
    assert is_taken(mine, theirs) is taken


@pytest.mark.parametrize(("shared", "taken"), [("x, n", False), ("*", False), ("x", True)])
def test_the_owner_of_a_host_shares_it_by_an_annotation(shared: str, taken: bool) -> None:
    owner = elsewhere()
    owner["metadata"]["annotations"] = {SHARE_HOST: shared}
    assert is_taken(service("m", NEW, paths=["/v1/chat"]), owner) is taken
    assert is_taken(service("m", NEW), owner)  # the same path still has one service


def test_a_route_may_not_use_the_host_of_another_namespace() -> None:
    route = service("m", NEW)
    ref = {"name": "public", "namespace": "gateways"}
    route["spec"]["exposure"] = {"httpRoute": {"parentRefs": [ref], "hostnames": ["a.test"]}}
    assert claims_of(route) == {("gateways/public", "a.test", "/")}
    assert is_taken(route, elsewhere())


def test_no_class_is_the_default_class() -> None:
    mine, other = service("m"), service("a", OLD, className="nginx")
    assert is_taken(mine, other, default="nginx")
    assert not is_taken(mine, other, default="traefik")


def test_the_newest_default_class_counts() -> None:
    def ingress_class(name: str, created: str, default: str) -> dict[str, Any]:
        annotations = {"ingressclass.kubernetes.io/is-default-class": default}
        metadata = {"name": name, "creationTimestamp": created, "annotations": annotations}
        return {"metadata": metadata}

    listed = [ingress_class("a", OLD, "true"), ingress_class("b", NEW, "true")]
    assert default_class({"items": [*listed, ingress_class("c", "2028", "false")]}) == "b"
    assert default_class({"items": []}) == ""


async def test_a_service_whose_newest_spec_is_invalid_does_not_get_a_taken_host() -> None:
    cluster = cluster_with_the_sample(exposure={"ingress": {"host": "a.test"}})
    operator = Operator(cluster)
    operator.store.see("ADDED", SERVICE, elsewhere(has=("a.test",)))
    await operator.make_pass(KEY)
    await operator.edit(SERVICE, "simulated", exposure={"ingress": {"host": "?"}})
    assert condition(cluster, "SpecValid")["status"] == "False"
    assert "a.test belongs to namespace elsewhere" in condition(cluster, "Degraded")["message"]
    assert not any(kind == "Ingress" for kind, _, _ in cluster.objects)


@pytest.mark.parametrize("namespaces", [(), ("team-ml", "elsewhere")])
async def test_a_new_operator_knows_who_has_a_host_before_any_event(
    namespaces: tuple[str, ...],
) -> None:
    cluster = cluster_with_the_sample(exposure={"ingress": {"host": "a.test"}})
    owner = elsewhere(has=("a.test",))
    cluster.put({**owner, "kind": SERVICE})
    operator = Operator(cluster)
    await operator.observer.list_services(namespaces)
    await operator.make_pass(KEY)
    assert condition(cluster, "Degraded")["reason"] == "HostTaken"


@pytest.mark.parametrize("taken", [True, False])
async def test_a_taken_host_has_no_route_and_is_not_the_address(taken: bool) -> None:
    route = {"parentRefs": [{"name": "public"}], "hostnames": ["a.test"]}
    cluster = cluster_with_the_sample(exposure={"httpRoute": route})
    cluster.optional = OPTIONAL_KINDS
    operator = Operator(cluster)
    if taken:
        operator.store.see("ADDED", SERVICE, elsewhere(has=("a.test",)))
    await operator.make_pass(KEY)
    assert any(kind == "HTTPRoute" for kind, _, _ in cluster.objects) is not taken
    status = cluster.objects[SERVICE, "team-ml", "simulated"]["status"]
    assert status["hosts"] == ([] if taken else ["a.test"])
    assert status["url"].startswith("http://a.test") is not taken


def test_a_service_gets_a_pass_when_its_host_becomes_free() -> None:
    store, owner = Store(), elsewhere(has=("a.test",))
    waiting = service("m", NEW)
    waiting["metadata"]["resourceVersion"] = "1"
    owner["metadata"] |= {"resourceVersion": "2", "generation": 1}
    for item in (waiting, owner):
        store.see("ADDED", SERVICE, item)
    # The spec asks for another host, and the operator has written the status that follows.
    moved = elsewhere(host="b.test")
    moved["metadata"] |= {"resourceVersion": "4", "generation": 2}
    store.named(SERVICE, "elsewhere").put(moved)
    assert Key(SERVICE, "n", "m") in store.see("MODIFIED", SERVICE, moved)


async def test_the_operator_reads_the_default_class() -> None:
    cluster = FakeCluster()
    operator = Operator(cluster)
    assert operator.observer.default_class == ""
    annotations = {"ingressclass.kubernetes.io/is-default-class": "true"}
    cluster.ingress_classes = [{"metadata": {"name": "nginx", "annotations": annotations}}]
    assert await operator.observer.look_at_apis()
    assert operator.observer.default_class == "nginx"
    assert not await operator.observer.look_at_apis()
