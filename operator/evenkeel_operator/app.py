"""Start the operator: wait for the Lease, then watch the cluster and make passes.

    credentials → probes → Lease → watches → store → work queue → passes

Only the leader watches. A process that loses the Lease exits; the kubelet starts it again with an empty memory.

kopf makes the watches, and every event of every kind calls the same function. Only `on.event` is used, as kopf's author
advises for level-based operators: kopf then keeps no progress in objects, adds no finalizers and writes nothing.
docs/design/kubernetes-client.md explains the rest.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from itertools import chain, repeat
from random import Random
from typing import Any, Final

import kopf
from evenkeel_contract.names import EXTERNAL_LABEL, SERVICE_LABEL
from evenkeel_kube.client import ClusterError, KubeClient, connected, in_pod_or_kubeconfig
from evenkeel_kube.watch import EventWatcher

from evenkeel_operator import metrics
from evenkeel_operator.autoscaler import Activations, Autoscaler
from evenkeel_operator.cluster.apply import Applier, Refusals
from evenkeel_operator.cluster.downloads import Downloads, asked
from evenkeel_operator.cluster.lease import Lease
from evenkeel_operator.cluster.observe import Observer
from evenkeel_operator.cluster.prometheus import PrometheusClient, prometheus
from evenkeel_operator.cluster.routers import Routers, reached
from evenkeel_operator.cluster.store import (
    GATEWAY,
    NAMESPACE,
    NODE,
    POD,
    POOL,
    SCALER,
    SERVICE,
    SLICE,
    TENANT,
    Key,
    Store,
)
from evenkeel_operator.cluster.work_queue import WorkQueue
from evenkeel_operator.core.objects import ALL_KINDS, KINDS, Kind, Object
from evenkeel_operator.gateway_pass import GatewayPass
from evenkeel_operator.manifests.context import MANAGER
from evenkeel_operator.metrics import serving
from evenkeel_operator.reconcile import RESYNC_S, Dependencies, ServicePass
from evenkeel_operator.settings import Settings
from evenkeel_operator.tenant_pass import TenantPass

_log = logging.getLogger(__name__)

# Optional APIs change only when an administrator installs them.
APIS_INTERVAL_S: Final = 60.0
WATCH_AGAIN_S: Final = 1.0
SECRET_BYTES: Final = 32
TLS_BUFFER_BYTES: Final = 32 * 1024
"""Two records of TLS."""
# The metadata of a Secret is up to 256 KiB: `kubectl apply` stores what it applied in an annotation. And a page of thousands of
# tenants, once decoded, leaves memory behind that nothing else fills.
PAGE: Final = 100
# Until then kopf keeps an object whole after its event, and a task for it: at a start, all objects at the same time.
WORKER_IDLE_S: Final = 0.1
# Passes after listing everything again are spread over this time.
SPREAD_S: Final = 60.0
# The watches of one namespace work again at different times.
RECOVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Connections:
    """Connections of the operator."""

    client: KubeClient
    routers: Routers
    downloads: Downloads
    prometheus: PrometheusClient


async def run(settings: Settings) -> int:
    """Run until a signal, or until the lease is lost. The exit code."""
    # asyncio gives each TLS connection 256 KiB to read into, and each of the watches has one that is idle.
    SSLProtocol.max_size = TLS_BUFFER_BYTES
    async with (
        connected(
            await in_pod_or_kubeconfig(),
            kinds=ALL_KINDS,
            manager=MANAGER,
            on_write=lambda method: metrics.WRITES.labels(method).inc(),
        ) as client,
        reached() as routers,
        asked() as downloads,
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
            return await _lead(Connections(client, routers, downloads, seen), lease, settings)
        finally:
            metrics.LEADER.set(0)
            await lease.release()


async def _elected(lease: Lease) -> bool:
    """Wait for the lease; False where a signal came first."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with _background(stop.wait(), lease.acquire()) as (signalled, election):
        await asyncio.wait((signalled, election), return_when=asyncio.FIRST_COMPLETED)
        return election.done() and not stop.is_set()


