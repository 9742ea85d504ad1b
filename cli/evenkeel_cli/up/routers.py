"""The routers of a local fleet: their ports, their configuration files, and their peers.

All routers get the same configuration, except for their own ports, their peers, and the file of the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from evenkeel_contract.routerconfig import (
    ListenConfig,
    PeerConfig,
    RouterConfig,
    StateConfig,
    StateStore,
)
from evenkeel_contract.routerdocument import dump_router_config

from evenkeel_cli.manifest import Manifest
from evenkeel_cli.up import ports
from evenkeel_cli.up.launcher import Program
from evenkeel_cli.up.process_supervisor import ProcessSupervisor
from evenkeel_cli.up.replicas import ROUTER_MODULE
from evenkeel_cli.up.state import StateFolder, replace_file

STRIDE: Final = 10
"""Distance from one router's ports to the next one's: 8080 to 8082, 8090 to 8092, and so on."""


class LocalRouter:
    """One router: its ports, its configuration, its supervisor."""

    def __init__(self, index: int, listen: ListenConfig, folder: StateFolder) -> None:
        self.name = f"router-{index}" if index else "router"
        self.listen = listen
        self.config: RouterConfig | None = None
        self.supervisor: ProcessSupervisor
        self._path: Path = folder.router_config(self.name)
        self._recording = folder.recording_of(self.name).absolute()
        self._revocations = folder.revocations_of(self.name).absolute()

    @property
    def url(self) -> str:
        """URL to which clients send requests."""
        return f"http://{self.listen.host}:{self.listen.traffic_port}"

    @property
    def admin_url(self) -> str:
        """URL to which `evenkeel top` and the other routers connect."""
        return f"http://{self.listen.host}:{self.listen.admin_port}"

    def program(self) -> Program:
        """The program to run."""
        return Program(
            name=self.name,
            module=ROUTER_MODULE,
            arguments=("--config", str(self._path)),
            probe_url=f"http://{self.listen.host}:{self.listen.probe_port}/readyz",
        )

    def publish(self, config: RouterConfig, routers: Sequence[LocalRouter]) -> None:
        """Write the router's configuration file: the shared `config`, its own ports, and the other routers as peers."""
        peers = tuple(
            PeerConfig(name=other.name, url=other.admin_url)
            for other in routers
            if other is not self
        )
        own = replace(
            config,
            listen=self.listen,
            state=replace(
                config.state,
                peers=peers,
                revocations=str(self._revocations) if config.tenancy.signed_keys else None,
            ),
            recording=config.recording and replace(config.recording, file=str(self._recording)),
        )
        if own != self.config:
            self.config = own
            replace_file(self._path, dump_router_config(own))


def further_listen(first: ListenConfig, index: int) -> ListenConfig:
    """The ports of a further router: `STRIDE` above those of the previous one, or any free ones."""
    wanted = [
        port + STRIDE * index for port in (first.traffic_port, first.probe_port, first.admin_port)
    ]
    traffic, probe, admin = (
        port
        if port <= ports.LAST and ports.is_free(first.host, port)
        else ports.free_port(first.host)
        for port in wanted
    )
    return ListenConfig(host=first.host, traffic_port=traffic, probe_port=probe, admin_port=admin)


def count_of(manifest: Manifest) -> int:
    """How many routers run. The default is one: a second router would only help if a node fails."""
    return (manifest.gateway or manifest.service).spec.router.replicas or 1


def state_of(manifest: Manifest, folder: StateFolder) -> StateConfig:
    """Where the ledger is stored: `File` means the folder of the fleet. Routers of a gateway keep it among themselves."""
    if manifest.gateway is not None:
        return StateConfig()
    state = manifest.service.spec.router.state
    if state.store is StateStore.FILE:
        return StateConfig(store=state.store, file=str(folder.ledger.absolute()))
    if state.store is StateStore.REDIS and state.redis is not None:
        ref = state.redis.url_secret_ref
        namespace = manifest.service.metadata.namespace
        return StateConfig(
            store=state.store, redis_url=manifest.secrets[(namespace, ref.name, ref.key)]
        )
    return StateConfig()


def runbooks_of_clone() -> str | None:
    """The address of docs/runbooks in a clone of the source tree; None in an installed package."""
    folder = Path(__file__).parents[3] / "docs/runbooks"
    return f"file://localhost{quote(str(folder))}" if folder.is_dir() else None
