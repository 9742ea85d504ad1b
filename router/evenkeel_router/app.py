"""The router, put together: what is opened, in which order, and what is closed again.

    rooms → store → upstream, discovery, health, reports, config_watch → pipeline → ports

Every resource is a context of one exit stack: opened top to bottom, closed bottom to top, whatever fails.
The order of the end: readiness goes first, then the requests in flight, then the ports, then the rest.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import IO, TYPE_CHECKING, Any, Final

from aiohttp import ClientSession, web
from evenkeel_contract.routerconfig import RouterConfig, TenantLimits

from evenkeel_router.api.proxies import network_of
from evenkeel_router.cluster.config_watch import ConfigSource
from evenkeel_router.fleet.health import HealthMonitor
from evenkeel_router.fleet.probe import HttpProber, Prober, prober_session
from evenkeel_router.fleet.replicas import Discovery, StaticDiscovery
from evenkeel_router.fleet.reports import Reports
from evenkeel_router.gate.upkeep import GateUpkeep
from evenkeel_router.ledger.contacts import Peer
from evenkeel_router.ledger.federation import Federation
from evenkeel_router.ledger.limit_exchange import LimitExchange, exchange_over_http
from evenkeel_router.ledger.maintenance import LedgerMaintenance, demand, update_fairness
from evenkeel_router.ledger.peers import Peers
from evenkeel_router.ledger.persistence import Persistence, store_of
from evenkeel_router.ledger.revocation_exchange import RevocationExchange
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.prefix.kv_events import KvEvents
from evenkeel_router.prefix.prompt_facts import PromptFactsClient
from evenkeel_router.prefix.tokenisation import Tokenisation
from evenkeel_router.request.connection_holders import of_new, report
from evenkeel_router.request.credentials import key_set_reader, revocation_exchange
from evenkeel_router.request.draining import drain
from evenkeel_router.request.forward import Forwarder
from evenkeel_router.request.key_sets import KeySetReader
from evenkeel_router.request.large_bodies import LargeBodies
from evenkeel_router.request.own_keys import KeyService
from evenkeel_router.request.pipeline import Pipeline, RequestSink
from evenkeel_router.request.relocation import Relocation
from evenkeel_router.request.request_log import RequestLog
from evenkeel_router.request.request_state import RequestTracer
from evenkeel_router.request.tenant_console import TenantConsole
from evenkeel_router.settings import Timing
from evenkeel_router.slices import in_slices
from evenkeel_router.telemetry.admin import admin_app, probe_app
from evenkeel_router.telemetry.console import Console
from evenkeel_router.telemetry.metrics import metrics
from evenkeel_router.telemetry.recorder import Recorder
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.tracing import Tracing
from evenkeel_router.transport.background import background
from evenkeel_router.transport.connection_shares import ConnectionShares
from evenkeel_router.transport.connections import Connections
from evenkeel_router.transport.ports import listen
from evenkeel_router.transport.server import SIDE_CONNECTIONS, TrafficServer
from evenkeel_router.transport.side_port import SidePort
from evenkeel_router.transport.upstream import Upstream

if TYPE_CHECKING:
    from evenkeel_kube.client import KubeClient

_log = logging.getLogger(__name__)
BACKLOG: Final = 4096  # Linux's own bound (`net.core.somaxconn`)
CUT_OFF_S: Final = 0.1  # for what still runs when a router is closed without, or after, a drain
FIRST_PARTS_S: Final = 5.0  # for parts of tenants' limits, before requests come
SIDE_HEAD_S: Final = 60.0
"""Time for each head at the admin port and the probe port, idle time before it included."""
SIDE_LINGER_S: Final = 2.0
"""How long these ports read and drop the rest of a body whose request was answered."""
FIRST_READING_S: Final = 3.0  # for the ledger's store, and for peers, before requests come


class Router:
    """A running router. Ports are known once it runs: port 0 lets the system choose."""

    def __init__(self, rooms: Rooms, discovery: Discovery, tokenising: Tokenisation) -> None:
        self.rooms = rooms
        self.tokenising = tokenising
        self.discovery = discovery
        self.large_bodies = LargeBodies()
        self.federation: Federation  # once it runs
        self._applying = asyncio.Lock()
        self.traffic: TrafficServer  # once it runs
        self.traffic_port = 0
        self.probe_port = 0
        self.admin_port = 0

    @property
    def url(self) -> str:
        """Where clients send requests."""
        host = self.rooms.settings.config.listen.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.traffic_port}"

    @property
    def configured(self) -> RouterConfig:
        """The last configuration that was applied, without the weights of this cell."""
        return self.federation.configured

    async def apply(self, config: RouterConfig) -> None:
        """Use a changed configuration, with the weights of this cell (R21)."""
        async with self._applying:
            await in_slices(self.rooms.apply(self.federation.take(config)))

    async def reweigh(self) -> None:
        """Use the weights of this cell (R21)."""
        async with self._applying:
            await in_slices(self.rooms.apply(self.federation.in_force()))

    async def drain(self) -> None:
        """Serve what is in flight, and each connection once more, for a limited time."""
        rooms = self.rooms
        await drain(rooms.intake, rooms.settings.config, self.traffic.pre_shutdown)


@asynccontextmanager
async def running(
    config: RouterConfig,
    *,
    source: ConfigSource | None = None,
    api: KubeClient | None = None,
    upstream: Upstream | None = None,
    prober: Prober | None = None,
    log_output: IO[str] | None = None,
    timing: Timing | None = None,
) -> AsyncIterator[Router]:
    """A router that serves while the context is open. Leaving it does not drain: call `drain` before.

    `source` is where a changed configuration comes from; `api` finds a fleet on a cluster; `upstream` and `prober` stand in
    for the network; `log_output` takes one line for each request (None: none).
    """
    rooms = Rooms.make(config, timing=timing)
    tokenising = Tokenisation(config.prefix, rooms.prefixes.untokenised)
    discovery = _discovery(config, rooms.service_ledger, api)
    router = Router(rooms, discovery, tokenising)
    async with AsyncExitStack() as stack:
        # 1. What an earlier process knew.
        await _read_store(stack, rooms)
        # 2. The way to replicas.
        sender, session, health = await _way_to_replicas(stack, rooms, upstream, prober)
        await stack.enter_async_context(tokenising)
        await tokenising.load()
        await stack.enter_async_context(router.large_bodies)

        # 3. What runs beside the requests.
        console = Console(rooms)
        log, tracing = RequestLog(log_output), Tracing(config)
        sinks: list[RequestSink] = [log.add]
        recorder = Recorder(rooms, sinks)
        stack.push_async_callback(tracing.close)
        peers = Peers(rooms.settings, rooms.service_ledger, session)
        limits = exchange_over_http(
            rooms.settings, rooms.intake.limit_parts, session, peers=peers.listed
        )
        revocations = revocation_exchange(
            rooms.settings,
            rooms.intake,
            peers.listed,
            session,
            router=rooms.service_ledger.ledger.router,
            api=api,
        )
        key_sets = key_set_reader(rooms.settings, rooms.intake, session)
        federation = router.federation = Federation(
            config, rooms.service_ledger, session, reweighed=router.reweigh
        )
        parts = (log, recorder, discovery, peers, limits, tokenising, console, federation)
        works = [part.run() for part in (*parts, revocations, key_sets)]
        works += health.run(discovery), *_followers(rooms, health, tokenising, session)
        if source is not None:
            works.append(_watch_config(router, source, tokenising=tokenising, tracing=tracing))
        for work in (*works, *_ledger_work(rooms, peers)):
            await stack.enter_async_context(background(work))
        await _wait_for_peers(config, peers, limits)
        await revocations.open()

        # 4. The ports.
        pipeline = _pipeline(
            rooms,
            tokenising,
            sender,
            health,
            limit_exchange=limits,
            console=console,
            key_sets=key_sets,
            revocations=revocations,
            federation=federation,
            large_bodies=router.large_bodies,
            tracer=tracing,
            sinks=sinks,
        )
        probes = probe_app(rooms, lambda: metrics(rooms, log.dropped, tracing.dropped.total))
        admin = admin_app(rooms, console, recorder, revocations)
        await _open_ports(stack, router, pipeline, probes=probes, admin=admin)
        yield router


async def _way_to_replicas(
    stack: AsyncExitStack, rooms: Rooms, upstream: Upstream | None, prober: Prober | None
) -> tuple[Upstream, ClientSession, HealthMonitor]:
    """What sends requests, the session of everything else that replicas and peers are asked, and the probes."""
    connections = Connections(lambda: rooms.settings.config.limits.max_concurrent)
    stack.callback(connections.close)
    session = await stack.enter_async_context(prober_session())
    probe = prober or HttpProber(session)
    health = HealthMonitor(rooms.settings, rooms.replicas, rooms.service_ledger, probe)
    return upstream or connections, session, health


async def _wait_for_peers(
    config: RouterConfig, peers: Peers, limit_exchange: LimitExchange
) -> None:
    """Wait for what other routers know, and for parts of tenants' limits; not for long."""
    with suppress(TimeoutError):
        await asyncio.wait_for(peers.all_asked.wait(), FIRST_READING_S)
    if any(tenant.limits != TenantLimits() for tenant in config.tenancy.tenants):
        with suppress(TimeoutError):
            await asyncio.wait_for(limit_exchange.ready.wait(), FIRST_PARTS_S)


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
    gates = GateUpkeep(settings, replicas, rooms.gates, session)
    return reports.run(), kv_events.run(), facts.run(), gates.run()