async def _lead(reached: Connections, lease: Lease, settings: Settings) -> int:
    """Lead until a signal (kopf handles signals from here on), or until the lease is lost."""
    leader = Leader(reached, settings)
    try:
        await leader.observer.look_at_apis()
    except ClusterError as error:  # `follow_apis` tries again
        _log.warning("cannot list API groups: %s", error)
    await leader.observer.list_services(settings.watched_namespaces)
    watches = (watcher.run() for watcher in leader.watchers(settings.watched_namespaces))
    async with _background(leader.work(), leader.follow_apis(), leader.list_again(), *watches):
        keeping = asyncio.create_task(lease.keep())
        # kopf waits at its end for every task that was created after it (docs/design/kubernetes-client.md).
        await asyncio.sleep(0)
        watching = asyncio.create_task(_watch(leader, settings))
        await asyncio.wait((watching, keeping), return_when=asyncio.FIRST_COMPLETED)
        lost = keeping.done()
    for task in (watching, keeping):
        task.cancel()
    await asyncio.gather(watching, keeping, return_exceptions=True)
    failure = None if watching.cancelled() else watching.exception()
    if failure is not None:
        _log.critical("the watches failed", exc_info=failure)
    return 1 if lost or failure is not None else 0


async def _watch(leader: Leader, settings: Settings) -> None:
    """Watch until a signal. The removal of a watched API ends kopf, so it starts again without that API."""
    while True:
        leader.activations.resume()
        try:
            await kopf.operator(
                registry=registry(
                    leader.on_event, leader.activations.pause, overview=settings.has_overview
                ),
                settings=kopf_settings(leader.on_recovery, overview=settings.has_overview),
                # Otherwise kopf looks for the user's name, and a user that a namespace assigns has none.
                identity=settings.identity,  # type: ignore[arg-type]  # a NewType that is not exported
                clusterwide=not settings.watched_namespaces,
                namespaces=settings.watched_namespaces,
            )
        except Exception as error:
            if getattr(error, "status", None) != HTTPStatus.NOT_FOUND:
                raise
            _log.warning("a watched API was removed; the watches start again")
            await asyncio.sleep(WATCH_AGAIN_S)
        else:
            return


