"""The replicas and peers of a router on Kubernetes: EndpointSlices of both headless Services, and the engines' pods.

Changes are collected for a few milliseconds. A rollout changes a pod and its slice in quick succession; handling one
without the other would act on a state that never existed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Final

from evenkeel_contract.names import COMPONENT_LABEL, ENGINE_COMPONENT, SERVICE_LABEL
from evenkeel_contract.routerconfig import ClusterConfig, RouterConfig
from evenkeel_kube.client import KubeClient
from evenkeel_kube.watch import Selection, Watcher

from evenkeel_router.cluster import endpoints
from evenkeel_router.cluster.endpoints import EndpointSlice, Pod
from evenkeel_router.fleet.discovered import DiscoveredReplica
from evenkeel_router.ledger.contacts import Peer

_log = logging.getLogger(__name__)
SETTLE_S: Final = 0.01
"""Related events arrive within milliseconds."""


class KubernetesDiscovery:
    """The endpoints of the service's headless Services."""

    def __init__(
        self,
        client: KubeClient,
        config: RouterConfig,
        cluster: ClusterConfig,
        *,
        own_name: str,
        found_peers: Callable[[Sequence[Peer]], None],
        rng: Random,
    ) -> None:
        """`own_name` is this router's pod; `found_peers` is called with the other routers whenever they change."""
        self._cluster = cluster
        self._own_name = own_name
        self._found_peers = found_peers
        self._peers: Sequence[Peer] | None = None
        self._changed = asyncio.Event()
        changed = self._changed.set
        self._slices = Watcher(client, _slices_of(config.namespace, cluster), changed, rng=rng)
        self._pods = Watcher(client, _pods_of(config, cluster), changed, rng=rng)

    async def run(self) -> None:
        """Run both watches until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._slices.run())
            group.create_task(self._pods.run())

    def update(self, config: RouterConfig) -> None:
        """Use changed keys of the replicas. Services and labels must not change, since they identify the fleet."""
        cluster = config.cluster
        if cluster is None or _place(cluster) != _place(self._cluster):
            _log.warning("a changed `cluster` takes effect when the router restarts")
        else:
            self._cluster = cluster
            self._changed.set()

    async def watch(self) -> AsyncIterator[Sequence[DiscoveredReplica]]:
        while True:
            await self._changed.wait()
            await asyncio.sleep(SETTLE_S)
            self._changed.clear()
            if self._slices.synced and self._pods.synced:
                self._notify_peers()
                yield endpoints.replicas(
                    self._slices.cache.objects.values(),
                    self._pods.cache.objects,
                    service=self._cluster.engines,
                    api_key=self._cluster.api_key,
                    api_keys={key.id: key.key for key in self._cluster.api_keys},
                )

    def _notify_peers(self) -> None:
        if self._cluster.peers is None:
            return
        slices = self._slices.cache.objects.values()
        peers = endpoints.peers(slices, service=self._cluster.peers, own_name=self._own_name)
        if peers != self._peers:
            self._peers = peers
            _log.info("%d other routers: %s", len(peers), ", ".join(peer.name for peer in peers))
            self._found_peers(peers)


def _place(cluster: ClusterConfig) -> tuple[object, ...]:
    return cluster.engines, cluster.peers, cluster.pod_labels


def _slices_of(namespace: str, cluster: ClusterConfig) -> Selection[EndpointSlice]:
    names = ",".join(filter(None, (cluster.engines, cluster.peers)))
    return Selection(
        EndpointSlice,
        f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
        {"labelSelector": f"{endpoints.SERVICE_NAME_LABEL} in ({names})"},
    )


def _pods_of(config: RouterConfig, cluster: ClusterConfig) -> Selection[Pod]:
    own = {SERVICE_LABEL: config.service, COMPONENT_LABEL: ENGINE_COMPONENT}
    labels = ",".join(f"{name}={value}" for name, value in (cluster.pod_labels or own).items())
    return Selection(Pod, f"/api/v1/namespaces/{config.namespace}/pods", {"labelSelector": labels})
