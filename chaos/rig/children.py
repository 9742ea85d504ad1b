"""Processes that are started, killed, frozen and thawed. Nothing survives the rig: `Children.close` kills all."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import psutil

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("fairshare", "contract", "kube", "simulator", "router", "cli", "")
PATIENCE_S: Final = 120.0  # for steps that are fast on an idle machine; never a measurement


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a process: its address, and the prefix of its command line."""

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


@dataclass(slots=True, eq=False, kw_only=True)
class Child(ABC):
    """A program that may be started again and again."""

    name: str
    log: Path
    ready_url: str
    place: Place = field(default_factory=Place)
    environment: Mapping[str, str] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None
    starts: int = 0

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command line of the next start."""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it answers."""
        assert not self.alive
        self.starts += 1
        path = os.pathsep.join(str(ROOT / package) for package in PACKAGES)
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.place.prefix, sys.executable, *self.command(),
                env=os.environ | {"PYTHONPATH": path} | dict(self.environment), cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        if wait:
            await self.ready()

    async def ready(self) -> None:
        """Wait until it answers 200."""
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    if not self.alive:
                        raise AssertionError(f"{self.name} ended:\n{self.tail()}")
                    try:
                        if (await client.get(self.ready_url)).status_code == 200:
                            return
                    except httpx.HTTPError:
                        pass  # not yet
                    await asyncio.sleep(0.05)

    async def kill(self) -> None:
        """kill -9."""
        await self._end(signal.SIGKILL)

    async def end(self) -> None:
        """Send SIGTERM: the process finishes its requests."""
        await self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: the process exists and does not respond."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def memory_bytes(self) -> int:
        """Its resident memory."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def _end(self, number: signal.Signals) -> None:
        if self.alive:
            self._send(number)
            assert self.process is not None
            async with asyncio.timeout(PATIENCE_S):
                await self.process.wait()
