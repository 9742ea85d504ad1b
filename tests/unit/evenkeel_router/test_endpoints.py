"""EndpointSlices and pods become replicas and peers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from evenkeel_contract.names import DRAIN_ANNOTATION, ENGINE_KEY_LABEL
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_router.cluster.endpoints import EndpointSlice, Pod, peers, replicas
from evenkeel_router.fleet.discovered import DiscoveredReplica
from evenkeel_router.ledger.contacts import Peer

from tests.support.kube_api import pod, slice_of

A = ReplicaConfig(
    name="a", url="http://10.0.0.1:30000", reports="tcp://10.0.0.1:5559", api_key="sk"
)


def found(*slices: dict[str, Any], pods: list[dict[str, Any]]) -> tuple[DiscoveredReplica, ...]:
    return replicas(
        msgspec.convert(slices, tuple[EndpointSlice, ...]),
        {one["metadata"]["name"]: msgspec.convert(one, Pod) for one in pods},
        service="engines",
        api_key="sk",
    )


def test_a_pod_whose_containers_are_ready_is_a_replica_though_the_pod_is_not() -> None:
    assert found(slice_of("engines", "a"), pods=[pod("a")]) == (DiscoveredReplica(A),)


def test_replicas_come_by_name_and_those_of_another_service_not_at_all() -> None:
    slices = (slice_of("engines", "b", "a"), slice_of("other", "c"))
    names = [
        one.replica.name for one in found(*slices, pods=[pod(name) for name in ("a", "b", "c")])
    ]
    assert names == ["a", "b"]


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (pod("a", uid="that of a namesake"), "unknown"),
        (pod("b"), "unknown"),
        (pod("a", deletionTimestamp="2026-01-01T00:00:00Z"), "terminating"),
        (pod("a") | {"status": {"phase": "Failed"}}, "ended"),
        (pod("a", annotations={DRAIN_ANNOTATION: ""}), "draining"),
        (pod("a", ready=False), "starting"),
        (pod("a", ready=False, annotations={DRAIN_ANNOTATION: ""}), "draining"),
        (pod("a") | {"status": {}}, "starting"),
    ],
)
def test_a_replica_is_unschedulable_with_a_reason(one: dict[str, Any], why: str) -> None:
    assert found(slice_of("engines", "a"), pods=[one]) == (DiscoveredReplica(A, why),)


def test_a_terminating_endpoint_is_unschedulable_before_its_pod() -> None:
    slice_ = slice_of("engines", "a")
    slice_["endpoints"][0]["conditions"] = {"terminating": True, "serving": True}
    assert found(slice_, pods=[pod("a")]) == (DiscoveredReplica(A, "terminating"),)


def test_a_pod_in_two_slices_is_one_replica_and_ipv4_comes_first() -> None:
    six = slice_of("engines", "a", host="fd00::1", addressType="IPv6")
    six["metadata"] = {**six["metadata"], "name": "engines-0"}
    assert found(six, slice_of("engines", "a"), pods=[pod("a")]) == (DiscoveredReplica(A),)
    (only,) = found(six, pods=[pod("a")])
    assert only.replica.url == "http://[fd00::1]:30000"
    assert only.replica.reports == "tcp://[fd00::1]:5559"


def test_a_replica_is_asked_with_the_key_that_its_pod_bears_the_id_of() -> None:
    labels = {"old": "id-1", "new": "id-2", "strange": "id-9"}
    pods = {name: pod(name, labels={ENGINE_KEY_LABEL: id_}) for name, id_ in labels.items()}
    pods["plain"] = pod("plain")
    found = replicas(
        msgspec.convert((slice_of("engines", *pods),), tuple[EndpointSlice, ...]),
        {name: msgspec.convert(one, Pod) for name, one in pods.items()},
        service="engines",
        api_key="sk",
        api_keys={"id-1": "sk-1", "id-2": "sk-2"},
    )
    keys = {one.replica.name: one.replica.api_key for one in found}
    assert keys == {"old": "sk-1", "new": "sk-2", "strange": "sk", "plain": "sk"}


def test_ports_go_by_name() -> None:
    moved = slice_of("engines", "a", ports=[{"name": "http", "port": 31000}])
    (one,) = found(moved, pods=[pod("a")])
    assert (one.replica.url, one.replica.reports) == ("http://10.0.0.1:31000", None)
    assert found(slice_of("engines", "a", ports=None), pods=[pod("a")]) == ()


def test_kv_events_are_where_their_ports_say() -> None:
    ports = [
        {"name": "http", "port": 30000},
        {"name": "kv-events", "port": 5557},
        {"name": "kv-replay", "port": 5558},
    ]
    (one,) = found(slice_of("engines", "a", ports=ports), pods=[pod("a")])
    assert one.replica.kv_events == "tcp://10.0.0.1:5557"
    assert one.replica.kv_replay == "tcp://10.0.0.1:5558"


def test_what_is_no_pod_or_has_no_address_is_no_replica() -> None:
    slice_ = slice_of("engines", "a", "b", "c")
    slice_["endpoints"][0]["targetRef"]["kind"] = "Node"
    slice_["endpoints"][1]["addresses"] = []
    del slice_["endpoints"][2]["targetRef"]
    assert found(slice_, slice_of("engines", endpoints=None), pods=[pod("a")]) == ()


def test_peers_are_the_other_routers_ready_or_not() -> None:
    slices = msgspec.convert((slice_of("peers", "r2", "me", "r1"),), tuple[EndpointSlice, ...])
    assert peers(slices, service="peers", own_name="me") == (
        Peer("r1", "http://10.0.0.1:8082"),
        Peer("r2", "http://10.0.0.1:8082"),
    )


def test_a_router_in_two_slices_is_one_peer_at_its_ipv4_address() -> None:
    six = slice_of("peers", "r1", host="fd00::1", addressType="IPv6")
    slices = msgspec.convert((slice_of("peers", "r1"), six), tuple[EndpointSlice, ...])
    assert peers(slices, service="peers", own_name="me") == (Peer("r1", "http://10.0.0.1:8082"),)
