"""The services of a router: each opened with all that runs beside its requests, and closed again.

    store → health, tokeniser → reports, KV events, peers, ledger → pipeline

A router of several services has these of each (docs/design/gateway.md). What they share is `Process`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientSession
from evenkeel_contract.pools import config_of_pool, configs_of
from evenkeel_contract.routerconfig import RouterConfig

from evenkeel_router.api.models import ModelTable
from evenkeel_router.fleet.health import HealthMonitor
from evenkeel_router.fleet.probe import Prober
from evenkeel_router.fleet.replicas import Discovery, StaticDiscovery
from evenkeel_router.fleet.reports import Reports
from evenkeel_router.gate.borrowing import Borrowing, http_transport
from evenkeel_router.gate.upkeep import GateUpkeep
from evenkeel_router.ledger.contacts import Peer
from evenkeel_router.ledger.federation import Federation
from evenkeel_router.ledger.key_sets import KeySetReader
from evenkeel_router.ledger.maintenance import LedgerMaintenance, demand, update_fairness
from evenkeel_router.ledger.model_shares import ModelShares
from evenkeel_router.ledger.peers import Peers
from evenkeel_router.ledger.persistence import Persistence, store_of
from evenkeel_router.ledger.revocation_exchange import RevocationExchange
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.prefix.kv_events import KvEvents
from evenkeel_router.prefix.prompt_facts import PromptFactsClient
from evenkeel_router.prefix.tokenisation import Tokenisation
from evenkeel_router.request.admission import TopUp
from evenkeel_router.request.console_page import PageFile
from evenkeel_router.request.forward import Forwarder
from evenkeel_router.request.front import RequestSink
from evenkeel_router.request.gateway import Pools
from evenkeel_router.request.large_bodies import LargeBodies
from evenkeel_router.request.own_keys import KeyService
from evenkeel_router.request.pipeline import Pipeline
from evenkeel_router.request.relocation import Relocation
from evenkeel_router.request.request_log import RequestLog
from evenkeel_router.request.tenant_console import TenantAnswer, TenantConsole
from evenkeel_router.slices import in_slices
from evenkeel_router.telemetry.console import Console
from evenkeel_router.telemetry.recorder import Recorder
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.served import AllServed, Served
from evenkeel_router.telemetry.tracing import Tracing
from evenkeel_router.transport.background import background
from evenkeel_router.transport.client_request import Aside
from evenkeel_router.transport.upstream import Upstream

if TYPE_CHECKING:
    from evenkeel_kube.client import KubeClient

_log = logging.getLogger(__name__)
FIRST_READING_S: Final = 3.0  # for the ledger's store, and for peers, before requests come
LOOK_S: Final = 0.1  # between two looks at the requests of a service that is being closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What all services of a router share."""

    shared: Rooms
    upstream: Upstream
    session: ClientSession
    prober: Prober
    api: KubeClient | None
    large_bodies: LargeBodies
    log: RequestLog
    tracing: Tracing
    top_up: TopUp
    key_sets: KeySetReader
    revocations: RevocationExchange
    applying: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a changed configuration, or changed weights, come into force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service that is open."""

    rooms: Rooms
    discovery: Discovery
    tokenising: Tokenisation
    peers: Peers
    federation: Federation
    served: Served
    pipeline: Pipeline

    def apply(self, config: RouterConfig) -> Generator[None, None, None]:
        """Use a changed configuration, in steps."""
        if _place(config) != _place(self.rooms.settings.config):
            _log.warning("another store of the ledger is used when the router restarts")
        yield from self.rooms.apply(config)
        if self.federation.take(config):
            self.rooms.reweigh({})
        self.tokenising.configure(config.prefix)
        self.discovery.update(config)


def asides(
    process: Process, rooms: Rooms, *, files: Mapping[str, PageFile], answer: TenantAnswer
) -> Sequence[Aside]:
    """What answers requests that no replica gets: the console, and keys of clients."""
    intake, totals, key_sets = rooms.intake, rooms.totals, process.key_sets
    return (
        TenantConsole(intake, totals, files=files, answer=answer, key_sets=key_sets),
        KeyService(rooms.settings, intake, totals, process.revocations, key_sets=key_sets),
    )


async def opened(stack: AsyncExitStack, process: Process, rooms: Rooms) -> Service:
    """A service that is ready for requests; `stack` closes it."""
    settings, session = rooms.settings, process.session
    config = settings.config
    # 1. What an earlier process knew.
    await _read_store(stack, rooms)
    # 2. The replicas.
    tokenising = Tokenisation(config.prefix, rooms.prefixes.untokenised)
    discovery = _discovery(config, rooms.service_ledger, process.api)
    health = HealthMonitor(settings, rooms.replicas, rooms.service_ledger, process.prober)
    await stack.enter_async_context(tokenising)
    await tokenising.load()
    # 3. What runs beside the requests.
    console = Console(rooms)
    log = process.log
    line = log.add if rooms.shared is None else log.of_model(config.model)
    sinks: list[RequestSink] = [line]
    recorder = Recorder(rooms, sinks)
    peers = Peers(settings, rooms.service_ledger, session, several=rooms.shared is not None)

    async def reweigh(weights: Mapping[str, float]) -> None:
        async with process.applying:
            rooms.reweigh(weights)

    federation = Federation(config, rooms.service_ledger, session, reweigh=reweigh)
    borrowing = Borrowing(
        rooms.gates,
        rooms.service_ledger.ledger.router,
        http_transport(session, settings, several=rooms.shared is not None),
        peers=peers.listed,
        interval_s=lambda: settings.config.state.exchange_interval_s,
    )
    parts = (recorder, discovery, peers, tokenising, console, federation, borrowing)
    works = [part.run() for part in parts]
    works += health.run(discovery), *_followers(rooms, health, tokenising, session)
    for work in (*works, *_ledger_work(rooms, peers)):
        await stack.enter_async_context(background(work))
    with suppress(TimeoutError):
        await asyncio.wait_for(peers.all_asked.wait(), FIRST_READING_S)
    # 4. Its pipeline.
    pipeline = _pipeline(
        rooms,
        tokenising,
        process,
        health=health,
        console=console,
        federation=federation,
        sinks=sinks,
    )
    return Service(
        rooms=rooms,
        discovery=discovery,
        tokenising=tokenising,
        peers=peers,
        federation=federation,
        served=Served(rooms, console, recorder),
        pipeline=pipeline,
    )


class Services:
    """The services of the router. Those of several follow the configuration: they are opened and closed while others serve."""

    def __init__(self, process: Process) -> None:
        shared = process.shared
        self._process = process
        self._open: dict[str, tuple[Service, AsyncExitStack]] = {}
        self._changed = asyncio.Event()
        self.served = AllServed(shared)
        self._pipelines: dict[str, Pipeline] = {}
        self.shares = ModelShares(
            lambda: shared.settings.config,
            lambda: {name: one.rooms.service_ledger for name, (one, _) in self._open.items()},
            interval_s=shared.settings.timing.share_interval_s,
            reweigh=self._reweigh,
        )
        """What gives tenants their weights in each of several services (R22)."""
        self.pools = Pools(
            ModelTable(shared.settings.config),
            self._pipelines,
            self.served.look,
            fallen_back=self.served.fallen_back,
        )

    @property
    def only(self) -> Service:
        """The service of a router that has one."""
        return next(iter(self._open.values()))[0]

    @property
    def configured(self) -> RouterConfig:
        """The last configuration that was applied."""
        return self._process.shared.settings.config

    def peers(self) -> Sequence[Peer] | None:
        """The other routers: all services have the same; None while they are not known."""
        return next((one.peers.listed() for one, _ in self._open.values()), None)

    async def start(self) -> None:
        """Open all services."""
        shared = self._process.shared
        if not self.served.several:
            await self._add(shared)
            return
        configs = configs_of(shared.settings.config)
        await asyncio.gather(*(self._add(shared.of_pool(config)) for config in configs))

    async def apply(self, config: RouterConfig) -> None:
        """Use a changed configuration. Services that are new or gone follow in `run`."""
        async with self._process.applying:
            await in_slices(self._applied(config))

    def _applied(self, config: RouterConfig) -> Generator[None, None, None]:
        if not self.served.several:
            yield from self.only.apply(config)
            return
        yield from self._process.shared.apply(config)
        for own in configs_of(config):
            if own.service in self._open:
                yield from self._open[own.service][0].apply(own)
        self.pools.table = ModelTable(config)
        self._changed.set()

    async def run(self) -> None:
        """Open and close services as the configuration says, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            config = self._process.shared.settings.config
            wanted = {pool.service: pool for pool in config.pools}
            for service in [name for name in self._open if name not in wanted]:
                await self._remove(service)
            for service, pool in wanted.items():
                if service not in self._open:
                    await self._add(self._process.shared.of_pool(config_of_pool(config, pool)))
                    _log.info("serving %s, too", pool.model)

    async def close(self) -> None:
        """Close all services."""
        for _, stack in self._open.values():
            await stack.aclose()
        self._open.clear()

    async def _reweigh(self, name: str, weights: Mapping[str, float]) -> None:
        async with self._process.applying:
            if name in self._open:
                self._open[name][0].rooms.reweigh(weights)

    async def _add(self, rooms: Rooms) -> None:
        name, stack = rooms.settings.config.service, AsyncExitStack()
        try:
            service = await opened(stack, self._process, rooms)
        except BaseException:
            await stack.aclose()
            raise
        self._open[name] = service, stack
        self._pipelines[name] = service.pipeline
        self.served.services[name] = service.served

    async def _remove(self, name: str) -> None:
        """Nothing new is sent to the service; its requests end first, within the time of a drain."""
        service, stack = self._open[name]
        now = asyncio.get_running_loop().time
        until_s = now() + service.rooms.settings.config.drain_timeout_s
        while service.pipeline in self.pools.chosen.values():
            await asyncio.sleep(LOOK_S)
            if now() >= until_s:
                break
        del self._open[name], self._pipelines[name], self.served.services[name]
        await stack.aclose()
        _log.info("%s is served no longer", service.rooms.settings.config.model)


