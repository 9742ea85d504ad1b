"""The one that leads, put together: an event leads to a pass, and a pass to looks that lead to passes."""

from __future__ import annotations

import asyncio

from evenkeel_operator.app import Connections, Leader
from evenkeel_operator.cluster.store import SERVICE
from evenkeel_operator.settings import Settings

from tests.support.build_contexts import document
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_downloads import FakeDownloads
from tests.support.fake_prometheus import FakePrometheus, answers
from tests.support.fake_routers import FakeRouters
from tests.support.operator_lives import DEFAULTS
from tests.support.routers import until


async def test_a_service_that_is_seen_is_made_looked_at_and_scaled() -> None:
    cluster, prometheus = FakeCluster(), FakePrometheus()
    prometheus.answers = answers({("ads", "chat"): 1e9})
    plain = document("simulator.yaml")
    plain["metadata"]["generation"] = 1
    del plain["spec"]["engine"]["replicas"]
    plain["spec"]["autoscaling"] = {
        "maxReplicas": 4,
        "prometheus": {"url": "http://prometheus:9090"},
        "targets": {"servicePerReplica": 1},
    }
    settings = Settings(defaults=DEFAULTS, identity="one", namespace="evenkeel-system")
    leader = Leader(Connections(cluster, FakeRouters(), FakeDownloads(), prometheus), settings)
    working = asyncio.create_task(leader.work())
    try:
        leader.on_event("ADDED", SERVICE, cluster.put(plain))
        engines = ("Deployment", "team-ml", "simulated-engine")
        await until(
            lambda: cluster.objects.get(engines, {}).get("spec", {}).get("replicas") == 4,
            "four replicas",
        )
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
