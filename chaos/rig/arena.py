"""A fleet of real processes: routers, replicas, their configuration, and the truth about what was served.

    with arena(folder) as fleet:  replicas and routers come (`add_…`), go (`remove_…`), die (`Child`)

Ports are chosen once, so that a restarted process has the same address. All processes are ended, also after a
failure.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

import httpx
from evenkeel_cli.up.ports import free_port
from evenkeel_contract.adminstate import REPLICAS_PATH
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    LimitsConfig,
    ListenConfig,
    PeerConfig,
    ReplicaConfig,
    RouterConfig,
    SchedulingConfig,
    StateConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_contract.routerdocument import dump_router_config
from evenkeel_fairshare.bounds import Churn, dlpm_overshoot
from evenkeel_fairshare.replica.deficit import DEFERRED_REFILLS

from chaos.rig.children import PATIENCE_S, Child, Place
from chaos.rig.witness import Testimony, testimony

MODEL: Final = "chaos"
TOKEN: Final = "chaos-admin"
NAMESPACE: Final = "ns"
QUANTUM: Final = 500
"""Q^u: small relative to the service of a run, so that shares are visible within seconds."""
POOL_TOKENS: Final = 4000
"""KV pool of a replica: about 24 requests of the load run together, the others queue."""
REQUEST_TOKENS: Final = 256
OVERSHOOT: Final = dlpm_overshoot(max_input_tokens=REQUEST_TOKENS, memory_tokens=POOL_TOKENS)
_WORKERS: Final = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""Ports are this number modulo the number of workers: no other worker takes that of a process that is down for a while."""


@dataclass(slots=True, eq=False, kw_only=True)
class Replica(Child):
    """A simulated replica with a witness."""

    port: int
    reports_port: int
    folder: Path

    def command(self) -> Sequence[str]:
        return (
            "-m", "chaos.rig.witness", str(self.truth(self.starts)),
            f"--model={MODEL}", f"--host={self.place.host}", f"--port={self.port}",
            f"--reports-port={self.reports_port}", "--profile=a100-llama3.1-8b",
            f"--kv-tokens={POOL_TOKENS}", "--admission=reservation",
            f"--client-quantum={QUANTUM}", "--replica-policy=DLPM",
        )  # fmt: skip

    def truth(self, start: int) -> Path:
        return self.folder / f"truth-{self.name}-{start}"

    @property
    def config(self) -> ReplicaConfig:
        return ReplicaConfig(
            name=self.name,
            url=f"http://{self.place.host}:{self.port}",
            reports=f"tcp://{self.place.host}:{self.reports_port}",
        )

    def incarnation(self) -> str:
        """Incarnation of the current process; empty until it has served a request."""
        found = testimony(self.truth(self.starts))
        return found.incarnation if found is not None else ""


@dataclass(slots=True, eq=False, kw_only=True)
class Router(Child):
    """A router."""

    listen: ListenConfig
    config_file: Path

    def command(self) -> Sequence[str]:
        return ("-m", "evenkeel_router", "--config", str(self.config_file), "--no-request-log")

    @property
    def url(self) -> str:
        return f"http://{self.place.host}:{self.listen.traffic_port}"

    @property
    def admin_url(self) -> str:
        return f"http://{self.place.host}:{self.listen.admin_port}"


