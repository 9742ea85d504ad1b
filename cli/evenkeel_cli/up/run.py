"""`evenkeel up`: run a file's fleet until told to stop, and follow the file while it changes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from evenkeel_contract.routerconfig import ListenConfig
from rich.console import Console
from rich.markup import escape

from evenkeel_cli.manifest import Manifest, ManifestFaults, parse_manifest
from evenkeel_cli.up.banner import banner
from evenkeel_cli.up.errors import FleetError
from evenkeel_cli.up.fleet import Fleet, running_fleet
from evenkeel_cli.up.sglang import Engines
from evenkeel_cli.up.watch import changes

FAULTY = 2
"""Exit status for a file that cannot be run."""


def up(
    path: Path, *, listen: ListenConfig, engines: Engines, state_root: Path, console: Console
) -> int:
    """Run until stopped; the exit status."""
    try:
        data = path.read_bytes()
        manifest = parse_manifest(data, str(path))
    except OSError as error:
        _faults([f"{path}: cannot be read: {error.strerror}"])
        return FAULTY
    except ManifestFaults as error:
        _faults(error.lines)
        return FAULTY
    run = _Run(path, listen=listen, engines=engines, state_root=state_root, console=console)
    return asyncio.run(run.until_stopped(manifest, data))


class _Run:
    """One run of the command."""

    def __init__(
        self,
        path: Path,
        *,
        listen: ListenConfig,
        engines: Engines,
        state_root: Path,
        console: Console,
    ) -> None:
        self._path = path
        self._listen = listen
        self._engines = engines
        self._state_root = state_root
        self._console = console
        self._fleet: Fleet | None = None

    async def until_stopped(self, manifest: Manifest, data: bytes) -> int:
        """The exit status: 0 after an orderly stop, 1 when the fleet could not run, 130 when killed."""
        work = asyncio.create_task(self._work(manifest, data))
        with self._signals(work) as count:
            try:
                await work
            except asyncio.CancelledError:
                self._say("stopped" if count() < 2 else "killed")
                return 0 if count() < 2 else 130
            except FleetError as error:
                _error(str(error))
            except OSError as error:
                where = error.filename or self._path
                _error(f"{where}: {error.strerror}")
        return 1

    async def _work(self, manifest: Manifest, data: bytes) -> None:
        self._warn(manifest)
        async with running_fleet(
            manifest,
            listen=self._listen,
            engines=self._engines,
            state_root=self._state_root,
            say=self._say,
        ) as fleet:
            self._fleet = fleet
            self._console.print(banner(manifest, fleet), highlight=False, soft_wrap=True)
            name, readable = self._path.name, True
            async for found in changes(self._path, data):
                if isinstance(found, bytes):
                    if not readable:
                        self._say(f"{name} is back")
                    manifest = await self._follow(fleet, manifest, found)
                else:
                    self._say(f"{name} cannot be read: {found}; the fleet runs on as it was")
                readable = isinstance(found, bytes)

    async def _follow(self, fleet: Fleet, running: Manifest, data: bytes) -> Manifest:
        """Apply a changed file; the manifest that runs afterwards, the old one where that failed."""
        try:
            wanted = parse_manifest(data, str(self._path))
            if _identity(wanted) != _identity(running):
                name = "/".join(_identity(running))
                raise ManifestFaults(
                    [f"{self._path}: metadata.name: {name} runs; stop it to run another service"]
                )
        except ManifestFaults as error:
            _faults(error.lines)
            self._say("the file has faults; the fleet runs on as it was")
            return running
        if wanted == running:
            return running
        self._warn(wanted)
        try:
            await fleet.apply(wanted)
        except FleetError as error:
            _error(str(error))
            self._say("the change was not made; the fleet runs on as it was")
            return running
        self._say(f"{self._path.name} applied")
        return wanted

    @contextmanager
    def _signals(self, work: asyncio.Task[None]) -> Iterator[Callable[[], int]]:
        """The first signal stops, the second kills; yields a counter of them."""
        seen: list[int] = []

        def on_signal() -> None:
            seen.append(1)
            if len(seen) == 1:
                self._say("stopping: the router drains first; Ctrl-C again kills")
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

    def _say(self, text: str) -> None:
        clock = time.strftime("%H:%M:%S")
        self._console.print(f"[dim]{clock}[/] {escape(text)}", highlight=False, soft_wrap=True)

    def _warn(self, manifest: Manifest) -> None:
        for warning in manifest.warnings:
            note = f"[yellow]note[/]: {escape(warning)}"
            self._console.print(note, highlight=False, soft_wrap=True)


def _identity(manifest: Manifest) -> tuple[str, str]:
    return manifest.service.metadata.namespace, manifest.service.metadata.name


def _faults(lines: Iterable[str]) -> None:
    """As `file:line: …`, which editors and terminals make a link of."""
    console = Console(stderr=True)
    for line in lines:
        console.print(escape(line), style="red", highlight=False, soft_wrap=True)


def _error(text: str) -> None:
    console = Console(stderr=True)
    console.print(f"[red]error[/]: {escape(text)}", highlight=False, soft_wrap=True)
