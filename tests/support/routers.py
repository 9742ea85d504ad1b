"""Routers and replicas for tests: real sockets, ports chosen by the system."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from evenkeel_contract.routerconfig import (
    Anonymous,
    ApiKeyConfig,
    ClientConfig,
    ListenConfig,
    ReplicaConfig,
    RouterConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_router.app import Router, running
from evenkeel_router.settings import Timing
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.transport.upstream import Upstream
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.server.app import RunningServer, running_server
from evenkeel_simulator.server.settings import Settings

MODEL = "llama"
PATIENCE_S = 20.0  # a deadline for what should happen at once; never a measurement
QUICK = Timing(
    probe_interval_s=0.05,
    report_interval_s=0.05,
    gate_interval_s=0.05,
    kv_check_interval_s=0.05,
    kv_pages_interval_s=0.1,
)
KEY = "sk-acme-chat"


def sha256(text: str) -> str:
    """As the configuration holds keys."""
    return hashlib.sha256(text.encode()).hexdigest()


def tenancy(**changes: Any) -> TenancyConfig:
    """Tenant acme with clients chat (weight 3, key `KEY`) and batch; anonymous requests share one client."""
    acme = TenantConfig(
        namespace="ns",
        name="acme",
        weight=2,
        clients=(ClientConfig(name="chat", weight=3), ClientConfig(name="batch")),
        api_keys=(ApiKeyConfig(name="k", client="chat", sha256=sha256(KEY)),),
    )
    given: dict[str, Any] = {"anonymous": Anonymous.SHARE, "tenants": (acme,)}
    return TenancyConfig(**(given | changes))


def config_for(*replicas: ReplicaConfig, **changes: Any) -> RouterConfig:
    """A configuration of these replicas."""
    given: dict[str, Any] = {
        "namespace": "ns",
        "service": "svc",
        "model": MODEL,
        "listen": ListenConfig(traffic_port=0, probe_port=0, admin_port=0),
        "tenancy": tenancy(),
        "replicas": replicas,
    }
    return RouterConfig(**(given | changes))


def applied(rooms: Rooms, config: RouterConfig) -> None:
    """Use a changed configuration at once."""
    for _ in rooms.apply(config):
        pass


def simulated(**changes: Any) -> Settings:
    """A quick simulated replica."""
    given: dict[str, Any] = {
        "model": MODEL,
        "port": 0,
        "reports_port": 0,
        "profile": PROFILES["a100-llama3.1-8b"],
        "speed": 20.0,
    }
    return Settings(**(given | changes))


def replica_of(server: RunningServer, name: str = "r0", **changes: Any) -> ReplicaConfig:
    """How a router is told of a simulated replica."""
    given: dict[str, Any] = {
        "reports": server.reports,
        "kv_events": server.kv_events,
        "kv_replay": server.kv_replay,
    }
    return ReplicaConfig(name=name, url=server.url, **(given | changes))


@asynccontextmanager
async def fleet(
    replicas: int = 2,
    *,
    settings: Settings | None = None,
    timing: Timing = QUICK,
    **changes: Any,
) -> AsyncIterator[tuple[Router, list[RunningServer]]]:
    """A router in front of simulated replicas, all of them routable."""
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running_server(settings or simulated()))
            for _ in range(replicas)
        ]
        named = [replica_of(server, f"r{i}") for i, server in enumerate(servers)]
        router = await stack.enter_async_context(
            running(config_for(*named, **changes), timing=timing)
        )
        await routable(router, replicas)
        yield router, servers


@asynccontextmanager
async def router_of(
    config: RouterConfig, *, upstream: Upstream | None = None, timing: Timing = QUICK
) -> AsyncIterator[Router]:
    """A router, once all its replicas are routable."""
    async with running(config, upstream=upstream, timing=timing) as router:
        await routable(router, len(config.replicas))
        yield router


async def until(
    condition: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S
) -> None:
    """Wait for something to become true; fails after `patience_s`."""
    try:
        async with asyncio.timeout(patience_s):
            while not condition():  # noqa: ASYNC110 - any state may be waited for
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"in vain waited for: {what}") from None


async def routable(router: Router, replicas: int) -> None:
    """Wait until that many replicas are routable."""
    fleet_ = router.rooms.replicas.fleet
    await until(lambda: fleet_.routable.bit_count() == replicas, f"{replicas} routable replicas")


def applying(applied: list[RouterConfig]) -> Callable[[RouterConfig], Awaitable[None]]:
    """An `Apply` that notes what it gets."""

    async def apply(config: RouterConfig) -> None:
        applied.append(config)

    return apply
