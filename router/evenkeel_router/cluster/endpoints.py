"""Replicas and peers from EndpointSlices and pods. Pure.

A slice has the address of a pod; the pod decides whether it may receive requests. Readiness is that of the containers,
not of the pod or its endpoint: both wait for the gate `evenkeel.dev/InRotation`, which waits for a router.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from evenkeel_contract.names import (
    ADMIN_PORT_NAME,
    DRAIN_ANNOTATION,
    ENGINE_KEY_LABEL,
    HTTP_PORT_NAME,
    KV_EVENTS_PORT_NAME,
    KV_REPLAY_PORT_NAME,
    REPORTS_PORT_NAME,
)
from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_kube.cache import Named

from evenkeel_router.fleet.discovered import TERMINATING, DiscoveredReplica
from evenkeel_router.ledger.contacts import Peer

SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
"""Label of every EndpointSlice, whose value is the name of its Service."""


class PodCondition(msgspec.Struct, frozen=True):
    """One condition of a pod."""

    type: str = ""
    status: str = ""


class PodStatus(msgspec.Struct, frozen=True):
    """The pod's status as the kubelet reports it."""

    phase: str = ""
    conditions: tuple[PodCondition, ...] | None = None


class Pod(Named, frozen=True):
    """The fields of a pod that are read."""

    status: PodStatus = PodStatus()


class TargetRef(msgspec.Struct, frozen=True):
    """The object that an endpoint represents."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class EndpointConditions(msgspec.Struct, frozen=True):
    """Absent means unknown and counts as false."""

    terminating: bool | None = None


class SliceEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    """One pod in a slice."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    target_ref: TargetRef | None = None


class EndpointPort(msgspec.Struct, frozen=True):
    """A port of all endpoints of a slice."""

    name: str | None = None
    port: int | None = None


class EndpointSlice(Named, frozen=True, rename="camel"):
    """The fields of a slice that are read."""

    address_type: str = "IPv4"
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None

    @property
    def service(self) -> str:
        """The Service that it belongs to."""
        return (self.metadata.labels or {}).get(SERVICE_NAME_LABEL, "")

    def port(self, name: str) -> int | None:
        """The number of a named port."""
        return next((port.port for port in self.ports or () if port.name == name), None)


def replicas(
    slices: Iterable[EndpointSlice],
    pods: Mapping[str, Pod],
    *,
    service: str,
    api_key: str | None,
    api_keys: Mapping[str, str] | None = None,
) -> tuple[DiscoveredReplica, ...]:
    """The replicas behind a Service, by name. A slice without an HTTP port is skipped.

    `api_keys` are keys by id, which a pod's label names; `api_key` is for pods without this label.
    """
    found: dict[str, DiscoveredReplica] = {}
    for slice_, endpoint, target in _of_pods(slices, service):
        http = slice_.port(HTTP_PORT_NAME)
        if http is None:
            continue
        host = _host(slice_, endpoint)
        replica = ReplicaConfig(
            name=target.name,
            url=f"http://{host}:{http}",
            reports=_tcp(host, slice_.port(REPORTS_PORT_NAME)),
            kv_events=_tcp(host, slice_.port(KV_EVENTS_PORT_NAME)),
            kv_replay=_tcp(host, slice_.port(KV_REPLAY_PORT_NAME)),
            api_key=(api_keys or {}).get(_key_id(pods.get(target.name)), api_key),
        )
        why = unschedulable(endpoint, target, pods.get(target.name))
        found.setdefault(target.name, DiscoveredReplica(replica, why))
    return tuple(found[name] for name in sorted(found))


def _tcp(host: str, port: int | None) -> str | None:
    return None if port is None else f"tcp://{host}:{port}"


def _key_id(pod: Pod | None) -> str:
    return (pod.metadata.labels or {}).get(ENGINE_KEY_LABEL, "") if pod else ""


def peers(slices: Iterable[EndpointSlice], *, service: str, own_name: str) -> tuple[Peer, ...]:
    """The other routers behind a Service, by name, including those that are not ready."""
    found: dict[str, Peer] = {}
    for slice_, endpoint, target in _of_pods(slices, service):
        port = slice_.port(ADMIN_PORT_NAME)
        if port is not None and target.name != own_name:
            url = f"http://{_host(slice_, endpoint)}:{port}"
            found.setdefault(target.name, Peer(target.name, url))
    return tuple(found[name] for name in sorted(found))


def unschedulable(endpoint: SliceEndpoint, target: TargetRef, pod: Pod | None) -> str:
    """The first reason to send no new requests to the endpoint; empty if there is none."""
    pod = pod or Pod()
    # Slices and pods come from two watches: one may be behind, or a new pod may have the name of an old one.
    if pod.metadata.uid != target.uid:
        return "unknown"  # nothing else can be checked
    if pod.metadata.deletion_timestamp is not None or endpoint.conditions.terminating:
        return TERMINATING  # never comes back
    if pod.status.phase in ("Failed", "Succeeded"):
        return "ended"  # for example evicted; never comes back either
    if DRAIN_ANNOTATION in (pod.metadata.annotations or {}):
        return "draining"  # marked by the operator, otherwise healthy
    if PodCondition("ContainersReady", "True") not in (pod.status.conditions or ()):
        return "starting"  # or failing: the kubelet does not distinguish them
    return ""


def _of_pods(
    slices: Iterable[EndpointSlice], service: str
) -> Iterable[tuple[EndpointSlice, SliceEndpoint, TargetRef]]:
    """Endpoints that are pods, in a fixed order: of a pod in two slices (dual stack), IPv4 comes first."""
    for slice_ in sorted(slices, key=lambda one: (one.address_type, one.metadata.name)):
        if slice_.service == service:
            for endpoint in slice_.endpoints or ():
                target = endpoint.target_ref
                if target is not None and target.kind == "Pod" and endpoint.addresses:
                    yield slice_, endpoint, target


def _host(slice_: EndpointSlice, endpoint: SliceEndpoint) -> str:
    address = endpoint.addresses[0]  # the API requires consumers to use only the first
    return f"[{address}]" if slice_.address_type == "IPv6" else address
