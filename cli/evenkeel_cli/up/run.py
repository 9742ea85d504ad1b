"""`evenkeel up`: runs the fleet of a file until a signal stops it, and applies edits of the file.

A newer edit cancels an older one that still waits for its replicas: otherwise a mistyped number would have to start
completely before its correction counts.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from evenkeel_contract.consolestate import PAGE_PATH
from evenkeel_contract.routerconfig import Anonymous, ListenConfig
from evenkeel_contract.spec.gateway import FairInferenceGateway
from evenkeel_contract.spec.resources import FairInferenceService
from evenkeel_contract.tracingconfig import TracingConfig
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.faults import FileFault, ManifestFaults
from evenkeel_cli.manifest import Manifest, parse_manifest, read_file
from evenkeel_cli.narrow import FittedTable
from evenkeel_cli.output import print_error, print_faults, print_note
from evenkeel_cli.up.edited import edited
from evenkeel_cli.up.engines import Engines
from evenkeel_cli.up.errors import FleetError, Superseded
from evenkeel_cli.up.fleet import LocalFleet, running_fleet

CHECK_INTERVAL_S: Final = 0.3


Contents = bytes | str
"""The bytes of a file, or why it cannot be read."""


async def changes(path: Path, seen: Contents) -> AsyncIterator[Contents]:
    """The contents of `path` whenever they differ from the last ones (at first from `seen`), without end.

    The contents must stay equal for one interval, so that neither a half-written file nor the moment between
    two files of an editor counts as a change.
    """
    pending: Contents | None = None
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        found = _read(path)
        if found == seen:
            pending = None
        elif found == pending:
            seen, pending = found, None
            yield found
        else:
            pending = found


def _read(path: Path) -> Contents:
    try:
        return path.read_bytes()
    except OSError as error:
        return error.strerror or str(error)


PROGRAM: Final = "evenkeel"


def banner(manifest: Manifest, fleet: LocalFleet) -> RenderableType:
    """Clients with their keys and weights, the addresses, and a curl line."""
    keys = dict(manifest.api_keys())
    table = Table("tenant", "client", "weight", "API key", title="clients of the fleet", box=None)
    for tenant in manifest.tenants:
        for client in tenant.spec.clients:
            name = f"{tenant.metadata.name}/{client.name}"
            weight = f"{tenant.spec.weight} · {client.weight}"
            table.add_row(tenant.metadata.name, client.name, weight, keys.get(name, "–"))
    key = next(iter(keys.values()), None)
    first, *others = fleet.routers
    lines = [
        f"router  {first.url}/v1    model {', '.join(manifest.models)}",
        *(f"        {router.url}/v1    {router.name}" for router in others),
        f"console {first.admin_url}{PAGE_PATH}",
        f"tenants {first.url}{PAGE_PATH}    with an API key; shows its tenant only",
        f"watch   {command()} top --url {first.admin_url}",
        "stop    Ctrl-C",
        "",
        "Try it:",
        "",
    ]
    hints = []
    if key is None and manifest.tenancy.anonymous is not Anonymous.SHARE:
        hints.append("(the file has no API key: requests get 401)")
    if not fleet.replicas:
        hints.append("(spec.engine.replicas is 0: requests get 503 until you change it)")
    curl = Text(curl_line(first.url, manifest.models[0], key), style="bold")
    return Group("", FittedTable(table), "", *lines, curl, *hints, "")


def command() -> str:
    """How to call this program again: its name, or its path if the name is not on PATH."""
    called = sys.argv[0]
    if Path(called).name != PROGRAM or shutil.which(PROGRAM) == shutil.which(called):
        return PROGRAM
    return shlex.quote(called)


def curl_line(url: str, model: str, key: str | None) -> str:
    """A command for a shell that streams a chat completion."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Why does an even keel matter?"}],
        "max_tokens": 32,
        "stream": True,
    }
    words = ["curl", "-N", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    if key is not None:
        words += ["-H", f"Authorization: Bearer {key}"]
    return shlex.join([*words, "-d", json.dumps(body)])


class _Edits:
    """The newest contents of the file, and whether they arrived while older ones were applied."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self._newest = b""

    def add(self, data: bytes) -> None:
        """Replace contents that were not applied yet."""
        self._newest = data
        self.arrived.set()

    async def next(self) -> bytes:
        """Wait for contents; `arrived` then waits for newer ones."""
        await self.arrived.wait()
        self.arrived.clear()
        return self._newest


@dataclass(slots=True, kw_only=True)
class Run:
    """One run of the command."""

    path: Path
    listen: ListenConfig
    engines: Engines
    tracing: TracingConfig | None
    """Tracing that replaces that of the file; None: the file decides."""
    state_root: Path
    console: Console
    _fleet: LocalFleet | None = None

    def up(self) -> int:
        """Run until a signal stops it; the exit status."""
        try:
            data = read_file(self.path)
            manifest = self.parse(data)
        except ManifestFaults as error:
            print_faults(error.faults)
            return ExitCode.INVALID
        return asyncio.run(self.until_stopped(manifest, data))

    def parse(self, data: bytes) -> Manifest:
        """The file's contents, with the options of the command; raises `ManifestFaults`."""
        manifest = parse_manifest(data, str(self.path))
        if self.tracing is None:
            return manifest
        if manifest.gateway is not None:
            return replace(manifest, gateway=_traced(manifest.gateway, self.tracing))
        return replace(manifest, services=(_traced(manifest.service, self.tracing),))

    async def until_stopped(self, manifest: Manifest, data: bytes) -> int:
        """The exit status: OK after an orderly stop, FAILED if the fleet could not run, INTERRUPTED after a second signal."""
        work = asyncio.create_task(self._work(manifest, data))
        with self._signals(work) as count:
            try:
                await work
            except asyncio.CancelledError:
                self._report("stopped" if count() < 2 else "killed")
                return ExitCode.OK if count() < 2 else ExitCode.INTERRUPTED
            except FleetError as error:
                print_error(error)
            except OSError as error:
                where = error.filename or self.path
                print_error(f"{where}: {error.strerror}")
        return ExitCode.FAILED

    async def _work(self, manifest: Manifest, data: bytes) -> None:
        self._warn(manifest)
        async with running_fleet(
            manifest,
            listen=self.listen,
            engines=self.engines,
            state_root=self.state_root,
            report=self._report,
        ) as fleet:
            self._fleet = fleet
            self.console.print(banner(manifest, fleet), highlight=False, soft_wrap=True)
            edits = _Edits()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._watch_file(data, edits))
                    while True:
                        manifest = await self._apply(fleet, manifest, edits)
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None

    async def _watch_file(self, data: Contents, edits: _Edits) -> None:
        name, readable = self.path.name, True
        async for found in changes(self.path, data):
            if isinstance(found, bytes):
                if not readable:
                    self._report(f"{name} can be read again")
                edits.add(found)
            else:
                self._report(f"{name} cannot be read: {found}; the fleet stays as it was")
            readable = isinstance(found, bytes)

    async def _apply(self, fleet: LocalFleet, running: Manifest, edits: _Edits) -> Manifest:
        """Wait for an edit and apply it; the manifest that runs afterwards, which is `running` after a failure."""
        data = await edits.next()
        try:
            wanted = self.parse(data)
            if _kind(wanted) != _kind(running):
                name = "/".join(running.identity)
                message = f"metadata.name: {name} runs; stop it to run another service or gateway"
                raise ManifestFaults([FileFault(file=str(self.path), message=message)])
        except ManifestFaults as error:
            print_faults(error.faults)
            self._report("the file is invalid; the fleet stays as it was")
            return running
        if wanted == running:
            return running
        self._warn(wanted)
        try:
            await fleet.apply(wanted, superseded=edits.arrived)
        except Superseded as reason:
            self._report(f"edit cancelled: {reason}")
            return running
        except FleetError as error:
            print_error(error)
            self._report("the edit was not applied; the fleet stays as it was")
            return running
        self._report(f"{self.path.name} applied: {edited(running, wanted)}")
        return wanted

    @contextmanager
    def _signals(self, work: asyncio.Task[None]) -> Iterator[Callable[[], int]]:
        """The first signal stops the fleet, the second kills it; yields the number of signals."""
        seen: list[int] = []

        def on_signal() -> None:
            seen.append(1)
            if len(seen) == 1:
                self._report(
                    "stopping: the router finishes its requests first; a second Ctrl-C kills"
                )
                work.cancel()
            elif self._fleet is not None:
                self._fleet.kill()

        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, on_signal)
        try:
            yield lambda: len(seen)
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _report(self, text: str) -> None:
        clock = time.strftime("%H:%M:%S")
        self.console.print(f"[dim]{clock}[/] {escape(text)}", highlight=False, soft_wrap=True)

    def _warn(self, manifest: Manifest) -> None:
        for warning in manifest.warnings:
            print_note(self.console, warning)


def _kind(manifest: Manifest) -> tuple[bool, tuple[str, str]]:
    """What does not change while a fleet runs."""
    return manifest.gateway is None, manifest.identity


_Routed = TypeVar("_Routed", FairInferenceService, FairInferenceGateway)


def _traced(resource: _Routed, tracing: TracingConfig) -> _Routed:
    """A resource whose routers trace so."""
    spec: Any = resource.spec
    changed: _Routed = replace(
        resource, spec=replace(spec, router=replace(spec.router, tracing=tracing))
    )
    return changed