def _ledger_work(rooms: Rooms, peers: Peers) -> Sequence[Coroutine[Any, Any, None]]:
    """What keeps the ledger and its figures up to date."""
    service_ledger, timing = rooms.service_ledger, rooms.settings.timing
    maintenance = LedgerMaintenance(
        service_ledger, timing, peers.members, rooms.replicas.all_reported
    )
    return (
        maintenance.run(),
        update_fairness(
            service_ledger,
            timing,
            lambda: [one.name for one in rooms.replicas.fleet if one.routable],
            lambda: rooms.replicas.take_speeds(service_ledger),
        ),
        demand(service_ledger, timing),
    )


def _followers(
    rooms: Rooms, health: HealthMonitor, tokenising: Tokenisation, session: ClientSession
) -> Sequence[Coroutine[Any, Any, None]]:
    """What asks replicas about themselves: reports, KV events, what they make tokens with, their queues."""
    settings, replicas, prefixes = rooms.settings, rooms.replicas, rooms.prefixes
    accounting = rooms.service_ledger.accounting
    now = asyncio.get_running_loop().time
    relocation = Relocation(replicas.fleet, accounting, rooms.intake.unanswered, now)
    reports = Reports(
        settings,
        replicas,
        rooms.service_ledger,
        health_monitor=health,
        listener=relocation,
    )
    kv_events = KvEvents(settings, replicas, prefixes, health_monitor=health, tokenising=tokenising)
    facts = PromptFactsClient(settings, replicas, prefixes, tokenising)
    gates = GateUpkeep(settings, replicas, rooms.gates, session, lending=rooms.lending)
    return reports.run(), kv_events.run(), facts.run(), gates.run()


