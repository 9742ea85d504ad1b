"""Starts processes that end with `evenkeel up`, and records which are running."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from evenkeel_cli.up.record import FleetRecord, ProcessRecord
from evenkeel_cli.up.state import StateFolder, started_s

_TAIL_BYTES: Final = 8192
_OF_THIS_INTERPRETER: Final = ("PYTHONPATH", "PYTHONHOME")
MAX_LOG_BYTES: Final = 16 * 1024 * 1024
"""Longest log of one process. A longer log is moved to `….log.1` and starts empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one process of the fleet runs."""

    name: str
    """Name of the process, unique in the fleet; its log has this name."""
    module: str
    arguments: tuple[str, ...]
    probe_url: str
    """URL that answers 200 once the process is ready."""
    interpreter: str = sys.executable
    """The Python that has the module. Another interpreter than this one does not inherit PYTHONPATH and PYTHONHOME."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to the environment of this process."""
    start_limit_s: float = 60.0
    """Time in which the process must become ready; otherwise it is killed. The default allows for slow imports on a
    busy machine."""


@dataclass(slots=True, eq=False)
class Child:
    """One running process."""

    program: Program
    process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal if the process still runs; SIGKILL also goes to its descendants."""
        if self.process.returncode is not None:
            return
        if number is signal.SIGKILL:
            _kill_group(self.pid)
        else:
            self.process.send_signal(number)


@dataclass(slots=True)
class Launcher:
    """The processes of one run. `close` closes the pipe whose end makes every child terminate (`child`)."""

    folder: StateFolder
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    _pipe: tuple[int, int] = field(default_factory=os.pipe)
    _alive: dict[int, ProcessRecord] = field(default_factory=dict)
    _logged: set[str] = field(default_factory=set)

    async def launch(self, program: Program) -> Child:
        """Start a process in its own session, so that Ctrl-C in the terminal reaches this process only."""
        reading, _ = self._pipe
        with self._log(program.name).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                program.interpreter,
                "-m",
                "evenkeel_cli.up.child",
                str(reading),
                self.run,
                program.module,
                *program.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(program),
                pass_fds=(reading,),
                start_new_session=True,
            )
        started = started_s(process.pid) or 0.0
        self._alive[process.pid] = ProcessRecord(program.name, process.pid, started)
        self._write()
        return Child(program, process)

    def ended(self, child: Child) -> None:
        """Remove an ended process from the record, and kill its children (an engine's scheduler)."""
        _kill_group(child.pid)
        self._alive.pop(child.pid, None)
        self._write()

    def tail(self, name: str, lines: int = 8) -> str:
        """The last lines of a process's log."""
        path = self.folder.log_of(name)
        try:
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def bound_log(self, name: str) -> None:
        """Move the log of a process to `….log.1` once it is longer than `MAX_LOG_BYTES`.

        The process has the file open for appending, so it is copied and emptied; lines written in between are lost.
        """
        path = self.folder.log_of(name)
        with suppress(OSError):  # a full disk, for example, must not stop the fleet
            if path.stat().st_size > MAX_LOG_BYTES:
                shutil.copyfile(path, self.folder.old_log_of(name))
                os.truncate(path, 0)

    def close(self) -> None:
        """Close the pipe."""
        for end in self._pipe:
            os.close(end)

    def _log(self, name: str) -> Path:
        """The log of one run: the first start empties it."""
        path = self.folder.log_of(name)
        if name not in self._logged:
            self._logged.add(name)
            path.unlink(missing_ok=True)
            self.folder.old_log_of(name).unlink(missing_ok=True)
        return path

    def _write(self) -> None:
        self.folder.write(FleetRecord(self.run, tuple(self._alive.values())))


def _environment(program: Program) -> dict[str, str]:
    inherited = dict(os.environ)
    if program.interpreter != sys.executable:
        for name in _OF_THIS_INTERPRETER:
            inherited.pop(name, None)
    return {**inherited, **program.environment}


def _kill_group(leader: int) -> None:
    """Every child leads its own process group; the system reuses the group's id only after its last member ended."""
    with suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for zombies
        os.killpg(leader, signal.SIGKILL)
