"""What a running fleet leaves on disk, so that the next run finds what a killed one left behind.

A folder per service, `.evenkeel/<namespace>.<name>/`: `lock` (held while a supervisor lives), `state.json` (its
processes), `router.json` (what the router is told; a file for each), perhaps `ledger`, and a log per process. A leftover is ended only when its
process id, its start time and the run id in its command line are all as written down.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec
import psutil

from evenkeel_cli.up.errors import AlreadyRunning, FleetError

_SAME_START_S: Final = 2.0  # start times come from clock ticks and a boot time that is rounded


class ProcessRecord(msgspec.Struct, frozen=True):
    """One process as the supervisor saw it start."""

    name: str
    pid: int
    started_s: float
    """Seconds since the epoch."""


class FleetRecord(msgspec.Struct, frozen=True):
    """The processes of one run."""

    run: str
    """Unique to the run; stands in every command line."""
    processes: tuple[ProcessRecord, ...]


@dataclass(slots=True)
class StateFolder:
    """The folder of one service; use `open` and `close`."""

    path: Path
    _lock: int

    @classmethod
    def open(cls, root: Path, service: str) -> Self:
        """Take the folder; raises `AlreadyRunning` or `FleetError`."""
        path = root / service
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FleetError(f"{error.filename or path}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise AlreadyRunning(
                f"{path} belongs to a fleet that is running; stop it, or give this one a folder "
                f"of its own with --state-dir"
            ) from error
        return cls(path, lock)

    def close(self) -> None:
        """Give the folder back; it stays, with its logs."""
        os.close(self._lock)

    def router_config(self, name: str) -> Path:
        """What a router is told."""
        return self.path / f"{name}.json"

    @property
    def ledger(self) -> Path:
        """The ledger, where a file keeps it: it outlives the run."""
        return self.path / "ledger"

    def log_of(self, name: str) -> Path:
        """What a process says."""
        return self.path / f"{name}.log"

    def old_log_of(self, name: str) -> Path:
        """What it said before its log grew too long."""
        return self.path / f"{name}.log.1"

    def write(self, record: FleetRecord) -> None:
        """Remember the processes of this run."""
        replace_file(self.path / "state.json", msgspec.json.encode(record))

    def forget(self) -> None:
        """The run ended in order: nothing is left behind."""
        (self.path / "state.json").unlink(missing_ok=True)

    def read(self) -> FleetRecord | None:
        """What an earlier run wrote and never removed; None where there is nothing, or nothing readable."""
        try:
            return msgspec.json.decode((self.path / "state.json").read_bytes(), type=FleetRecord)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(data)
    temporary.replace(path)


def started_s(pid: int) -> float | None:
    """When a process started, in seconds since the epoch; None when it is gone."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def leftovers(record: FleetRecord) -> list[tuple[ProcessRecord, psutil.Process]]:
    """The processes of an earlier run that are still there and beyond doubt the ones written down."""
    found = ((process, _verified(process, record.run)) for process in record.processes)
    return [(process, running) for process, running in found if running is not None]


def _verified(record: ProcessRecord, run: str) -> psutil.Process | None:
    try:
        process = psutil.Process(record.pid)
        same_start = abs(process.create_time() - record.started_s) < _SAME_START_S
        if same_start and run in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
            return process
    except psutil.Error:  # gone, or another user's: not ours to end
        pass
    return None


def end(processes: Iterable[psutil.Process], grace_s: float) -> None:
    """Ask processes to end, and kill those that have not after `grace_s`."""
    remaining = list(processes)
    for process in remaining:
        _signal(process.terminate)
    _, remaining = psutil.wait_procs(remaining, timeout=grace_s)
    for process in [*descendants(remaining), *remaining]:
        _signal(process.kill)
    psutil.wait_procs(remaining, timeout=grace_s)


def descendants(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """What processes have started and is still there."""
    found: list[psutil.Process] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found += process.children(recursive=True)
    return found


def _signal(send: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):  # it may have ended by itself in between
        send()