def _pipeline(
    rooms: Rooms,
    tokenising: Tokenisation,
    process: Process,
    *,
    health: HealthMonitor,
    console: Console,
    federation: Federation,
    sinks: Sequence[RequestSink],
) -> Pipeline:
    shared = process.shared.intake
    forwarder = Forwarder(
        rooms.settings,
        rooms.replicas,
        rooms.service_ledger.accounting,
        rooms.gates,
        upstream=process.upstream,
        health=health,
        large_bodies=process.large_bodies,
        unanswered=rooms.intake.unanswered,
        is_draining=lambda: shared.draining,
    )
    return Pipeline(
        rooms.settings,
        rooms.intake,
        rooms.replicas,
        rooms.service_ledger,
        top_up=process.top_up,
        totals=rooms.totals,
        forwarder=forwarder,
        prefixes=rooms.prefixes,
        tokenising=tokenising,
        asides=asides(process, rooms, files=console.files, answer=console.answer),
        key_sets=process.key_sets,
        federation=federation,
        large_bodies=process.large_bodies,
        tracer=process.tracing,
        sinks=sinks,
    )


async def _read_store(stack: AsyncExitStack, rooms: Rooms) -> None:
    """Read the ledger and keep it. A store that does not answer delays the start by a few seconds only."""
    settings, now = rooms.settings, asyncio.get_running_loop().time
    if (store := store_of(settings.config, now)) is None:
        return
    persistence = rooms.service_ledger.persistence = Persistence(
        rooms.service_ledger.ledger,
        store,
        interval_s=lambda: settings.config.state.save_interval_s,
        now=now,
    )
    await stack.enter_async_context(background(persistence.run()))
    with suppress(TimeoutError):
        await asyncio.wait_for(persistence.loaded.wait(), FIRST_READING_S)


def _discovery(
    config: RouterConfig, service_ledger: ServiceLedger, api: KubeClient | None
) -> Discovery:
    if config.cluster is None:
        return StaticDiscovery(config)
    if api is None:
        raise ValueError("a fleet on a cluster is found through its API, and none was given")
    # The Kubernetes client takes 20 MiB and a third of a second to import; fleets on one machine do without it.
    from evenkeel_router.cluster.discovery import KubernetesDiscovery

    def found_peers(peers: Sequence[Peer]) -> None:
        service_ledger.peers = tuple(peers)

    return KubernetesDiscovery(
        api,
        config,
        config.cluster,
        own_name=socket.gethostname(),  # a pod's name
        found_peers=found_peers,
        rng=Random(),
    )


def _place(config: RouterConfig) -> tuple[object, ...]:
    """Where the ledger is kept."""
    return config.state.store, config.state.file, config.state.redis_url
