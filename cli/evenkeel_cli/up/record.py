"""The record of a running fleet, as `evenkeel status` and `evenkeel top` read it. It needs no package but the contract's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from evenkeel_contract.names import ADMIN_PORT
from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_contract.routerdocument import parse_router_config

DEFAULT_ROOT: Final = Path(".evenkeel")
"""The folder with the folders of all fleets."""


class ProcessRecord(msgspec.Struct, frozen=True):
    """One process, recorded when it started."""

    name: str
    pid: int
    started_s: float
    """Seconds since the epoch."""


class FleetRecord(msgspec.Struct, frozen=True):
    """The processes of one run."""

    run: str
    """The id of the run; it is in every command line."""
    processes: tuple[ProcessRecord, ...]


def read_record(folder: Path) -> FleetRecord | None:
    """The record of the run in a service's folder; None without a valid one."""
    try:
        return msgspec.json.decode((folder / "state.json").read_bytes(), type=FleetRecord)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def router_configs(folder: Path, record: FleetRecord) -> Iterator[tuple[str, RouterConfig]]:
    """The configuration of every router in the record."""
    for process in sorted(record.processes, key=lambda process: process.name):
        path = folder / f"{process.name}.json"
        config = parse_router_config(path.read_bytes())[0] if path.exists() else None
        if config is not None:
            yield process.name, config


def address(config: RouterConfig, port: int) -> str:
    """An address of a router with that port."""
    return f"http://{config.listen.host}:{port}"


def local_admin_url() -> str:
    """The admin port of a fleet that runs from this folder, or the default port on this machine."""
    for config in _local_routers():
        return address(config, config.listen.admin_port)
    return f"http://127.0.0.1:{ADMIN_PORT}"


def admin_url_of(url: str) -> str | None:
    """The admin port of the router at `url`, if its fleet runs from this folder."""
    for config in _local_routers():
        if address(config, config.listen.traffic_port) == url:
            return address(config, config.listen.admin_port)
    return None


def _local_routers() -> Iterator[RouterConfig]:
    """The configurations of the routers that run from this folder."""
    for folder in sorted(path.parent for path in DEFAULT_ROOT.glob("*/state.json")):
        record = read_record(folder)
        if record is not None and any(
            Path(f"/proc/{one.pid}").exists() for one in record.processes
        ):
            for _, config in router_configs(folder, record):
                yield config
