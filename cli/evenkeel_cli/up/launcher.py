"""Starts processes that cannot outlive the supervisor, and writes down which are alive."""

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

from evenkeel_cli.up.state import FleetRecord, ProcessRecord, StateFolder, started_s

_TAIL_BYTES: Final = 8192
_OF_THIS_INTERPRETER: Final = ("PYTHONPATH", "PYTHONHOME")
MAX_LOG_BYTES: Final = 16 * 1024 * 1024
"""Of one log; beyond it, it begins anew and what it held is `….log.1`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one process of the fleet runs."""

    name: str
    """Unique in the fleet; names the log."""
    module: str
    arguments: tuple[str, ...]
    probe_url: str
    """Answers 200 once the process is ready."""
    interpreter: str = sys.executable
    """The Python that has the module; another one sees none of what this one was told of where modules are."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of this process's."""
    start_limit_s: float = 60.0
    """When it is taken for stuck. Importing on a busy machine is slow; nothing of ours takes longer."""


@dataclass(slots=True, eq=False)
class Child:
    """One running process."""

    program: Program
    process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if there is still somebody to get it; a kill takes its descendants too."""
        if self.process.returncode is not None:
            return
        if number is signal.SIGKILL:
            _kill_group(self.pid)
        else:
            self.process.send_signal(number)


@dataclass(slots=True)
class Launcher:
    """One run's processes. Closing it lets the kernel tell every child to end (`child`)."""

    folder: StateFolder
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    _pipe: tuple[int, int] = field(default_factory=os.pipe)
    _alive: dict[int, ProcessRecord] = field(default_factory=dict)
    _logged: set[str] = field(default_factory=set)

    async def launch(self, program: Program) -> Child:
        """Start a process in a session of its own, so that a terminal's Ctrl-C reaches only us."""
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
        self._remember(ProcessRecord(program.name, process.pid, started_s(process.pid) or 0.0))
        return Child(program, process)

    def ended(self, child: Child) -> None:
        """Forget a process that is gone. What it started and left behind (an engine's scheduler, say) goes too."""
        _kill_group(child.pid)
        self._alive.pop(child.pid, None)
        self._write()

    def tail(self, name: str, lines: int = 8) -> str:
        """The end of a process's log, for a person."""
        path = self.folder.log_of(name)
        try:
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def bound_log(self, name: str) -> None:
        """Keep a process's log within bounds, however long and much it writes.

        Copied and emptied, as the process has it open to append; lines that it writes in between are lost.
        """
        path = self.folder.log_of(name)
        with suppress(OSError):  # no room for a copy, say: a log is not worth a fleet
            if path.stat().st_size > MAX_LOG_BYTES:
                shutil.copyfile(path, self.folder.old_log_of(name))
                os.truncate(path, 0)

    def close(self) -> None:
        """Let go of the lifeline."""
        for end in self._pipe:
            os.close(end)

    def _log(self, name: str) -> Path:
        """A log holds one run: the first start empties it."""
        path = self.folder.log_of(name)
        if name not in self._logged:
            self._logged.add(name)
            path.unlink(missing_ok=True)
            self.folder.old_log_of(name).unlink(missing_ok=True)
        return path

    def _remember(self, record: ProcessRecord) -> None:
        self._alive[record.pid] = record
        self._write()

    def _write(self) -> None:
        self.folder.write(FleetRecord(self.run, tuple(self._alive.values())))


def _environment(program: Program) -> dict[str, str]:
    inherited = dict(os.environ)
    if program.interpreter != sys.executable:
        for name in _OF_THIS_INTERPRETER:
            inherited.pop(name, None)
    return {**inherited, **program.environment}


def _kill_group(leader: int) -> None:
    """A child leads a group of its own; while a member lives, nobody else can get the group's id."""
    with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of zombies
        os.killpg(leader, signal.SIGKILL)