class Leader:
    """The store, the work queue and the passes of the leading process."""

    def __init__(self, reached: Connections, settings: Settings) -> None:
        client = reached.client
        self.store = Store()
        self._recovered: set[str] = set()
        """Namespaces with a watch that works again after it failed."""
        self._recovery = asyncio.Event()
        self.observer = Observer(client, self.store, any_secret=settings.defaults.any_secret)
        self._rng = Random()
        self.work_queue = WorkQueue(rng=self._rng)
        self.activations = Activations(
            self.observer,
            reached.routers,
            on_news=lambda key: self.work_queue.add(key, after_s=0.0),
        )
        self._workers = settings.workers
        monotonic_s = self._monotonic_s = asyncio.get_running_loop().time
        refusals = Refusals(rng=self._rng, monotonic_s=monotonic_s)
        self._looks = WorkQueue(rng=self._rng, waiting=metrics.LOOKS_WAITING)
        self._autoscaler = Autoscaler(
            reached.prometheus,
            self.observer,
            settings.defaults,
            monotonic_s=monotonic_s,
            wake=lambda key: self.work_queue.add(key, after_s=0.0),
            look_at=lambda key: self._looks.add(key, after_s=0.0),
        )
        applier = Applier(client, self.store, refusals)
        applier.wake = self.work_queue.add
        dependencies = Dependencies(
            client=client,
            store=self.store,
            observer=self.observer,
            applier=applier,
            routers=reached.routers,
            downloads=reached.downloads,
            activations=self.activations,
            autoscaler=self._autoscaler,
            defaults=settings.defaults,
            clock=_now,
            monotonic_s=monotonic_s,
            fresh=lambda: secrets.token_urlsafe(SECRET_BYTES),
        )
        self._services, self._tenants = ServicePass(dependencies), TenantPass(dependencies)
        self._passes: dict[str, Callable[[Key], Awaitable[float | None]]] = {
            SERVICE: self._services,
            TENANT: self._tenants,
            GATEWAY: GatewayPass(dependencies),
        }
        self.observer.wake = self.work_queue.add
        self._client = client

    def watchers(self, namespaces: Sequence[str]) -> Iterator[EventWatcher]:
        """Watches of what a cluster can have very much of. kopf lists each kind in one answer, and with all contents.

        Of Secrets only the metadata is read: a cluster may have gigabytes of them. What a resource names is read by its pass."""
        for kind in (TENANT, "Secret"):
            for namespace in namespaces or ("",):
                where = ALL_KINDS[kind]
                yield EventWatcher(
                    self._client,
                    self._client.path_of(kind, namespace),
                    partial(self._seen, kind),
                    rng=self._rng,
                    metadata_only=kind == "Secret",
                    page=PAGE,
                    is_failing=partial(_watch_fails, f"{where.plural}@{namespace or None}"),
                )

    def _seen(self, kind: str, event: str | None, item: Object) -> None:
        self.on_event(event, kind, {"apiVersion": ALL_KINDS[kind].api, "kind": kind, **item})

    def on_event(self, event: str | None, kind: str, item: Object) -> None:
        """Every event of every watch comes here."""
        for key in self.store.see(event, kind, item):
            self.work_queue.add(key)

    async def work(self) -> None:
        """Make passes until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self.work_queue.work(self.make_pass))
                group.create_task(self._looks.work(self._autoscaler.look))

    async def make_pass(self, key: Key) -> float | None:
        """One pass over one resource, counted and timed."""
        make = self._passes[key.kind]
        outcome = "failed"
        try:
            with metrics.PASS_SECONDS.labels(key.kind).time():
                after_s = await make(key)
            outcome = "done"
            return after_s
        finally:
            metrics.PASSES.labels(key.kind, outcome).inc()

    def on_recovery(self, namespace: str) -> None:
        """A watch of a namespace works again after it failed. It does not report what was deleted meanwhile."""
        self._recovered.add(namespace)
        self._recovery.set()

    async def list_again(self) -> None:
        """List everything again at intervals, and a namespace once its watches work again; then make a pass over each resource,
        spread over time."""
        due_s = self._monotonic_s() + RESYNC_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._recovery.wait()
                    await asyncio.sleep(RECOVERY_S)  # its other watches follow
            if self._monotonic_s() >= due_s:
                only, spread_s, due_s = None, SPREAD_S, self._monotonic_s() + RESYNC_S
            else:
                only, spread_s = frozenset(self._recovered), 0.0
            self._recovered.clear()
            self._recovery.clear()
            for namespace in only or ():
                self._services.list_again(namespace)
            await self.observer.list_again(only=only)
            for key in self.store.keys_anywhere(SERVICE, TENANT, GATEWAY):
                if only is None or key.namespace in only:
                    self.work_queue.add(key, after_s=self._rng.uniform(0, spread_s))

    async def follow_apis(self) -> None:
        """Make a pass over every service when an optional API was added or removed."""
        while True:
            await asyncio.sleep(APIS_INTERVAL_S)
            try:
                if await self.observer.look_at_apis():
                    _log.info(
                        "optional APIs of the cluster: %s", sorted(self.observer.apis) or "none"
                    )
                    for key in self.store.keys_anywhere(SERVICE, GATEWAY):
                        self.work_queue.add(key)
            except ClusterError as error:
                _log.warning("cannot list API groups: %s", error)


def _watch_fails(watch: str, failing: bool) -> None:
    if failing:
        metrics.WATCH_FAILING.labels(watch).set(1)
    else:
        with suppress(KeyError):
            metrics.WATCH_FAILING.remove(watch)


@asynccontextmanager
async def _background(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Tasks for the time of the context. The next leader repeats a pass that was cancelled."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the clock that all others take as a parameter


OnEvent = Callable[[str | None, str, Object], None]
"""Event (None: initial listing), kind, object."""

# Shorter than the server's timeout, so that a dead connection is detected.
WATCH_S: Final = 300


def registry(
    on_event: OnEvent, on_end: Callable[[], Awaitable[None]], *, overview: bool = True
) -> kopf.OperatorRegistry:
    """Handlers for services, autoscalers and pods, for everything that is made except for Secrets (`Leader.watchers`), and with an
    `overview` of the cluster for nodes and namespaces.

    `on_end` is called when watching ends and must stop all other tasks. kopf would wait 5 s for them.
    """
    found = kopf.OperatorRegistry()
    kopf.on.login(registry=found)(kopf.login_via_client)

    async def ends(**_: Any) -> None:
        await on_end()

    kopf.on.cleanup(registry=found)(ends)
    watched = {
        kind: ALL_KINDS[kind]
        for kind in (SERVICE, GATEWAY, SCALER, POOL, POD, SLICE, *KINDS)
        if kind != "Secret"
    }
    if overview:
        watched |= {NODE: Kind("v1", "nodes"), NAMESPACE: Kind("v1", "namespaces")}
    for kind, where in watched.items():
        group, _, version = where.api.rpartition("/")
        kopf.on.event(group, version, where.plural, registry=found)(_handler(kind, on_event))
    return found


def _handler(kind: str, on_event: OnEvent) -> Any:
    async def seen(event: Any, **_: Any) -> None:
        on_event(event["type"], kind, event["object"])

    seen.__name__ = f"saw_{kind.lower()}"
    return seen


WATCH_RETRIES_S: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Waits between attempts of a watch; the last one repeats."""


