"""Keeps one program running: starts it, waits until it is ready, probes it, and restarts it when it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from evenkeel_cli.up.errors import FleetError
from evenkeel_cli.up.launcher import Child, Launcher, Program

Probe = Callable[[str], Awaitable[int | None]]
"""The status that an address answers with; None without an answer. Never raises."""
Report = Callable[[str], None]
"""Shows the user one line about the fleet."""

_OK: Final = 200
_REPORT_EVERY_S: Final = 10.0  # while it is not ready yet
_STARTING_S: Final = 0.1  # between probes until it is ready
_MISSES: Final = 15  # unanswered probes in a row until the process is killed
_FIRST_BACKOFF_S: Final = 0.25
_LAST_BACKOFF_S: Final = 30.0
_TRIES: Final = 2  # another process may take a port between its choice and its use, hardly twice
_LOG_CHARS: Final = 100  # of the last line of a log
_STEADY_S: Final = 60.0  # a process that ran this long restarts without back-off


class ProcessSupervisor:
    """Keeps one program running. `make` gives the program for every start, so that ports may change."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Program],
        *,
        launcher: Launcher,
        probe: Probe,
        report: Report,
        probe_every_s: float = 1.0,
    ) -> None:
        self.name = name
        self.program = make()
        self.ready = asyncio.Event()
        self.restarts = 0
        self._make = make
        self._launcher = launcher
        self._probe = probe
        self._report = report
        self._probe_every_s = probe_every_s
        self._child: Child | None = None
        self._stopping = asyncio.Event()
        self._failed = asyncio.Event()
        self._task = asyncio.create_task(self._keep_running(), name=f"keep {name} running")

    @property
    def pid(self) -> int | None:
        """Id of the current process; None between two processes."""
        return self._child.pid if self._child else None

    async def get_ready(self) -> None:
        """Return when the process is ready for the first time; raise `FleetError` when it fails twice."""
        limit_s = self.program.start_limit_s
        waits = [asyncio.create_task(event.wait()) for event in (self.ready, self._failed)]
        try:
            await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not self.ready.is_set():
            why = (
                "ended when it started" if self._failed.is_set() else f"not ready in {limit_s:g} s"
            )
            log = self._launcher.folder.log_of(self.name)
            raise FleetError(f"{self.name}: {why}; {log} ends:\n{self._launcher.tail(self.name)}")

    async def stop(self, grace_s: float) -> None:
        """Ask the process to end; kill it if it has not ended after `grace_s`."""
        self._stopping.set()
        if self._child is not None:
            self._child.send(signal.SIGTERM)
        done, _ = await asyncio.wait([self._task], timeout=grace_s)
        if not done:
            self._report(f"{self.name}: did not end within {grace_s:g} s; killed")
            self.kill()
            await asyncio.wait([self._task])

    def kill(self) -> None:
        """End the process at once; it is not restarted."""
        self._stopping.set()
        if self._child is not None:
            self._child.send(signal.SIGKILL)

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._stopping.is_set():
            began_s = loop.time()
            code = await self._run_once()
            if self._stopping.is_set():
                break
            # After a long run this is its first failure, not one more of a program that cannot start.
            failures = 1 if loop.time() - began_s >= _STEADY_S else failures + 1
            if failures >= _TRIES:
                self._failed.set()
            delay_s = backoff_s(failures)
            self._report(f"{self.name}: {_ending(code)}; restarts in {delay_s:g} s")
            self.restarts += 1
            try:
                await asyncio.wait_for(self._stopping.wait(), delay_s)
            except TimeoutError:
                self.program = self._make()

    async def _run_once(self) -> int:
        """Run one process to its end; its exit code, negative for a signal."""
        child = await self._launcher.launch(self.program)
        self._child = child
        self._report(f"{self.name}: started (process {child.pid})")
        if self._stopping.is_set():  # stop or kill was called during the launch
            child.send(signal.SIGTERM)
        watch = asyncio.create_task(self._watch(child))
        try:
            return await child.process.wait()
        finally:
            watch.cancel()
            self.ready.clear()
            self._child = None
            self._launcher.ended(child)

    async def _watch(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        limit_s, reports = child.program.start_limit_s, 0
        while await self._probe(child.program.probe_url) != _OK:
            gone_s = loop.time() - began_s
            if gone_s > limit_s:
                self._report(f"{self.name}: not ready in {limit_s:g} s; killed")
                child.send(signal.SIGKILL)
                return
            if gone_s // _REPORT_EVERY_S > reports:
                reports = int(gone_s // _REPORT_EVERY_S)
                self._report(f"{self.name}: starting for {gone_s:.0f} s{self._last_log_line()}")
            await asyncio.sleep(_STARTING_S)
        self.ready.set()
        if self.restarts:
            self._report(f"{self.name}: ready again (process {child.pid})")
        misses = 0
        while misses < _MISSES:
            await asyncio.sleep(self._probe_every_s)
            # Any status counts as alive: a router without replicas answers 503 and works.
            answered = await self._probe(child.program.probe_url) is not None
            misses = 0 if answered else misses + 1
            self._launcher.bound_log(self.name)
        if not self._stopping.is_set():
            self._report(f"{self.name}: did not answer {_MISSES} probes in a row; killed")
            child.send(signal.SIGKILL)

    def _last_log_line(self) -> str:
        """The last line of the process's log, which shows its progress."""
        last = self._launcher.tail(self.name, lines=1).strip()
        return f"; its log: {last[:_LOG_CHARS]}" if last else ""


def backoff_s(failures: int) -> float:
    """Time to wait before the next start, after that many failures in a row (>= 1)."""
    # The exponent has a bound, because 2.0 ** 1024 overflows.
    return min(_FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 30), _LAST_BACKOFF_S)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
