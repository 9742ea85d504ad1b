"""The command `evenkeel status`: the fleets of `evenkeel up` on this machine.

It reads the record of processes in the folder of each fleet, and asks the first router for readiness and fairness.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer
from evenkeel_contract.adminstate import RouterState
from evenkeel_contract.pools import configs_of
from evenkeel_contract.routerconfig import RouterConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.narrow import FittedTable
from evenkeel_cli.output import print_error, print_json, report_console
from evenkeel_cli.up.probes import Probes, replicas_of
from evenkeel_cli.up.record import DEFAULT_ROOT, FleetRecord, address, read_record, router_configs
from evenkeel_cli.up.state import leftovers

State = Literal["ready", "not ready", "not running"]
_STYLES: Final = {"ready": "green", "not ready": "yellow", "not running": "red"}
_OK: Final = 200


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a fleet."""

    name: str
    state: State
    reason: str = ""
    """Why the router sends no new requests to a replica, if it reports a reason."""
    inactive_reason: str = ""
    """Why the plug-in of a replica does not order its queue, so that the router does."""
    url: str
    """URL of the process; empty until the router has the address of a new replica."""
    pid: int | None
    """Id of the process; None if it is not running, and `evenkeel up` restarts it."""
    uptime_s: float | None


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One fleet."""

    service: str
    """`namespace/name` of the service."""
    model: str
    running: bool
    """Whether processes run; False if `evenkeel up` was killed, and no process is left."""
    ready: bool
    """Whether all processes are ready."""
    admin_url: str
    """URL of the first router's admin port, for `evenkeel top`."""
    verdict: str
    """Verdict on the fairness of the last minute; empty without an answer of the router."""
    processes: tuple[ProcessStatus, ...]


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `--json`."""

    fleets: tuple[FleetStatus, ...]


def status(
    state_dir: Annotated[
        Path, typer.Option(help="Folder that `evenkeel up` runs with.")
    ] = DEFAULT_ROOT,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show what runs where on this machine, and whether it is ready.

    The exit code is 0 if at least one fleet runs and every process is ready, and 1 otherwise.
    """
    folders = sorted(path.parent for path in state_dir.glob("*/state.json"))
    fleets = asyncio.run(_read_fleets(folders))
    if json:
        print_json(StatusReport(fleets=fleets))
    elif not fleets:
        print_error(
            f"no fleet runs from {state_dir}; `evenkeel up FILE` starts one, and --state-dir "
            f"selects the folder of another one"
        )
    else:
        console = report_console()
        for fleet in fleets:
            _print(console, fleet)
    if not fleets or not all(fleet.ready for fleet in fleets):
        raise typer.Exit(ExitCode.FAILED)


async def _read_fleets(folders: list[Path]) -> tuple[FleetStatus, ...]:
    async with Probes.open() as probes:
        return tuple(
            [
                await _read_fleet(folder, record, probes)
                for folder in folders
                if (record := read_record(folder)) is not None
            ]
        )


async def _read_fleet(folder: Path, record: FleetRecord, probes: Probes) -> FleetStatus:
    configs = dict(router_configs(folder, record))
    ready = frozenset(
        [
            name
            for name, config in configs.items()
            if await probes.status(address(config, config.listen.probe_port) + "/readyz") == _OK
        ]
    )
    states = [
        state
        for config in configs.values()
        if (state := await probes.state(address(config, config.listen.admin_port))) is not None
    ]
    return make_status(
        folder.name,
        record=record,
        configs=configs,
        ready_routers=ready,
        state=states[0] if states else None,
        running=frozenset(process.pid for process, _ in leftovers(record)),
        now_s=time.time(),
    )


def make_status(
    folder: str,
    *,
    record: FleetRecord,
    configs: dict[str, RouterConfig],
    ready_routers: frozenset[str],
    state: RouterState | None,
    running: frozenset[int],
    now_s: float,
) -> FleetStatus:
    """The status of one fleet. Pure.

    `folder` is `<namespace>.<name>`, `configs` has the configuration of each router by its name, `running` the ids of
    the processes that run, and `now_s` counts from the epoch.
    """
    urls = {name: address(config, config.listen.traffic_port) for name, config in configs.items()}
    first = next(iter(configs.values()), None)
    fleets = configs_of(first) if first else ()
    replicas = {replica.name: replica.url for one in fleets for replica in one.replicas}
    starting = {process.name: "" for process in record.processes if process.name not in urls}
    seen = {replica.name: replica for replica in (replicas_of(state) if state else ())}
    pids = {process.name: process for process in record.processes if process.pid in running}

    def one(name: str, url: str, *, is_ready: bool) -> ProcessStatus:
        process = pids.get(name)
        known = seen.get(name)
        return ProcessStatus(
            name=name,
            state="not running" if process is None else "ready" if is_ready else "not ready",
            reason="" if known is None else known.unschedulable_reason or known.unready_reason,
            inactive_reason="" if known is None else known.inactive_reason,
            url=url,
            pid=process.pid if process else None,
            uptime_s=max(0.0, now_s - process.started_s) if process else None,
        )

    routable = {name for name, replica in seen.items() if replica.routable}
    others = sorted((starting | replicas).items())
    processes = (
        *(one(name, url, is_ready=name in ready_routers) for name, url in urls.items()),
        *(one(name, url, is_ready=name in routable) for name, url in others),
    )
    return FleetStatus(
        service=folder.replace(".", "/", 1),
        model=", ".join(one.model for one in state.services or (state,)) if state else "",
        running=bool(pids),
        ready=bool(processes) and all(process.state == "ready" for process in processes),
        admin_url=address(first, first.listen.admin_port) if first else "",
        verdict=_verdict(state) if state else "",
        processes=processes,
    )


def _verdict(state: RouterState) -> str:
    if not state.services:
        return state.fleet.verdict
    return "\n".join(f"{one.model}: {one.fleet.verdict}" for one in state.services)


def _print(console: Console, fleet: FleetStatus) -> None:
    ready = sum(process.state == "ready" for process in fleet.processes)
    words = f"{ready} of {len(fleet.processes)} processes are ready"
    if not fleet.running:
        words = "[red]not running[/]: `evenkeel up` was killed; its next run cleans up"
    console.print(f"[bold]{escape(fleet.service)}[/]  {escape(fleet.model)}  {words}")
    names = ("process", "state", "address", "id", "running for")
    table = Table(*names, box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for process in fleet.processes:
        state = f"[{_STYLES[process.state]}]{process.state}[/]"
        table.add_row(
            escape(process.name),
            f"{state} ({escape(process.reason)})" if process.reason else state,
            process.url,
            "–" if process.pid is None else str(process.pid),
            "–" if process.uptime_s is None else _duration(process.uptime_s),
        )
    console.print(FittedTable(table), highlight=False)
    for process in fleet.processes:
        if process.inactive_reason:
            console.print(
                f"[yellow]{escape(process.name)} runs without Evenkeel's replica policy, and the router orders its "
                f"queue[/]: {escape(process.inactive_reason)}",
                highlight=False,
            )
    if fleet.verdict:
        console.print(fleet.verdict, highlight=False)


def _duration(seconds: float) -> str:
    """`42 s`, `7 min`, `3 h`, `2 d`."""
    for unit, length, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"