class Backoffs:
    """Waits of kopf between attempts of one request.

    A request of a watch is repeated without an end: a right that is missing in one namespace, or an API server that fails, must not end
    the watches of all others. kopf's own requests end, since it does without some of them. kopf names the tasks of watches, such as
    `watcher for services.v1@team-ml`.
    """

    def __init__(self, on_recovery: Callable[[str], None]) -> None:
        """`on_recovery` gets the namespace of a watch that works again."""
        self._on_recovery = on_recovery

    def __iter__(self) -> Iterator[float]:
        task = asyncio.current_task()
        _, is_watch, watch = ("" if task is None else task.get_name()).partition("watcher for ")
        further = repeat(WATCH_RETRIES_S[-1]) if is_watch else ()
        what, _, namespace = watch.rpartition("@")
        failed = False
        try:
            for attempt, wait_s in enumerate(chain(WATCH_RETRIES_S, further)):
                if (
                    is_watch and attempt and not failed
                ):  # kopf takes the first wait before the first attempt
                    failed = True
                    metrics.WATCH_FAILING.labels(watch).set(1)
                    _log.warning("cannot watch %s in %s; trying again", what, namespace)
                yield wait_s
        finally:  # an attempt succeeded, or the watch ended
            with suppress(KeyError):
                metrics.WATCH_FAILING.remove(watch)
            if failed:
                self._on_recovery(namespace)


def kopf_settings(
    on_recovery: Callable[[str], None], *, overview: bool = True
) -> kopf.OperatorSettings:
    """kopf writes nothing, and watches only objects with the service's label."""
    found = kopf.OperatorSettings()
    found.scanning.disabled = not overview
    found.posting.enabled = False
    found.peering.standalone = True
    found.watching.server_timeout = WATCH_S
    found.watching.chunk_size = PAGE
    found.queueing.worker_limit = None
    found.queueing.idle_timeout = WORKER_IDLE_S
    found.networking.error_backoffs = Backoffs(on_recovery)
    for kind, where in KINDS.items():
        if kind == "Secret":  # not kopf's
            continue
        group, _, version = where.api.rpartition("/")
        found.watching.label_selectors[group, version, where.plural] = SERVICE_LABEL
    found.watching.label_selectors["", "v1", "pods"] = SERVICE_LABEL
    # Kubernetes copies the labels of a Service to its slices.
    found.watching.label_selectors["discovery.k8s.io", "v1", "endpointslices"] = EXTERNAL_LABEL
    return found
