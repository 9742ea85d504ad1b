"""The files of a running fleet, from which the next run finds the processes that a killed run left behind.

Each service has a folder, `.evenkeel/<namespace>.<name>/`. It contains `lock` (locked while `evenkeel up` runs),
`state.json` (the processes), `router.json` (the configuration of a router; one file each), `ledger` for the store File,
and one log per process. A leftover process is ended only if its process id, its start time and the run id in its
command line all match the record.
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

from evenkeel_cli.up.errors import FleetError
from evenkeel_cli.up.record import FleetRecord, ProcessRecord, read_record

_SAME_START_S: Final = 2.0  # start times come from clock ticks and a boot time that is rounded


@dataclass(slots=True)
class StateFolder:
    """The folder of one service; use `open` and `close`."""

    path: Path
    _lock: int

    @classmethod
    def open(cls, root: Path, service: str) -> Self:
        """Create and lock the folder; raises `FleetError`."""
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
            raise FleetError(
                f"another `evenkeel up` uses {path}; stop it, or give this fleet another folder with "
                f"--state-dir"
            ) from error
        return cls(path, lock)

    def close(self) -> None:
        """Unlock the folder; it keeps its logs."""
        os.close(self._lock)

    def router_config(self, name: str) -> Path:
        """The configuration file of a router."""
        return self.path / f"{name}.json"

    @property
    def ledger(self) -> Path:
        """The ledger of the store File; it outlives the run."""
        return self.path / "ledger"

    def recording_of(self, name: str) -> Path:
        """The recording of a router; it outlives the run."""
        return self.path / f"{name}.recording.jsonl"

    def revocations_of(self, name: str) -> Path:
        """What a router knows of revoked keys; it outlives the run."""
        return self.path / f"{name}.revocations.json"

    def log_of(self, name: str) -> Path:
        """The output of a process."""
        return self.path / f"{name}.log"

    def old_log_of(self, name: str) -> Path:
        """Earlier output of a process, moved there when its log grew too long."""
        return self.path / f"{name}.log.1"

    def write(self, record: FleetRecord) -> None:
        """Record the processes of this run."""
        replace_file(self.path / "state.json", msgspec.json.encode(record))

    def forget(self) -> None:
        """Remove the record: the run ended in order and left no process behind."""
        (self.path / "state.json").unlink(missing_ok=True)

    def read(self) -> FleetRecord | None:
        """The record of an earlier run that did not end in order; None without a valid one."""
        return read_record(self.path)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in one step: a reader sees the old contents or the new, never a part."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(data)
    temporary.replace(path)


def started_s(pid: int) -> float | None:
    """When a process started, in seconds since the epoch; None if it has ended."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def leftovers(record: FleetRecord) -> list[tuple[ProcessRecord, psutil.Process]]:
    """The processes of an earlier run that still run and match their record."""
    found = ((process, _verified(process, record.run)) for process in record.processes)
    return [(process, running) for process, running in found if running is not None]


def _verified(record: ProcessRecord, run: str) -> psutil.Process | None:
    try:
        process = psutil.Process(record.pid)
        same_start = abs(process.create_time() - record.started_s) < _SAME_START_S
        if same_start and run in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
            return process
    except psutil.Error:  # it has ended, or another user's process has its id
        pass
    return None


def end(processes: Iterable[psutil.Process], grace_s: float) -> None:
    """Ask processes to end, and kill those that still run after `grace_s`."""
    remaining = list(processes)
    for process in remaining:
        _signal(process.terminate)
    _, remaining = psutil.wait_procs(remaining, timeout=grace_s)
    # Listed before the first one is killed: an orphan no longer shows its parent.
    for process in [*descendants(remaining), *remaining]:
        _signal(process.kill)
    psutil.wait_procs(remaining, timeout=grace_s)


def descendants(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """All running descendants of processes."""
    found: list[psutil.Process] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found += process.children(recursive=True)
    return found


def _signal(send: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):  # it may have ended in the meantime
        send()
