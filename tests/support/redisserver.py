"""A real Redis or Valkey for tests, in a process of its own, on a Unix socket or a port."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.sockets import socket_folder

BINARY = shutil.which("redis-server") or shutil.which("valkey-server")
PATIENCE_S = 20.0

needs_redis = pytest.mark.skipif(
    BINARY is None, reason="no redis-server or valkey-server here (make tools installs one)"
)


class RedisServer:
    """One server. Its data outlives it in `folder` if it appends."""

    def __init__(self, folder: Path, *, append: bool = True) -> None:
        self._folder = folder
        self._append = append
        self._process: asyncio.subprocess.Process | None = None
        self._sockets = socket_folder()
        self.socket = Path(self._sockets.name) / "redis.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    async def start(self, *options: str) -> None:
        """Start it and wait until it answers."""
        assert BINARY is not None
        append = ("--appendonly", "yes", "--appendfsync", "always") if self._append else ()
        self._process = await asyncio.create_subprocess_exec(
            BINARY, "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self._folder),
            "--save", "", *append, *options,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_S):
            while not await _answers(self.socket):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.01)

    async def kill(self) -> None:
        """As `kill -9` does."""
        await self._end(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def stop(self) -> None:
        """End it, if it runs, stopped or not."""
        if self._process is not None and self._process.returncode is None:
            await self._end(signal.SIGKILL)
        self._sockets.cleanup()

    async def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        await self._process.wait()


async def _answers(socket: Path) -> bool:
    """Whether it takes commands, a password or not."""
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return False
    writer.write(b"PING\r\n")
    line = await reader.readline()
    writer.close()
    return line.startswith((b"+PONG", b"-NOAUTH"))


@asynccontextmanager
async def redis_server(folder: Path, *, append: bool = True) -> AsyncIterator[RedisServer]:
    """A server that runs while the context is open."""
    server = RedisServer(folder, append=append)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