@dataclass(slots=True)
class Arena:
    """The fleet. `arena` makes it."""

    folder: Path
    tenants: tuple[TenantConfig, ...]
    state: StateConfig = field(default_factory=StateConfig)
    replicas: dict[str, Replica] = field(default_factory=dict)
    """The replicas in the routers' configuration."""
    routers: dict[str, Router] = field(default_factory=dict)
    ever: list[Child] = field(default_factory=list)
    """Every process that was ever added."""
    most_replicas: int = 0
    """W: the largest number of replicas at the same time."""

    @property
    def urls(self) -> dict[str, str]:
        """Routers by name."""
        return {name: router.url for name, router in self.routers.items()}

    @property
    def churn(self) -> Churn:
        """The inputs of the bounds."""
        return Churn(
            replicas=self.most_replicas,
            overshoot=OVERSHOOT,
            quantum=QUANTUM,
            deferred_refills=DEFERRED_REFILLS,
        )

    async def add_replica(self, *, place: Place | None = None) -> Replica:
        """Start a replica, and add it to the routers' configuration."""
        replica = self._replica(place or Place())
        await self._join([replica])
        return replica

    async def add_replicas(self, count: int) -> None:
        """The same of many, which start side by side."""
        await self._join([self._replica(Place()) for _ in range(count)])

    def _replica(self, place: Place) -> Replica:
        name = f"r{sum(isinstance(child, Replica) for child in self.ever)}"
        port, reports_port = _ports(place, 2)
        replica = Replica(
            name=name, log=self.folder / f"{name}.log", place=place, port=port,
            reports_port=reports_port, folder=self.folder,
            ready_url=f"http://{place.host}:{port}/ready",
        )  # fmt: skip
        self.ever.append(replica)
        return replica

    async def _join(self, replicas: Sequence[Replica]) -> None:
        await asyncio.gather(*(replica.start() for replica in replicas))
        self.replicas |= {replica.name: replica for replica in replicas}
        self.most_replicas = max(self.most_replicas, len(self.replicas))
        self.configure()

    async def scale_down(self, name: str) -> None:
        """Like the operator: routers stop sending requests, then the replica finishes its requests and ends."""
        replica = self.replicas.pop(name)
        self.configure()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(trust_env=False, timeout=5, headers=headers) as client:
            for router in self.routers.values():
                await _until_forgotten(client, router, name)
        await replica.end()

    async def add_router(
        self, *, place: Place | None = None, environment: dict[str, str] | None = None
    ) -> Router:
        """Start a router."""
        router = self._router(place or Place(), environment or {})
        await router.start()
        return router

    async def add_routers(self, count: int) -> None:
        """Start many, side by side."""
        routers = [self._router(Place(), {}) for _ in range(count)]
        await asyncio.gather(*(router.start() for router in routers))

    def _router(self, place: Place, environment: Mapping[str, str]) -> Router:
        name = f"router-{len(self.routers)}"
        traffic, probe, admin = _ports(place, 3)
        listen = ListenConfig(
            host=place.host, traffic_port=traffic, probe_port=probe, admin_port=admin
        )
        router = Router(
            name=name, log=self.folder / f"{name}.log", place=place, listen=listen,
            config_file=self.folder / f"{name}.json", environment=environment,
            ready_url=f"http://{place.host}:{probe}/readyz",
        )  # fmt: skip
        self.ever.append(router)
        self.routers[name] = router
        self.configure()
        return router

    def configure(self) -> None:
        """Write every router's configuration; they read it within a second."""
        for router in self.routers.values():
            config = dump_router_config(self._config(router))
            aside = router.config_file.with_suffix(".new")
            aside.write_bytes(config)
            aside.rename(router.config_file)

    def truth(self) -> dict[str, Testimony]:
        """The charges of every incarnation, past and present."""
        found = {}
        for replica in self.ever:
            if isinstance(replica, Replica):
                for start in range(1, replica.starts + 1):
                    said = testimony(replica.truth(start))
                    if said is not None:
                        found[said.incarnation] = said
        return found

    def living(self) -> set[str]:
        """Incarnations that run."""
        return {replica.incarnation() for replica in self.replicas.values() if replica.alive}

    def _config(self, router: Router) -> RouterConfig:
        peers = tuple(
            PeerConfig(name=other.name, url=other.admin_url)
            for other in self.routers.values()
            if other is not router
        )
        return RouterConfig(
            namespace=NAMESPACE,
            service="svc",
            model=MODEL,
            listen=router.listen,
            scheduling=SchedulingConfig(
                client_quantum=QUANTUM, worker_quantum=4 * QUANTUM, max_debt=round(OVERSHOOT)
            ),
            limits=LimitsConfig(
                queue_timeout_s=60, first_token_timeout_s=60, answer_timeout_s=80, idle_timeout_s=20
            ),
            tenancy=TenancyConfig(
                trusted_proxies=("127.0.0.0/8", "10.0.0.0/8"), tenants=self.tenants
            ),
            state=replace(self.state, peers=peers, peer_token=TOKEN),
            replicas=tuple(replica.config for replica in self.replicas.values()),
            admin_token_sha256=_sha256(TOKEN),
            drain_timeout_s=20,
        )


async def _until_forgotten(client: httpx.AsyncClient, router: Router, replica: str) -> None:
    """Wait until the router has read a configuration without the replica."""
    async with asyncio.timeout(PATIENCE_S):
        while router.alive:
            answer = await client.get(router.admin_url + REPLICAS_PATH)
            known = answer.raise_for_status().json()["replicas"]
            if replica not in {one["name"] for one in known}:
                return
            await asyncio.sleep(0.1)


def tenant(
    name: str, weight: int = 1, *, keys: Mapping[str, Sequence[str]] | None = None, **clients: int
) -> TenantConfig:
    """A tenant, its clients' weights, and API keys by client."""
    return TenantConfig(
        namespace=NAMESPACE,
        name=name,
        weight=weight,
        clients=tuple(ClientConfig(name=client, weight=w) for client, w in clients.items()),
        api_keys=tuple(
            ApiKeyConfig(name=f"{client}-{i}", client=client, sha256=_sha256(key))
            for client, their in (keys or {}).items()
            for i, key in enumerate(their)
        ),
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@asynccontextmanager
async def arena(
    folder: Path, *tenants: TenantConfig, state: StateConfig | None = None
) -> AsyncIterator[Arena]:
    """An empty fleet; all its processes are killed at the end."""
    made = Arena(folder, tenants, state or StateConfig(save_interval_s=1.0))
    try:
        yield made
    finally:
        for child in made.ever:
            await child.kill()


def _ports(place: Place, count: int) -> list[int]:
    if place.prefix:  # in a namespace of its own, every port is free
        return [20_000 + i for i in range(count)]
    mine = (port for port in iter(lambda: free_port(place.host), 0) if port % _WORKERS == _WORKER)
    return list(islice(mine, count))