def _pipeline(  # noqa: PLR0913 - each is one object of the router
    rooms: Rooms,
    tokenising: Tokenisation,
    upstream: Upstream,
    health: HealthMonitor,
    *,
    limit_exchange: LimitExchange,
    console: Console,
    key_sets: KeySetReader,
    revocations: RevocationExchange,
    federation: Federation,
    large_bodies: LargeBodies,
    tracer: RequestTracer,
    sinks: Sequence[RequestSink],
) -> Pipeline:
    forwarder = Forwarder(
        rooms.settings,
        rooms.replicas,
        rooms.service_ledger.accounting,
        rooms.gates,
        upstream=upstream,
        health=health,
        large_bodies=large_bodies,
        unanswered=rooms.intake.unanswered,
        is_draining=lambda: rooms.intake.draining,
    )
    return Pipeline(
        rooms.settings,
        rooms.intake,
        rooms.replicas,
        rooms.service_ledger,
        top_up=limit_exchange.top_up,
        totals=rooms.totals,
        forwarder=forwarder,
        prefixes=rooms.prefixes,
        tokenising=tokenising,
        asides=(
            TenantConsole(
                rooms.intake,
                rooms.totals,
                files=console.files,
                answer=console.answer,
                key_sets=key_sets,
            ),
            KeyService(rooms.settings, rooms.intake, rooms.totals, revocations, key_sets=key_sets),
        ),
        key_sets=key_sets,
        federation=federation,
        large_bodies=large_bodies,
        tracer=tracer,
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


async def _open_ports(
    stack: AsyncExitStack,
    router: Router,
    pipeline: Pipeline,
    *,
    probes: web.Application,
    admin: web.Application,
) -> None:
    """Probes first, so that they are answered while the rest opens."""
    rooms = router.rooms
    on = rooms.settings.config.listen
    if rooms.settings.config.admin_token_sha256 is None:
        _log.warning(
            "the admin port needs no credentials: every process on this host can read the state of all clients; "
            "set adminTokenSha256 to the SHA-256 of a token that you choose (evenkeel route: --admin-token TOKEN)"
        )
    router.probe_port = await _serve(stack, probes, on.host, on.probe_port)
    router.admin_port = await _serve(stack, admin, on.host, on.admin_port)
    router.traffic, router.traffic_port = await _serve_traffic(stack, pipeline, rooms)
    ports = {
        "traffic": router.traffic_port,
        "probe": router.probe_port,
        "admin": router.admin_port,
    }
    fields = {"fields": {"ports": ports}}
    _log.info("serving %s on %s", rooms.settings.config.model, router.url, extra=fields)


async def _serve_traffic(
    stack: AsyncExitStack, pipeline: Pipeline, rooms: Rooms
) -> tuple[TrafficServer, int]:
    settings, intake = rooms.settings, rooms.intake
    on = settings.config.listen
    server = TrafficServer(
        pipeline.handle,
        pipeline.refuse,
        keep_alive_s=lambda: settings.config.limits.keep_alive_timeout_s,
        unread_s=lambda: settings.config.limits.idle_timeout_s,
        head_timeout_s=settings.timing.head_timeout_s,
        shares=rooms.connections,
        holder_of=lambda peer: of_new(intake.directory, peer),
    )
    sockets, port = await listen(server, on.host, on.traffic_port, backlog=BACKLOG)
    stack.push_async_callback(server.shutdown, CUT_OFF_S)
    stack.callback(server.pre_shutdown)  # idle connections end at once
    stack.callback(sockets.close)
    return server, port


async def _serve(stack: AsyncExitStack, app: web.Application, host: str, port: int) -> int:
    """Serve the admin port or the probe port."""
    runner = web.AppRunner(
        app, access_log=None, keepalive_timeout=SIDE_HEAD_S, lingering_time=SIDE_LINGER_S
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None
    shares = ConnectionShares(lambda: SIDE_CONNECTIONS, report)
    bounded = SidePort(runner.server, shares, network_of=network_of)
    sockets, chosen = await listen(bounded, host, port)
    stack.callback(sockets.close)
    return chosen


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


async def _watch_config(
    router: Router, source: ConfigSource, *, tokenising: Tokenisation, tracing: Tracing
) -> None:
    rooms, discovery = router.rooms, router.discovery
    settings = rooms.settings

    async def apply(config: RouterConfig) -> None:
        if config.listen != settings.config.listen:
            _log.warning("a changed `listen` takes effect when the router restarts")
        if _place(config) != _place(settings.config):
            _log.warning("another store of the ledger is used when the router restarts")
        await router.apply(config)
        tokenising.configure(config.prefix)
        tracing.apply(config)
        discovery.update(config)

    def complain(faults: tuple[str, ...]) -> None:
        settings.faults = faults

    await source.watch(apply, complain)
