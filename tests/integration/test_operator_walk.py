"""The files that a new service runs code of until its engines' Deployment is written are those that ARCHITECTURE.md lists."""

from __future__ import annotations

import asyncio

from evenkeel_operator.app import Connections, Leader
from evenkeel_operator.cluster.store import SERVICE
from evenkeel_operator.core.objects import Object
from evenkeel_operator.settings import Settings

from tests.support.build_contexts import document
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_downloads import FakeDownloads
from tests.support.fake_prometheus import FakePrometheus
from tests.support.fake_routers import FakeRouters
from tests.support.operator_lives import DEFAULTS
from tests.support.routers import until
from tests.support.walks import listed, noted

FOLDERS = ("operator", "contract", "fairshare")
ROOMS = {room: f"operator/evenkeel_operator/{room}" for room in ("cluster", "core", "manifests")}
CLIENT = "kube/evenkeel_kube/client.py"
"""The way to the API server, which the cluster in memory stands in for."""


class Cluster(FakeCluster):
    """Notes what has run when the engines' Deployment is written."""

    def __init__(self) -> None:
        super().__init__()
        self.running: set[str] = set()
        self.ran: set[str] = set()

    async def apply(self, manifest: Object, *, dry_run: bool = False) -> Object:
        made = manifest["kind"], manifest["metadata"]["name"]
        if made == ("Deployment", "simulated-engine") and not dry_run:
            self.ran |= self.running
        return await super().apply(manifest, dry_run=dry_run)


async def test_a_new_service_runs_the_files_that_architecture_lists() -> None:
    cluster = Cluster()
    service = document("simulator.yaml")
    service["metadata"]["generation"] = 1
    settings = Settings(defaults=DEFAULTS, identity="one", namespace="evenkeel-system")
    leader = Leader(
        Connections(cluster, FakeRouters(), FakeDownloads(), FakePrometheus()), settings
    )
    with noted(FOLDERS) as cluster.running:
        working = asyncio.create_task(leader.work())
        try:
            leader.on_event("ADDED", SERVICE, cluster.put(service))
            await until(lambda: bool(cluster.ran), "the engines' Deployment")
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    assert cluster.ran | {CLIENT} == listed("until its Deployment is written", ROOMS)
