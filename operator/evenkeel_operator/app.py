"""The operator, put together: who leads watches, and makes passes.

    credentials → probes → lease → watches → store → worklist → passes

Who does not lead watches nothing and holds nothing. Who loses the lease ends: the kubelet starts it anew, with an
empty memory.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from random import Random
from typing import Any, Final

import kopf
from evenkeel_kube.access import in_pod_or_kubeconfig
from evenkeel_kube.client import KubeClient, connected
from evenkeel_kube.errors import ClusterError

from evenkeel_operator import handlers, metrics
from evenkeel_operator.activation import Activations
from evenkeel_operator.autoscaler import Autoscaler
from evenkeel_operator.cluster.apply import Applier
from evenkeel_operator.cluster.lease import Lease
from evenkeel_operator.cluster.observe import Observer
from evenkeel_operator.cluster.prometheus import Prometheus, prometheus
from evenkeel_operator.cluster.refusals import Refusals
from evenkeel_operator.cluster.routers import Routers, reached
from evenkeel_operator.cluster.store import SERVICE, Key, Store
from evenkeel_operator.cluster.worklist import Worklist
from evenkeel_operator.core.objects import ALL_KINDS, Object
from evenkeel_operator.manifests.metadata import MANAGER
from evenkeel_operator.probes import serving
from evenkeel_operator.reconcile import RESYNC_S, Means, ServicePass
from evenkeel_operator.settings import Settings
from evenkeel_operator.tenantpass import TenantPass

_log = logging.getLogger(__name__)

# Optional APIs come and go with people who install them; a minute late is early enough.
APIS_INTERVAL_S: Final = 60.0
WATCH_AGAIN_S: Final = 1.0
SECRET_BYTES: Final = 32
SPREAD_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Reached:
    """Whom the operator talks to."""

    client: KubeClient
    routers: Routers
    prometheus: Prometheus


async def run(settings: Settings) -> int:
    """Run until a signal, or until the lease is lost. The exit code."""
    async with (
        connected(
            await in_pod_or_kubeconfig(),
            kinds=ALL_KINDS,
            manager=MANAGER,
            on_write=lambda method: metrics.WRITES.labels(method).inc(),
        ) as client,
        reached() as routers,
        prometheus() as seen,
        serving(settings.probe_host, settings.probe_port) as port,
    ):
        _log.info("probes and metrics on port %d", port)
        lease = Lease(
            client,
            namespace=settings.namespace,
            name=settings.lease,
            identity=settings.identity,
            clock=_now,
        )
        if not await _elected(lease):
            return 0
        metrics.LEADER.set(1)
        try:
            return await _lead(Reached(client, routers, seen), lease, settings)
        finally:
            metrics.LEADER.set(0)
            await lease.release()


async def _elected(lease: Lease) -> bool:
    """Wait for the lease; False where a signal came first."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    waiting = asyncio.create_task(stop.wait())
    election = asyncio.create_task(lease.acquire())
    try:
        await asyncio.wait((waiting, election), return_when=asyncio.FIRST_COMPLETED)
        return election.done() and not stop.is_set()
    finally:
        for task in (waiting, election):
            task.cancel()
        await asyncio.gather(waiting, election, return_exceptions=True)


async def _lead(reached: Reached, lease: Lease, settings: Settings) -> int:
    """Act until a signal (kopf takes them from here on), or until the lease is lost."""
    leader = Leader(reached, settings)
    await leader.observer.look_at_apis()
    async with _background(leader.work(), leader.follow_apis(), leader.look_afresh()):
        keeping = asyncio.create_task(lease.keep())
        # kopf takes every task that is younger than itself for its own, and waits for its end.
        await asyncio.sleep(0)
        watching = asyncio.create_task(_watch(leader, settings))
        await asyncio.wait((watching, keeping), return_when=asyncio.FIRST_COMPLETED)
        lost = keeping.done()
    for task in (watching, keeping):
        task.cancel()
    await asyncio.gather(watching, keeping, return_exceptions=True)
    failure = None if watching.cancelled() else watching.exception()
    if failure is not None:
        _log.critical("watching failed", exc_info=failure)
    return 1 if lost or failure is not None else 0


