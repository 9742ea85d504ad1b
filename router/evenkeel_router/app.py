"""The router, put together: what is opened, in which order, and what is closed again.

    connections, large bodies, limits → services, each with its store, replicas, reports, ledger (`services`) → ports

Every resource is a context of one exit stack: opened top to bottom, closed bottom to top, whatever fails.
The order of the end: readiness goes first, then the requests in flight, then the ports, then the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import IO, TYPE_CHECKING, Final

from aiohttp import ClientSession, web
from evenkeel_contract.pools import configs_of
from evenkeel_contract.routerconfig import RouterConfig, TenantLimits

from evenkeel_router.api.proxies import network_of
from evenkeel_router.cluster.config_watch import ConfigSource
from evenkeel_router.credentials import key_set_reader, revocation_exchange
from evenkeel_router.fleet.probe import HttpProber, Prober, prober_session
from evenkeel_router.ledger.contacts import Peer
from evenkeel_router.ledger.limit_exchange import LimitExchange, http_transport
from evenkeel_router.request.connection_holders import of_new, report
from evenkeel_router.request.draining import drain
from evenkeel_router.request.front import Front
from evenkeel_router.request.gateway import Gateway
from evenkeel_router.request.large_bodies import LargeBodies
from evenkeel_router.request.request_log import RequestLog
from evenkeel_router.services import Process, Services, asides
from evenkeel_router.settings import Timing
from evenkeel_router.telemetry.admin import admin_app, probe_app
from evenkeel_router.telemetry.metrics import all_metrics
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


class Router:
    """A running router. Ports are known once it runs: port 0 lets the system choose."""

    def __init__(self, rooms: Rooms, services: Services, large_bodies: LargeBodies) -> None:
        self.rooms = rooms
        """The memory of the router; of a router with several services, what they share."""
        self.services = services
        self.large_bodies = large_bodies
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
        """The last configuration that was applied."""
        return self.services.configured

    async def apply(self, config: RouterConfig) -> None:
        """Use a changed configuration."""
        await self.services.apply(config)

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
    async with AsyncExitStack() as stack:
        # 1. What all services share.
        connections = Connections(
            lambda: rooms.settings.config.limits.max_concurrent, rooms.intake.content_s
        )
        stack.callback(connections.close)
        session = await stack.enter_async_context(prober_session())
        large_bodies = await stack.enter_async_context(LargeBodies())
        log, tracing = RequestLog(log_output), Tracing(config)
        stack.push_async_callback(tracing.close)
        limits = _limit_exchange(rooms, lambda: services.peers(), session)
        revocations = revocation_exchange(
            rooms.settings,
            rooms.intake,
            lambda: services.peers(),
            session,
            router=rooms.service_ledger.ledger.router,
            api=api,
        )
        key_sets = key_set_reader(rooms.settings, rooms.intake, session)
        process = Process(
            shared=rooms,
            upstream=upstream or connections,
            session=session,
            prober=prober or HttpProber(session),
            api=api,
            large_bodies=large_bodies,
            log=log,
            tracing=tracing,
            top_up=limits.top_up,
            key_sets=key_sets,
            revocations=revocations,
        )
        services = Services(process)
        parts = (log, limits, services, revocations, key_sets)
        works = [part.run() for part in parts]
        if services.served.several:
            works.append(services.shares.run())
        if source is not None:
            works.append(_watch_config(rooms, services, source, tracing=tracing))

        # 2. The services.
        stack.push_async_callback(services.close)
        await services.start()
        for work in works:
            await stack.enter_async_context(background(work))
        await _wait_for_parts(config, limits)
        await revocations.open()

        # 3. The ports.
        served = services.served
        router = Router(rooms, services, large_bodies)
        probes = probe_app(served, lambda: all_metrics(served, log.dropped, tracing.dropped.total))
        front = _gateway(process, services) if served.several else services.only.pipeline
        admin = admin_app(served, revocations)
        await _open_ports(stack, router, front, probes=probes, admin=admin)
        yield router


def _gateway(process: Process, services: Services) -> Gateway:
    """What chooses among several services."""
    rooms = process.shared
    return Gateway(
        rooms.settings,
        rooms.intake,
        rooms.totals,
        services.pools,
        large_bodies=process.large_bodies,
        asides=asides(process, rooms, files=services.served.files, answer=services.served.answer),
        key_sets=process.key_sets,
        tracer=process.tracing,
        sink=process.log.add,
    )


def _limit_exchange(
    rooms: Rooms, peers: Callable[[], Sequence[Peer] | None], session: ClientSession
) -> LimitExchange:
    settings = rooms.settings
    return LimitExchange(
        rooms.intake.limit_parts,
        http_transport(session, lambda: settings.config.state.peer_token),
        peers=peers,
        interval_s=lambda: settings.config.state.exchange_interval_s,
        now=asyncio.get_running_loop().time,
    )


async def _wait_for_parts(config: RouterConfig, limit_exchange: LimitExchange) -> None:
    """Wait for parts of tenants' limits; not for long."""
    if any(tenant.limits != TenantLimits() for tenant in config.tenancy.tenants):
        with suppress(TimeoutError):
            await asyncio.wait_for(limit_exchange.ready.wait(), FIRST_PARTS_S)


async def _open_ports(
    stack: AsyncExitStack,
    router: Router,
    front: Front,
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
    router.traffic, router.traffic_port = await _serve_traffic(stack, front, rooms)
    ports = {
        "traffic": router.traffic_port,
        "probe": router.probe_port,
        "admin": router.admin_port,
    }
    fields = {"fields": {"ports": ports}}
    models = ", ".join(one.model for one in configs_of(rooms.settings.config))
    _log.info("serving %s on %s", models, router.url, extra=fields)


async def _serve_traffic(
    stack: AsyncExitStack, front: Front, rooms: Rooms
) -> tuple[TrafficServer, int]:
    settings, intake = rooms.settings, rooms.intake
    on = settings.config.listen
    server = TrafficServer(
        front.handle,
        front.refuse,
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


async def _watch_config(
    rooms: Rooms, services: Services, source: ConfigSource, *, tracing: Tracing
) -> None:
    settings = rooms.settings

    async def apply(config: RouterConfig) -> None:
        if config.listen != settings.config.listen:
            _log.warning("a changed `listen` takes effect when the router restarts")
        if bool(config.pools) != bool(settings.config.pools):
            settings.faults = (
                "pools: one service or several takes effect when the router restarts",
            )
            _log.error("%s", settings.faults[0])
            return
        await services.apply(config)
        tracing.apply(config)

    def complain(faults: tuple[str, ...]) -> None:
        settings.faults = faults

    await source.watch(apply, complain)