async def _watch(leader: Leader, settings: Settings) -> None:
    """Watch until a signal. An optional API that is removed under a watch ends all of kopf: it begins anew without."""
    while True:
        leader.activations.resume()
        try:
            await kopf.operator(
                registry=handlers.registry(leader.on_event, leader.activations.pause),
                settings=handlers.settings(),
                clusterwide=not settings.watched_namespaces,
                namespaces=settings.watched_namespaces,
            )
        except Exception as error:
            if getattr(error, "status", None) != HTTPStatus.NOT_FOUND:
                raise
            _log.warning("an API that was watched is gone; watching begins anew")
            await asyncio.sleep(WATCH_AGAIN_S)
        else:
            return


class Leader:
    """What the one that acts holds: a memory, a list of what to do, and passes."""

    def __init__(self, reached: Reached, settings: Settings) -> None:
        client = reached.client
        self.store = Store()
        self.observer = Observer(client, self.store)
        self._rng = Random()
        self.worklist = Worklist(rng=self._rng)
        self.activations = Activations(
            self.observer, reached.routers, on_news=lambda key: self.worklist.add(key, after_s=0.0)
        )
        self._workers = settings.workers
        monotonic_s = asyncio.get_running_loop().time
        refusals = Refusals(rng=self._rng, monotonic_s=monotonic_s)
        self._looks = Worklist(rng=self._rng, waiting=metrics.LOOKS_WAITING)
        self._autoscaler = Autoscaler(
            reached.prometheus,
            self.observer,
            settings.defaults,
            monotonic_s=monotonic_s,
            wake=lambda key: self.worklist.add(key, after_s=0.0),
            look_at=lambda key: self._looks.add(key, after_s=0.0),
        )
        means = Means(
            client=client,
            store=self.store,
            observer=self.observer,
            applier=Applier(client, self.store, refusals),
            routers=reached.routers,
            activations=self.activations,
            autoscaler=self._autoscaler,
            defaults=settings.defaults,
            clock=_now,
            monotonic_s=monotonic_s,
            fresh=lambda: secrets.token_urlsafe(SECRET_BYTES),
        )
        self._services, self._tenants = ServicePass(means), TenantPass(means)

    def on_event(self, event: str | None, kind: str, item: Object) -> None:
        """Every event of every watch comes here."""
        for key in self.store.see(event, kind, item):
            self.worklist.add(key)

    async def work(self) -> None:
        """Make passes until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self.worklist.work(self.make_pass))
                group.create_task(self._looks.work(self._autoscaler.look))

    async def make_pass(self, key: Key) -> float | None:
        """One pass over one resource, counted and timed."""
        make = self._services if key.kind == SERVICE else self._tenants
        outcome = "failed"
        try:
            with metrics.PASS_SECONDS.labels(key.kind).time():
                after_s = await make(key)
            outcome = "done"
            return after_s
        finally:
            metrics.PASSES.labels(key.kind, outcome).inc()

    async def look_afresh(self) -> None:
        """List everything anew now and then, and pass over all of it, spread over some time."""
        while True:
            await asyncio.sleep(RESYNC_S)
            try:
                await self.observer.look_afresh()
            except ClusterError as error:
                _log.warning("cannot look afresh: %s", error)
            for key in self.store.all_resources():
                self.worklist.add(key, after_s=self._rng.uniform(0, SPREAD_S))

    async def follow_apis(self) -> None:
        """Pass over every service when an optional API has come or gone."""
        while True:
            await asyncio.sleep(APIS_INTERVAL_S)
            try:
                if await self.observer.look_at_apis():
                    _log.info("optional APIs are now: %s", sorted(self.observer.apis) or "none")
                    for key in self.store.all_services():
                        self.worklist.add(key)
            except ClusterError as error:
                _log.warning("cannot ask for API groups: %s", error)


@asynccontextmanager
async def _background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Tasks for the time of the context. A pass that is cut off is made again by whoever leads next."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _now() -> datetime:
    return datetime.now(UTC)
